"""One estimate for people: verdict, a bar per phase, the components at the peak, host, disk and time."""

from collections.abc import Iterator, Mapping, Sequence

import click

from vlmplan.estimate import Estimate
from vlmplan.hardware import Vendor
from vlmplan.memory.components import Components
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Offload, Recipe
from vlmplan.render.bars import bar, legend
from vlmplan.render.lines import picture_width, say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import count_text, counted, duration_text, gib_text

VERDICTS = {
    Verdict.FITS: ("fits", "green"),
    Verdict.TIGHT: ("tight", "yellow"),
    Verdict.DOES_NOT_FIT: ("does not fit", "red"),
}


def print_estimate(estimate: Estimate, notes: Sequence[str] = ()) -> None:
    """Print everything that an estimate knows to standard output; ``notes`` are about the hardware."""
    say(heading(estimate))
    say(verdict_line(estimate))
    for hint in estimate.hints:
        say(hint)
    click.echo()
    print_memory(estimate)
    click.echo()
    _print_components(estimate)
    click.echo()
    for line in (*_host_and_disk(estimate), *_time(estimate), *_assumed(estimate, notes)):
        say(line)


def heading(estimate: Estimate) -> str:
    """Model, recipe and hardware in one line."""
    params, trained = count_text(estimate.num_params), count_text(estimate.num_trainable_params)
    hardware = hardware_text(estimate)
    model = f"{estimate.workload.model.id}: {params} parameters, {trained} trained"
    return f"{model}; {recipe_text(estimate.recipe)}; {hardware}"


def hardware_text(estimate: Estimate) -> str:
    node = estimate.cluster.node
    nodes = f"{estimate.cluster.num_nodes} nodes of " if estimate.cluster.num_nodes > 1 else ""
    return f"{nodes}{node.num_gpus} x {node.gpu.name}"


def recipe_text(recipe: Recipe) -> str:
    """A recipe in a few words: what differs from plain choices."""
    words = [recipe.method.value]
    if recipe.trains_adapters:
        words[0] += f" r{recipe.lora_rank}"
    words += [recipe.precision.value, engine_text(recipe)]
    if recipe.optimizer.value != "adamw":
        words.append(recipe.optimizer.value)
    words.append(f"micro batch {recipe.micro_batch} x {recipe.grad_accum}")
    words.append("checkpointing" if recipe.activation_checkpointing else "no checkpointing")
    return ", ".join(words)


def engine_text(recipe: Recipe) -> str:
    """Plain PyTorch or the ZeRO stage, copies of weights among neighbours, and what is offloaded."""
    if recipe.zero_stage is None:
        return "plain PyTorch"
    text = f"ZeRO-{recipe.zero_stage}"
    if recipe.hpz > 1:
        text += f", hpZ {recipe.hpz}"
    if recipe.offload_optimizer is not Offload.NONE:
        text += f", optimizer on {recipe.offload_optimizer.value}"
    if recipe.offload_params is not Offload.NONE:
        text += f", weights on {recipe.offload_params.value}"
    return text


def verdict_line(estimate: Estimate) -> str:
    word, colour = VERDICTS[estimate.verdict]
    text = click.style(word, fg=colour, bold=True)
    device = estimate.device
    line = (
        f"{text}: {gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)} usable on each GPU, "
        f"{gib_text(abs(device.free_bytes))} {'free' if device.free_bytes >= 0 else 'short'}; "
        f"'fits' keeps {gib_text(device.reserve_bytes)} free"
    )
    if not device.runs and device.free_bytes >= 0:
        line += "; torch's allocator runs out although the tensors would fit: try --expandable-segments"
    if estimate.host_is_short:
        node = estimate.cluster.node
        whose = "" if node.host_ram_source is None else f" ({node.host_ram_source})"
        needed = gib_text(estimate.host.peak_bytes)
        line += f"; the host{whose} has {gib_text(node.host_ram_bytes or 0)} of the {needed} that it needs"
    return line


def print_memory(estimate: Estimate) -> None:
    """Each phase with what is live after it, its peak, and a bar of the peak's components."""
    phases = estimate.timeline.phases
    limit = estimate.device.usable_bytes
    rows = [("phase", "after", "peak")]
    rows += [(phase.name, gib_text(phase.resident.total), gib_text(phase.peak.total)) for phase in phases]
    names, residents, peaks = (max(len(row[i]) for row in rows) for i in range(3))
    texts = [f"{name:{names}}  {resident:>{residents}}  {peak:>{peaks}}  " for name, resident, peak in rows]
    width = picture_width()
    num_cells = width - len(texts[0]) - len("|")
    bytes_per_cell = max(limit, *(phase.peak.total for phase in phases)) / num_cells
    titles = (f"at the peak (| {gib_text(limit)} usable)", f"| {gib_text(limit)}", "")
    click.echo(texts[0] + next(title for title in titles if len(texts[0] + title) <= width))
    for phase, text in zip(phases, texts[1:], strict=True):
        click.echo(text + bar(phase.peak.as_json(), limit_bytes=limit, bytes_per_cell=bytes_per_cell))
    shown = [name for name in Components().as_json() if any(_has(phase.peak, name) for phase in phases)]
    click.echo(legend(shown, width))


def _has(components: Components, name: str) -> bool:
    return getattr(components, name) > 0


def _print_components(estimate: Estimate) -> None:
    peak = estimate.timeline.peak_phase
    rows = [
        (name.replace("_", " "), gib_text(num_bytes), f"{num_bytes / peak.peak.total:.1%}")
        for name, num_bytes in peak.peak.as_json().items()
        if num_bytes
    ]
    rows.append((f"allocated, at the peak of {peak.name}", gib_text(peak.peak.total), "100.0%"))
    rows += [(name, gib_text(num_bytes), "") for name, num_bytes in _beyond_tensors(estimate) if num_bytes]
    in_all = "process, in all" if _is_on_cpu(estimate) else "device, as nvidia-smi shows it"
    rows.append((in_all, gib_text(estimate.device.device_bytes), ""))
    print_table(
        Table(titles=("on each GPU", "bytes", "share"), rows=rows, number_columns=frozenset(("bytes", "share")))
    )


def _beyond_tensors(estimate: Estimate) -> Iterator[tuple[str, int]]:
    device = estimate.device
    yield "allocator's unused blocks", device.reserved_bytes - device.allocated_bytes
    yield "CUDA context", device.context_bytes
    yield "NCCL", device.nccl_bytes
    yield "Python and libraries", device.process_bytes


def _is_on_cpu(estimate: Estimate) -> bool:
    return estimate.cluster.node.gpu.vendor is Vendor.CPU


def _host_and_disk(estimate: Estimate) -> Iterator[str]:
    disk = estimate.disk
    yield host_line(estimate)
    swap = f", {gib_text(disk.nvme_swap_bytes)} swapped to NVMe" if disk.nvme_swap_bytes else ""
    yield f"disk: {gib_text(disk.checkpoint_bytes)} a checkpoint, {gib_text(disk.export_bytes)} the result{swap}"


def host_line(estimate: Estimate) -> str:
    """What each node's host needs and has."""
    host, ram = estimate.host, estimate.cluster.node.host_ram_bytes
    has = "what it has is not known (--host-ram says it)" if ram is None else f"it has {gib_text(ram)}"
    return (
        f"host RAM per node: {gib_text(host.load_bytes)} while loading, {gib_text(host.steady_bytes)} while training; "
        f"{has}"
    )


def _time(estimate: Estimate) -> Iterator[str]:
    timed = estimate.timed
    if timed is None:
        yield "time: not known for this hardware"
        return
    least, most = duration_text(timed.fast_seconds), duration_text(timed.slow_seconds)
    samples = counted(estimate.samples_per_step, "sample")
    expected = duration_text(timed.expected.total)
    yield f"step: {expected} for {samples} (at best {least}, at worst {most}), bound by {timed.bound}"
    yield f"  its parts: {_shares(timed.expected.as_json())}"
    yield f"  forward, recompute and backward: {_shares(timed.as_json())}"
    yield (
        f"speed: {estimate.samples_per_second:.3g} samples/s, {estimate.tokens_per_second:,.0f} tokens/s; "
        f"{estimate.num_steps:,} steps in {duration_text(estimate.run_seconds or 0)}"
    )


def _shares(seconds: Mapping[str, float]) -> str:
    """What takes at least a thousandth of the time, with its part of it."""
    total = sum(seconds.values())
    shown = {name.replace("_", " "): one / total for name, one in seconds.items() if one >= total / 1000}
    return ", ".join(f"{name} {share:.1%}" for name, share in shown.items())


def _assumed(estimate: Estimate, notes: Sequence[str]) -> Iterator[str]:
    yield f"assumed: {workload_text(estimate)}"
    for note in (*estimate.workload.model.notes, *estimate.cautions, *notes):
        yield f"note: {note}"


def workload_text(estimate: Estimate) -> str:
    """The workload that the numbers are of."""
    workload = estimate.workload
    images = ""
    if workload.images_per_sample:
        size = f"{workload.image_width}x{workload.image_height}"
        images = f" with {counted(workload.images_per_sample, 'image')} of {size}"
    return (
        f"{counted(workload.num_samples, 'sample')} of {workload.seq_len:,} tokens{images}, "
        f"{counted(workload.epochs, 'epoch')}, {counted(estimate.samples_per_step, 'sample')} a step"
    )

"""One estimate for people: verdict, a bar per phase, the components at the peak, host, disk and time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from vlmplan.estimate import Estimate
from vlmplan.hardware import Cluster, Vendor
from vlmplan.memory.components import Components
from vlmplan.memory.device import Verdict
from vlmplan.notes import caveats, footnotes, listed
from vlmplan.recipe import ALL_LINEAR, Method, Offload, Recipe
from vlmplan.render.bars import bar, legend
from vlmplan.render.lines import picture_width, say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import DType, count_text, counted, duration_text, gib_text

SHORT_TYPES = {DType.FLOAT32: "fp32", DType.BFLOAT16: "bf16", DType.FLOAT16: "fp16"}
VERDICTS = {
    Verdict.FITS: ("fits", "green"),
    Verdict.TIGHT: ("tight", "yellow"),
    Verdict.DOES_NOT_FIT: ("does not fit", "red"),
}


def print_estimate(estimate: Estimate, notes: Sequence[str] = (), hints: Sequence[str] = ()) -> None:
    """Print everything that an estimate knows to standard output; ``notes`` are about the hardware, ``hints`` what
    other options would bring."""
    say(heading(estimate), verdict_line(estimate))
    every = [*estimate.workload.model.notes, *estimate.cautions, *notes]
    say(*caveat_lines(every), f"setup: {setup_text(estimate)}")
    say(*estimate.hints, *(f"hint: {hint}" for hint in hints))
    click.echo()
    print_memory(estimate)
    click.echo()
    _print_components(estimate)
    click.echo()
    for line in (*_reserved(estimate), *_host_and_disk(estimate), *_time(estimate), *_assumed(estimate, notes)):
        say(line)


def heading(estimate: Estimate) -> str:
    """The model, what is trained of it, and the hardware in one line."""
    params, trained = count_text(estimate.num_params), count_text(estimate.num_trainable_params)
    model = f"{estimate.workload.model.id}: {params} parameters, {trained} trained{_parts_text(estimate)}"
    return f"{model}; {hardware_text(estimate)}"


def setup_text(estimate: Estimate) -> str:
    """How it is trained: everything that decides bytes and seconds."""
    return recipe_text(estimate.recipe, sees=estimate.workload.images_per_sample > 0)


def _parts_text(estimate: Estimate) -> str:
    """`` in projector and language (vision frozen)``; nothing for a model that is one part."""
    counts = estimate.trained_by_part
    if len(counts) == 1:
        return ""
    trained = [part.value for part, count in counts.items() if count]
    frozen = [part.value for part, count in counts.items() if not count]
    return f" in {listed(trained)}" + (f" ({listed(frozen)} frozen)" if frozen else "")


def caveat_lines(notes: Iterable[str]) -> list[str]:
    """What changes the answer, for the lines under its verdict."""
    return [f"caution: {caveat}" for caveat in caveats(notes)]


def hardware_text(estimate: Estimate) -> str:
    return cluster_text(estimate.cluster)


def cluster_text(cluster: Cluster) -> str:
    """``2 nodes of 8 x H100 SXM``."""
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.node.num_gpus} x {cluster.node.gpu.name}"


def recipe_text(recipe: Recipe, *, sees: bool) -> str:
    """A recipe in a few words: everything that decides memory and time. ``sees``: a vision encoder runs too."""
    words = [_method_text(recipe), precision_text(recipe), engine_text(recipe)]
    if recipe.optimizer.value != "adamw":
        words.append(recipe.optimizer.value)
    words.append(f"micro batch {recipe.micro_batch} x {recipe.grad_accum}")
    words.append(_checkpointing_text(recipe, sees=sees))
    words += [f"{recipe.attention.value} attention", f"{recipe.loss.value} loss"]
    words.append("expandable segments" if recipe.expandable_segments else "native allocator")
    return ", ".join(words)


def _method_text(recipe: Recipe) -> str:
    """``lora r16``, with its targets unless they are all Linears."""
    text = recipe.method.value
    if recipe.trains_adapters:
        text += f" r{recipe.lora_rank}"
        text += "" if recipe.lora_targets == ALL_LINEAR else f" on {recipe.lora_targets}"
        text += " and embeddings" if recipe.train_embeddings else ""
        text += f" with dropout {recipe.lora_dropout:g}" if recipe.lora_dropout else ""
    return text


def precision_text(recipe: Recipe) -> str:
    """The precision, and in which types weights are kept: ``bf16 (bf16 weights, fp32 adapters, autocast)``."""
    trained, master = SHORT_TYPES[recipe.trained_dtype], SHORT_TYPES[recipe.master_dtype]
    words: list[str] = []
    if recipe.method is Method.QLORA:
        words.append(f"4-bit weights, others {SHORT_TYPES[recipe.frozen_dtype]}")
    elif recipe.method is Method.LORA:
        words.append(f"{SHORT_TYPES[recipe.frozen_dtype]} weights")
    words.append(f"{trained} {'adapters' if recipe.trains_adapters else 'weights'}")
    if recipe.train_embeddings and recipe.copy_dtype is not recipe.trained_dtype:
        words.append(f"{SHORT_TYPES[recipe.copy_dtype]} embeddings")
    words += [f"{master} master copy"] if master != trained else []
    words += ["autocast" if recipe.uses_autocast else "no autocast"] if recipe.can_autocast else []
    return f"{recipe.precision.value} ({', '.join(words)})"


def _checkpointing_text(recipe: Recipe, *, sees: bool) -> str:
    """Activation checkpointing, of which part where the two differ."""
    language, vision = recipe.activation_checkpointing, recipe.vision_activation_checkpointing
    if sees and language is not vision:
        return f"checkpointing of {'language' if language else 'vision'} alone"
    return "checkpointing" if language else "no checkpointing"


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


def without_text(estimate: Estimate) -> str:
    """`` without images`` where the model takes them and no number has them."""
    return f" without {listed(estimate.not_counted)}" if estimate.not_counted else ""


def verdict_line(estimate: Estimate) -> str:
    """Whether it fits, and what is left."""
    word, colour = VERDICTS[estimate.verdict]
    text = click.style(f"{word}{without_text(estimate)}", fg=colour, bold=True)
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
    titles = ("on each GPU", "bytes", "share")
    print_table(
        Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), cut_columns=frozenset(titles[:1]))
    )


def _beyond_tensors(estimate: Estimate) -> Iterator[tuple[str, int]]:
    device = estimate.device
    yield "allocator's unused blocks", device.reserved_bytes - device.allocated_bytes
    yield "CUDA context", device.context_bytes
    yield "NCCL", device.nccl_bytes
    yield "Python and libraries", device.process_bytes


def _is_on_cpu(estimate: Estimate) -> bool:
    return estimate.cluster.node.gpu.vendor is Vendor.CPU


def _reserved(estimate: Estimate) -> Iterator[str]:
    """What samples of different lengths do to the native allocator, or how to ask."""
    if estimate.recipe.expandable_segments:
        return
    varying, seq_len = estimate.varying, estimate.workload.seq_len
    if varying is None:
        yield (
            f"reserved for samples that all have {seq_len:,} tokens; torch's native allocator keeps more where lengths "
            f"differ: --sample-lengths vary, or --expandable-segments"
        )
        return
    fixed, most = varying.reserved_range
    yield (
        f"reserved: {gib_text(fixed)} where all samples have {seq_len:,} tokens, {gib_text(most)} after "
        f"{len(varying.lengths)} micro batches of {varying.source}"
    )


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
    for note in footnotes((*estimate.workload.model.notes, *estimate.cautions, *notes)):
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

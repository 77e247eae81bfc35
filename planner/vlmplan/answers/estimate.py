"""One estimate: its document, and for people verdict, a bar per phase, components at the peak, host, disk and time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from vlmplan.answers.evaluation import evaluation_json, evaluation_lines, with_evaluations
from vlmplan.answers.host_and_disk import host_and_disk_json, host_and_disk_lines
from vlmplan.answers.setups import TASK_TITLES, recipe_text
from vlmplan.answers.used_calibration import reference_json, reference_line
from vlmplan.architecture.model import Part
from vlmplan.communication import volume_json
from vlmplan.engines.components import COMPONENT_NAMES
from vlmplan.estimation import Estimate, VaryingLengths
from vlmplan.files.json_reader import JsonDict
from vlmplan.freezing import Freezing
from vlmplan.hardware import cluster_text
from vlmplan.memory.device import Verdict
from vlmplan.memory.replayed_steps import is_replayed
from vlmplan.notes import caveats, footnotes, listed
from vlmplan.render.bars import bar, legend
from vlmplan.render.lines import picture_width, say
from vlmplan.render.tables import Table, print_table
from vlmplan.timing.step import HOST_LAUNCHES
from vlmplan.units import count_text, counted, duration_text, gib_text

SCHEMA = "vlmplan.estimate/1"
VERDICTS = {
    Verdict.FITS: ("fits", "green"),
    Verdict.TIGHT: ("tight", "yellow"),
    Verdict.DOES_NOT_FIT: ("does not fit", "red"),
}


def document(found: Estimate, hardware_notes: Sequence[str] = ()) -> JsonDict:
    """Schema ``vlmplan.estimate/1``; integers are bytes. ``hardware_notes`` come after the notes of the estimate.

    Seconds are of one optimizer step: ``step_seconds`` as expected, ``step_seconds_range`` where everything is at the
    fast or the slow end of what is known of it, ``step_seconds_by_part`` the parts of what is expected (they add up;
    ``generation`` and ``scoring`` are those of GRPO's answers, and there in GRPO alone),
    ``gpu_seconds_by_work`` what forward, recomputation and backward are made of, and ``step_bound_by`` in words what
    takes most of the step. All are null where a speed is not known. ``evaluation`` has the evaluations of the run.
    """
    notes = [*found.workload.model.notes, *found.hints, *found.cautions, *hardware_notes]
    return {
        "schema": SCHEMA,
        **_subject_json(found),
        "verdict": found.verdict.value,
        "not_counted": list(found.not_counted),
        "unquantized_bytes": found.stacked_bytes,
        **_device_json(found),
        **host_and_disk_json(found),
        "flops_per_step": found.flops_per_step,
        "collective_bytes": volume_json(found.collectives),
        **_time_json(found),
        "calibration": reference_json(found.cluster.node.gpu.calibration),
        "caveats": caveats(notes),
        "notes": notes,
    }


def _subject_json(found: Estimate) -> JsonDict:
    """Model, hardware and recipe of the estimate."""
    node, recipe = found.cluster.node, found.recipe
    return {
        "model": {
            "id": found.workload.model.id,
            "num_params": found.num_params,
            "num_trainable_params": found.num_trainable_params,
        },
        "gpu": {
            "id": node.gpu.id,
            "count": node.num_gpus,
            "num_nodes": found.cluster.num_nodes,
            "usable_bytes": found.device.usable_bytes,
        },
        "trained_params_by_part": {part.value: count for part, count in found.trained_by_part.items()},
        "dtypes": {
            "frozen": recipe.frozen_dtype.torch_name,
            "trained": recipe.trained_dtype.torch_name,
            "master": recipe.master_dtype.torch_name,
            "autocast": None if recipe.autocast is None else recipe.autocast.torch_name,
        },
        "recipe": recipe.as_json() | found.workload.as_json() | {"global_batch": found.samples_per_step},
    }


def _device_json(found: Estimate) -> JsonDict:
    """Memory of the fullest GPU."""
    device, varying, peak = found.device, found.varying, found.timeline.peak_phase
    return {
        "reserve_bytes": device.reserve_bytes,
        "peak_phase": peak.name,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": device.reserved_bytes,
        "reserved_range": None if varying is None else list(varying.reserved_range),
        "sample_lengths": None if varying is None else _lengths_json(varying),
        "peak_device_bytes": device.device_bytes,
        "components_at_peak": peak.peak.as_json(),
        "phases": [phase.as_json() for phase in found.timeline.phases],
        **_engine_json(found),
    }


def _engine_json(found: Estimate) -> JsonDict:
    """vLLM on the training GPUs, and the trainer without it; nothing where there is none."""
    engine = found.engine
    if engine is None:
        return {}
    taken = {"generating": engine.awake_bytes, "syncing": engine.syncing_bytes, "training": engine.training_bytes}
    return {"peak_trainer_bytes": found.trainer_peak_bytes, "inference_engine_bytes": taken}


def _lengths_json(varying: VaryingLengths) -> JsonDict:
    return {
        "source": varying.source,
        "orders": len(varying.lengths),
        "micro_batches": len(varying.lengths[0]),
        "shortest": min(map(min, varying.lengths)),
        "longest": max(map(max, varying.lengths)),
        "reserved_bytes": list(varying.reserved_bytes),
    }


def _time_json(found: Estimate) -> JsonDict:
    timed = found.timed
    return {
        "step_seconds": found.step_seconds,
        "step_seconds_range": None if timed is None else [timed.fast_seconds, timed.slow_seconds],
        "step_seconds_by_part": None if timed is None else timed.expected.as_json(),
        "gpu_seconds_by_work": None if timed is None else timed.as_json(),
        "step_bound_by": None if timed is None else timed.bound,
        "tokens_per_second": found.tokens_per_second,
        "samples_per_second": found.samples_per_second,
        "evaluation": evaluation_json(found),
    }


def freezing_json(found: Freezing | None) -> JsonDict | None:
    """The setup with its vision encoder frozen; null where that would not change much."""
    if found is None:
        return None
    return {
        "peak_device_bytes": found.frozen.device.device_bytes,
        "step_seconds": found.frozen.step_seconds,
        "verdict": found.frozen.verdict.value,
    }


def freezing_hints(found: Freezing | None) -> list[str]:
    """What --freeze-vision would bring, in numbers; nothing where that is not much."""
    if found is None:
        return []
    text = f"--freeze-vision: {gib_text(found.frozen.device.device_bytes)} ({100 * found.bytes_change:+.0f}%)"
    if found.seconds_change is not None and found.frozen.step_seconds is not None:
        text += f" and {duration_text(found.frozen.step_seconds)} a step ({100 * found.seconds_change:+.0f}%)"
    encoder = "encoder" if found.frozen.workload.model.hears_prompt else "vision encoder"
    return [f"{text}; the {encoder} is trained too unless you say so"]


def notes_of(found: Estimate, hardware_notes: Sequence[str]) -> list[str]:
    """Every sentence that people see with the numbers of an estimate, ``hardware_notes`` last."""
    return [*found.workload.model.notes, *found.cautions, *hardware_notes]


def print_estimate(estimate: Estimate, notes: Sequence[str] = (), hints: Sequence[str] = ()) -> None:
    """Print everything that an estimate knows to standard output; ``notes`` are about the hardware, ``hints`` what
    other options would bring."""
    say(heading(estimate), verdict_line(estimate))
    say(*caveat_lines(notes_of(estimate, notes)), f"setup: {setup_text(estimate)}", *calibration_lines(estimate))
    say(*estimate.hints, *(f"hint: {hint}" for hint in hints))
    click.echo()
    print_memory(estimate)
    click.echo()
    print_table(component_table(estimate))
    click.echo()
    say(*detail_lines(estimate, notes))


def calibration_lines(estimate: Estimate) -> list[str]:
    """The line that says which numbers come from measurements on such a GPU; none where none do."""
    return reference_line(estimate.cluster.node.gpu.calibration)


def detail_lines(estimate: Estimate, notes: Sequence[str]) -> list[str]:
    """What stands below the tables: host, disk, time, and what the numbers are of."""
    return [*_reserved(estimate), *host_and_disk_lines(estimate), *_time(estimate), *_assumed(estimate, notes)]


def heading(estimate: Estimate) -> str:
    """The model, what is trained of it, and the hardware in one line."""
    params, trained = count_text(estimate.num_params), count_text(estimate.num_trainable_params)
    by = "" if estimate.recipe.task is None else f" by {TASK_TITLES[estimate.recipe.task.kind]}"
    model = f"{estimate.workload.model.id}: {params} parameters, {trained} trained{by}{_parts_text(estimate)}"
    return f"{model}; {hardware_text(estimate)}"


def setup_text(estimate: Estimate) -> str:
    """How it is trained: everything that decides bytes and seconds."""
    return recipe_text(estimate.recipe, num_gpus=estimate.cluster.num_gpus, sees=estimate.workload.has_encoded_inputs)


def _parts_text(estimate: Estimate) -> str:
    """`` in projector and language (vision frozen)``; nothing for a model that is one part.

    Of one that hears sounds in the place of a prompt the two parts are its encoder and its decoder.
    """
    counts = estimate.trained_by_part
    if len(counts) == 1:
        return ""
    hears = estimate.workload.model.hears_prompt
    words = {Part.VISION: "encoder", Part.LANGUAGE: "decoder"} if hears else {}
    trained = [words.get(part, part.value) for part, count in counts.items() if count]
    frozen = [words.get(part, part.value) for part, count in counts.items() if not count]
    return f" in {listed(trained)}" + (f" ({listed(frozen)} frozen)" if frozen else "")


def caveat_lines(notes: Iterable[str]) -> list[str]:
    """What changes the answer, for the lines under its verdict."""
    return [f"caution: {caveat}" for caveat in caveats(notes)]


def hardware_text(estimate: Estimate) -> str:
    return cluster_text(estimate.cluster)


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
    shown = [name for name in COMPONENT_NAMES if any(getattr(phase.peak, name) > 0 for phase in phases)]
    click.echo(legend(shown, width))


def component_table(estimate: Estimate) -> Table:
    """The bytes of each GPU at the highest moment, by what they are."""
    peak = estimate.timeline.peak_phase
    rows = [
        (name.replace("_", " "), gib_text(num_bytes), f"{num_bytes / peak.peak.total:.1%}")
        for name, num_bytes in peak.peak.as_json().items()
        if num_bytes
    ]
    rows.append((f"allocated, at the peak of {peak.name}", gib_text(peak.peak.total), "100.0%"))
    rows += [(name, gib_text(num_bytes), "") for name, num_bytes in beyond_tensors(estimate) if num_bytes]
    in_all = device_title(is_on_cpu=estimate.cluster.node.gpu.is_cpu, expands=estimate.recipe.expandable_segments)
    rows.append((in_all, gib_text(estimate.device.device_bytes), ""))
    if estimate.engine is not None:
        rows.append(("the trainer's tensors at their most", gib_text(estimate.trainer_peak_bytes), ""))
    titles = ("on each GPU", "bytes", "share")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), cut_columns=frozenset(titles[:1]))


def device_title(*, is_on_cpu: bool, expands: bool) -> str:
    """What all bytes together are; ``expands``: with expandable segments."""
    if is_on_cpu:
        return "process, in all"
    return "device, without pages kept for later" if expands else "device, as nvidia-smi shows it"


def beyond_tensors(estimate: Estimate) -> Iterator[tuple[str, int]]:
    """What the device holds beside the tensors at its fullest."""
    device = estimate.device
    yield "allocator's unused blocks", device.reserved_bytes - device.allocated_bytes
    yield "CUDA context", device.context_bytes
    yield "NCCL", device.nccl_bytes
    yield "Python and libraries", device.process_bytes


def _reserved(estimate: Estimate) -> Iterator[str]:
    """What samples of different lengths do to the native allocator, or how to ask; what expandable segments keep."""
    with_room_bytes = estimate.reserved_with_room_bytes
    if with_room_bytes > estimate.device.reserved_bytes:
        yield (
            f"reserved: up to {gib_text(with_room_bytes)} while there is room; expandable segments keep pages "
            f"for later, and give them back before memory runs out"
        )
    if not is_replayed(estimate.recipe):
        return
    varying, seq_len = estimate.varying, estimate.workload.seq_len
    if varying is None:
        have, ask = f"samples that all have {counted(seq_len, 'token')}", "--sample-lengths vary, or "
        if not estimate.workload.model.reads_prompt:
            have, ask = f"answers that all have {estimate.workload.target_tokens:,} tokens", ""
        yield (
            f"reserved for {have}; torch's native allocator keeps more where lengths differ: {ask}--expandable-segments"
        )
        return
    least, most = varying.reserved_bytes
    yield (
        f"reserved: {gib_text(varying.fixed_reserved_bytes)} where all samples have {seq_len:,} tokens; after "
        f"{len(varying.lengths[0])} micro batches of {varying.source}, {gib_text(least)} to {gib_text(most)} in "
        f"{len(varying.lengths)} orders of them"
    )


def _time(estimate: Estimate) -> Iterator[str]:
    timed = estimate.timed
    if timed is None:
        yield f"time: not known of {estimate.recipe.precision.value} on this hardware"
        return
    least, most = duration_text(timed.fast_seconds), duration_text(timed.slow_seconds)
    samples = counted(estimate.samples_per_step, "sample")
    expected = duration_text(timed.expected.total)
    yield f"step: {expected} for {samples} (at best {least}, at worst {most}), bound by {timed.bound}"
    if HOST_LAUNCHES in (timed.bound, timed.slow_bound) and estimate.cluster.node.gpu.calibration is None:
        these = "these" if timed.bound == HOST_LAUNCHES else f"{HOST_LAUNCHES}, by which a step at worst is bound"
        yield f"  hosts differ up to 3 times in {these}: vlmplan calibrate measures the machine that it runs on"
    yield f"  its parts: {shares_text(timed.expected.as_json())}"
    yield f"  forward, recompute and backward: {shares_text(timed.as_json())}"
    least, most = map(duration_text, estimate.run_seconds_range or (0.0, 0.0))
    steps = f"{counted(estimate.num_steps, 'step')}{with_evaluations(estimate)}"
    yield (
        f"speed: {estimate.samples_per_second:.3g} samples/s, {estimate.tokens_per_second:,.0f} tokens/s; "
        f"{steps} in {duration_text(estimate.run_seconds or 0)} (at best {least}, at worst {most})"
    )
    yield from evaluation_lines(estimate)


def shares_text(seconds: Mapping[str, float]) -> str:
    """What takes at least a thousandth of the time, with its part of it."""
    total = sum(seconds.values())
    shown = {name.replace("_", " "): one / total for name, one in seconds.items() if one >= total / 1000}
    return ", ".join(f"{name} {share:.1%}" for name, share in shown.items())


def _assumed(estimate: Estimate, notes: Sequence[str]) -> Iterator[str]:
    yield f"assumed: {workload_text(estimate)}"
    for note in footnotes(notes_of(estimate, notes)):
        yield f"note: {note}"


def workload_text(estimate: Estimate) -> str:
    """The workload of the estimate."""
    workload = estimate.workload
    encoded: list[str] = []
    if workload.images_per_sample:
        size = f"{workload.image_width}x{workload.image_height}"
        encoded.append(f"{counted(workload.images_per_sample, 'image')} of {size}")
        if workload.video_frames is not None:
            encoded[0] += f" (as such, videos of up to {counted(workload.video_frames, 'frame')})"
    if workload.clip_frames is not None:
        videos = counted(workload.images_per_sample, "video")
        encoded = [f"{videos} of {counted(workload.clip_frames, 'frame')}"]
    if workload.audios_per_sample:
        encoded.append(f"{counted(workload.audios_per_sample, 'sound')} of {workload.audio_seconds:g} s")
    with_them = f" with {' and '.join(encoded)}" if encoded else ""
    if workload.target_tokens:
        with_them += f", answers of {workload.target_tokens:,}"
    entries, task = counted(workload.num_samples, "sample"), estimate.recipe.task
    if task is not None and task.is_grpo:
        entries = f"{counted(workload.num_samples, 'prompt')} with {task.num_generations} answers each, rows"
    elif task is not None:
        entries = f"{counted(workload.num_samples, 'pair' if task.has_pairs else 'answer')}, rows"
    if workload.model.hears_prompt:
        sounds = counted(workload.num_samples, "sound")
        entries, with_them = f"{sounds} of {workload.audio_seconds:g} s", f" and {workload.target_tokens:,} tokens"
    elif workload.model.encodes_images_alone:
        entries, with_them = f"{entries} of {encoded[0]}", f", answers of {workload.target_tokens:,} tokens"
    else:
        entries = f"{entries} of {counted(workload.seq_len, 'token')}"
    return (
        f"{entries}{with_them}, "
        f"{counted(workload.epochs, 'epoch')}, {counted(estimate.samples_per_step, 'sample')} a step"
    )

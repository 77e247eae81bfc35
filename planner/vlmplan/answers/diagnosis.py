"""Why a run ran out of memory: what the log proves, and, beside a plan of the same setup, planned against needed."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from vlmplan.answers import to_fit
from vlmplan.answers.diagnosis_sentences import found_sentences
from vlmplan.answers.estimate import heading, verdict_line
from vlmplan.diagnosis import BESIDE_TRAINING, Cause, Diagnosis, Planned, TensorSize
from vlmplan.diagnosis.places import Phase
from vlmplan.diagnosis.planned import LONGER_RATIO
from vlmplan.engines.components import Components
from vlmplan.estimation import evaluation_hints
from vlmplan.files.json_reader import JsonDict
from vlmplan.memory.device import Verdict
from vlmplan.render.lines import say
from vlmplan.units import counted, gib_text

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request

SCHEMA = "vlmplan.diagnosis/1"
MESSAGE_SIZES = (
    *("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "unallocated_bytes"),
    *("private_pool_bytes", "allowed_bytes", "in_use_bytes"),
)
SHOWN_CHARACTERS = 160
"""Of a message in text; the document has 1,000."""
MORE_TO_GIVE = (
    "With the setup beside it (--config FILE, --plan FILE, or --model and --gpu) the answer has planned against "
    "needed, the length of the sample, and the smallest change"
)


def document(found: Diagnosis, command: "Callable[[Request], str]", on: date) -> JsonDict:
    """Numbers are bytes. ``planned`` is null without a setup."""
    evidence, message = found.evidence, found.evidence.message
    place, frame = evidence.place, evidence.place.own_frame
    planned = found.planned
    way_out = None if planned is None else planned.way_out
    return {
        "schema": SCHEMA,
        "source": evidence.source,
        "message": {
            "kind": message.kind.value,
            "form": message.form,
            "text": message.text,
            "line": evidence.line_number,
            "rank": evidence.rank,
            "device": message.device,
            **{name: getattr(message, name) for name in MESSAGE_SIZES},
        },
        "num_ranks": evidence.num_ranks,
        "num_earlier_messages": evidence.num_earlier,
        "phase": None if place.phase is None else place.phase.name.lower(),
        "part": None if place.part is None else place.part.name.lower(),
        "is_in_vision": place.is_in_vision,
        "own_frame": None if frame is None else asdict(frame),
        "steps_done": evidence.progress.steps_done,
        "num_steps": evidence.progress.num_steps,
        "is_late": evidence.progress.is_late,
        "balance": asdict(found.balance) | {"pids": list(found.balance.pids)},
        "cause": found.cause.value,
        "planned": None if planned is None else _planned_json(planned),
        "sentences": [click.unstyle(sentence) for sentence in sentences(found)],
    } | to_fit.document(way_out, command, on)


def _planned_json(planned: Planned) -> JsonDict:
    estimate, longer = planned.estimate, planned.longer
    return {
        "phase": None if planned.phase is None else planned.phase.name,
        "planned_bytes": planned.planned_bytes,
        "components": None if planned.phase is None else planned.phase.peak.as_json(),
        "needed_bytes": planned.needed_bytes,
        "reserved_bytes": estimate.device.reserved_bytes,
        "device_bytes": estimate.device.device_bytes,
        "usable_bytes": estimate.device.usable_bytes,
        "host_bytes_per_node": estimate.host.peak_bytes,
        "verdict": estimate.verdict.value,
        "seq_len": estimate.workload.seq_len,
        "tensors": [asdict(tensor) | {"part": tensor.part.name.lower()} for tensor in planned.tensors],
        "weight": None if planned.weight is None else asdict(planned.weight) | {"shape": list(planned.weight.shape)},
        "unplanned_bytes": planned.unplanned_bytes,
        "longer_samples": None if longer is None else asdict(longer),
        "with_longer_samples": None if longer is None else _device_json(planned.actual),
        "narrower": [{"change": one.name, **_device_json(one.estimate)} for one in planned.narrower],
        "notes": list(planned.notes),
    }


def _device_json(estimate: "Estimate") -> dict[str, Any]:
    return {"device_bytes": estimate.device.device_bytes, "verdict": estimate.verdict.value}


def print_diagnosis(found: Diagnosis, command: "Callable[[Request], str]", on: date) -> None:
    """Print the sentences, and the way out with its commands, to standard output."""
    evidence = found.evidence
    where = "" if evidence.line_number is None else f":{evidence.line_number}"
    text = evidence.message.text
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
    say(f"{evidence.source}{where}: {shown}", "")
    say(*sentences(found))
    if found.planned is None:
        click.echo()
        say(MORE_TO_GIVE)
    else:
        to_fit.print_way_out(found.planned.way_out, command, on)


def sentences(found: Diagnosis) -> Iterator[str]:
    """What is said, a finding each."""
    yield from found_sentences(found)
    if found.planned is not None:
        yield from _planned_sentences(found, found.planned)


# -- beside a plan ---------------------------------------------------------------------------------------------------


def _planned_sentences(found: Diagnosis, planned: Planned) -> Iterator[str]:
    yield f"Planned: {heading(planned.estimate)}; {verdict_line(planned.estimate)}"
    yield from _host_sentences(found, planned)
    if not found.evidence.message.is_on_host:
        yield from _needed_sentences(planned)
        yield from map(_tensor_sentence, planned.tensors)
        yield from _weight_sentences(found, planned)
        yield from _length_sentences(planned)
        yield from _score_sentences(planned)
    yield from _verdict_sentences(found, planned)
    yield from (f"note: {note}" for note in planned.notes)


def _needed_sentences(planned: Planned) -> Iterator[str]:
    phase, needed = planned.phase, planned.needed_bytes
    if needed is None:
        return
    if phase is None:
        yield from _needed_without_a_phase(planned, needed)
        return
    difference = needed - phase.peak.total
    much = f"{gib_text(difference)} more than planned"
    yield (
        f"{phase.name}: planned {gib_text(phase.peak.total)} in tensors ({_components(phase.peak)}), "
        f"{gib_text(needed)} when it ran out{f': {much}' if difference > 0 else ', on the way there'}"
    )


def _needed_without_a_phase(planned: Planned, needed: int) -> Iterator[str]:
    """Where no traceback says in which phase it was, and the plan's highest has much less."""
    highest = max(planned.estimate.timeline.phases, key=lambda one: one.peak.total)
    if planned.longer is None and needed > highest.peak.total * LONGER_RATIO:
        yield (
            f"{gib_text(needed)} in tensors when it ran out, and {highest.name}, the highest phase, is planned with "
            f"{gib_text(highest.peak.total)}: its samples are larger than planned, or its setup is another"
        )


def _components(peak: Components) -> str:
    sizes = sorted(peak.as_json().items(), key=lambda one: -one[1])
    return ", ".join(f"{name.replace('_', ' ')} {gib_text(size)}" for name, size in sizes[:3] if size)


def _tensor_sentence(tensor: TensorSize) -> str:
    unit = "patches" if tensor.is_of_patches else "tokens"
    many = f"{tensor.low:,}" if tensor.low == tensor.high else f"{tensor.low:,} to {tensor.high:,}"
    lead = f"The request is {tensor.part.value}" if tensor.is_named else f"If the request is {tensor.part.value}, it is"
    when = f" with {tensor.condition}" if tensor.condition else ""
    return f"{lead} of {many} {unit}{when} ({tensor.formula})"


def _weight_sentences(found: Diagnosis, planned: Planned) -> Iterator[str]:
    weight, total = planned.weight, found.evidence.message.total_bytes
    if weight is None:
        return
    parts = ["N" if part.isdecimal() else part for part in weight.name.split(".")]
    name = ".".join(part for part in parts if part != "base_layer")  # peft's, around what it adapts
    shape = " x ".join(f"{side:,}" for side in weight.shape)
    yield f"The request is a weight: {name}, {shape} x {weight.element_bytes} bytes"
    whole = planned.estimate.num_params * weight.element_bytes
    if total is not None and whole > total:
        yield (
            f"In that type the whole model takes {gib_text(whole)}, more than the GPU's {gib_text(total)}: it was "
            f"being loaded whole, not in shards"
        )


def _length_sentences(planned: Planned) -> Iterator[str]:
    longer = planned.longer
    if longer is None:
        return
    planned_text = f"{longer.planned_tokens:,} are planned"
    if longer.image_side is not None:
        workload = planned.estimate.workload
        side = longer.image_side
        yield (
            f"So its images have {side:,}x{side:,} pixels or as many at the least, and a sample {longer.tokens:,} "
            f"tokens; planned are {workload.image_width:,}x{workload.image_height:,} and {longer.planned_tokens:,}"
        )
    elif longer.is_named:
        yield f"So this is a sample of {longer.tokens:,} tokens, padding included; {planned_text}"
    else:
        yield f"By the plan, so much is needed with samples of about {longer.tokens:,} tokens; {planned_text}"


def _score_sentences(planned: Planned) -> Iterator[str]:
    if planned.unplanned_bytes:
        yield (
            "The plan has no such tensor: the kernels of flash_attention_2, and torch's fused ones, never hold whole "
            "scores; here torch took its math kernel, as it does for some masks and shapes"
        )


def _host_sentences(found: Diagnosis, planned: Planned) -> Iterator[str]:
    message, host = found.evidence.message, planned.estimate.host
    if found.cause not in (Cause.HOST_MEMORY, Cause.KILLED):
        return
    yield (
        f"Host memory of a node as planned: {gib_text(host.load_bytes)} while loading, "
        f"{gib_text(host.steady_bytes)} in training"
    )
    total = message.total_bytes if message.total_bytes is not None else planned.estimate.cluster.node.host_ram_bytes
    if total is None:
        yield "--host-ram says what the node has"
        return
    if host.peak_bytes > total:
        yield f"The node has {gib_text(total)}: less than planned"
        return
    ranks, recipe = planned.estimate.cluster.node.num_gpus, planned.estimate.recipe
    whole, in_32_bit = planned.estimate.num_params * recipe.loaded_dtype.num_bytes, planned.estimate.num_params * 4
    yield (
        f"The node has {gib_text(total)}, more than planned: something else takes it. If each of its ranks ({ranks}) "
        f"loads the whole model for itself, that is {gib_text(ranks * whole)}, in 32 bit {gib_text(ranks * in_32_bit)}"
    )
    if recipe.zero_stage == 3:
        yield (
            "ZeRO-3 loads in shards only where transformers knows of it first: TrainingArguments (or "
            "HfDeepSpeedConfig) has to be made before from_pretrained"
        )


def _verdict_sentences(found: Diagnosis, planned: Planned) -> Iterator[str]:
    fits = planned.actual.verdict is not Verdict.DOES_NOT_FIT
    is_on_host, progress = found.evidence.message.is_on_host, found.evidence.progress
    if found.cause is Cause.OTHER_PROCESSES and planned.way_out is None:
        yield "On a GPU of its own the setup fits by its plan: nothing of it has to change"
    elif fits and planned.way_out is None and found.evidence.place.phase in BESIDE_TRAINING:
        yield "Training fits by its plan: what has to change is not how it trains"
    elif planned.longer is not None:
        device, unplanned = planned.actual.device, planned.unplanned_bytes
        verb = "fits" if device.device_bytes + unplanned <= device.usable_bytes else "does not fit"
        scores = f", and {gib_text(unplanned)} of scores" if unplanned else ""
        yield f"With such samples it {verb}: {gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)}{scores}"
    elif fits and planned.way_out is None and not is_on_host and planned.needed_bytes is None:
        yield "By the plan it fits: the samples are longer than planned, or something is otherwise than it says"
    elif not fits and found.evidence.place.phase in (Phase.EVALUATION, Phase.GENERATION):
        yield from evaluation_hints(planned.actual.recipe.evaluation, planned.actual.timeline)
    elif not fits and progress.is_late and not is_on_host:
        yield (
            f"The plan is of samples of {planned.estimate.workload.seq_len:,} tokens, and with such it does not fit: "
            f"the {counted(progress.steps_done or 0, 'step')} before had shorter ones"
        )
    for narrower in planned.narrower:
        device = narrower.estimate.device
        verb = "fits" if device.device_bytes + planned.unplanned_bytes <= device.usable_bytes else "does not fit either"
        yield f"{narrower.name}: {gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)}, {verb}"

"""A diagnosis in sentences: where memory ran out, why, and what helps. Numbers of a plan are in ``diagnosis``."""

from collections.abc import Iterator

from vlmplan.diagnosis import Cause, Diagnosis, Evidence, Part, Phase
from vlmplan.memory.overhead import reserve_bytes
from vlmplan.memory_messages import CUDA_CALL, Kind
from vlmplan.units import counted, gib_text

SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
MAX_PIDS = 6
"""Of other processes that are listed. A choice."""


def found_sentences(found: Diagnosis) -> Iterator[str]:
    """What is proved by the log alone, most telling first."""
    yield _where(found.evidence)
    yield from _own_frame(found.evidence)
    yield from _division(found)
    yield CAUSES[found.cause](found)
    yield from _late(found)
    yield from _phase_advice(found)
    yield from _remarks(found.evidence)


# -- where -----------------------------------------------------------------------------------------------------------


def _where(evidence: Evidence) -> str:
    message, place = evidence.message, evidence.place
    text = f"{_memory(evidence)} ran out"
    if place.phase is not None:
        text += f" in {place.phase.value}" + (", recomputing a checkpointed layer" if place.is_recomputed else "")
    if place.part is not None:
        text += f", at {place.part.value}" + (" of the vision encoder" if place.is_in_vision else "")
    text += _progress_text(evidence)
    ranks = [f"rank {evidence.rank}"] if evidence.rank is not None else []
    ranks += [f"GPU {message.device}"] if message.device is not None else []
    text += f", on {' ('.join(ranks)}{')' if len(ranks) > 1 else ''}" if ranks else ""
    return text + (f" ({evidence.num_ranks} ranks ran out; this is the first)" if evidence.num_ranks > 1 else "")


def _memory(evidence: Evidence) -> str:
    kind = evidence.message.kind
    if kind is Kind.KILLED:
        return "Memory of the host probably"
    if kind is Kind.DISK:
        return "Disk space"
    return {Kind.HOST: "Host memory", Kind.SHARED_MEMORY: "Shared memory (/dev/shm)"}.get(kind, "GPU memory")


def _progress_text(evidence: Evidence) -> str:
    progress = evidence.progress
    if progress.steps_done is None:
        return f" while {progress.of}" if progress.of and evidence.place.phase is None else ""
    comma = "" if evidence.place.phase is None and evidence.place.part is None else ","
    if progress.num_steps is None:
        return f"{comma} after {counted(progress.steps_done, 'step')}"
    return f"{comma} after {progress.steps_done:,} of {counted(progress.num_steps, 'step')}"


def _own_frame(evidence: Evidence) -> Iterator[str]:
    frame = evidence.place.own_frame
    if frame is not None:
        line = f":{frame.line}" if frame.line else ""
        code = f": {frame.code}" if frame.code else ""
        yield f"Your code's last line: {frame.file}{line} in {frame.function}{code}"


def _division(found: Diagnosis) -> Iterator[str]:
    """How the GPU was divided."""
    message, balance = found.evidence.message, found.balance
    if message.is_on_host or message.requested_bytes is None:
        return
    parts = [(message.allocated_bytes, "in tensors")]
    parts += [(message.private_pool_bytes, "of them in pools of CUDA graphs")]
    parts += [(message.unallocated_bytes, "kept by torch beside them")]
    parts += [(balance.overhead_bytes, "of CUDA, NCCL and libraries")]
    parts += [(balance.other_bytes or None, f"of other processes{_pids(found)}")]
    parts += [(message.free_bytes, "free")]
    listed = ", ".join(f"{gib_text(size)} {name}" for size, name in parts if size is not None)
    total = "" if message.total_bytes is None else f"of {gib_text(message.total_bytes)}: "
    held = f"; {total}{listed}" if listed else ""
    yield f"{gib_text(message.requested_bytes)} were asked for{held}"


def _pids(found: Diagnosis) -> str:
    pids = found.balance.pids
    if not pids:
        return ""
    more = "" if len(pids) <= MAX_PIDS else f" and {len(pids) - MAX_PIDS} more"
    return f" ({', '.join(map(str, pids[:MAX_PIDS]))}{more})"


# -- why -------------------------------------------------------------------------------------------------------------


def _true_need(found: Diagnosis) -> str:
    missing = found.balance.missing_bytes
    assert missing is not None
    return (
        f"True need: {gib_text(missing)} more than there was, counting what torch kept unused; no setting of the "
        f"allocator helps"
    )


def _fragmentation(found: Diagnosis) -> str:
    message = found.evidence.message
    return (
        f"Fragmentation: torch kept {gib_text(message.unallocated_bytes or 0)} between tensors, which with what was "
        f"free is enough for {gib_text(message.requested_bytes or 0)}, but not in one piece; {SEGMENTS} in the "
        f"environment lets it be one"
    )


def _full_card(found: Diagnosis) -> str:
    total = found.evidence.message.total_bytes or 0
    return (
        f"A full card: with all that torch kept unused in one piece the request would have found room and left "
        f"{gib_text(found.balance.left_bytes or 0)}, less than the {gib_text(reserve_bytes(total))} that 'fits' keeps "
        f"free; take it as a true need, which {SEGMENTS} would only have put off"
    )


def _others(found: Diagnosis) -> str:
    return (
        f"Other processes: {gib_text(found.balance.other_bytes)} of the GPU were theirs; without them the request "
        f"would have been granted. End them, or take a GPU that is free (nvidia-smi lists them)"
    )


def _limit(found: Diagnosis) -> str:
    allowed = found.evidence.message.allowed_bytes or 0
    return (
        f"A limit: the process may have {gib_text(allowed)} (set_per_process_memory_fraction, or the watermark of MPS) "
        f"although more was free"
    )


def _smaller_card(found: Diagnosis) -> str:
    assert found.planned is not None
    total, usable = found.evidence.message.total_bytes or 0, found.planned.estimate.device.usable_bytes
    return f"A smaller card: it has {gib_text(total)}, the one that is planned with {gib_text(usable)}"


def _host(found: Diagnosis) -> str:
    message = found.evidence.message
    asked = f"{gib_text(message.requested_bytes)} were asked for, and " if message.requested_bytes is not None else ""
    if message.in_use_bytes is not None and message.total_bytes is not None:
        return f"The host: {gib_text(message.in_use_bytes)} of its {gib_text(message.total_bytes)} were in use"
    if message.in_use_bytes is not None:
        return f"The host: the process that was killed had {gib_text(message.in_use_bytes)}"
    return f"The host: {asked}the system (or the container's limit) had no more"


def _killed(found: Diagnosis) -> str:
    return (
        "A process was killed (SIGKILL, which is -9 and 137), most often because the host's memory or the container's "
        "limit was full; the log cannot prove it: dmesg, or the scheduler's accounting, can"
    )


def _shared_memory(found: Diagnosis) -> str:
    return (
        "Shared memory: data loading workers hand over samples through /dev/shm, which containers limit; give the "
        "container more (--shm-size, or --ipc=host), or take fewer workers (dataloader_num_workers)"
    )


def _disk(found: Diagnosis) -> str:
    return (
        "The disk is full: keep fewer checkpoints (save_total_limit), or leave out optimizer states (save_only_model); "
        "caches of datasets and models count too"
    )


def _unknown(found: Diagnosis) -> str:
    if found.evidence.message.form == CUDA_CALL:
        return (
            "Not torch's allocator of tensors, which says sizes: a call of CUDA's beside it found no memory, such as "
            "pinned host memory (pin_memory, offloading to the host), of which the host or the container may have "
            "less, the context of a process, or a kernel on a card that is full by then (nvidia-smi, free -g)"
        )
    return (
        "The message has no sizes that tell why: whole, it also says what was allocated, reserved and free; give the "
        "log from the traceback on"
    )


CAUSES = {
    Cause.TRUE_NEED: _true_need,
    Cause.FRAGMENTATION: _fragmentation,
    Cause.FULL_CARD: _full_card,
    Cause.OTHER_PROCESSES: _others,
    Cause.MEMORY_LIMIT: _limit,
    Cause.SMALLER_CARD: _smaller_card,
    Cause.HOST_MEMORY: _host,
    Cause.KILLED: _killed,
    Cause.SHARED_MEMORY: _shared_memory,
    Cause.DISK: _disk,
    Cause.UNKNOWN: _unknown,
}


# -- what goes with the phase ----------------------------------------------------------------------------------------


def _late(found: Diagnosis) -> Iterator[str]:
    """Why not in the first step."""
    progress, phase = found.evidence.progress, found.evidence.place.phase
    is_step = phase in (None, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.STEP, Phase.CLIPPING)
    if not progress.is_late or not is_step or found.evidence.message.kind is not Kind.DEVICE:
        return
    steps = counted(progress.steps_done or 0, "step")
    known = f"{steps} went well: weights, gradients and optimizer states had all been there before"
    if found.cause is Cause.FRAGMENTATION:
        yield f"{known}; lengths that vary leave such gaps in time"
    elif found.cause is not Cause.OTHER_PROCESSES:
        yield (
            f"{known}. New are this step's samples, longer or with more or larger images than any before; else "
            f"something grows from step to step"
        )


def _phase_advice(found: Diagnosis) -> Iterator[str]:
    place, kind = found.evidence.place, found.evidence.message.kind
    if kind not in (Kind.DEVICE, Kind.CUDA_LIBRARY):
        return
    if place.part is Part.GATHERED_LOGITS:
        yield (
            "Evaluation gathers the logits of all samples on the GPU: eval_accumulation_steps moves them to the host, "
            "prediction_loss_only keeps none"
        )
    elif place.phase in (Phase.EVALUATION, Phase.GENERATION):
        yield (
            "It is evaluation, not training: per_device_eval_batch_size is 8 by default, and logits are whole (tokens "
            "x vocabulary) where a metric is computed; make it 1, or set prediction_loss_only"
        )
    elif place.phase is Phase.SAVE:
        yield (
            "It is saving, not training: a sharded model is gathered whole for it; save shards "
            "(stage3_gather_16bit_weights_on_model_save: false, FSDP's SHARDED_STATE_DICT) and join them afterwards"
        )
    elif place.phase is Phase.RESUME:
        yield "It is loading a checkpoint: its states come beside those that the run has made already"
    elif place.phase is Phase.LOAD:
        yield "It is loading: every rank holds whole what it loads, unless ZeRO-3 or FSDP shards it"


def _remarks(evidence: Evidence) -> Iterator[str]:
    if evidence.num_earlier:
        times = f"{evidence.num_earlier} earlier message" + ("s" if evidence.num_earlier > 1 else "")
        yield f"{times} of memory that ran out: of an earlier start, or caught; this is about the last"
    if evidence.is_cut:
        yield "Only the last 64 MiB of the log were read"

"""What a log tells of the moment when memory ran out: the message, who wrote it, where it was, how far the run was."""

import re
from dataclasses import dataclass, replace

from vlmplan.diagnosis.frames import frames_before
from vlmplan.diagnosis.log import Log, line_of
from vlmplan.diagnosis.places import Phase, Place, place_of, place_of_plan
from vlmplan.diagnosis.progress import Progress, progress_before
from vlmplan.errors import InputError
from vlmplan.memory_messages import HANDLE, LOOKED_FOR, Kind, MemoryMessage, line_start, messages_in

RECOMPUTED_SHARD = re.compile(r"CheckpointError\b.*?recomputed metadata: \{'shape': torch\.Size\(\[0\]\)", re.DOTALL)
SHARDED_AGAIN = (
    "torch's CheckpointError of weights that ZeRO-3 has sharded before backward looks at them: with adapters DeepSpeed "
    "from 0.19.3 on, or reentrant checkpoints (gradient_checkpointing_kwargs: {use_reentrant: true}), train"
)
"""DeepSpeed pull request 8148, transformers issue 47254. Seen with DeepSpeed 0.18.9 on two CPU ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The message that says most of the last time that memory ran out, and what stands before it.

    ``num_ranks`` ranks ran out, as far as their messages can be told apart. ``num_earlier`` messages are of times
    before: of a run that was started again, or that caught the error and went on.
    """

    source: str
    is_cut: bool
    message: MemoryMessage
    line_number: int | None
    """None where the beginning of the log was not read."""
    rank: int | None
    num_ranks: int
    num_earlier: int
    place: Place
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    message: MemoryMessage
    rank: int | None


def evidence_in(log: Log) -> Evidence:
    """Raises InputError where the log has no message of memory that ran out."""
    text = log.text
    found = [_Found(message=message, rank=_rank(text, message)) for message in messages_in(text)]
    if not found:
        where = " in its last 64 MiB" if log.is_cut else ""
        if RECOMPUTED_SHARD.search(text) is not None:
            raise InputError(f"{log.source} has no out-of-memory message{where}, but {SHARDED_AGAIN}")
        raise InputError(f"{log.source} has no out-of-memory message{where}; looked for {LOOKED_FOR}")
    last = _of_the_last_time(text, found)
    cause = min(last, key=lambda one: (_vagueness(one.message), one.message.start))
    place = place_of_plan(cause.message.phase) or place_of(frames_before(text, cause.message.start))
    is_in_evaluation = place.phase in (Phase.EVALUATION, Phase.GENERATION)
    writers = {(one.rank, one.message.device) for one in last if one.message.kind is cause.message.kind}
    return Evidence(
        source=log.source,
        is_cut=log.is_cut,
        message=cause.message,
        line_number=None if log.is_cut else text.count("\n", 0, cause.message.start) + 1,
        rank=cause.rank,
        num_ranks=len(writers),
        num_earlier=len(found) - len(last),
        place=place,
        progress=_progress(text, cause.message, is_in_evaluation=is_in_evaluation),
    )


def _progress(text: str, message: MemoryMessage, *, is_in_evaluation: bool) -> Progress:
    found = progress_before(text, message.start, is_in_evaluation=is_in_evaluation)
    return found if message.step is None else replace(found, steps_done=max(0, message.step - 1))


def _rank(text: str, message: MemoryMessage) -> int | None:
    if message.rank is not None:
        return message.rank
    start = line_start(text, message.start)
    return line_of(text[start : start + 200]).rank


def _vagueness(message: MemoryMessage) -> int:
    """0 for what says of which memory how much, 2 for what may have other reasons."""
    if message.kind is Kind.KILLED or message.form == HANDLE:
        return 2
    return 0 if message.num_details or message.kind in (Kind.DISK, Kind.SHARED_MEMORY) else 1


def _of_the_last_time(text: str, found: list[_Found]) -> list[_Found]:
    """The messages after which the run did not go on."""
    last = found[-1:]
    steps = _steps_done(text, found[-1])
    for one in reversed(found[:-1]):
        if _steps_done(text, one) != steps:
            break
        last.append(one)
    return last[::-1]


def _steps_done(text: str, found: _Found) -> int | None:
    return progress_before(text, found.message.start, is_in_evaluation=False).steps_done

"""How far a run was: bars of tqdm, lines of the Trainer's, of ms-swift's and of vlmplan's own."""

import re
from dataclasses import dataclass

from vlmplan.memory_messages import line_start
from vlmplan.run.training import STEP_LINE

MAX_MARKS = 400
"""Of one kind that are looked at, from the message backwards. A choice."""
MAX_CHARACTERS = 4 * 2**20
"""Before the message in which progress is looked for: tracebacks of a thousand ranks are shorter. A choice."""
BAR = re.compile(r"([^\n|%]{0,80}?)\s{0,8}\d{1,3}%\|[^|\n]{0,400}\|\s{0,4}(\d{1,12})/(\d{1,12})\s{0,4}\[")
SWIFT = re.compile(r"'global_step/max_steps': '(\d{1,12})/(\d{1,12})'")
LOGGED = re.compile(r"\{'loss': [^\n]{1,2000}?'epoch': '?(\d{1,9}(?:\.\d{1,12})?)")
LOADING = re.compile(r"(?i)load|shard|fetch|download|materializ")
PREPARING = re.compile(r"(?i)map|token|convert|generat|filter|pack|saving|process|split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What was done when memory ran out: optimizer steps, of how many. ``of``: what the last bar was of, where there is
    none of training: ``loading`` or ``preparing``."""

    steps_done: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    of: str | None = None

    @property
    def is_late(self) -> bool:
        """Whether whole steps went well: weights, gradients and optimizer states had been there before."""
        return self.steps_done is not None and self.steps_done >= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    kind: str
    done: int
    total: int
    at: int


def progress_before(text: str, start: int, *, is_in_evaluation: bool) -> Progress:
    """The progress that was printed last before ``start``. An evaluation has a bar of its own beside that of steps."""
    bars = _bars(text, start)
    logged = _last(LOGGED, text, "'loss'", start)
    epoch = None if logged is None else float(logged[1])
    found = [bar for bar in bars if bar.kind == "training"]
    if is_in_evaluation and found:
        found = [bar for bar in found if bar.total != found[0].total] or found
    for pattern, mark in ((STEP_LINE, "step "), (SWIFT, "'global_step")):
        own = _last(pattern, text, mark, start)
        if own is not None:
            found.append(_Bar(kind="training", done=int(own[1]), total=int(own[2]), at=own.start()))
    if not found:
        return Progress(epoch=epoch, of=bars[0].kind if bars else None)
    last = max(found, key=lambda bar: bar.at)
    return Progress(steps_done=last.done, num_steps=last.total, epoch=epoch)


def _bars(text: str, start: int) -> list[_Bar]:
    """The last first."""
    found: list[_Bar] = []
    at, least = start, max(0, start - MAX_CHARACTERS)
    for _ in range(MAX_MARKS):
        at = text.rfind("%|", least, at)
        if at < 0:
            break
        match = BAR.search(text, line_start(text, at, most=90), min(start, at + 600))
        if match is not None and int(match[2]) <= int(match[3]):
            found.append(_Bar(kind=_kind(match[1]), done=int(match[2]), total=int(match[3]), at=at))
    return found


def _kind(title: str) -> str:
    if LOADING.search(title):
        return "loading"
    return "preparing" if PREPARING.search(title) else "training"


def _last(pattern: re.Pattern[str], text: str, mark: str, start: int) -> re.Match[str] | None:
    at, least = start, max(0, start - MAX_CHARACTERS)
    for _ in range(MAX_MARKS):
        at = text.rfind(mark, least, at)
        if at < 0:
            return None
        match = pattern.search(text, max(0, at - 10), min(start, at + 2200))
        if match is not None:
            return match
    return None

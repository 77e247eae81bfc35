"""What metrics.jsonl has of a run's earlier processes, so that the one that goes on reports the whole of it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan_trainer.loop import StepReport

SPEED_STEPS = 20
"""Steps at the end of a run whose speed is reported, the followed ones left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Lines of metrics.jsonl: the last ``steps``, and all ``evaluations`` up to the step that the run goes on from."""

    steps: tuple[Mapping[str, Any], ...] = ()
    evaluations: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, lines: Iterable[bytes]) -> "Earlier":
        """Of the ``lines`` that stay, all of which are JSON objects."""
        values = [json.loads(line) for line in lines]
        steps = [one for one in values if "loss" in one and "eval_loss" not in one]
        evaluations = [one for one in values if "eval_loss" in one]
        return cls(steps=tuple(steps[-SPEED_STEPS:]), evaluations=tuple(evaluations))

    def num_evaluations_after(self, step: int) -> int:
        return sum(line["step"] == step for line in self.evaluations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The last steps of a run: their mean seconds, tokens a second, and the loss of the last. ``peak_bytes``: the most
    that an earlier process took in phases that this one did not come to."""

    step_seconds: float | None = None
    tokens_per_second: float | None = None
    last_loss: float | None = None
    peak_bytes: int = 0


def pace(reports: Sequence[StepReport], earlier: Earlier, *, num_followed: int) -> Pace:
    """Of this process, whose first ``num_followed`` steps are slower; of those before it where it has done no step."""
    late = [(one.seconds, one.num_tokens) for one in reports[num_followed:][-SPEED_STEPS:] or reports[-1:]]
    peak_bytes, last_loss = 0, reports[-1].loss if reports else None
    if not reports:
        late = [times for line in earlier.steps if (times := _seconds_and_tokens(line)) is not None]
        peaks = [_number(line, "peak_allocated_bytes") for line in earlier.steps]
        peak_bytes = int(max((peak for peak in peaks if peak is not None), default=0))
        last_loss = _number(earlier.steps[-1], "loss") if earlier.steps else None
    seconds = sum(times[0] for times in late)
    return Pace(
        step_seconds=seconds / len(late) if late else None,
        tokens_per_second=sum(times[1] for times in late) / seconds if late else None,
        last_loss=last_loss,
        peak_bytes=peak_bytes,
    )


def _seconds_and_tokens(line: Mapping[str, Any]) -> tuple[float, float] | None:
    seconds, tokens = (_number(line, name) for name in ("seconds", "num_tokens"))
    return (seconds, tokens) if seconds and tokens is not None else None


def _number(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None

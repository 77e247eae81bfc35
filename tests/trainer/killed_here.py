"""A run in this process that ends at a chosen call as if it were killed, and goes on until the next one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import Outcome, train_here

from vlmplan.plan import Plan

TIMES = ("seconds", "eval_seconds", "step_time", "peak_allocated_bytes")


class Killed(BaseException):
    """What ends a run at once, whatever it is about to do."""


def train_killed(plan: Plan, folder: Path, words: Sequence[str], ends: Sequence[tuple[Any, str, int]]) -> Outcome:
    """A run that is ended at each of ``ends``, the N-th call of a function in its place, and goes on behind it."""
    for number, (place, name, nth) in enumerate(ends):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, killing(getattr(place, name), nth))
            with pytest.raises(Killed):
                train_here(plan, folder, *words, *["--resume"][: number > 0])
    return train_here(plan, folder, *words, "--resume")


def killing(call: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """``call``, which ends the run in place of its ``nth`` time."""
    times = iter(range(1, nth + 1))

    def instead(*arguments: Any, **named: Any) -> Any:
        if next(times) == nth:
            raise Killed
        return call(*arguments, **named)

    return instead


def assert_alike(done: Outcome, whole: Outcome) -> None:
    """Both left the same lines and the same report, but for times."""
    assert done.code == 0, done.err
    assert [untimed(line) for line in done.metrics] == [untimed(line) for line in whole.metrics]
    keys = ("steps", "last_loss", "eval_loss", "num_eval_samples")
    assert {key: done.report[key] for key in keys} == {key: whole.report[key] for key in keys}
    figures = {line["name"]: line["measured"] for line in done.report["planned_and_measured"]}
    assert all(figures[name] > 0 for name in ("step", "speed", "evaluation"))


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl without what differs from run to run."""
    return {name: value for name, value in line.items() if name not in TIMES}

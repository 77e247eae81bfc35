"""What is found on --eval-data, as metrics.jsonl and report.json have it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OWN = ("eval_loss", "eval_seconds")
"""Figures of an evaluation that have a place of their own."""


@dataclass(slots=True, kw_only=True)
class Evaluated:
    """``loss`` is the last that was found, over ``num_samples``, which took ``seconds``; ``num_left_out`` are bad, have
    no room, or, where TRL evaluates, fill no batch. ``figures``: what else was found beside the loss. ``best``: which
    evaluation was the best by then (``saving.best``), where that counts."""

    num_samples: int
    num_left_out: int
    loss: float | None = None
    seconds: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, Any] = field(default_factory=dict)

    def restore(self, line: Mapping[str, Any]) -> None:
        """Take what an earlier process of the run found, from its line of metrics.jsonl."""
        self.loss, self.seconds = line["eval_loss"], line.get("eval_seconds")
        self.figures = {name: line[name] for name in line if name.startswith("eval_") and name not in OWN}

    def as_json(self) -> dict[str, Any]:
        """None in place of a figure that is not finite, which JSON has no word for."""
        figures = {"eval_loss": self.loss, **self.figures}
        return {
            **{name: value if value is None or math.isfinite(value) else None for name, value in figures.items()},
            "eval_seconds": self.seconds,
            "num_eval_samples": self.num_samples,
            "num_eval_left_out": self.num_left_out,
            **self.best,
        }

    def sentence(self, step: int, file: object) -> str:
        """What the user is told after ``step``, of the loss on ``file``, or of the rewards that answers have had."""
        reward = self.figures.get("eval_reward")
        found = f"loss {self.loss:.4f}" if reward is None else f"reward {reward:.4f}"
        text = f"after step {step}: {found} on {file}"
        return f"{text}, the lowest so far" if step and self.best.get("best_step") == step else text

"""Evaluation beside training: how many samples at a time, and what of them is kept for metrics.

What Hugging Face's Trainer calls ``per_device_eval_batch_size``, ``eval_accumulation_steps``, ``compute_metrics`` and
``preprocess_logits_for_metrics`` (transformers 5.23, ``Trainer.evaluation_loop``).
"""

from dataclasses import dataclass, fields
from enum import Enum

from vlmplan.errors import InputError
from vlmplan.json_reader import JsonDict, JsonObject
from vlmplan.units import MAX_COUNT, Choice

DEFAULT_EVAL_SAMPLES = 1000
"""Where logits are kept and nobody says of how many samples. A choice."""


class Kept(Choice):
    """What an evaluation keeps of every sample until metrics are computed."""

    LOSS = "loss"
    """Nothing but the loss: no ``compute_metrics``, or ``prediction_loss_only``; the bundled trainer."""
    PREDICTIONS = "predictions"
    """A token id for every position: ``preprocess_logits_for_metrics`` takes the argmax of the logits."""
    LOGITS = "logits"
    """All logits: ``compute_metrics`` without ``preprocess_logits_for_metrics``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """``batch`` samples a GPU at a time, ``samples`` in all; what is ``kept`` moves to the host every ``accumulation``
    batches, None: at the end."""

    batch: int
    samples: int = DEFAULT_EVAL_SAMPLES
    kept: Kept = Kept.LOSS
    accumulation: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "samples", "accumulation"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_COUNT:
                allowed = "1 or more" if value < 1 else f"at most {MAX_COUNT:,}"
                raise InputError(f"{OPTION_NAMES[name]} is {value}; {allowed} is needed")

    def as_json(self) -> JsonDict:
        """The fields; enumerations as the command line has them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


OPTION_NAMES = {
    "batch": "--eval-batch",
    "samples": "--eval-samples",
    "kept": "--eval-keeps",
    "accumulation": "--eval-accumulation",
}
"""The option of the command line for each field."""


def evaluation_from_json(section: JsonObject) -> Evaluation:
    """The inverse of ``Evaluation.as_json``. Raises InputError for unknown keys and values."""
    section.close(field.name for field in fields(Evaluation))
    return Evaluation(
        batch=section.count("batch", least=1),
        samples=section.count("samples", least=1),
        kept=Kept(section.choice("kept", [member.value for member in Kept])),
        accumulation=section.maybe("accumulation", section.count),
    )

"""Evaluation beside training: how many samples at a time, what of them is kept for metrics, and generated text.

What Hugging Face's Trainer calls ``per_device_eval_batch_size``, ``eval_accumulation_steps``, ``compute_metrics``,
``preprocess_logits_for_metrics`` and ``predict_with_generate`` (transformers 5.23, ``Trainer.evaluation_loop``).
"""

from dataclasses import dataclass, fields
from enum import Enum

from vlmplan.errors import require_within
from vlmplan.files.json_reader import JsonDict, JsonObject
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
    batches, None: at the end.

    ``new_tokens`` are generated for each sample with ``beams`` beams, 0: none; a trainer may do that alone, and not
    ``computes_loss``. ``generations``: answers of GRPO to each prompt, None: as many as in training.
    """

    batch: int
    samples: int = DEFAULT_EVAL_SAMPLES
    kept: Kept = Kept.LOSS
    accumulation: int | None = None
    new_tokens: int = 0
    beams: int = 1
    computes_loss: bool = True
    generations: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "samples", "accumulation", "new_tokens", "beams", "generations"):
            value = getattr(self, name)
            least = 0 if name == "new_tokens" else 1
            require_within(OPTION_NAMES[name], value, least=least, most=MAX_COUNT)

    def as_json(self) -> JsonDict:
        """The fields; enumerations as the command line has them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


OPTION_NAMES = {
    "batch": "--eval-batch",
    "samples": "--eval-samples",
    "kept": "--eval-keeps",
    "accumulation": "--eval-accumulation",
    "new_tokens": "--eval-new-tokens",
    "beams": "--eval-beams",
    "computes_loss": "--eval-loss",
    "generations": "--eval-generations",
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
        new_tokens=section.count("new_tokens") if "new_tokens" in section else 0,
        beams=section.count("beams", least=1) if "beams" in section else 1,
        computes_loss=section.flag("computes_loss") if "computes_loss" in section else True,
        generations=section.maybe("generations", section.count) if "generations" in section else None,
    )

"""How LLaMA-Factory evaluates: when, on how many samples, what it keeps of them, and what it generates (0.9.5)."""

import math
from typing import Final

from vlmplan.other_trainers.evaluated import EvaluationRules, generation_beams
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.evaluation import Kept

MAX_NEW_TOKENS = 1024
"""``GeneratingArguments`` in ``hparams/generating_args.py``."""


def _kept(settings: Settings) -> Kept:
    """A token id for each position where its accuracy is wanted (``eval_logit_processor``)."""
    is_counted = settings.maybe_flag("compute_accuracy") or settings.maybe_flag("predict_with_generate")
    return Kept.PREDICTIONS if is_counted and not settings.maybe_flag("prediction_loss_only") else Kept.LOSS


def datasets_of(settings: Settings) -> list[str]:
    """The names of ``dataset``."""
    return settings.names("dataset") if "dataset" in settings else []


def num_evaluated(settings: Settings) -> int | None:
    """``val_size``: samples, or their part of the data sets, as many as there are at the most; a part is rounded up
    (``train_test_split`` of datasets 5.2 ``arrow_dataset.py``, ``split_dataset`` of ``data/data_utils.py``)."""
    size = settings.number("val_size", 0.0) if "val_size" in settings else 0.0
    if size > 1:
        return int(size)
    most = settings.maybe_count("max_samples", least=1)
    datasets = len(datasets_of(settings)) or 1
    return None if most is None or not size else math.ceil(size * (most * datasets))


def _generated(settings: Settings) -> dict[str, Value]:
    """It takes the labels out first, so that no loss is computed (``train/sft/trainer.py`` ``prediction_step``)."""
    tokens = settings.count("max_new_tokens", MAX_NEW_TOKENS, least=1)
    beams = generation_beams(settings, "eval_num_beams", "generation_num_beams", "num_beams")
    return {"eval_new_tokens": tokens, "eval_loss": False, **beams}


EVALUATION: Final = EvaluationRules(
    after_training=True, kept=_kept, samples=num_evaluated, generated=_generated, patience="early_stopping_steps"
)
"""By ``eval_strategy`` while it trains, and when training has ended (``train/sft/workflow.py``)."""

"""How ms-swift evaluates: whether and when, what it keeps of samples, and what it generates (4.6.0)."""

from typing import Final

from vlmplan.other_trainers.evaluated import STRATEGIES, EvaluationRules, generation_beams, steps_between
from vlmplan.other_trainers.ms_swift.datasets import num_evaluated
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import NO, Settings
from vlmplan.recipe.evaluation import Kept, Moment

VALIDATION = ("val_dataset", "cached_val_dataset")
MAX_NEW_TOKENS = 64
"""``SftArguments`` in ``arguments/sft_args.py``."""


def _evaluates(settings: Settings) -> bool:
    """Whether it evaluates: as often as it saves, unless ``eval_strategy`` says otherwise, where there are samples for
    it."""
    has_samples = len([key for key in VALIDATION if key in settings and settings.names(key)]) > 0
    has_samples |= "split_dataset_ratio" in settings and settings.number("split_dataset_ratio", 0.0) > 0
    strategy = next((key for key in (*STRATEGIES, "save_strategy") if key in settings), None)
    return has_samples and (strategy is None or str(settings.raw(strategy)).casefold() not in NO)


def _when(settings: Settings) -> Value:
    """As often as it saves, unless evaluation has its own keys (``_init_eval_strategy``)."""
    key = next((key for key in (*STRATEGIES, "save_strategy") if key in settings), None)
    strategy = "steps" if key is None else str(settings.raw(key)).casefold()
    return strategy if strategy == Moment.EPOCH.value else steps_between(settings, "eval_steps", "save_steps")


def _kept(settings: Settings) -> Kept:
    return Kept.PREDICTIONS if settings.text("eval_metric", "") in ("acc", "nlg") else Kept.LOSS


def _generated(settings: Settings) -> dict[str, Value]:
    """Its engine for inference alone (``trainers/seq2seq_trainer.py`` ``prediction_step``)."""
    if settings.maybe_flag("ds3_gather_for_generation") is not False and "deepspeed" in settings:
        settings.note("under ZeRO-3 ms-swift gathers the whole model to generate, which is not in the estimate")
    tokens = settings.count("max_new_tokens", MAX_NEW_TOKENS, least=1)
    return {"eval_new_tokens": tokens, "eval_loss": False, **generation_beams(settings, "num_beams")}


EVALUATION: Final = EvaluationRules(
    batch=1,
    runs=_evaluates,
    when=_when,
    kept=_kept,
    samples=num_evaluated,
    generated=_generated,
    patience="early_stop_interval",
)

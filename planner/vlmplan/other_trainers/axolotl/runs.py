"""How much axolotl trains on at once, when it evaluates and when it saves: what becomes of its own keys before they are
arguments of the Trainer (0.19.0 ``utils/config/__init__.py``, ``core/builders/base.py``)."""

from typing import Final

from vlmplan.other_trainers.evaluated import steps_between, when
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.saving import DEFAULT_STEPS
from vlmplan.other_trainers.settings import NO, Settings

KEPT_CHECKPOINTS: Final = 4
"""``save_total_limit``, where nothing is said."""


def derive_runs(settings: Settings) -> None:
    """What axolotl makes of keys of the batch, of checkpoints and of evaluation."""
    _note_batch(settings)
    _derive_saving(settings)
    _derive_evaluation(settings)


def _note_batch(settings: Settings) -> None:
    """``batch_size`` does nothing: the schema fills the accumulation in before ``normalize_config`` would divide."""
    if settings.is_on("batch_size") and not settings.is_on("gradient_accumulation_steps"):
        settings.note(
            "batch_size is not read: axolotl takes gradient_accumulation_steps, which is 1 where it is not set"
        )
    settings.ignore(("batch_size",))


def _has_samples(settings: Settings) -> bool:
    size = settings.number("val_set_size", 0.0)
    return size > 0 or settings.is_on("test_datasets")


def evaluates(settings: Settings) -> bool:
    """``_configure_save_and_eval_strategy``: where there are samples for it and a key says when."""
    has_samples = _has_samples(settings)
    settings.ignore(("test_datasets",))
    said = any(settings.is_on(key) for key in ("eval_steps", "evals_per_epoch"))
    strategies = [settings.raw(key) for key in ("eval_strategy", "evaluation_strategy") if key in settings]
    settings.ignore(("eval_steps", "evals_per_epoch"))
    return has_samples and (said or any(str(name).casefold() not in NO for name in strategies))


def evaluates_every(settings: Settings) -> Value:
    """As ``evaluates`` found it: a number of steps or of evaluations in an epoch, else what ``eval_strategy`` says."""
    often = _often(settings, "eval_steps", "evals_per_epoch")
    if not often:
        return when(settings)
    settings.make("eval_steps", often)
    return steps_between(settings, "eval_steps")


def num_evaluated(settings: Settings) -> int | None:
    """``val_set_size`` above 1 is a number of samples, else a part of them (``utils/data/sft.py``)."""
    size = settings.number("val_set_size", 0.0)
    if size > 1 and _packs_evaluation(settings):
        settings.note("what is evaluated is packed: its seconds are of a whole row for each of its samples, the most")
    return int(size) if size > 1 else None


def _derive_evaluation(settings: Settings) -> None:
    """Rows of evaluation are as those of training, packed or not, unless ``eval_batch_size`` says otherwise, which a
    packed one does not read (``_create_multipack_sampler``)."""
    is_packed = _packs_evaluation(settings)
    settings.ignore(("eval_sample_packing",))
    if is_packed or "eval_batch_size" not in settings:
        settings.make("eval_batch_size", settings.count("micro_batch_size", 1, least=1))


def _packs_evaluation(settings: Settings) -> bool:
    return bool(settings.maybe_flag("sample_packing")) and settings.maybe_flag("eval_sample_packing") is not False


def _derive_saving(settings: Settings) -> None:
    """Once an epoch, or so often of one, or every so many steps; the last four stay. The best one is kept where saving
    and evaluation go together (``HFCausalTrainerBuilder.build``)."""
    saves = _often(settings, "save_steps", "saves_per_epoch")
    wants_best = settings.maybe_flag("load_best_model_at_end") or settings.is_on("early_stopping_patience")
    evaluates_at = _often(settings, "eval_steps", "evals_per_epoch") if wants_best and _has_samples(settings) else 0.0
    if saves or "save_strategy" not in settings:
        settings.make("save_strategy", "steps" if saves else "epoch")
    settings.make("save_steps", saves or DEFAULT_STEPS)
    if not settings.is_on("save_total_limit"):
        settings.make("save_total_limit", KEPT_CHECKPOINTS)
    settings.make("load_best_model_at_end", saves > 0 and evaluates_at > 0 and saves % evaluates_at == 0)


def _often(settings: Settings, steps: str, per_epoch: str) -> float:
    """Steps, or the part of a run, between two: one in a whole run or more is as if it were not said; 0 for never."""
    times = settings.maybe_count(per_epoch)
    in_all = times * settings.number("num_epochs", 1.0) if times else 0.0
    if in_all > 1.0:
        return 1.0 / in_all
    return settings.number(steps, 0.0) if steps in settings else 0.0

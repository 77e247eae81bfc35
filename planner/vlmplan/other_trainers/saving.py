"""What ``TrainingArguments`` say of checkpoints (transformers 5.23 ``training_args.py``, ``trainer.py``)."""

from vlmplan.notes import listed
from vlmplan.other_trainers.settings import MAX_NUMBER, Settings
from vlmplan.run.saving import Interval, Saving

INTERVALS = {"steps": Interval.STEPS, "epoch": Interval.EPOCHS, "no": Interval.NEVER}
OF_CHECKPOINTS = tuple(
    "save_strategy save_steps save_total_limit save_only_model load_best_model_at_end metric_for_best_model".split()
)
"""Keys that decide nothing but when checkpoints are written and how many stay."""
DEFAULT_STEPS = 500.0
"""``save_steps``, and ``logging_steps``, which ``eval_steps`` is where nothing is said."""


def read_saving(settings: Settings, *, keeps_best: bool, writes_result: bool) -> Saving:
    """``keeps_best``: the trainer looks for the best model in every run that evaluates, as ms-swift does
    (``_init_metric_for_best_model`` 4.6.0); ``writes_result``: it saves the model when training has ended."""
    unknown = settings.leave_unwritten(OF_CHECKPOINTS)
    if unknown:
        settings.note(
            f"{listed(unknown)}: only running the program tells; checkpoints are planned as where nothing is said of it"
        )
    strategy = settings.text("save_strategy", "steps").casefold()
    if strategy not in (*INTERVALS, "best"):
        settings.check_choice("save_strategy", (*INTERVALS, "best"))
        strategy = "steps"
    every = settings.number("save_steps", DEFAULT_STEPS, least=-MAX_NUMBER)
    limit = settings.number("save_total_limit", 0.0, least=-1e9) if "save_total_limit" in settings else 0.0
    settings.ignore(("save_total_limit",))
    names_metric = settings.text("metric_for_best_model", "") != ""
    is_best = settings.flag("load_best_model_at_end", False) or names_metric
    if strategy == "best":
        interval, every = _of_evaluations(settings)
        settings.note("save_strategy best: counted as if every evaluation found a better model, which is the most")
    else:
        interval = INTERVALS[strategy]
    if interval is Interval.STEPS and every <= 0:  # ``DefaultFlowCallback``: saves at steps above 0 alone
        interval = Interval.NEVER
    if interval is Interval.STEPS and every > 1 and every != int(every):
        settings.refuse("save_steps", "a whole number of steps, or a part of the run below 1, is needed")
        every = DEFAULT_STEPS
    return Saving(
        interval=interval,
        every=every,
        keep_last=int(limit) if limit >= 1 else None,
        keeps_best=is_best or (keeps_best and _evaluates(settings)),
        only_model=settings.flag("save_only_model", False),
        writes_result=writes_result,
        by_hugging_face=True,
    )


def _of_evaluations(settings: Settings) -> tuple[Interval, float]:
    """Between two evaluations."""
    if settings.text("eval_strategy", "no").casefold() == "epoch":
        return Interval.EPOCHS, DEFAULT_STEPS
    fallback = settings.number("logging_steps", DEFAULT_STEPS) if "logging_steps" in settings else DEFAULT_STEPS
    return Interval.STEPS, settings.number("eval_steps", fallback) if "eval_steps" in settings else fallback


def _evaluates(settings: Settings) -> bool:
    """Whether ms-swift has samples to evaluate on, which it then does when it saves (``_init_eval_strategy``)."""
    if "eval_strategy" in settings and settings.text("eval_strategy", "no").casefold() == "no":
        return False
    has_part = "split_dataset_ratio" in settings and settings.number("split_dataset_ratio", 0.0) > 0
    return has_part or any(key in settings for key in ("val_dataset", "cached_val_dataset"))

"""Evaluation in trainers built on transformers' Trainer 5.23: whether there is one, its batch, and what it keeps.

Sources: ``Trainer.evaluate`` and ``evaluation_loop`` (without ``compute_metrics`` nothing but the loss is kept);
LLaMA-Factory 0.9.5 ``train/sft/workflow.py``; ms-swift 4.6.0 ``arguments/sft_args.py`` and ``metrics/``; TRL 1.16.0
``scripts/sft.py``, whose trainer gets no ``compute_metrics``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vlmplan.notes import Caveat
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.saving import DEFAULT_STEPS
from vlmplan.other_trainers.settings import NO, Settings
from vlmplan.recipe.evaluation import DEFAULT_EVAL_SAMPLES, OF_BEST, Kept, Moment, is_interval
from vlmplan.units import counted

KEYS = frozenset(
    """do_eval eval_strategy evaluation_strategy eval_steps per_device_eval_batch_size eval_on_start
    eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
    prediction_loss_only bf16_full_eval fp16_full_eval predict_with_generate generation_max_length
    generation_num_beams generation_config""".split()
)
METRICS = ("compute_metrics", "preprocess_logits_for_metrics")
PATIENCE, THRESHOLD = "early_stopping_patience", "early_stopping_threshold"
"""Of ``EarlyStoppingCallback``."""
"""What a program gives its trainer, under these names as keys."""
STRATEGIES = ("eval_strategy", "evaluation_strategy")
"""The key, and what it was called until transformers 4.46."""
SCRIPTS_OWN = (
    "evaluation is planned for the loss alone; a script that gives the Trainer compute_metrics keeps all logits on "
    "every GPU: --eval-keeps logits plans that, --eval-samples says of how many samples"
)


def by_strategy(settings: Settings) -> bool:
    """Whether the Trainer evaluates while it trains, or the script says that it does."""
    said = [settings.raw(key) for key in STRATEGIES if key in settings]
    evaluates = any(str(value).casefold() not in NO for value in said)
    return bool(settings.maybe_flag("do_eval")) or evaluates


def when(settings: Settings, default_steps: float = DEFAULT_STEPS) -> Value:
    """``eval_strategy`` and ``eval_steps``, which is as ``logging_steps`` where nothing is said, ``default_steps`` in
    turn. A script that is told ``do_eval`` alone evaluates when training has ended, as those of transformers do."""
    strategy = next((str(settings.raw(key)).casefold() for key in STRATEGIES if key in settings), "no")
    if strategy in NO:
        return Moment.END.value
    if strategy == Moment.EPOCH.value:
        return strategy
    return steps_between(settings, "eval_steps", "logging_steps", default=default_steps)


def steps_between(settings: Settings, *keys: str, default: float = DEFAULT_STEPS) -> float:
    """What the first of ``keys`` that is said has of steps, or a part of the run."""
    key = next((key for key in keys if key in settings and settings.number(key, 0.0)), keys[0])
    every = settings.number(key, default) or default
    if not is_interval(every):
        settings.refuse(key, "a whole number of steps, or a part of the run below 1, is needed")
        every = default
    return every if every < 1 else int(every)


def loss_alone(settings: Settings) -> Kept:
    """No trainer but the user's own script gives metrics."""
    del settings
    return Kept.LOSS


def _unknown(settings: Settings) -> Kept:
    if not settings.maybe_flag("prediction_loss_only"):
        settings.note(SCRIPTS_OWN)
    return Kept.LOSS


def by_metrics(settings: Settings) -> Kept:
    """What the trainer of a program keeps, by the functions that the program gives it."""
    computes, reduces = (bool(settings.maybe_flag(key)) for key in METRICS)
    if not computes or settings.maybe_flag("prediction_loss_only"):
        return Kept.LOSS
    if reduces:
        settings.note("preprocess_logits_for_metrics: taken to leave a token for every position, as argmax does")
    return Kept.PREDICTIONS if reduces else Kept.LOGITS


def no_samples(settings: Settings) -> int | None:
    """The configuration does not say how many samples are evaluated."""
    del settings
    return None


def generated_by_transformers(settings: Settings) -> dict[str, Value]:
    """``Seq2SeqTrainer`` generates and then computes the loss. ``generation_max_length`` counts the prompt
    too, which is left out here: that many tokens may come after an empty one."""
    tokens = settings.maybe_count("generation_max_length", least=1)
    if tokens is None:
        settings.note("generation_max_length is not said, so what generation takes is not in the estimate")
        return {}
    return {"eval_new_tokens": tokens, **generation_beams(settings, "generation_num_beams")}


def generation_beams(settings: Settings, *keys: str) -> dict[str, Value]:
    """The first of ``keys`` that says how many beams there are."""
    found = [settings.count(key, 1, least=1) for key in keys if key in settings]
    return {"eval_beams": found[0]} if found else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRules:
    """How a trainer evaluates. ``batch``: samples of a GPU where nothing is said; ``runs``: whether it evaluates at
    all, and ``when``, ``on_start``: before the first step in any case, ``after_training``: once
    more when it has ended, which is all there is at ``Moment.END``; ``kept``: what it keeps of a sample;
    ``samples``: how many there are, None where that is not known; ``generated``: the options of generation, where
    there is any. ``patience`` and ``threshold``: its keys for ``EarlyStoppingCallback``, where it has them."""

    batch: int = 8
    when: Callable[[Settings], Value] = when
    runs: Callable[[Settings], bool] = by_strategy
    on_start: bool = False
    after_training: bool = False
    kept: Callable[[Settings], Kept] = _unknown
    samples: Callable[[Settings], int | None] = no_samples
    generated: Callable[[Settings], dict[str, Value]] = generated_by_transformers
    patience: str | None = None
    threshold: str | None = None


OF_SCRIPTS = EvaluationRules()


def read_evaluation(settings: Settings, rules: EvaluationRules) -> dict[str, Value]:
    """The options that the keys of evaluation mean; none where nothing is evaluated."""
    options: dict[str, Value] = {}
    if rules.runs(settings):
        options["eval_batch"] = settings.count("per_device_eval_batch_size", rules.batch, least=1)
        kept = rules.kept(settings)
        options["eval_keeps"] = kept.value
        options["eval_every"] = rules.when(settings)
        begins = rules.on_start or settings.maybe_flag("eval_on_start")
        options |= {"eval_on_start": True} if begins else {}
        if options["eval_every"] != Moment.END.value:
            options |= {"eval_delay": settings.number("eval_delay", 0.0)} if settings.is_on("eval_delay") else {}
            options |= {"eval_after_training": True} if rules.after_training else {}
            options |= _best(settings, rules)
        samples = rules.samples(settings)
        if samples is not None:
            options["eval_samples"] = max(1, samples)
        elif kept is Kept.LOGITS:
            settings.note(f"logits are kept of {DEFAULT_EVAL_SAMPLES:,} samples; --eval-samples says of how many")
        options |= _accumulation(settings, kept)
        options |= rules.generated(settings) if settings.maybe_flag("predict_with_generate") else {}
        _note_what_differs(settings, kept)
    settings.ignore({*KEYS, *(key for key in (rules.patience, rules.threshold) if key is not None)})
    return options


def _best(settings: Settings, rules: EvaluationRules) -> dict[str, Value]:
    """Which evaluation is the result, and how many end the run, where the loss decides."""
    key = rules.patience
    patience = settings.maybe_count(key, least=1) if key is not None and settings.is_on(key) else None
    keeps = settings.flag("load_best_model_at_end", False)
    metric = settings.text("metric_for_best_model", "")
    if metric not in ("", "loss", "eval_loss"):
        if patience is not None:
            settings.note(f"{key}: time and cost are those of all steps, which is the most; {metric} may end it sooner")
        return {}
    stops: dict[str, Value] = {} if patience is None else {PATIENCE: patience}
    if patience is not None and rules.threshold is not None and settings.is_on(rules.threshold):
        stops[THRESHOLD] = settings.number(rules.threshold, 0.0)
    return stops | ({"load_best_model_at_end": True} if keeps else {})


def evaluate_for_loss(options: dict[str, Value]) -> None:
    """Of preferences the loss alone is kept, whatever is kept of samples; and nothing is generated."""
    if "eval_batch" in options:
        others = [
            name for name in options if name in ("eval_accumulation", "eval_new_tokens", "eval_beams", "eval_loss")
        ]
        for name in others:
            del options[name]
        options["eval_keeps"] = Kept.LOSS.value


def make_logits(options: dict[str, Value]) -> None:
    """Of a trainer that applies Liger by itself, so that the Trainer does not know of its fused loss: where there is
    evaluation, Liger's class makes all logits then. Trainer's ``use_liger_kernel`` hands it ``skip_logits``
    (``evaluation_loop`` of transformers 5.23; ``lce_forward`` of liger-kernel 0.8.5)."""
    if "eval_batch" in options:
        options["eval_fused_loss"] = False


def without_evaluated_shards(found: TrainerConfig) -> TrainerConfig:
    """The same, of preferences under FSDP without evaluation, which is not planned there."""
    options = dict(found.options)
    if "task" not in options or not options.get("fsdp"):
        return found
    notes = [*found.notes, *_left_out(options)]
    return replace(found, options=options, notes=tuple(notes))


def leave_evaluation_out(settings: Settings, options: dict[str, Value]) -> None:
    """What evaluating rewards takes is not planned."""
    for note in _left_out(options):
        settings.note(note)


def _left_out(options: dict[str, Value]) -> list[Caveat]:
    """What to say of the evaluation that is taken from ``options``; nothing where there is none."""
    evaluation = {name: options.pop(name) for name in [*options] if name.startswith("eval_") or name in OF_BEST}
    if not evaluation:
        return []
    return [
        Caveat(
            f"it evaluates {counted(int(str(evaluation['eval_batch'])), 'sample')} of a GPU at a time, which is "
            f"not planned with this task: where a micro batch has fewer it may take more than training"
        )
    ]


def _accumulation(settings: Settings, kept: Kept) -> dict[str, Value]:
    """``batch_eval_metrics`` computes them of each batch, and lets go of its outputs."""
    steps = settings.maybe_count("eval_accumulation_steps", least=1)
    if settings.maybe_flag("batch_eval_metrics") and kept is not Kept.LOSS:
        return {"eval_accumulation": 1}
    return {} if steps is None else {"eval_accumulation": steps}


def _note_what_differs(settings: Settings, kept: Kept) -> None:
    if kept is Kept.LOSS:
        return
    if settings.maybe_flag("eval_do_concat_batches") is False:
        settings.note("eval_do_concat_batches is false: planned as if batches were joined, up to twice as much")
    if settings.maybe_flag("eval_use_gather_object"):
        settings.note("eval_use_gather_object: planned as if tensors were gathered as such")

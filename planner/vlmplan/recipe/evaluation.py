"""Evaluation beside training: how many samples at a time and in all, how often, what of them is kept for metrics, and
generated text.

What Hugging Face's Trainer calls ``per_device_eval_batch_size``, ``eval_strategy``, ``eval_steps``,
``eval_accumulation_steps``, ``compute_metrics``, ``preprocess_logits_for_metrics`` and ``predict_with_generate``
(transformers 5.23, ``Trainer.evaluation_loop``), ``load_best_model_at_end`` and ``EarlyStoppingCallback``.
"""

import math
from dataclasses import dataclass, fields

from vlmplan.errors import InputError, require_within
from vlmplan.files.json_reader import JsonObject
from vlmplan.units import MAX_COUNT, Choice

OF_BEST = ("early_stopping_patience", "early_stopping_threshold", "load_best_model_at_end")
"""Fields of ``Evaluation`` that say what the best one decides of a run: they may change while it goes on."""
COUNTED = ("batch", "samples", "accumulation", "new_tokens", "beams", "generations")
"""Fields of ``Evaluation`` that are whole numbers of its samples and answers."""
DEFAULT_EVAL_SAMPLES = 1000
"""Where logits are kept and nobody says of how many samples. A choice."""


class Moment(Choice):
    """When a run evaluates, where that is after no number of steps."""

    EPOCH = "epoch"
    """After every epoch, and at the end of one that is not whole."""
    END = "end"
    """After the last step."""


Every = Moment | float
"""A moment, or the steps between two evaluations, after the last of which comes one too; below 1 a part of the run."""


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
    """``batch`` samples a GPU at a time, ``samples`` in all, None: not known; once ``every`` so often, but for
    the first ``delay`` steps, or epochs where it evaluates after those; ``on_start`` before the first step too, and
    ``after_training`` once more behind the last. What is ``kept`` moves to the host every ``accumulation`` batches,
    None: at the end.

    ``new_tokens`` are generated for each sample with ``beams`` beams, 0: none; a trainer may do that alone, and not
    ``computes_loss``. ``fuses_loss``: Liger's fused loss is fused here too; without, its class makes all logits, as it
    does where it does not train and is not told (``skip_logits``). ``generations``: answers of GRPO to each prompt,
    None: as many as in training.

    ``early_stopping_patience``: so many evaluations in a row without a lower loss end the run, None: none do;
    ``early_stopping_threshold``: lower by more than that, but for which is the lowest.
    ``load_best_model_at_end``: its result is that of the evaluation with the lowest loss.
    """

    batch: int
    samples: int | None = None
    every: Every = Moment.EPOCH
    kept: Kept = Kept.LOSS
    accumulation: int | None = None
    new_tokens: int = 0
    beams: int = 1
    computes_loss: bool = True
    fuses_loss: bool = True
    generations: int | None = None
    on_start: bool = False
    delay: float = 0.0
    after_training: bool = False
    early_stopping_patience: int | None = None
    early_stopping_threshold: float = 0.0
    load_best_model_at_end: bool = False

    def __post_init__(self) -> None:
        for name in (*COUNTED, "early_stopping_patience"):
            value = getattr(self, name)
            least = 0 if name == "new_tokens" else 1
            require_within(OPTION_NAMES[name], value, least=least, most=MAX_COUNT)
        if not isinstance(self.every, Moment) and not is_interval(self.every):
            raise InputError(f"{OPTION_NAMES['every']} is {self.every:g}; {EVERY_NEEDED} is needed")
        for name in ("delay", "early_stopping_threshold"):
            require_within(OPTION_NAMES[name], getattr(self, name), least=0, most=MAX_COUNT)
        if self.early_stopping_threshold and self.early_stopping_patience is None:
            raise InputError("--early-stopping-threshold is given without --early-stopping-patience; give that too")
        if self.every is Moment.END:
            more = ("after_training", "delay", *OF_BEST)
            given = next((OPTION_NAMES[name] for name in more if getattr(self, name)), None)
            if given is not None:
                raise InputError(
                    f"{given} does not go with {OPTION_NAMES['every']} end, which evaluates once; leave it off"
                )

    @property
    def keeps_best(self) -> bool:
        """Whether what was best by then is kept while the run goes on, and is its result. A run that stops early has
        gone on past it."""
        return self.load_best_model_at_end or self.early_stopping_patience is not None

    @property
    def kept_samples(self) -> int:
        """The samples of which outputs are kept."""
        return DEFAULT_EVAL_SAMPLES if self.samples is None else self.samples

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether a run of ``num_steps`` evaluates after ``step``, whether or not an epoch ends there."""
        if isinstance(self.every, Moment):
            return self.every is Moment.END and step == num_steps
        is_its_step = step == num_steps or step % self._steps_between(self.every, num_steps) == 0
        return is_its_step and self.delay <= step

    def is_due_at_end_of(self, epoch: float) -> bool:
        """Whether it evaluates because an epoch ends there; ``epoch``: how many are done."""
        return self.every is Moment.EPOCH and self.delay <= epoch

    def num_due_after(self, step: int, num_steps: int, epoch: float) -> int:
        """How often a run of ``num_steps`` evaluates between ``step`` and the next one; ``epoch``: how many are done,
        where a whole one ends with the step."""
        ends_epoch = epoch == int(epoch) or step == num_steps
        behind_last = self.after_training and step == num_steps
        return self.is_due(step, num_steps) + (ends_epoch and self.is_due_at_end_of(epoch)) + behind_last

    def num_in(self, num_steps: int, epochs: float) -> int:
        """Evaluations of a run of ``num_steps`` over so many epochs (``DefaultFlowCallback`` in transformers 5.23
        ``trainer_callback.py``)."""
        if self.every is Moment.END:
            behind = 1
        elif self.every is Moment.EPOCH:
            behind = self._num_due(1, epochs)
        else:
            behind = self._num_due(self._steps_between(self.every, num_steps), num_steps)
        return behind + self.on_start + self.after_training

    def _num_due(self, interval: int, end: float) -> int:
        """Multiples of ``interval`` up to ``end``, and ``end`` itself, that are not before the delay."""
        before = max(0, math.ceil(self.delay / interval) - 1)
        return max(0, int(end // interval) - before) + (end % interval > 0 and self.delay <= end)

    @staticmethod
    def _steps_between(every: float, num_steps: int) -> int:
        return math.ceil(every * num_steps) if every < 1 else int(every)


OPTION_NAMES = {
    "batch": "--eval-batch",
    "samples": "--eval-samples",
    "every": "--eval-every",
    "kept": "--eval-keeps",
    "accumulation": "--eval-accumulation",
    "new_tokens": "--eval-new-tokens",
    "beams": "--eval-beams",
    "computes_loss": "--eval-loss",
    "fuses_loss": "--eval-fused-loss",
    "generations": "--eval-generations",
    "on_start": "--eval-on-start",
    "delay": "--eval-delay",
    "after_training": "--eval-after-training",
    "early_stopping_patience": "--early-stopping-patience",
    "early_stopping_threshold": "--early-stopping-threshold",
    "load_best_model_at_end": "--load-best-model-at-end",
}
"""The option of the command line for each field."""
EVERY_NEEDED = "epoch, end, a whole number of steps or a part of the run below 1"
AFTER_EPOCHS = Evaluation(batch=1)
"""When a run evaluates whose plan does not say it."""


def is_interval(every: float) -> bool:
    """Whether it is a number of steps, or a part of a run."""
    return 0 < every < 1 or (1 <= every <= MAX_COUNT and every == int(every))


def parse_every(text: str) -> Every:
    """How often a run evaluates. Raises InputError for what is neither a moment nor an interval.

    >>> parse_every("end"), parse_every("500"), parse_every("0.25")
    (<Moment.END: 'end'>, 500, 0.25)
    """
    moments = {moment.value: moment for moment in Moment}
    if text in moments:
        return moments[text]
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not is_interval(number):
        raise InputError(f"{OPTION_NAMES['every']} is {text!r}; {EVERY_NEEDED} is needed")
    return number if number < 1 else int(number)


def every_value(every: Every) -> str:
    """The inverse of ``parse_every``."""
    return every.value if isinstance(every, Moment) else f"{every:.15g}"


def evaluation_from_json(section: JsonObject) -> Evaluation:
    """The inverse of ``Evaluation.as_json``. Raises InputError for unknown keys and values."""
    section.close(field.name for field in fields(Evaluation))
    return Evaluation(
        batch=section.count("batch", least=1),
        samples=section.maybe("samples", section.count),
        every=_every(section) if "every" in section else Moment.EPOCH,
        kept=Kept(section.choice("kept", [member.value for member in Kept])),
        accumulation=section.maybe("accumulation", section.count),
        new_tokens=section.count("new_tokens") if "new_tokens" in section else 0,
        beams=section.count("beams", least=1) if "beams" in section else 1,
        computes_loss=section.flag("computes_loss") if "computes_loss" in section else True,
        fuses_loss=section.flag("fuses_loss") if "fuses_loss" in section else True,
        generations=section.maybe("generations", section.count) if "generations" in section else None,
        on_start=section.flag("on_start") if "on_start" in section else False,
        delay=section.number("delay") if "delay" in section else 0.0,
        after_training=section.flag("after_training") if "after_training" in section else False,
        early_stopping_patience=_patience(section),
        early_stopping_threshold=_threshold(section),
        load_best_model_at_end=section.flag("load_best_model_at_end") if "load_best_model_at_end" in section else False,
    )


def _patience(section: JsonObject) -> int | None:
    key = "early_stopping_patience"
    return section.maybe(key, lambda name: section.count(name, least=1)) if key in section else None


def _threshold(section: JsonObject) -> float:
    key = "early_stopping_threshold"
    return section.number(key) if key in section else 0.0


def _every(section: JsonObject) -> Every:
    try:
        return parse_every(str(section.raw("every")))
    except InputError:
        section.refuse("every", EVERY_NEEDED)

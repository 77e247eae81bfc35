"""The training loop: micro batches into optimizer steps, with what each step took."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, STEP
from vlmplan.plan import Plan
from vlmplan_trainer.data.videos import SECONDS_OF_ROWS
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.labels import HEARD, IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.models.weight_types import torch_dtype
from vlmplan_trainer.schedule import learning_rate_at
from vlmplan_trainer.sequence_parallel import SHIFTED_LABELS
from vlmplan_trainer.stopping import StopRequest, agreed

Batch = dict[str, Tensor]


class MicroBatches(Protocol):
    """Micro batches of one rank (``data.batches.Batches``)."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...


@dataclass(slots=True)
class Position:
    """The position of training: optimizer steps done, the epoch, and the samples of it that all ranks together have
    had."""

    step: int = 0
    epoch: int = 0
    num_samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rate over a run."""

    peak: float
    num_steps: int
    warmup_fraction: float
    schedule: str

    def at(self, step: int) -> float:
        return learning_rate_at(
            step,
            peak=self.peak,
            num_steps=self.num_steps,
            warmup_fraction=self.warmup_fraction,
            schedule=self.schedule,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, over all ranks. ``loss`` is the mean over label tokens.

    ``seconds`` begin with waiting for the micro batches.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    is_skipped: bool
    seconds: float
    num_samples: int
    num_tokens: int
    num_label_tokens: int

    def as_json(self) -> dict[str, Any]:
        """The fields; None for what is no finite number, which JSON has not."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """What an optimizer step takes: micro batches of this rank, and samples of all ranks. ``pixel_dtypes``,
    ``keeps_batches`` and ``steps_within_backward`` are those of the plan's ``Recipe``."""

    grad_accum: int
    samples_per_step: int
    pixel_dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    keeps_batches: bool = False
    steps_within_backward: bool = False

    @classmethod
    def of(cls, plan: Plan) -> "StepRules":
        recipe = plan.recipe
        return cls(
            grad_accum=recipe.grad_accum,
            samples_per_step=plan.samples_per_step,
            pixel_dtypes=tuple(torch_dtype(dtype) for dtype in recipe.pixel_dtypes),
            keeps_batches=recipe.keeps_batches,
            steps_within_backward=recipe.steps_within_backward,
        )


class Trainer:
    """Runs optimizer steps on one engine."""

    def __init__(
        self, engine: Engine, meter: Meter, rates: Rates, rules: StepRules, *, save_seconds: float | None = None
    ) -> None:
        """``save_seconds``: after how many a checkpoint is due; None: never."""
        self.engine, self.meter, self.rates, self._rules = engine, meter, rates, rules
        self._kept: list[Batch] = []
        """Micro batches of the last step on the device, until those of the next are there."""
        self._loss: torch.Tensor | None = None
        """That of the last micro batch, with its graph, where the trainer has a name for it through the step."""
        self.position = Position()
        self.stop = StopRequest()
        self.stopped_by: int | None = None
        """The signal that some rank had got when the last step ended; the same on all ranks."""
        self.is_save_due = False
        """Whether it was time for a checkpoint when the last step ended; the same on all ranks."""
        self._save_seconds, self._saved_at = save_seconds, time.monotonic()

    def saved(self) -> None:
        """A checkpoint has been written."""
        self._saved_at = time.monotonic()

    def epoch(self, batches: MicroBatches) -> Iterator[StepReport]:
        """The rest of the current epoch, a step at a time."""
        batches.set_epoch(self.position.epoch)
        window: list[Batch] = []
        start = time.perf_counter()
        for batch in batches:
            window.append(batch)
            del batch  # the window alone has it, so that it is gone when its backward is over
            if len(window) == self._rules.grad_accum:
                yield self._step(window, start)
                window = []
                start = time.perf_counter()  # what the caller did meanwhile, saving say, is no part of a step
        self.position.epoch += 1
        self.position.num_samples = 0

    def _step(self, window: list[Batch], start: float) -> StepReport:
        """One optimizer step, which began at ``start`` with waiting for its micro batches."""
        engine, meter, position = self.engine, self.meter, self.position
        num_labels = sum(label_tokens(batch) for batch in window)
        num_tokens = sum(map(real_tokens, window))
        all_labels, all_tokens = map(int, engine.totals([num_labels, num_tokens]))
        meter.start_step()
        engine.model.train()
        loss_sum = 0.0
        if self._rules.keeps_batches:
            self._kept = [self._sent(batch) for batch in window]
            window.clear()
            loss_sum += sum(self._micro_batch(batch, max(1, all_labels)) for batch in self._kept)
        while window:  # a micro batch is gone once it has been used, on a CPU too
            loss_sum += self._micro_batch(self._sent(window.pop(0)), max(1, all_labels))
        rate = self.rates.at(position.step)
        with meter.phase(STEP):
            result = engine.step(rate)
            self._loss = None
        meter.end_step()
        is_due = self._save_seconds is not None and time.monotonic() - self._saved_at >= self._save_seconds
        loss, num_due, *votes = engine.totals([loss_sum, is_due, *self.stop.votes()])
        self.stopped_by, self.is_save_due = agreed(votes), num_due > 0
        seconds = time.perf_counter() - start
        position.step += 1
        position.num_samples += self._rules.samples_per_step
        position.seconds += seconds
        return StepReport(
            step=position.step,
            epoch=position.epoch,
            loss=loss,
            learning_rate=rate,
            grad_norm=result.grad_norm,
            is_skipped=result.is_skipped,
            seconds=seconds,
            num_samples=self._rules.samples_per_step,
            num_tokens=all_tokens,
            num_label_tokens=all_labels,
        )

    def _micro_batch(self, batch: Batch, num_items: int) -> float:
        """Forward and backward of what is on the device; the micro batch's share of the loss on this rank."""
        engine, meter = self.engine, self.meter
        self._loss = None
        computed = self._computed(batch)
        with meter.phase(FORWARD):
            loss = engine.forward(computed, num_items)
        del computed  # what was cast is gone in backward, as Hugging Face's Trainer has it
        share = float(loss.detach()) / engine.loss_scale
        with meter.phase(BACKWARD):
            engine.backward(loss)
            self._loss = loss if self._rules.steps_within_backward else None
            del loss
        return share

    def _sent(self, batch: Batch) -> Batch:
        """``batch`` on the engine's device, pixels in the type that the plan counts them in there."""
        typed = _with_pixels(batch, self._rules.pixel_dtypes[0])
        return {name: tensor.to(self.engine.device, non_blocking=True) for name, tensor in typed.items()}

    def _computed(self, batch: Batch) -> Batch:
        """``batch`` with pixels in the type that the model gets them in."""
        return _with_pixels(batch, self._rules.pixel_dtypes[-1])

    @torch.no_grad()
    def evaluate(self, batches: MicroBatches) -> float:
        """The mean loss over the label tokens of all batches."""
        self.engine.model.eval()
        self.meter.count(self.engine.model)  # steps that nobody has followed may have made weights anew
        loss = num_labels = 0.0
        with self.meter.phase(EVALUATION):
            for batch in batches:
                num_here = label_tokens(batch)
                batch = self._sent(batch)  # the host's own goes; this stays, though the model gets pixels that are cast
                found = float(self.engine.forward(self._computed(batch), 1)) / self.engine.loss_scale
                loss += found if num_here else 0.0  # of no token a class's own mean is not a number
                num_labels += num_here
                del batch
        loss, num_labels = self.engine.totals([loss, num_labels])
        return loss / max(1.0, num_labels)


def real_tokens(batch: Batch) -> int:
    """Tokens that are no padding, of which a flat row has none; those of a decoder's answers too, and places in which
    an encoder hears a sound. Of an image that an encoder reads alone there are none."""
    mask = batch.get("attention_mask")
    num_answered = label_tokens(batch) if TARGET_LABELS in batch else 0
    if "input_ids" not in batch:
        frames = batch.get(HEARD)  # a convolution halves them
        return num_answered + (0 if frames is None else frames.shape[0] * (frames.shape[-1] // 2))
    return num_answered + (batch["input_ids"].numel() if mask is None else int(mask.sum()))


def _with_pixels(batch: Batch, dtype: torch.dtype) -> Batch:
    """``batch`` with its pixels in ``dtype``; positions in time are made of what else is a fraction."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() and name not in SECONDS_OF_ROWS else tensor
        for name, tensor in batch.items()
    }


def label_tokens(batch: Batch) -> int:
    """Tokens that the loss is over: labels are predicted from the token before them, so the first never counts."""
    names = [name for name in (SHIFTED_LABELS, TARGET_LABELS) if name in batch]
    labels = batch[names[0]] if names else batch["labels"][:, 1:]
    return int((labels != IGNORED_LABEL).sum())

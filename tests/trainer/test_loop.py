"""What the loop holds on to, beside what the engine does with it."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlmplan.chats.samples import Sample
from vlmplan.sampler import Shares
from vlmplan_trainer import loop
from vlmplan_trainer.data.batches import Batches
from vlmplan_trainer.data.scan import DatasetScan
from vlmplan_trainer.engines.base import StepResult
from vlmplan_trainer.loop import Rates, StepRules, Trainer
from vlmplan_trainer.measure import Meter

NUM_SAMPLES, MICRO_BATCH, GRAD_ACCUM = 12, 1, 3
RULES = StepRules(grad_accum=GRAD_ACCUM, samples_per_step=MICRO_BATCH * GRAD_ACCUM)


class PlainTexts:
    """An encoder whose every sample is the same few tokens."""

    needs_blanks = True
    pad_id, seq_len = 0, 8

    def encode_or_nothing(self, sample: Sample) -> dict[str, Tensor]:
        names = ("input_ids", "labels", "attention_mask")
        return {name: torch.ones(1, 8, dtype=torch.int64) for name in names}


class Watching:
    """An engine that keeps weak references to what it is given, and counts what is alive when it steps."""

    device, rank, num_ranks, loss_scale = torch.device("cpu"), 0, 1, 1

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1)
        self.given: list[weakref.ref[Tensor]] = []
        self.alive_in_step: list[int] = []

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        self.given += [weakref.ref(tensor) for tensor in batch.values()]
        return self.model(torch.ones(1, 1)).sum()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> StepResult:
        self.alive_in_step.append(sum(reference() is not None for reference in self.given))
        return StepResult(grad_norm=None, is_skipped=False)

    def totals(self, values: Sequence[float]) -> list[float]:
        return list(values)


class WatchingLoss(Watching):
    """One that counts losses with their graphs: those alive when a forward begins, and when it steps."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[weakref.ref[Tensor]] = []
        self.alive_in_forward: list[int] = []

    @property
    def num_losses(self) -> int:
        return sum(reference() is not None for reference in self.losses)

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        self.alive_in_forward.append(self.num_losses)
        loss = super().forward(batch, num_items)
        self.losses.append(weakref.ref(loss))
        return loss

    def step(self, learning_rate: float) -> StepResult:
        self.alive_in_step.append(self.num_losses)
        return StepResult(grad_norm=None, is_skipped=False)


def batches_of() -> Batches:
    encoder: Any = PlainTexts()
    samples = [Sample(source=f"some.jsonl:{index}", turns=()) for index in range(NUM_SAMPLES)]
    return Batches(
        DatasetScan(samples=samples, lengths=[8] * NUM_SAMPLES),
        encoder,
        Shares(micro_batch=MICRO_BATCH, grad_accum=GRAD_ACCUM, num_ranks=1, rank=0),
    )


@pytest.mark.parametrize("names_loss", [True, False])
def test_the_last_loss_is_alive_in_a_step_that_is_the_end_of_backward(names_loss: bool):
    """As Hugging Face's Trainer has it under DeepSpeed, and no other micro batch's."""
    engine: Any = WatchingLoss()
    rates = Rates(peak=1.0, num_steps=4, warmup_fraction=0.0, schedule="constant")
    rules = replace(RULES, keeps_batches=True, steps_within_backward=names_loss)
    list(Trainer(engine, Meter(torch.device("cpu"), num_steps=1), rates, rules).epoch(batches_of()))
    assert engine.alive_in_step == [int(names_loss)] * 4
    assert engine.alive_in_forward == [0] * NUM_SAMPLES


class SendingPixels(Trainer):
    """One whose every micro batch has a picture."""

    def _sent(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        sent = super()._sent(batch) | {"pixel_values": torch.ones(3)}
        self.pixels = weakref.ref(sent["pixel_values"])
        return sent


def test_pixels_stay_in_the_type_in_which_they_were_sent_while_an_evaluation_runs_on_their_cast():
    """``prediction_step`` of Hugging Face's Trainer has a name for them, and the model casts."""
    engine: Any = Watching()
    rules = replace(RULES, pixel_dtypes=(torch.float32, torch.bfloat16))
    rates = Rates(peak=1.0, num_steps=4, warmup_fraction=0.0, schedule="constant")
    trainer = SendingPixels(engine, Meter(torch.device("cpu"), num_steps=1), rates, rules)
    found: list[tuple[bool, torch.dtype]] = []

    def forward(batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        found.append((trainer.pixels() is not None, batch["pixel_values"].dtype))
        return torch.ones(())

    engine.forward = forward
    trainer.evaluate(batches_of())
    assert found == [(True, torch.bfloat16)] * NUM_SAMPLES


def test_no_micro_batch_is_alive_when_the_optimizer_steps():
    batches = batches_of()
    engine: Any = Watching()
    rates = Rates(peak=1.0, num_steps=4, warmup_fraction=0.0, schedule="constant")
    meter = Meter(torch.device("cpu"), num_steps=1)
    trainer = Trainer(engine, meter, rates, RULES)
    assert [report.step for report in trainer.epoch(batches)] == [1, 2, 3, 4]
    assert len(engine.given) == 3 * NUM_SAMPLES
    assert engine.alive_in_step == [0] * 4


@pytest.mark.parametrize(("save_seconds", "due"), [(None, []), (5.0, [3]), (2.0, [2, 4]), (100.0, [])])
def test_a_checkpoint_is_due_when_its_time_has_passed_since_the_last(save_seconds, due, monkeypatch):
    engine: Any = Watching()
    rates = Rates(peak=1.0, num_steps=4, warmup_fraction=0.0, schedule="constant")
    meter = Meter(torch.device("cpu"), num_steps=0)
    now = 0.0
    monkeypatch.setattr(loop.time, "monotonic", lambda: now)
    trainer = Trainer(engine, meter, rates, RULES, save_seconds=save_seconds)
    found = []
    for report in trainer.epoch(batches_of()):
        now += 3.0
        if trainer.is_save_due:
            found.append(report.step)
            trainer.saved()
    assert found == due


def test_pixels_take_the_type_of_the_weights_and_seconds_of_videos_keep_theirs():
    batch = {
        "input_ids": torch.ones(1, 4, dtype=torch.int64),
        "pixel_values": torch.ones(2, 3),
        "second_per_grid_ts": torch.ones(1),
    }
    types = {name: tensor.dtype for name, tensor in loop._with_pixels(batch, torch.bfloat16).items()}
    assert types == {"input_ids": torch.int64, "pixel_values": torch.bfloat16, "second_per_grid_ts": torch.float32}


@pytest.mark.parametrize(("name", "counted"), [("labels", 2), ("shift_labels", 3), ("target_labels", 3)])
def test_the_first_label_counts_where_it_has_been_shifted_or_is_a_decoder_s(name: str, counted: int):
    labels = torch.tensor([[5, 6, 7, -100]])
    assert loop.label_tokens({"labels": labels, name: labels}) == counted

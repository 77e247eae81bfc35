"""The chunk of the planner's loss beside the trainer's, storage by storage."""

import pytest
import torch

from vlmplan.architecture.losses.cross_entropy import PIECES_PER_CHUNK, chunked_loss, full_loss, whole_logits
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, Span
from vlmplan.units import DType
from vlmplan_trainer.losses import cross_entropy
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product, chunked_cross_entropy
from vlmplan_trainer.measure import LiveStorages

TOKENS, WIDTH, VOCABULARY = 2 * 64, 20, 3 * 7 * 11
TYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}


def planned(hidden: DType, weight: DType, autocast: DType | None, *, trains: bool) -> int:
    """The highest moment of the head's forward, on the tape, beside hidden states and weight."""
    tape = Tape(autocast=autocast)
    head = Linear(WIDTH, VOCABULARY, bias=False)
    head.weight.dtype, head.weight.requires_grad = weight, trains
    with tape.section("head"):
        x = tape.tensor((TOKENS, WIDTH), hidden)
        x.node = tape.node((Linear(1, 1).weight,), lambda node, grads: ())
        loss = chunked_loss(x, head)
    held = x.num_bytes
    del loss
    trace = tape.trace()
    live = peak = 0
    for event in trace.sections["head"].forward:
        if isinstance(event, Span):
            peak, live = max(peak, live + event.peak_bytes), live + event.delta_bytes
    return peak - held


def measured(hidden: torch.dtype, weight: torch.dtype, *, autocasts: bool, trains: bool) -> int:
    x = torch.randn(TOKENS, WIDTH).to(hidden).requires_grad_()
    w = torch.randn(VOCABULARY, WIDTH).to(weight).requires_grad_(trains)
    labels = torch.randint(0, VOCABULARY, (TOKENS,))
    storages = LiveStorages()
    with storages:
        storages.count(x, w, labels)
        held = storages.num_bytes
        with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            chunked_cross_entropy([Product(x=x, weight=w)], None, labels, rule=LogitRule(), chunk=TOKENS)
    return storages.peak_bytes - held


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("hidden", "weight", "autocast"),
    [
        (DType.BFLOAT16, DType.BFLOAT16, None),
        (DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT16),
        (DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16),
    ],
)
def test_the_chunk_takes_what_the_trainer_takes(hidden: DType, weight: DType, autocast: DType | None, trains: bool):
    plan = planned(hidden, weight, autocast, trains=trains)
    real = measured(TYPES[hidden], TYPES[weight], autocasts=autocast is not None, trains=trains)
    # beside the sums and the labels of an eighth of the tokens, a few numbers each
    assert plan == pytest.approx(real, abs=64 * TOKENS / PIECES_PER_CHUNK + 16)


def test_a_chunk_in_float32_is_one_copy_and_an_eighth():
    kept = 4 * TOKENS * WIDTH
    plan = planned(DType.FLOAT32, DType.FLOAT32, None, trains=False)
    real = measured(torch.float32, torch.float32, autocasts=False, trains=False)
    assert plan == kept + 4 * (TOKENS + TOKENS // 8) * VOCABULARY
    # The eighth is inside torch.logsumexp, where no dispatch mode looks; the product that follows is smaller here.
    assert kept + 4 * TOKENS * VOCABULARY < real < plan


def test_softmax_runs_over_the_trainers_pieces():
    assert PIECES_PER_CHUNK == cross_entropy.PIECES_PER_CHUNK


def test_float32_logits_are_gone_when_the_weights_gradient_is_made():
    # Under autocast a float32 weight's gradient comes in 16-bit slices as large as the chunk: 2 + 2 bytes a logit.
    real = measured(torch.bfloat16, torch.float32, autocasts=True, trains=True)
    kept = 2 * TOKENS * WIDTH + (4 + 2) * VOCABULARY * WIDTH
    assert real - kept < 6.1 * TOKENS * VOCABULARY


def test_full_loss_is_the_trainers_and_the_logits_that_a_loop_of_ones_own_holds():
    """16-bit logits (2), their float32 copy's log-softmax (4) and two float32 gradients (8); the trainer: 4 + 8."""
    tape = Tape()
    head = Linear(WIDTH, VOCABULARY, bias=False)
    with tape.section("head"):
        x = tape.tensor((TOKENS, WIDTH), DType.BFLOAT16)
        x.node = tape.node((Linear(1, 1).weight,), lambda node, grads: (None,))
        logits = whole_logits(x, head)
        outputs = logits.detached()
        loss = full_loss(logits)
        del logits
    tape.run_backward(loss)
    tape.end_backward()
    del outputs, loss
    peak = live = 0
    section = tape.trace().sections["head"]
    for event in (*section.forward, *section.backward):
        if isinstance(event, Span):
            peak, live = max(peak, live + event.peak_bytes), live + event.delta_bytes
    plan = peak - 2 * TOKENS * WIDTH

    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    storages = LiveStorages()
    with storages:
        storages.count(hidden, weight)
        held = storages.num_bytes
        logits = torch.nn.functional.linear(hidden, weight).float()
        real = torch.nn.functional.cross_entropy(logits, torch.zeros(TOKENS, dtype=torch.long), reduction="sum")
        del logits
        real.backward()
    assert plan - (storages.peak_bytes - held) == pytest.approx(2 * TOKENS * VOCABULARY, abs=16 * TOKENS)


def test_the_gradient_of_a_bias_comes_before_that_of_the_weight():
    """Under ZeRO a large gradient waits beside the bucket until the next one comes."""
    tape, head = Tape(), Linear(WIDTH, VOCABULARY, bias=True)
    with tape.section("head"):
        loss = chunked_loss(tape.tensor((TOKENS, WIDTH), DType.FLOAT32), head)
    tape.run_backward(loss)
    events = tape.trace().sections["head"].backward
    names = {head.weight: "weight", head.bias: "bias"}
    w, b = torch.randn(VOCABULARY, WIDTH, requires_grad=True), torch.randn(VOCABULARY, requires_grad=True)
    arrived: list[str] = []
    for name, one in (("weight", w), ("bias", b)):
        one.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    x, labels = torch.randn(TOKENS, WIDTH), torch.randint(0, VOCABULARY, (TOKENS,))
    chunked_cross_entropy([Product(x=x, weight=w)], b, labels, rule=LogitRule(), chunk=TOKENS).backward()
    assert [names[event.parameter] for event in events if isinstance(event, GradientReady)] == arrived
    assert arrived == ["bias", "weight"]


@pytest.mark.parametrize(("is_evaluating", "expected"), [(False, 2), (True, 1)])
def test_an_evaluation_casts_no_gradient_of_the_logits(is_evaluating: bool, expected: int):
    """Logits as they come are as large as their gradient."""
    tape = Tape(autocast=DType.BFLOAT16, is_evaluating=is_evaluating)
    head, made = Linear(WIDTH, VOCABULARY, bias=False), list[tuple[tuple[int, ...], DType]]()
    real = tape.tensor
    tape.tensor = lambda shape, dtype, *rest: made.append((shape, dtype)) or real(shape, dtype, *rest)  # type: ignore
    with tape.section("head"):
        chunked_loss(real((TOKENS, WIDTH), DType.BFLOAT16), head)
    assert made.count(((TOKENS, VOCABULARY), DType.BFLOAT16)) == expected

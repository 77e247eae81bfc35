"""Liger's fused loss where there is no CUDA: values, gradients, and the bytes that the planner counts for it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_models import VOCAB_SIZE, batch, distance_fraction, exact_gradients, gradients, small_model
from torch.nn.functional import cross_entropy

from vlmplan.architecture.losses.liger import liger_loss
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import packed_node
from vlmplan.architecture.trace import Span
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.losses import liger as trained
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product
from vlmplan_trainer.losses.loss import language_loss
from vlmplan_trainer.measure import LiveStorages


@settings(max_examples=25)
@given(
    num_tokens=st.integers(1, 40),
    width=st.integers(1, 9),
    vocab_size=st.integers(2, 60),
    cap=st.sampled_from([None, 0.5, 3.0]),
    ignored=st.floats(0, 1),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_loss_and_gradients_are_those_of_all_logits_at_once(
    num_tokens, width, vocab_size, cap, ignored, has_bias, seed
):
    random = torch.Generator().manual_seed(seed)
    shapes = [(num_tokens, width), (vocab_size, width), *([(vocab_size,)] if has_bias else [])]
    leaves = [torch.randn(*shape, generator=random).requires_grad_() for shape in shapes]
    x, weight, bias = (*leaves, None)[:3]
    labels = torch.randint(vocab_size, (num_tokens,), generator=random)
    labels[torch.rand(num_tokens, generator=random) < ignored] = IGNORED_LABEL
    rule = LogitRule(cap=cap)
    logits = rule(x @ weight.T + (0 if bias is None else bias))
    expected = cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    found = trained.liger_cross_entropy(Product(x=x, weight=weight), bias, labels, rule=rule)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    pairs = zip(torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * expected, leaves), strict=True)
    assert all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4) for ours, theirs in pairs)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"kind": "gemma2"}], ids=str)
def test_a_model_has_the_loss_and_gradients_of_transformers(changes):
    model, inputs = small_model(**changes), batch()
    theirs = model(**inputs).loss
    expected = gradients(model, theirs)
    ours = language_loss(model, inputs, kind=LossKind.LIGER)
    assert float(ours.detach()) == pytest.approx(float(theirs), rel=2e-5)
    assert distance_fraction(gradients(model, ours), expected) < 2e-5


def test_under_autocast_gradients_are_float32_and_as_near_as_the_plain_ones():
    model = small_model()
    exact = exact_gradients(model)
    distances = []
    for kind in (LossKind.FULL, LossKind.LIGER):
        with torch.autocast("cpu", torch.bfloat16):
            loss = language_loss(model, batch(), kind=kind)
        found = gradients(model, loss)
        assert {value.dtype for value in found.values()} == {torch.float32}
        distances.append(distance_fraction(found, exact))
    assert distances[1] < 1.5 * distances[0] < 0.1


@pytest.mark.parametrize(
    ("model", "problem"),
    [(lambda: small_model("granite", logits_scaling=4.0), "does not scale logits"), (lambda: adapted(), "adapters")],
    ids=["granite", "adapted head"],
)
def test_what_liger_would_compute_wrongly_is_refused(model, problem):
    with pytest.raises(InputError, match=problem):
        language_loss(model(), batch(), kind=LossKind.LIGER)


def adapted():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(small_model(), LoraConfig(r=3, target_modules=["lm_head"], task_type="CAUSAL_LM"))


def counted(x, weight, autocast):
    """(peak, kept) bytes of the forward on the CPU, without what stands in for the Triton kernel."""
    labels = torch.zeros(len(x), dtype=torch.int64)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None), LiveStorages() as storages:
        storages.count(x, weight, labels)
        given_bytes = storages.num_bytes
        loss = trained.liger_cross_entropy(Product(x=x, weight=weight), None, labels, rule=LogitRule())
        found = storages.peak_bytes - given_bytes, storages.num_bytes - given_bytes
    del loss
    return found


def planned(num_tokens, width, dtype, autocast):
    tape, head = Tape(autocast=autocast, follows_weights=False, caches_casts=True), Linear(width, VOCAB_SIZE)
    head.weight.dtype, head.weight.requires_grad = dtype, True
    with tape.section("before"):
        states = tape.tensor((1, num_tokens, width), dtype, packed_node())
    with tape.head():
        loss = liger_loss(states, head)
    (span,) = [event for event in tape.trace().sections["head"].forward if isinstance(event, Span)]
    del loss
    return span.peak_bytes, span.delta_bytes


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(DType.BFLOAT16, None), (DType.FLOAT32, None), (DType.FLOAT32, DType.BFLOAT16)],
    ids=str,
)
def test_the_bytes_are_those_of_the_plan(dtype, autocast, monkeypatch):
    monkeypatch.setattr(trained, "_write_gradients", lambda *args, **kwargs: None)
    num_tokens, width = 1000, 24
    real = getattr(torch, dtype.torch_name)
    x, weight = torch.zeros(num_tokens, width, dtype=real), torch.zeros(VOCAB_SIZE, width, dtype=real)
    cast = None if autocast is None else getattr(torch, autocast.torch_name)
    peak, kept = counted(x.requires_grad_(), weight.requires_grad_(), cast)
    planned_peak, planned_kept = planned(num_tokens, width, dtype, autocast)
    # What autocast itself keeps until it ends goes with the function here.
    cached = weight.numel() * autocast.num_bytes if autocast else 0
    assert kept == planned_kept - cached
    # Into float32 the CPU adds 16-bit products part by part, each as large as a part of the weight.
    part = 2 * -(-VOCAB_SIZE // trained.PIECES) * width * 4 if autocast else 0
    assert planned_peak <= peak <= planned_peak + part

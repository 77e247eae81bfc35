"""Two gradients of one weight, as real torch adds them and as the tape counts them."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
from torch.nn.functional import cross_entropy, embedding, linear
from torch.profiler import ProfilerActivity, profile

from vlmplan.architecture import ops
from vlmplan.architecture.losses.cross_entropy import chunked_loss, full_loss
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product, chunked_cross_entropy
from vlmplan_trainer.measure import LiveStorages

ROWS, WIDTH, TOKENS = 4001, 32, 16
DTYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}
CASES = {
    "16 bits": (DType.BFLOAT16, None, "linear"),
    "16 bits under autocast": (DType.BFLOAT16, DType.BFLOAT16, "linear"),
    "32 bits": (DType.FLOAT32, None, "linear"),
    "32 bits cast by autocast": (DType.FLOAT32, DType.BFLOAT16, "linear"),
    "16 bits, bias": (DType.BFLOAT16, None, "bias"),
    "16 bits, transposed": (DType.BFLOAT16, None, "transposed"),
    "16 bits, DeepSpeed's linear": (DType.BFLOAT16, None, "replaced"),
    "16 bits, chunked": (DType.BFLOAT16, None, "chunked"),
}


def loss_of(dtype: DType, autocast: DType | None, head: str) -> torch.Tensor:
    shape = shape_of(head)
    weight = torch.nn.Parameter(torch.rand(shape, dtype=DTYPES[dtype]))
    bias = torch.nn.Parameter(torch.zeros(ROWS, dtype=DTYPES[dtype])) if head == "bias" else None
    ids = torch.arange(TOKENS)[None]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast is not None):
        hidden = torch.tanh(embedding(ids, weight)[..., :WIDTH])
        if head == "chunked":
            product = Product(x=hidden.flatten(0, 1), weight=weight)
            return chunked_cross_entropy([product], None, ids.flatten(), rule=LogitRule(), chunk=TOKENS)
        return cross_entropy(logits(hidden, weight, bias, head).float().flatten(0, -2), ids.flatten())


def shape_of(head: str) -> tuple[int, int]:
    return (WIDTH, ROWS) if head == "transposed" else (ROWS, WIDTH)


def is_added_in_place(
    dtype: DType, autocast: DType | None, head: str, mode: AbstractContextManager[object] | None = None
) -> bool:
    """By torch: the embedding's gradient is added to the head's by ``add_``, not by ``add`` alone."""
    loss, shape = loss_of(dtype, autocast, head), list(shape_of(head))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled, mode or nullcontext():
        loss.backward()
    events = [(event.name, *event.input_shapes[:1]) for event in profiled.events() or ()]
    names = {name for name, *shapes in events if name in ("aten::add", "aten::add_") and shapes == [shape]}
    assert names
    return "aten::add_" in names


def logits(hidden, weight, bias, head):
    if head == "transposed":  # transformers' Conv1D
        return torch.addmm(weight.new_zeros(ROWS), hidden.flatten(0, 1), weight)[None]
    if head == "replaced":
        return LinearFunctionForZeroStage3.apply(hidden, weight, bias)
    return linear(hidden, weight, bias)


class CountingTape(Tape):
    """Counts new tensors of the tied weight's shape and type."""

    num_gradients = 0
    counted = (ROWS, WIDTH), DType.BFLOAT16

    def tensor(self, shape, dtype, node=None) -> Tensor:
        self.num_gradients += (shape, dtype) == self.counted
        return super().tensor(shape, dtype, node)


def num_gradients(dtype: DType, autocast: DType | None, head: str) -> int:
    """Of a tied weight, by the tape, in its own type."""
    tape = CountingTape(autocast=autocast, keeps_linear_inputs=head == "replaced")
    tape.counted = ((WIDTH, ROWS) if head == "transposed" else (ROWS, WIDTH), dtype)
    layer = Linear(WIDTH, ROWS, bias=head == "bias")
    weight = layer.weight = Parameter(*tape.counted[0])
    for parameter in layer.parameters_by_name.values():
        parameter.dtype = dtype
    with tape.section("model"):
        ids = tape.tensor((1, TOKENS), DType.INT64)
        hidden = ops.tanh(ops.embedding(ids, weight).view(1, TOKENS, WIDTH))
        if head == "chunked":
            loss = chunked_loss(hidden, layer)
        else:
            loss = full_loss(ops.linear(hidden, weight, layer.bias, is_transposed=head == "transposed"))
        del hidden
        tape.run_backward(loss)
    return tape.num_gradients


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sum_of_a_tied_weights_gradients_is_a_tensor_of_its_own_where_torch_makes_one(case):
    assert num_gradients(*case) == (2 if is_added_in_place(*case) else 3)


def test_both_ways_are_met():
    assert {is_added_in_place(*case) for case in CASES.values()} == {False, True}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_that_follows_its_storages_adds_gradients_where_one_that_does_not_would(case):
    assert is_added_in_place(*case, LiveStorages()) == is_added_in_place(*case)

"""What operations have at once under autocast, as torch has it: its callers hold what they give until it returns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tape_probe import Batch, predicted_step
from torch_probe import FAKE_MODE, ByteCounter
from vlmplan.architecture import ops
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.apertus import Xielu
from vlmplan.architecture.ops import chunks, norms
from vlmplan.architecture.ops.matmuls import linear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

TOKENS, WIDTH, OUT_WIDTH, TAPS = 64, 8, 16, 4
NUMEL = TOKENS * WIDTH


def frozen(*shape: int) -> Parameter:
    weight = Parameter(*shape)
    weight.dtype, weight.requires_grad = DType.FLOAT32, False
    return weight


def peak_of_trace(operation: Callable[[Tensor], Tensor], *shape: int, dtype: DType) -> int:
    tape = Tape(autocast=DType.BFLOAT16)
    with tape.section("operation"):
        out = operation(tape.tensor(shape, dtype))
        del out
    return max(one.peak_bytes for one in tape.trace().sections["operation"].forward if isinstance(one, Span))


def peak_of_torch(module: Callable[..., Any], *shape: int, dtype: torch.dtype) -> int:
    with FAKE_MODE, ByteCounter(FAKE_MODE) as counter:
        if isinstance(module, nn.Module):
            module = module.to_empty(device="cpu").requires_grad_(False)
        x = torch.empty(*shape, dtype=dtype)
        before = counter.live_bytes
        counter.reset_peak()
        with torch.autocast("cpu", torch.bfloat16):
            module(x * 2)
        return counter.peak_bytes - before


CASES = {
    "linear": (
        lambda x: linear(x, frozen(OUT_WIDTH, WIDTH)),
        nn.Linear(WIDTH, OUT_WIDTH, bias=False, device="meta"),
        (TOKENS, WIDTH),
        NUMEL * (4 + 2) + OUT_WIDTH * WIDTH * 2 + TOKENS * OUT_WIDTH * 2,
    ),
    "convolution": (
        lambda x: ops.convolution(x, frozen(OUT_WIDTH, WIDTH, 1), None, (1, OUT_WIDTH, TOKENS)),
        nn.Conv1d(WIDTH, OUT_WIDTH, 1, bias=False, device="meta"),
        (1, WIDTH, TOKENS),
        NUMEL * (4 + 2) + OUT_WIDTH * WIDTH * 2 + TOKENS * OUT_WIDTH * 2,
    ),
    "causal convolution": (
        lambda x: chunks.causal_convolution(x, frozen(WIDTH, 1, TAPS)),
        nn.Conv1d(WIDTH, WIDTH, TAPS, groups=WIDTH, padding=TAPS - 1, bias=False, device="meta"),
        (1, WIDTH, TOKENS),
        NUMEL * (4 + 2) + WIDTH * TAPS * 2 + (TOKENS + TAPS - 1) * WIDTH * 2,
    ),
    "product": (
        lambda x: chunks.product(x, x, (1, TOKENS, TOKENS), WIDTH),
        lambda x: torch.bmm(x, x.transpose(1, 2)),
        (1, TOKENS, WIDTH),
        NUMEL * (4 + 2 + 2) + TOKENS * TOKENS * 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_autocast_casts_is_there_until_the_result_is(name: str):
    """``module(x * 2)`` in float32: its argument, the 16-bit casts of it and of the weight, and the result."""
    operation, module, shape, expected = CASES[name]
    assert peak_of_torch(module, *shape, dtype=torch.float32) == expected
    assert peak_of_trace(operation, *shape, dtype=DType.FLOAT32) == expected


def test_what_a_layer_norm_reads_in_float32_is_there_in_16_bits_until_the_result_is():
    """CPU's autocast leaves norms as they are, CUDA's casts: the argument, its cast, the result and two numbers a row.
    Softmax saves no numbers."""
    norm = peak_of_trace(lambda x: norms.layer_norm(x, None, None), TOKENS, WIDTH, dtype=DType.BFLOAT16)
    softmax = peak_of_trace(norms.softmax, TOKENS, WIDTH, dtype=DType.BFLOAT16)
    assert norm == NUMEL * (2 + 4 + 4) + TOKENS * (4 + 4)
    assert softmax == NUMEL * (2 + 4 + 4)


def test_xielu_of_frozen_numbers_in_16_bits_is_computed_in_float32():
    """CUDA's autocast casts for ``softplus`` and ``expm1``, and the numbers have a dimension: so do what they multiply.
    The most is there in ``expm1(smaller) - x``: x, where it is positive, the other branch, the minuend, the result."""
    xielu = Xielu()
    for number in (xielu.alpha_p, xielu.alpha_n):
        number.dtype, number.requires_grad = DType.BFLOAT16, False
    peak = peak_of_trace(xielu, TOKENS, WIDTH, dtype=DType.BFLOAT16)
    assert peak == NUMEL * (2 + 1 + 4 + 4 + 4) + 4 + 4


def test_xielu_of_frozen_numbers_peaks_where_its_exponential_is_differentiated():
    """Of each number: x and what its gradient is so far in 16 bits; in float32 what ``x * alpha_p`` was, the
    exponential, the gradient of the other branch, that of the exponential, the exponential plus one, and the result."""
    narrow, wide = (_backward_peak_of_apertus(width) for width in (4096, 8192))
    assert wide - narrow == (2 + 2 + 6 * 4) * TOKENS * 4096


def _backward_peak_of_apertus(intermediate_size: int) -> int:
    """With the embeddings alone trained, so that no weight's gradient is in the way."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 128}
    model = build_model({"model_type": "apertus", **sizes, "intermediate_size": intermediate_size})
    for entry in model.parameters():
        entry.parameter.dtype = DType.BFLOAT16
        entry.parameter.requires_grad = "embed_tokens" in entry.name
    batch = Batch(micro_batch=1, num_tokens=TOKENS)
    return predicted_step(model, batch, checkpoints=True, autocast=DType.BFLOAT16).backward_peak


def test_the_last_argument_is_cast_first_so_that_backward_comes_to_the_first_ones_cast_first():
    """The order in which GCC takes the arguments of ``(*F)(cached_cast(...)...)``, as the graph numbers its nodes."""
    x, weight = (torch.empty(WIDTH, WIDTH, requires_grad=True) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        of_torch = nn.functional.linear(x, weight).grad_fn
    assert of_torch is not None
    of_x, of_weight = (edge[0] for edge in of_torch.next_functions)
    assert of_weight.name() == "TBackward0"  # behind the cast
    assert of_x._sequence_nr() > of_weight.next_functions[0][0]._sequence_nr()

    trained = frozen(WIDTH, WIDTH)
    trained.requires_grad = True
    tape = Tape(autocast=DType.BFLOAT16)
    with tape.section("operation"):
        node = linear(tape.leaf(tape.tensor((WIDTH, WIDTH), DType.FLOAT32)), trained).node
    assert node is not None
    first, second = (edge[0].sequence for edge in node.inputs[:2] if isinstance(edge, tuple))
    assert first > second

"""What flash attention's backward takes for itself: rows and widths in the multiples that its kernel works on."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Kernel
from vlmplan.architecture.attention_kernels import fused_attention
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.hardware import CPU_KERNELS
from vlmplan.units import DType

HEADS, FLOAT32 = 3, 4


def backward_peak(num_tokens: int, head_dim: int, *, has_workspaces: bool) -> int:
    tape = Tape(follows_weights=False)
    with tape.section("attention"):
        q, k, v = (ops.copy(tape.leaf(tape.tensor((1, HEADS, num_tokens, head_dim), DType.BFLOAT16))) for _ in range(3))
        backend = AttentionBackend(compute_capability=(8, 0) if has_workspaces else CPU_KERNELS)
        rows = {"num_pairs": num_tokens**2, "is_causal": True, "mask": None}
        out = fused_attention(backend, Kernel.FLASH, q, k, v, **rows)
        del q, k, v
        loss = ops.total(out, ())
        del out
    tape.run_backward(loss)
    live = peak = 0
    for event in tape.trace().sections["attention"].backward:
        if isinstance(event, Span):
            peak = max(peak, live + event.peak_bytes)
            live += event.delta_bytes
    return peak


@pytest.mark.parametrize(("head_dim", "width"), [(32, 32), (72, 96), (129, 192)])
@pytest.mark.parametrize(("num_tokens", "num_rows"), [(128, 128), (129, 256), (777, 896)])
def test_sums_have_rows_in_multiples_of_128_and_heads_in_multiples_of_32_and_64(
    num_tokens: int, num_rows: int, head_dim: int, width: int
):
    """``seqlen_q_rounded`` and ``head_size_rounded`` of ``mha_bwd`` in flash-attn's ``flash_api.cpp``."""
    with_them, without = (backward_peak(num_tokens, head_dim, has_workspaces=has) for has in (True, False))
    assert with_them - without == HEADS * num_rows * (1 + width) * FLOAT32

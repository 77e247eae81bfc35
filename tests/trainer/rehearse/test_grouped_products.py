"""Grouped products of experts in a rehearsal have the shapes that torch gives them, in every type."""

import pytest

pytest.importorskip("torch")

import torch

from vlmplan_trainer.rehearse.kernels import KERNELS

TOKENS, WIDTH, INNER, EXPERTS = 24, 16, 32, 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward_and_the_gradient_of_the_weights_have_the_shapes_of_torch(dtype):
    op = torch.ops.aten._grouped_mm.default
    x, weight = torch.ones(TOKENS, WIDTH, dtype=dtype), torch.ones(EXPERTS, WIDTH, INNER, dtype=dtype)
    g = torch.ones(TOKENS, INNER, dtype=dtype)
    ends = torch.tensor([6, 12, 18, 24], dtype=torch.int32)
    for left, right in ((x, weight), (x.t(), g)):
        (found, passing), real = KERNELS[op](left, right, ends), op(left, right, ends)
        assert (found.shape, found.dtype, passing) == (real.shape, real.dtype, [])

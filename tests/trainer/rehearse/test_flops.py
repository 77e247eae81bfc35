"""FLOPs that a rehearsal counts of what torch's own counter does not know or leaves out, beside unreduced counts."""

from itertools import pairwise

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vlmplan_trainer.rehearse import flash
from vlmplan_trainer.rehearse.flops import formula_of

aten = torch.ops.aten
FULL, WINDOWS = (0, 12, 36), (0, 4, 8, 12, 20, 28, 36)
"""Where the patches of two images end, and where the windows of them do."""
HEADS, WIDTH = 3, 7


class Counter(TorchDispatchMode):
    """FLOPs of all that runs inside, by the rehearsal's formulas; attention of flash-attn is not computed."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._overloadpacket is aten._flash_attention_forward:
            out = (torch.empty_like(args[0]), *[args[0].new_empty(0)] * 4)
        elif func._overloadpacket is aten._flash_attention_backward:
            out = tuple(torch.empty_like(x) for x in args[1:4])
        else:
            out = func(*args, **(kwargs or {}))
        formula = formula_of(func._overloadpacket)
        self.flops += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=out)
        return out


def parts() -> list[Tensor]:
    return [torch.randn(FULL[-1], HEADS, WIDTH, requires_grad=True) for _ in "qkv"]


def by_products(q: Tensor, k: Tensor, v: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Each sequence by itself, in matrix products."""
    pieces = []
    for start, end in pairwise(ends):
        query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))
        pieces.append((torch.softmax(query @ key.transpose(1, 2), -1) @ value).transpose(0, 1))
    return torch.cat(pieces)


def by_flash(q: Tensor, k: Tensor, v: Tensor, ends: tuple[int, ...]) -> Tensor:
    places = torch.tensor(ends, dtype=torch.int32)
    longest = max(end - start for start, end in pairwise(ends))
    return flash.flash_attn_varlen_func(q, k, v, places, places, longest, longest)


@pytest.mark.parametrize("ends", [FULL, WINDOWS], ids=["images", "windows"])
def test_flash_attention_of_a_tower_computes_each_image_or_window_by_itself(ends):
    pairs = sum([(end - start) ** 2 for start, end in pairwise(ends)])
    counts = {}
    for attend in (by_products, by_flash):
        q, k, v = parts()
        with Counter() as forward:
            out = attend(q, k, v, ends)
        with Counter() as backward:
            out.sum().backward()
        counts[attend] = forward.flops, backward.flops
    assert counts[by_products] == (2 * 2 * HEADS * pairs * WIDTH, 4 * 2 * HEADS * pairs * WIDTH)
    assert counts[by_flash] == (2 * 2 * HEADS * pairs * WIDTH, 5 * 2 * HEADS * pairs * WIDTH)  # the scores anew


def test_a_triangular_system_takes_half_of_what_a_product_takes():
    systems, rows, columns = 3, 5, 7
    matrix = torch.eye(rows).repeat(systems, 1, 1).requires_grad_()
    right = torch.randn(systems, rows, columns, requires_grad=True)
    with Counter() as forward:
        solved = torch.linalg.solve_triangular(matrix, right, upper=False)
    one = systems * rows * columns * rows
    assert forward.flops == one
    with Counter() as backward:
        solved.sum().backward()
    assert backward.flops == one + 2 * one  # another system, and a product for the gradient of the matrix

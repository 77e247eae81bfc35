"""FLOPs that torch's counter does not know, in unreduced arithmetic, beside what torch counts for the same products."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count  # noqa: E402

from vlmplan_trainer.rehearse.flops import (  # noqa: E402
    attention_backward,
    attention_forward,
    formula_of,
    grouped_product,
    packed_product,
)

BATCH, HEADS, GROUPS, QUERIES, KEYS, HEAD, VALUE = 2, 6, 3, 5, 7, 11, 13


def tensors(heads_of_keys: int) -> list:
    shapes = ((HEADS, QUERIES, HEAD), (heads_of_keys, KEYS, HEAD), (heads_of_keys, KEYS, VALUE))
    return [torch.empty(BATCH, *shape, device="meta") for shape in shapes]


def test_attention_counts_as_torch_does_for_its_own_kernels():
    query, key, value = tensors(HEADS)
    grad = torch.empty(BATCH, HEADS, QUERIES, VALUE, device="meta")
    shapes = query.shape, key.shape, value.shape
    assert attention_forward(query, key, value) == sdpa_flop_count(*shapes)
    assert attention_backward(grad, query, key, value) == sdpa_backward_flop_count(grad.shape, *shapes)


def test_shared_keys_are_multiplied_with_every_head_of_the_queries():
    query, key, value = tensors(GROUPS)
    assert attention_forward(query, key, value) == 2 * 2 * 6 * 5 * 7 * 11 + 2 * 2 * 6 * 5 * 7 * 13


def test_a_packed_weight_is_as_large_as_it_says():
    inputs, packed = torch.empty(2, 3, 8, device="meta"), torch.empty(8 * 5 // 2, 1, device="meta", dtype=torch.uint8)
    assert packed_product(inputs, packed, (5, 8)) == 2 * (2 * 3) * 8 * 5


def test_products_that_are_added_in_place_count_as_others():
    kept, left, right = (torch.empty(shape, device="meta") for shape in ((2, 5), (2, 3), (3, 5)))
    formula = formula_of(torch.ops.aten.addmm_)
    assert formula is not None
    assert formula(kept, left, right, out_val=kept) == 2 * 2 * 3 * 5


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((7, 3), (4, 3, 5), 2 * 7 * 3 * 5),
        ((4, 5, 3), (3, 7), 2 * 5 * 3 * 7),
        ((3, 7), (7, 5), 2 * 3 * 7 * 5),
        ((4, 7, 3), (4, 3, 5), 2 * 4 * 7 * 3 * 5),
    ],
)
def test_rows_of_experts_are_counted_once_each(left: tuple[int, ...], right: tuple[int, ...], expected: int):
    formula = formula_of(torch.ops.aten._grouped_mm)
    assert formula is not None
    sides = [torch.empty(shape, device="meta") for shape in (left, right)]
    assert formula(*sides, torch.empty(4, device="meta"), out_val=None) == expected


def test_products_of_experts_count_as_those_of_each_expert_by_itself():
    weights = torch.ones(4, 16, 24, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.ones(7, 16, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    counted = partial(grouped_product)
    counted._get_raw = True  # pyright: ignore[reportAttributeAccessIssue]  # torch hands shapes to others
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: counted}) as together:
        torch.nn.functional.grouped_mm(rows, weights, offs=ends).backward(torch.ones(7, 24, dtype=torch.bfloat16))
    with FlopCounterMode(display=False) as one_by_one:
        parts = [part @ weights[index] for index, part in enumerate(rows.tensor_split(ends[:-1].long()))]
        torch.cat(parts).backward(torch.ones(7, 24, dtype=torch.bfloat16))
    assert together.get_total_flops() == one_by_one.get_total_flops()


def test_experts_without_the_grouped_kernel_count_the_same():
    pytest.importorskip("transformers.integrations.moe")
    rows, weights, ends = (torch.empty(shape, device="meta") for shape in ((7, 3), (4, 3, 5), (4,)))
    forward = formula_of(torch.ops.transformers.grouped_mm_fallback)
    backward = formula_of(torch.ops.transformers.grouped_mm_fallback_backward)
    assert forward is not None
    assert backward is not None
    assert forward(rows, weights, ends, out_val=None) == 2 * 7 * 3 * 5
    assert backward(rows, weights, ends, torch.empty(7, 5, device="meta"), out_val=None) == 2 * (2 * 7 * 3 * 5)


@pytest.mark.parametrize(
    ("groups", "mask"), [(6, [True, True, False]), (6, [False, True, False]), (3, [True, False, False])]
)
def test_a_convolution_in_groups_multiplies_the_weights_of_its_own_channels_alone(groups: int, mask: list[bool]):
    inputs = torch.empty(2, 6, 5, device="meta")
    weight = torch.empty(6, 6 // groups, 3, device="meta")
    grad = torch.empty(2, 6, 5 + 3 - 1, device="meta")
    formula = formula_of(torch.ops.aten.convolution_backward)
    assert formula is not None
    found = formula(grad, inputs, weight, None, [1], [2], [1], False, [0], groups, mask, out_val=(inputs, weight, None))
    assert found == sum(mask) * 2 * (2 * 6 * 7) * (6 // groups * 3)


def test_a_convolution_without_groups_counts_as_torch_counts_it():
    inputs, weight = torch.empty(2, 4, 5, device="meta"), torch.empty(6, 4, 3, device="meta")
    grad = torch.empty(2, 6, 3, device="meta")
    call = (grad, inputs, weight, None, [1], [0], [1], False, [0], 1, [True, True, False])
    counted = formula_of(torch.ops.aten.convolution_backward)(*call, out_val=(inputs, weight, None))
    assert counted == torch.utils.flop_counter.flop_registry[torch.ops.aten.convolution_backward](
        *call, out_val=(inputs, weight, None)
    )


def test_what_multiplies_no_matrices_has_no_formula():
    assert formula_of(torch.ops.aten.add) is None
    assert formula_of(torch.ops.aten.mm) is not None


def test_packed_products_are_known_by_their_name():
    pytest.importorskip("bitsandbytes")
    assert formula_of(torch.ops.bitsandbytes.gemm_4bit) is packed_product
    assert formula_of(torch.ops.bitsandbytes.dequantize_4bit) is None

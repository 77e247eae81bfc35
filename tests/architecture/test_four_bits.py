"""Weights in four bits: half a byte each, and a scale per block that is quantised again or not."""

from math import ceil

import pytest

from cli_calls import TINY
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.packed_weight import Linear4bit, dequantised, nf4_sizes
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.engines.packed_loading import scale_sizes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.units import DType

HIDDEN, INNER, HALF_HIDDEN = 64, 128, 64 // 2
MATRICES = (*[HIDDEN * HIDDEN] * 2, *[HIDDEN * HALF_HIDDEN] * 2, *[HIDDEN * INNER] * 3)
"""q and o, k and v, and the MLP's three: of one layer, which stands for both."""


@pytest.mark.parametrize(("doubles", "scale_bytes"), [(True, 1), (False, 4)])
def test_a_scale_is_a_byte_with_double_quantisation_and_a_float32_without(doubles: bool, scale_bytes: int):
    model = prepared_model(TINY, Recipe(method=Method.QLORA, use_double_quant=doubles))
    weights = [one for _, one in model.distinct_parameters() if one.stored_bytes is not None]
    mean_of_scales, codes = 4, [16 * 4, 256 * 4]
    expected = 0
    for numel in MATRICES:
        tensors = [numel // 2, numel // 64 * scale_bytes, *codes[: 1 + doubles]]
        tensors += [4 * -(-numel // (64 * 256)), mean_of_scales] if doubles else []
        expected += sum(512 * ceil(num_bytes / 512) for num_bytes in tensors)
    assert sum(weight.stored_bytes for weight in weights) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("doubles", [True, False])
def test_each_tensor_of_a_packed_weight_is_as_large_as_that_of_bitsandbytes(doubles: bool):
    torch, functional = pytest.importorskip("torch"), pytest.importorskip("bitsandbytes.functional")
    rows, columns = 1024, 512
    packed, state = functional.quantize_4bit(
        torch.rand(rows, columns, dtype=torch.bfloat16), compress_statistics=doubles, quant_type="nf4"
    )
    tensors = [packed, state.code, state.absmax]
    tensors += [state.offset, state.state2.code, state.state2.absmax] if doubles else []
    sizes = [512 * ceil(one.nbytes / 512) for one in tensors]
    assert sorted(nf4_sizes(rows * columns, double_quantises=doubles)) == sorted(sizes)


@pytest.mark.parametrize("doubles", [True, False])
def test_scales_are_laid_out_tensor_by_tensor(doubles: bool):
    recipe = Recipe(method=Method.QLORA, use_double_quant=doubles)
    weights = [one for _, one in prepared_model(TINY, recipe).distinct_parameters() if one.packed_bytes]
    assert weights
    for weight in weights:
        sizes = scale_sizes(weight, recipe)
        assert len(sizes) == (5 if doubles else 2)
        assert sum(sizes) == weight.num_bytes - weight.packed_bytes


@pytest.mark.parametrize("doubles", [True, False])
def test_a_product_makes_the_weight_whole_with_its_quantised_scales_in_float32_beside_it(doubles: bool):
    rows, columns, tokens = 1024, 512, 128
    base = Linear(columns, rows)
    base.weight.dtype = DType.BFLOAT16
    packed = Linear4bit(base, DType.BFLOAT16, double_quantises=doubles)
    tape = Tape(follows_weights=False)
    with tape.section("before"):
        x = tape.tensor((1, tokens, columns), DType.BFLOAT16)
    with tape.section("product"):
        result = packed(x)
    with tape.section("backward"):
        made = dequantised(packed.weight, DType.BFLOAT16, tape)
    sections = tape.trace().sections
    [product], [backward] = ([*sections[name].forward] for name in ("product", "backward"))
    del result, made
    whole, scales = 2 * rows * columns, 4 * rows * columns // 64 if doubles else 0
    assert product.peak_bytes == scales + scales + whole + 2 * tokens * rows  # less their mean and with it
    assert backward.peak_bytes == scales + whole
    assert backward.delta_bytes == whole

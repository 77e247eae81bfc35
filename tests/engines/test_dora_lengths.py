"""What DoRA's vector of lengths takes while it is made, against peft's own code on tensors without data."""

import pytest

pytest.importorskip("peft")

import torch
from peft.tuners.lora.dora import DoraLinearLayer

from torch_probe import FAKE_MODE, ByteCounter
from vlmplan.architecture.model import NamedParameter, Part
from vlmplan.architecture.packed_weight import nf4_sizes
from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.dora_lengths import adapted_weights, bytes_for_lengths
from vlmplan.engines.packed_loading import measuring_sizes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.units import DType

WIDTH_IN, WIDTH_OUT, RANK = 1024, 768, 64
SHAPES = {
    "base_layer.weight": (WIDTH_OUT, WIDTH_IN),
    "base_layer.bias": (WIDTH_OUT,),
    "lora_A.weight": (RANK, WIDTH_IN),
    "lora_B.weight": (WIDTH_OUT, RANK),
    "lora_magnitude_vector.weight": (WIDTH_OUT,),
}


def entries_of(dtype: DType) -> list[NamedParameter]:
    entries = [NamedParameter(f"q_proj.{name}", Parameter(*shape), 0, Part.LANGUAGE) for name, shape in SHAPES.items()]
    for entry in entries:
        entry.parameter.dtype = dtype
    return entries


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
def test_it_takes_what_peft_takes_beside_what_is_there(dtype: DType):
    entries = entries_of(dtype)
    sizes = bytes_for_lengths(entries[-1], adapted_weights(entries), lambda some: [one.num_bytes for one in some])
    real_dtype = getattr(torch, dtype.name.lower())
    with FAKE_MODE, ByteCounter(FAKE_MODE) as counter:
        base = torch.nn.Linear(WIDTH_IN, WIDTH_OUT, dtype=real_dtype)
        first, second = (torch.empty(SHAPES[f"lora_{name}.weight"], dtype=real_dtype) for name in "AB")
        before = counter.live_bytes - sum(one.num_bytes for one in (entries[0].parameter, entries[1].parameter))
        counter.reset_peak()
        DoraLinearLayer(fan_in_fan_out=False).update_layer(base_layer=base, lora_A=first, lora_B=second, scaling=2.0)
        assert counter.peak_bytes - before == pytest.approx(sum(sizes), rel=0.002)


def test_other_weights_take_nothing():
    entries = entries_of(DType.FLOAT16)
    adapted = adapted_weights(entries)
    assert [bytes_for_lengths(one, adapted, lambda some: []) for one in entries[:-1]] == [[]] * 4


def test_a_4_bit_weight_is_copied_tensor_by_tensor_and_its_scales_made_wide_for_the_whole():
    """Scales of 64 elements each, in 8 bits with one of float32 for 256 of them, beside a table of 16 and another of
    256, and their mean."""
    numel = WIDTH_OUT * WIDTH_IN
    weight, recipe = Parameter(WIDTH_OUT, WIDTH_IN), Recipe(method=Method.QLORA, use_double_quant=True)
    sizes = nf4_sizes(numel, double_quantises=True)
    weight.stored_bytes, weight.packed_bytes, scales = sum(sizes), sizes[0], sizes[1:]
    whole, wide = 2 * numel, 4 * numel // 64
    copied = [*scales, numel // 2, *scales]
    assert [*measuring_sizes(weight, recipe)] == [[*copied, wide, whole], [*copied, *[whole] * 4]]

"""The size of a request gives back the tokens that made it, and names weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_memory_messages import format_size, torch_2_1
from vlmplan.catalog import load_catalog
from vlmplan.diagnosis.places import Part, Phase, Place
from vlmplan.diagnosis.tensors import Widths, tensor_sizes, weight_of_size, widths_of
from vlmplan.estimation import Estimator
from vlmplan.memory_messages import MemoryMessage, messages_in
from vlmplan.models import find_model
from vlmplan.request import parse, requested_cluster
from vlmplan.request.setup import requested_setup
from vlmplan.units import GIB, MIB

LLAMA_3 = Widths(vocab_size=128_256, num_heads=32, head_dim=128, intermediate_size=14_336, context_length=131_072)
QWEN2_VL = Widths(vocab_size=152_064, num_heads=28, head_dim=128, num_vision_heads=16, patch_side=14)
TOKENS = st.integers(2_000, 130_000)


def asked(num_bytes: int) -> MemoryMessage:
    """torch's message of a tensor: the block is rounded up to 2 MiB (``get_allocation_size``), then printed."""
    block = -(-num_bytes // (2 * MIB)) * 2 * MIB
    (message,) = messages_in(torch_2_1(block, 80 * GIB, 70 * GIB, GIB, 75 * GIB, capacity="capacity"))
    return message


@given(TOKENS)
def test_upcast_logits_give_back_the_tokens(tokens: int):
    place = Place(phase=Phase.LOSS, part=Part.LOGITS)
    (found,) = tensor_sizes(asked(tokens * 128_256 * 4), place, LLAMA_3, micro_batch=1)
    assert found.low <= tokens <= found.high
    assert found.high - found.low <= 2 + 14 * MIB // (128_256 * 4)


@given(TOKENS)
def test_an_mlp_gives_back_the_tokens(tokens: int):
    place = Place(phase=Phase.FORWARD, part=Part.MLP)
    (found,) = tensor_sizes(asked(tokens * 14_336 * 2), place, LLAMA_3, micro_batch=1)
    assert found.low <= tokens <= found.high


@given(st.integers(10_000, 60_000), st.sampled_from([2, 4]))
def test_whole_attention_scores_of_images_give_back_the_patches(patches: int, element_bytes: int):
    place = Place(phase=Phase.FORWARD, part=Part.ATTENTION, is_in_vision=True)
    found = tensor_sizes(asked(16 * patches * patches * element_bytes), place, QWEN2_VL, micro_batch=1)
    by_type = {one.formula.split()[-2]: one for one in found}
    assert by_type[str(element_bytes)].low <= patches <= by_type[str(element_bytes)].high


@given(TOKENS)
def test_a_projection_of_attention_gives_back_the_tokens(tokens: int):
    place = Place(phase=Phase.FORWARD, part=Part.ATTENTION)
    (found,) = tensor_sizes(asked(tokens * 32 * 128 * 2), place, LLAMA_3, micro_batch=1)
    assert found.low <= tokens <= found.high
    assert not found.is_of_patches


def test_a_softmax_in_32_bit_leaves_one_reading():
    place = Place(phase=Phase.FORWARD, part=Part.ATTENTION, is_of_16_bit_scores=False)
    (found,) = tensor_sizes(asked(3 * 32 * 7_000 * 7_000 * 4), place, LLAMA_3, micro_batch=3)
    assert found.low <= 3 * 7_000 <= found.high


def test_a_published_message_is_an_image_of_160_x_160_patches():
    """ms-swift#2536 asked for 19.53 GiB in Qwen2-VL's vision encoder."""
    assert format_size(16 * 160**2 * 160**2 * 2) == "19.53 GiB"


def test_what_fits_any_tensor_is_only_offered_as_logits():
    (found,) = tensor_sizes(asked(4_096 * 128_256 * 4), Place(), LLAMA_3, micro_batch=1)
    assert not found.is_named
    assert tensor_sizes(asked(100 * MIB), Place(), LLAMA_3, micro_batch=1) == []
    assert (
        tensor_sizes(asked(4 * GIB), Place(phase=Phase.STEP, part=Part.OPTIMIZER_STATES), LLAMA_3, micro_batch=1) == []
    )


@pytest.mark.parametrize(
    ("mib", "name"), [(270, "mlp.gate_proj.weight"), (50, "self_attn.q_proj.weight"), (1485, "embed_tokens.weight")]
)
def test_a_weight_is_named_by_its_size(mib: int, name: str):
    """Qwen2.5-32B in 16 bit: 27,648 x 5,120, 5,120 x 5,120 and 152,064 x 5,120 elements."""
    request = parse({"model": "qwen2.5-32b", "gpu": "h100-sxm:8", "zero_stage": "3"})
    asked_for = requested_setup(request, requested_cluster(request.hardware, load_catalog()), find_model("qwen2.5-32b"))
    table = Estimator(asked_for.workload, asked_for.recipe).table
    place = Place(phase=Phase.LOAD, part=Part.WEIGHTS)
    found = weight_of_size(asked(mib * MIB), place, table)
    assert found is not None
    assert found.name.endswith(name)
    in_float32 = weight_of_size(asked(2 * mib * MIB), place, table)
    assert in_float32 is not None
    assert (in_float32.name, in_float32.element_bytes) == (found.name, 2 * found.element_bytes)
    assert weight_of_size(asked(mib * MIB), Place(phase=Phase.FORWARD, part=Part.MLP), table) is None
    widths = widths_of(asked_for.workload.model, table)
    assert (widths.vocab_size, widths.num_heads, widths.intermediate_size) == (152_064, 40, 27_648)

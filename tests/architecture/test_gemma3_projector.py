"""The matrix of Gemma 3's projector: frozen, autograd keeps a view of it, which ZeRO-3 cannot take away."""

import weakref

import pytest

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma3 import PoolingProjector
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Hold
from vlmplan.units import DType

VISION, TEXT, SIDE, NUM_TOKENS = 6, 10, 8, 16
CONFIG = {
    "mm_tokens_per_image": NUM_TOKENS,
    "vision_config": {"hidden_size": VISION, "image_size": SIDE * 14, "patch_size": 14},
    "text_config": {"hidden_size": TEXT},
}


def held_weights(*, is_trained: bool, num_images: int) -> list[tuple[int, ...]]:
    projector = PoolingProjector(Config(CONFIG))
    for parameter in (projector.mm_input_projection_weight, projector.mm_soft_emb_norm.weight):
        parameter.requires_grad = is_trained
    tape = Tape(keeps_linear_inputs=True)
    with tape.section("projector"):
        features = tape.leaf(tape.tensor((num_images, SIDE * SIDE, VISION), DType.BFLOAT16))
        projector(features)
    events = tape.trace().sections["projector"].forward
    return [event.parameter.shape for event in events if isinstance(event, Hold)]


@pytest.mark.parametrize("num_images", [1, 3])
def test_a_view_of_the_frozen_matrix_is_held_and_none_of_a_trained_one(num_images):
    assert held_weights(is_trained=False, num_images=num_images) == [(TEXT, VISION)]
    assert held_weights(is_trained=True, num_images=num_images) == []


@pytest.mark.parametrize("num_images", [1, 3])
@pytest.mark.parametrize("is_trained", [False, True])
def test_torch_does(is_trained, num_images):
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(VISION, TEXT), requires_grad=is_trained)
    weight.data = whole = torch.ones(VISION, TEXT)
    gone: list[bool] = []
    weakref.finalize(whole.untyped_storage(), gone.append, True)
    rows = torch.ones(num_images, VISION, NUM_TOKENS, requires_grad=True).transpose(1, 2) * 2
    product = torch.matmul(rows, weight)
    weight.data = torch.empty(0)  # as ZeRO-3 takes a weight away
    del whole
    assert bool(gone) is is_trained
    assert product.shape == (num_images, NUM_TOKENS, TEXT)

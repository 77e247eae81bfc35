"""A module that a micro batch calls several times under ZeRO-3."""

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Fetch, Release
from vlmplan.recipe.choices import LossKind

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = {
    "model_type": "paddleocr_vl",
    "text_config": {**SIZES, "num_key_value_heads": 1, "vocab_size": 100},
    "vision_config": {**SIZES, "image_size": 56},
}
"""Whose projector maps image by image."""


@pytest.mark.parametrize("num_images", [1, 2, 5])
def test_each_backward_of_it_fetches_and_only_that_of_the_last_call_releases(num_images):
    image = image_shape(CONFIG, None, width=448, height=448)
    batch = Batch(
        micro_batch=1, num_tokens=num_images * image.num_tokens + 9, images_per_sample=num_images, image=image
    )
    model = build_model(CONFIG)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    events = trace.sections["projector"].backward
    for linear in (model.module("model.projector.linear_1"), model.module("model.projector.linear_2")):
        of_module = [type(one) for one in events if isinstance(one, Fetch | Release) and one.module is linear]
        # The last call comes first in backward.
        assert of_module == [Fetch, Release, *[Fetch] * (num_images - 1)]
    unreleased = [model.module(f"model.projector.{name}") for name in ("pre_norm", "linear_1", "linear_2")]
    num_bytes = sum(2 * one.weight.numel + 2 * one.bias.numel for one in unreleased)
    assert trace.sections["projector"].unreleased_bytes == (num_bytes if num_images > 1 else 0)


OVIS = {
    "model_type": "ovis2",
    "text_config": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 1, "vocab_size": 200_000},
    "vision_config": {**SIZES, "image_size": 448, "patch_size": 14, "vocab_size": 1000},
    "hidden_size": 64,
    "vocab_size": 200_000,
}
"""Whose table is looked up behind the product with image features: that call has whole numbers for its input."""


def test_a_last_call_without_gradients_keeps_the_weights_of_those_before():
    """``ds_grads_remaining`` begins at 0 in each call, and no backward of the last counts it up or down."""
    image = image_shape(OVIS, None, width=448, height=448)
    batch = Batch(micro_batch=1, num_tokens=image.num_tokens + 9, images_per_sample=1, image=image)
    model = build_model(OVIS)
    table = model.module("model.visual_embeddings_table")
    table.weight.requires_grad = False
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    section = trace.sections["projector"]
    of_table = [type(one) for one in section.backward if isinstance(one, Fetch | Release) and one.module is table]
    assert of_table == [Fetch]
    assert section.unreleased_bytes == 2 * table.weight.numel

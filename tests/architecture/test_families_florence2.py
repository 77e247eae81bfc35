"""Florence-2 against transformers: a tower whose layouts decide the copies, before BART's encoder and decoder."""

from dataclasses import replace
from typing import Any

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError

SMALL: dict[str, Any] = {
    "model_type": "florence2",
    "image_token_id": 3,
    "text_config": {
        "model_type": "bart",
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 384,
        "vocab_size": 1000,
        "max_position_embeddings": 1024,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    },
    "vision_config": {
        "depths": [1, 2, 1],
        "patch_size": [7, 3, 3],
        "patch_stride": [4, 2, 2],
        "patch_padding": [3, 1, 1],
        "patch_prenorm": [False, True, True],
        "embed_dim": [32, 64, 128],
        "num_heads": [2, 4, 4],
        "num_groups": [2, 4, 8],
        "window_size": 6,
        "projection_dim": 128,
    },
}
ODD = {
    **SMALL,
    "tie_word_embeddings": False,
    "text_config": {**SMALL["text_config"], "d_model": 88, "encoder_ffn_dim": 200},
    "vision_config": {
        **SMALL["vision_config"],
        "depths": [2, 1, 1],
        "embed_dim": [72, 120, 200],
        "num_heads": [3, 5, 5],
        "num_groups": [3, 1, 10],
        "window_size": 5,
        "patch_prenorm": [False, False, True],
        "projection_dim": 88,
        "mlp_ratio": 2.5,
        "qkv_bias": False,
        "drop_path_rate": 0,
    },
}
TOWER, LANGUAGE = ["model.vision_tower"], ["model.language_model", "lm_head"]
EACH = pytest.mark.parametrize("config", [SMALL, ODD], ids=["powers", "odd"])


def shape_of(height: int, width: int, config: Any = SMALL, **settings: Any) -> Any:
    settings = {"size": {"height": height, "width": width}, "do_center_crop": False, **settings}
    return image_shape(config, settings, width=301, height=97)


@pytest.mark.parametrize("config", [SMALL, ODD, {"model_type": "florence2"}], ids=["powers", "odd", "by default"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(23)
@pytest.mark.parametrize("frozen", [(), TOWER, LANGUAGE], ids=["all", "no tower", "no language"])
@pytest.mark.parametrize("sides", [(96, 96), (203, 325)], ids=str)
@pytest.mark.parametrize("micro_batch", [1, 2])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, micro_batch, sides, frozen):
    assert_step(config, micro_batch, sides, frozen=frozen)


@pytest.mark.sweep
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config):
    """The tower, which is larger, has none."""
    assert_step(config, 2, (131, 96), checkpoints=True)


@pytest.mark.one_in(2)
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, 2, (131, 96), attention="eager")


def assert_step(config, micro_batch, sides, *, checkpoints=False, attention="sdpa", frozen=()):
    """Forward, the trainer's loss of all logits, and backward, but for what norms keep: on CPU their means and
    deviations are in bfloat16, on a GPU in float32."""
    pytest.importorskip("transformers")
    from encoder_decoder_step import measured
    from tape_probe import predicted_step

    image = shape_of(*sides, config)
    num_tokens = image.num_tokens + 30
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens, target_tokens=24, images_per_sample=1, image=image)
    tree = build_model(config)
    real = measured(
        config, batch, checkpoints=checkpoints, attention=attention, frozen=frozen, pixels=tree.pixel_shape(batch)
    )
    for entry in tree.parameters():
        entry.parameter.requires_grad = not entry.name.startswith(tuple(frozen))
    found = predicted_step(tree, batch, checkpoints=checkpoints, implementation=attention, makes_loss_inside=False)
    assert found.end_live == 0
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(getattr(real, name), rel=0.006), name


@pytest.mark.parametrize("sides", [(768, 768), (515, 389), (33, 1000)], ids=str)
def test_images_become_as_many_tokens_as_the_tower_makes_features(sides):
    torch = pytest.importorskip("torch")
    image, config = shape_of(*sides), SMALL["vision_config"]
    x = torch.empty(1, 1, *sides, device="meta")
    for kernel, stride, padding in zip(*(config[f"patch_{key}"] for key in ("size", "stride", "padding")), strict=True):
        x = torch.nn.functional.conv2d(x, torch.empty(1, 1, kernel, kernel, device="meta"), None, stride, padding)
    assert (image.num_patch_rows, image.num_patch_columns) == x.shape[-2:]
    assert image.num_placeholder_tokens == x.numel() + 1 == image.num_tokens - 2


def test_the_processors_own_number_of_tokens_has_to_be_that():
    assert shape_of(768, 768, image_seq_length=48 * 48 + 1).num_tokens == 48 * 48 + 3
    with pytest.raises(InputError, match="image_seq_length is 577, and the tower makes 2305 features"):
        shape_of(768, 768, image_seq_length=577)


def test_tower_and_projector_are_parts():
    model = build_model(SMALL)
    assert model.part_of("model.vision_tower.convs.0.conv.weight") is Part.VISION
    assert model.part_of("model.multi_modal_projector.image_proj_norm.weight") is Part.PROJECTOR
    assert model.part_of("model.language_model.shared.weight") is Part.LANGUAGE


def test_more_features_than_positions_are_refused():
    from tape_probe import predicted_step

    image = replace(shape_of(1000, 800), num_tokens=1000)
    batch = Batch(micro_batch=1, num_tokens=1000, target_tokens=8, images_per_sample=1, image=image)
    with pytest.raises(InputError, match="images make 50 x 63 features"):
        predicted_step(SMALL, batch)


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("vision_config", {"num_heads": [2, 4]}, "num_heads is .* a list of 3, one a stage"),
        ("vision_config", {"num_groups": [2, 4, 7]}, "num_groups does not divide embed_dim"),
        ("vision_config", {"projection_dim": 64}, "projection_dim is 64 and text_config.d_model 128"),
        ("text_config", {"model_type": "mbart"}, 'text_config.model_type is "mbart"; bart is needed'),
    ],
)
def test_what_cannot_be_is_refused(section, changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**SMALL, section: {**SMALL[section], **changes}})

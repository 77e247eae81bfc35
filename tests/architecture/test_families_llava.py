"""LLaVA, LLaVA-NeXT, LLaVA-OneVision and Mistral 3 against the published checkpoints and against transformers."""

from typing import Any

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.trace import Trace
from vlmplan.errors import InputError, UnknownNameError

ALIASES = [
    "llava-1.5-7b",
    "llava-1.5-13b",
    "pixtral-12b",
    "llava-v1.6-mistral-7b",
    "llava-onevision-0.5b",
    "llava-onevision-7b",
    "mistral-small-3.1-24b",
]
# Mistral-Small-3.1's file leaves the key out: transformers ties what the checkpoint does not (see families/text.py).
UNTIED = {"mistral-small-3.1-24b": {"tie_word_embeddings": False}}
SMALL_TEXT = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048}
TEXTS = {alias: {} if "onevision" in alias else SMALL_TEXT for alias in ALIASES} | {
    "llava-1.5-7b": {**SMALL_TEXT, "num_key_value_heads": 8}
}
SIZES = {"mistral-small-3.1-24b": (700, 500), "llava-v1.6-mistral-7b": (700, 500)}
STEPS = ["llava-1.5-7b", "pixtral-12b", "llava-v1.6-mistral-7b", "llava-onevision-0.5b", "mistral-small-3.1-24b"]
TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 288,
    "image_size": 384,
    "patch_size": 14,
    "intermediate_size": 1100,
    "num_attention_heads": 4,
}


def altered(alias: str, text: Any = (), vision: Any = (), **changes: object) -> dict[str, Any]:
    config = packaged_config(alias, **changes)
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 5, **dict(vision)}
    return config


ALTERED = {
    "llava two layers no bias": altered("llava-1.5-7b", vision_feature_layer=[-2, 1], multimodal_projector_bias=False),
    "llava siglip tied qwen2": altered(
        "llava-1.5-7b", {"model_type": "qwen2", "hidden_size": 512, "tie_word_embeddings": True}, SIGLIP
    ),
    "llava wide clip": altered("llava-1.5-7b", {"head_dim": 96}, {"hidden_size": 1280, "patch_size": 28}),
    "pixtral": altered(
        "pixtral-12b", SMALL_TEXT, {"hidden_size": 512, "num_attention_heads": 4, "head_dim": 128, "patch_size": 14}
    ),
    "next tied": altered("llava-v1.6-mistral-7b", SMALL_TEXT, tie_word_embeddings=True, vision_feature_layer=[0, -1]),
    "next siglip qwen3": altered("llava-v1.6-mistral-7b", {"model_type": "qwen3", "head_dim": 64}, SIGLIP),
    "onevision with head": altered("llava-onevision-7b", {"tie_word_embeddings": True}, {"vision_use_head": True}),
    "onevision llama": altered(
        "llava-onevision-0.5b", {"model_type": "llama", "attention_bias": True}, multimodal_projector_bias=False
    ),
    "mistral3 tied": altered("mistral-small-3.1-24b", SMALL_TEXT, tie_word_embeddings=True, spatial_merge_size=3),
    "mistral3 with bias": altered(
        "mistral-small-3.1-24b",
        {"head_dim": None},
        {"hidden_size": 768, "num_attention_heads": 6, "head_dim": 128},
        tie_word_embeddings=False,
        multimodal_projector_bias=True,
    ),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


def test_an_old_file_that_leaves_tying_out_follows_its_text_configuration():
    config = altered("mistral-small-3.1-24b", SMALL_TEXT)
    assert not build_model(config).ties_weights
    assert build_model({**config, "transformers_version": "5.2.0"}).ties_weights
    assert build_model({**config, "tie_word_embeddings": True}).ties_weights


@pytest.mark.parametrize(
    "config",
    [*(packaged_config(alias, **UNTIED.get(alias, {})) for alias in ALIASES), *ALTERED.values()],
    ids=[*ALIASES, *ALTERED],
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(18)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER, TOWER + DECODER], ids=["all", "no tower", "no decoder", "none"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("alias", STEPS)
def test_a_step_keeps_and_peaks_as_in_transformers(alias, attention, frozen):
    assert_step(alias, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("alias", STEPS)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(alias, frozen):
    # Integers of a few bytes a token (positions, shifted labels) show where so little is kept.
    assert_step(alias, checkpoints=True, frozen=frozen, tolerance=0.004)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("alias", "size", "images"),
    [
        ("llava-v1.6-mistral-7b", (500, 500), 2),  # nothing is cut off
        ("llava-v1.6-mistral-7b", (400, 1000), 1),  # tiles above each other, columns cut off
        ("llava-v1.6-mistral-7b", (336, 1008), 1),  # tiles above each other, nothing cut off
        ("llava-onevision-0.5b", (500, 400), 2),  # of several images none is tiled
        ("llava-onevision-0.5b", (384, 1152), 1),
        ("llava-onevision-0.5b", (1900, 2000), 1),  # 30 tiles, shrunk to the area of nine
        ("pixtral-12b", (300, 500), 3),
        ("mistral-small-3.1-24b", (300, 200), 3),
    ],
)
def test_images_of_any_shape_become_tokens_as_in_transformers(alias, size, images):
    assert_step(alias, size=size, images=images, frozen=DECODER, tolerance=0.002)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("layers", [-1, -4, [-2, -4], [1, -3, 2], [0, -1]])
@pytest.mark.parametrize("alias", ["llava-1.5-7b", "llava-v1.6-mistral-7b"])
def test_any_layer_of_the_tower_may_be_the_projectors(alias, layers):
    for frozen in ((), TOWER):
        assert_step(alias, frozen=frozen, tolerance=0.001, changes={"vision_feature_layer": layers})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("strategy", ["default", "full"])
def test_a_siglip_tower_with_its_unused_head_runs_as_in_transformers(strategy):
    changes = {"vision_feature_select_strategy": strategy, "multimodal_projector_bias": False}
    vision = {**SIGLIP, "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16}
    preprocessor = {"crop_size": 384}
    assert_step("llava-1.5-7b", vision=vision, changes=changes, preprocessor=preprocessor, tolerance=0.001)


def test_layers_behind_the_feature_layer_run_but_get_no_gradient():
    trace = predicted("llava-1.5-7b", vision_feature_layer=-3)
    last = [key for key in trace.sections if key in ("vision.1.first", "vision.2.first")]
    assert len(last) == 2
    for key in last:
        assert trace.sections[key].forward
        assert not trace.sections[key].backward


def test_pixtral_attends_over_the_whole_micro_batch_unless_flash_attention_runs():
    one, two = (attention_flops(predicted("pixtral-12b", micro_batch=count)) for count in (1, 2))
    assert two == one * 2 * 2
    one, two = (attention_flops(predicted("pixtral-12b", "flash_attention_2", micro_batch=count)) for count in (1, 2))
    assert two == one * 2


def test_a_picture_of_another_size_than_the_towers_is_refused():
    with pytest.raises(InputError, match="336x336 pixels, 576 patches of 14, not 256"):
        predicted("llava-1.5-7b", preprocessor={"crop_size": 224})


def test_an_unknown_tower_or_decoder_is_named():
    with pytest.raises(UnknownNameError, match=r"vision_config\.model_type 'dinov2'"):
        build_model(altered("llava-1.5-7b", vision={"model_type": "dinov2"}))
    with pytest.raises(UnknownNameError, match=r"text_config\.model_type 'rwkv'"):
        build_model(altered("llava-1.5-7b", text={"model_type": "rwkv"}))
    with pytest.raises(InputError, match="vision_feature_layer is -7; the vision tower has 5 layers"):
        build_model(altered("llava-1.5-7b", vision_feature_layer=-7))


def predicted(alias: str, implementation: str = "sdpa", *, micro_batch: int = 1, preprocessor: Any = None, **changes):
    config = altered(alias, **changes)
    shape = image_shape(config, preprocessor, width=448, height=448)
    batch = Batch(micro_batch=micro_batch, num_tokens=shape.num_tokens, images_per_sample=1, image=shape)
    trace = predicted_step(config, batch, implementation=implementation).trace
    assert trace is not None
    return trace


def attention_flops(trace: Trace) -> int:
    return trace.sections["vision.0"].forward_work.attention_flops


def assert_step(alias, *, size=None, images=1, text=None, vision=(), changes=None, preprocessor=None, **options):
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from image_batches import cut_config, image_step, packaged_preprocessor

    text = TEXTS[alias] if text is None else text
    config = cut_config(alias, text=text, vision=vision, **UNTIED.get(alias, {}), **(changes or {}))
    micro_batch = 1 if "onevision" in alias else 2
    preprocessor = preprocessor or packaged_preprocessor(alias)
    step = image_step(
        config, preprocessor, size or SIZES.get(alias, (500, 400)), micro_batch=micro_batch, images_per_sample=images
    )
    assert_step_matches(step.config, step.batch, step.inputs, step.floats, **options)

"""InternVL 2.5 and 3 against the published checkpoints and against transformers."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

ALIASES = ["internvl2.5-1b", "internvl2.5-2b", "internvl2.5-8b", "internvl3-1b", "internvl3-2b", "internvl3-8b"]
# InternVL3-hf files leave the key out: transformers ties what the checkpoints do not (see families/text.py).
UNTIED = {"tie_word_embeddings": False}
TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
NORMED = {"use_qk_norm": True, "norm_type": "rms_norm"}


def altered(alias: str, text: object = (), vision: object = (), **changes: object) -> dict[str, object]:
    config = packaged_config(alias, **{**UNTIED, **changes})
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 5, **dict(vision)}
    return config


ALTERED = {
    "normed queries": altered("internvl3-1b", vision={**NORMED, "attention_bias": False}),
    "tied qwen3": altered("internvl3-2b", {"model_type": "qwen3", "head_dim": 96}, tie_word_embeddings=True),
    "llama with bias, class token pooled": altered(
        "internvl2.5-2b",
        {"attention_bias": True},
        {"use_mean_pooling": False, "use_mask_token": True, "use_absolute_position_embeddings": False},
    ),
    "other tower": altered(
        "internvl2.5-1b",
        vision={"hidden_size": 384, "num_attention_heads": 6, "patch_size": 16, "image_size": 224},
        downsample_ratio=0.25,
    ),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


def test_a_file_that_does_not_say_tied_follows_its_text_configuration():
    config = packaged_config("internvl3-1b")
    assert "tie_word_embeddings" not in config
    assert not build_model(config).ties_weights
    assert build_model({**config, "text_config": {**config["text_config"], "tie_word_embeddings": True}}).ties_weights
    assert build_model({**config, "transformers_version": "5.2.0"}).ties_weights


@pytest.mark.parametrize(
    "config",
    [*(packaged_config(alias, **UNTIED) for alias in ALIASES), *ALTERED.values()],
    ids=[*ALIASES, *ALTERED],
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("alias", ["internvl2.5-2b", "internvl3-1b"])
def test_a_step_keeps_and_peaks_as_in_transformers(alias, attention, frozen):
    assert_step(alias, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("alias", ["internvl2.5-2b", "internvl3-1b"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(alias, frozen):
    assert_step(alias, checkpoints=True, frozen=frozen, tolerance=0.003)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("frozen", [(), TOWER], ids=["all", "no tower"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_peaks_inside_the_vision_tower_are_those_of_transformers(attention, frozen, checkpoints):
    from patch_batches import TINY_DECODER

    options = {"attention": attention, "frozen": frozen, "checkpoints": checkpoints, "tolerance": 0.002}
    assert_step("internvl3-1b", text=TINY_DECODER, **options)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "vision",
    [NORMED, {"use_mean_pooling": False}, {"image_size": 224}, {"use_absolute_position_embeddings": False}],
    ids=["normed queries", "last norm", "interpolated positions", "no positions"],
)
def test_variants_of_the_tower_run_as_in_transformers(vision):
    for frozen in ((), TOWER):
        assert_step("internvl3-1b", vision=vision, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layer", [-2, 1])
def test_any_layer_of_the_tower_may_be_the_projectors(layer):
    for frozen in ((), TOWER):
        assert_step("internvl3-1b", changes={"vision_feature_layer": layer}, frozen=frozen, tolerance=0.001)


def test_a_class_token_among_the_merged_features_is_refused():
    config = altered("internvl3-1b", vision_feature_select_strategy="full")
    batch = Batch(
        micro_batch=1, num_tokens=300, images_per_sample=1, image=image_shape(config, None, width=448, height=448)
    )
    with pytest.raises(InputError, match="1025 features are no such square"):
        predicted_step(config, batch)


def test_several_feature_layers_are_refused():
    with pytest.raises(InputError, match="one layer is needed"):
        build_model(altered("internvl3-1b", vision_feature_layer=[-1, -2]))


def assert_step(alias, *, text=(), vision=(), changes=None, **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    config = cut(alias, text=text, vision=vision, **{**UNTIED, **(changes or {})})
    made = step(config, "internvl3-1b", (900, 450))
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

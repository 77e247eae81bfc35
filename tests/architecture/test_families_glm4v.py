"""GLM-4.1V against the published checkpoint and against transformers."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from text_steps import assert_parameters_match
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.partial_rotary import rotary_fraction
from vlmplan.architecture.model import Part

ALIAS = "glm-4.1v-9b"
TOWER = ["model.visual"]
DECODER = ["model.language_model", "lm_head"]
NARROW = {"hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 2816}


def altered(text: object = (), vision: object = (), **changes: object) -> dict[str, object]:
    config = packaged_config(ALIAS, **changes)
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "depth": 3, **dict(vision)}
    return config


ALTERED = {
    "tied by its text": altered({**NARROW, "tie_word_embeddings": True}, {"out_hidden_size": 1024}),
    "attention_bias and head_dim do not count": altered(
        {**NARROW, "attention_bias": False, "head_dim": 64, "num_key_value_heads": 8}, {"attention_bias": True}
    ),
    "other tower": altered(
        vision={"hidden_size": 512, "num_heads": 8, "image_size": 224, "patch_size": 16, "spatial_merge_size": 4}
    ),
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table(ALIAS)


@pytest.mark.parametrize("config", [packaged_config(ALIAS), *ALTERED.values()], ids=[ALIAS, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, frozen):
    assert_step(attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(frozen):
    assert_step(checkpoints=True, frozen=frozen, tolerance=0.003)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [(), TOWER], ids=["all", "no tower"])
def test_peaks_inside_the_vision_tower_are_those_of_transformers(frozen, checkpoints):
    from patch_batches import TINY_DECODER

    text = {**TINY_DECODER, "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
    options = {"checkpoints": checkpoints, "frozen": frozen, "images_per_sample": 3, "tolerance": 0.005}
    assert_step(text=text, vision={"out_hidden_size": 128}, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("fraction", "sections"), [(1.0, [16, 24, 24]), (0.25, [4, 6, 6])])
def test_any_part_of_a_head_may_be_rotated(fraction, sections):
    scaling = {"rope_type": "default", "mrope_section": sections, "partial_rotary_factor": fraction}
    assert_step(text={"rope_scaling": scaling, "partial_rotary_factor": 0.5}, tolerance=0.001)


def test_rotary_fraction_is_read_from_the_dictionary_before_the_key_beside_it():
    assert rotary_fraction(Config({})) == 1.0
    assert rotary_fraction(Config({"partial_rotary_factor": 0.5})) == 0.5
    assert rotary_fraction(Config({"partial_rotary_factor": 0.5, "rope_scaling": {"mrope_section": [1]}})) == 0.5
    rope = {"partial_rotary_factor": 0.25}
    assert rotary_fraction(Config({"partial_rotary_factor": 0.5, "rope_parameters": rope})) == 0.25


def test_merger_and_downsampling_are_the_projector():
    model = build_model(packaged_config(ALIAS))
    assert model.part_of("model.visual.downsample.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.merger.proj.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.post_layernorm.weight") is Part.VISION


def assert_step(*, text=(), vision=(), images_per_sample=1, **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    config = cut(ALIAS, text=text, vision={"depth": 4, **dict(vision)})
    made = step(config, ALIAS, (480, 330), images_per_sample=images_per_sample)
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

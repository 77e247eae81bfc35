"""GLM-4.5V and 4.6V against transformers, and the class that takes either decoder."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError

ALIAS = "glm-4.5v"
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64}
EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
ROTARY = {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
NARROW = {**SIZES, **EXPERTS, **ROTARY, "num_key_value_heads": 2, "max_position_embeddings": 4096}
TOWER = ["model.visual"]


def altered(text=(), **changes):
    config = packaged_config(ALIAS, **changes)
    config["text_config"] = {**config["text_config"], **NARROW, "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "depth": 3, "out_hidden_size": 512}
    return config


def any_decoder(alias, *, vision_type, text=(), vision=()):
    """The class of GLM-4.6V with a decoder and a tower of ``alias``."""
    config = packaged_config(alias, model_type="glm46v")
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "model_type": vision_type, "depth": 3, **dict(vision)}
    return config


CONFIGS = {
    "glm-4.5v": packaged_config(ALIAS),
    "glm-4.6v": packaged_config("glm-4.6v"),
    "no biases, no dense layer, norms of heads do not count": altered(
        {"attention_bias": False, "first_k_dense_replace": 0, "use_qk_norm": True}
    ),
    "tied by its text": altered({"tie_word_embeddings": True, "n_group": 4, "topk_group": 2}),
    "glm46v, dense": any_decoder("glm-4.6v-flash", vision_type="glm4v_vision", text={"tie_word_embeddings": True}),
    "glm46v, experts": any_decoder(ALIAS, vision_type="glm4v_moe_vision", text=NARROW, vision={"out_hidden_size": 512}),
}


@pytest.mark.parametrize("alias", ["glm-4.5v", "glm-4.6v", "glm-4.6v-flash"])
def test_counts_are_those_of_the_published_checkpoint(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.parametrize(
    ("frozen", "checkpoints", "attention"), [((), False, "sdpa"), (TOWER, True, "sdpa"), (TOWER, False, "eager")]
)
def test_a_step_keeps_and_peaks_as_in_transformers(frozen, checkpoints, attention):
    assert_step(frozen=frozen, checkpoints=checkpoints, attention=attention, tolerance=0.002)


def test_a_step_of_the_class_with_any_decoder_keeps_and_peaks_as_in_transformers():
    assert_step(
        model_type="glm46v",
        text={"model_type": "glm4v_moe_text"},
        vision={"model_type": "glm4v_moe_vision"},
        tolerance=0.002,
    )


def test_names_of_experts_mean_parameters_where_peft_knows_them():
    assert build_model(CONFIGS["glm-4.5v"]).PARAMETER_TARGETS
    assert not build_model(CONFIGS["glm46v, experts"]).PARAMETER_TARGETS


def test_another_decoder_is_refused():
    text = {"model_type": "llama", "num_attention_heads": 32}
    with pytest.raises(InputError, match='model_type is "llama"; glm4v_text or glm4v_moe_text is needed'):
        build_model(any_decoder(ALIAS, vision_type="glm4v_vision", text=text))


def test_merger_and_downsampling_are_the_projector():
    model = build_model(packaged_config(ALIAS))
    assert model.part_of("model.visual.downsample.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.merger.proj.weight") is Part.PROJECTOR


def assert_step(*, model_type="glm4v_moe", text=(), vision=(), **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    config = cut(
        ALIAS,
        text={**NARROW, **dict(text)},
        vision={"depth": 3, "out_hidden_size": 512, "intermediate_size": 704, **dict(vision)},
        model_type=model_type,
    )
    made = step(config, ALIAS, (480, 330))
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

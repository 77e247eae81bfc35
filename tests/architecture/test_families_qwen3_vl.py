"""Qwen3-VL, dense and with experts, against the published checkpoints and against transformers."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.trace import Trace

ALIASES = ["qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b", "qwen3-vl-32b", "qwen3-vl-30b-a3b"]
TOWER = ["model.visual"]
DECODER = ["model.language_model", "lm_head"]
BLOCKS = {"depth": 6, "deepstack_visual_indexes": [1, 3]}
FEW_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}


def altered(alias: str, text: object = (), vision: object = (), **changes: object) -> dict[str, object]:
    config = packaged_config(alias, **changes)
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 4, **dict(text)}
    config["vision_config"] = {**config["vision_config"], **BLOCKS, **dict(vision)}
    return config


ALTERED = {
    "tied only by its text, which does not count": altered("qwen3-vl-8b", {"tie_word_embeddings": True}),
    "biases, narrow heads": altered("qwen3-vl-2b", {"attention_bias": True, "head_dim": 64, "num_key_value_heads": 16}),
    "fewer layers than features": altered("qwen3-vl-2b", {"num_hidden_layers": 1}),
    "features out of order": altered(
        "qwen3-vl-4b",
        vision={
            "deepstack_visual_indexes": [4, 0, 5],
            "hidden_size": 320,
            "num_heads": 4,
            "num_position_embeddings": 9,
        },
        tie_word_embeddings=False,
    ),
    "no features": altered("qwen3-vl-2b", vision={"deepstack_visual_indexes": []}),
    "dense layers among experts": altered(
        "qwen3-vl-30b-a3b", {"mlp_only_layers": [1, 3], **FEW_EXPERTS}, tie_word_embeddings=True
    ),
    "every other layer has experts": altered(
        "qwen3-vl-30b-a3b", {"decoder_sparse_step": 2, "moe_intermediate_size": 96, "head_dim": None, **FEW_EXPERTS}
    ),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


COSMOS = altered("qwen3-vl-2b", model_type="cosmos3_omni")


@pytest.mark.parametrize(
    "config", [*map(packaged_config, ALIASES), COSMOS, *ALTERED.values()], ids=[*ALIASES, "cosmos3_omni", *ALTERED]
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("alias", ["qwen3-vl-2b", "qwen3-vl-30b-a3b"])
def test_a_step_keeps_and_peaks_as_in_transformers(alias, attention, frozen):
    assert_step(alias, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("alias", ["qwen3-vl-2b", "qwen3-vl-30b-a3b"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(alias, frozen):
    # Integers of a few bytes a token (positions, shifted labels) show where so little is kept.
    assert_step(alias, checkpoints=True, frozen=frozen, tolerance=0.003)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [(), TOWER], ids=["all", "no tower"])
def test_peaks_inside_the_vision_tower_are_those_of_transformers(frozen, checkpoints):
    from patch_batches import TINY_DECODER

    text = {**TINY_DECODER, "head_dim": 64, "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10]}}
    options = {"checkpoints": checkpoints, "frozen": frozen, "images_per_sample": 3, "tolerance": 0.005}
    assert_step("qwen3-vl-2b", text=text, vision={"out_hidden_size": 128}, **options)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("config", ALTERED, ids=list(ALTERED))
def test_any_placement_of_features_and_experts_runs_as_in_transformers(config):
    if config != "features out of order":  # which transformers hands to the decoder in order of depth as well
        alias = "qwen3-vl-30b-a3b" if "experts" in config else "qwen3-vl-2b"
        source = ALTERED[config]
        text = {key: source["text_config"].get(key) for key in ("num_hidden_layers", "mlp_only_layers")}
        text["decoder_sparse_step"] = source["text_config"].get("decoder_sparse_step", 1)
        vision = {"deepstack_visual_indexes": source["vision_config"]["deepstack_visual_indexes"]}
        assert_step(alias, text=text, vision=vision, checkpoints="experts" in config, tolerance=0.003)


def test_deepstack_features_arrive_behind_the_first_layers():
    trace = predicted(ALTERED["tied only by its text, which does not count"])
    keys = [run.key for run in trace.schedule]
    layers = [key for key in keys if key.startswith(("layers", "deepstack"))]
    assert layers == ["layers.0.first", "deepstack.0", "layers.1.first", "deepstack.1", "layers.2.first", "layers.2"]
    tower = [key for key in keys if key.startswith("vision.")]
    assert tower.index("vision.deepstack.0") == tower.index("vision.0") + 1


def test_mergers_are_the_projector():
    model = build_model(packaged_config("qwen3-vl-2b"))
    assert model.part_of("model.visual.deepstack_merger_list.2.norm.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.merger.linear_fc1.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.blocks.3.norm1.weight") is Part.VISION


def predicted(config: dict[str, object], implementation: str = "sdpa") -> Trace:
    image = image_shape(config, None, width=320, height=256)
    batch = Batch(micro_batch=1, num_tokens=128, images_per_sample=1, image=image)
    trace = predicted_step(config, batch, implementation=implementation).trace
    assert trace is not None
    return trace


def assert_step(alias, *, text=(), vision=(), images_per_sample=1, **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    if "a3b" in alias:
        text = {**FEW_EXPERTS, **dict(text)}
    config = cut(alias, num_layers=4, text=text, vision={**BLOCKS, **dict(vision)})
    made = step(config, alias, (480, 330), images_per_sample=images_per_sample)
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

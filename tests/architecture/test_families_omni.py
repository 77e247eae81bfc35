"""The thinkers of Qwen2.5-Omni and Qwen3-Omni against transformers."""

from typing import Any

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Part

VOCABULARY = 1000
IMAGE, START = VOCABULARY - 1, VOCABULARY - 3
AUDIO = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
TEXT = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
QWEN3 = {
    "model_type": "qwen3_omni_moe_thinker",
    "image_token_id": IMAGE,
    "vision_start_token_id": START,
    "audio_config": {**AUDIO, "downsample_hidden_size": 24, "output_dim": 1024, "num_mel_bins": 20},
    "text_config": {
        **TEXT,
        "hidden_size": 1024,
        "head_dim": 128,
        "moe_intermediate_size": 384,
        "intermediate_size": 768,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
    "vision_config": {
        "depth": 6,
        "hidden_size": 576,
        "intermediate_size": 2152,
        "num_heads": 8,
        "out_hidden_size": 1024,
        "deepstack_visual_indexes": [1, 3],
        "patch_size": 16,
    },
}
QWEN25 = {
    "model_type": "qwen2_5_omni_thinker",
    "image_token_index": IMAGE,
    "vision_start_token_id": START,
    "audio_config": {**AUDIO, "output_dim": 1024},
    "text_config": {
        **TEXT,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]},
    },
    "vision_config": {
        "depth": 5,
        "hidden_size": 640,
        "intermediate_size": 1712,
        "num_heads": 8,
        "out_hidden_size": 1024,
        "fullatt_block_indexes": [1, 4],
        "patch_size": 14,
    },
}
CONFIGS = {"qwen2.5": QWEN25, "qwen3": QWEN3}
TOWERS = ["model.visual", "model.audio_tower"]
DECODER = ["model.language_model", "lm_head"]


def altered(config: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """``config`` with other values, those of a section beside what it has."""
    return {**config, **{key: {**config[key], **values} for key, values in sections.items()}}


ALTERED = {
    "dense layers among experts": altered(QWEN3, text_config={"mlp_only_layers": [1]}),
    "tied, biased": {**altered(QWEN3, text_config={"attention_bias": True}), "tie_word_embeddings": True},
    "no inner features": altered(QWEN3, vision_config={"deepstack_visual_indexes": []}),
    "windows": altered(QWEN25, text_config={"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),
}


@pytest.mark.parametrize("config", [*CONFIGS.values(), *ALTERED.values()], ids=[*CONFIGS, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("frozen", [(), TOWERS, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_images_keeps_and_peaks_as_in_transformers(name, checkpoints, frozen):
    assert_step(CONFIGS[name], images_per_sample=2, checkpoints=checkpoints, frozen=frozen)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_of_text_alone_keeps_and_peaks_as_in_transformers(name, checkpoints):
    assert_step(CONFIGS[name], images_per_sample=0, checkpoints=checkpoints)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ALTERED)
def test_other_values_run_as_in_transformers(name):
    assert_step(ALTERED[name], images_per_sample=2)


def assert_step(config, *, images_per_sample, tolerance=0.001, **options):
    pytest.importorskip("transformers")
    import torch
    from patch_batches import step

    from family_checks import assert_step_matches, text_inputs

    if not images_per_sample:
        batch = Batch(micro_batch=2, num_tokens=384)
        return assert_step_matches(config, batch, text_inputs(batch), tolerance=tolerance, **options)
    made = step(
        config,
        "qwen2.5-vl-7b" if config["model_type"] == QWEN25["model_type"] else "qwen3-vl-8b",
        (480, 330),
        images_per_sample=2,
    )
    inputs = {key: value for key, value in made.inputs.items() if key != "mm_token_type_ids"}
    inputs["position_ids"] = inputs["position_ids"].to(torch.float32)
    return assert_step_matches(config, made.batch, inputs, made.floats, tolerance=tolerance, **options)


def test_mergers_are_the_projector_and_sound_is_encoded_by_a_tower():
    model = build_model(QWEN3)
    assert model.part_of("model.visual.merger_list.1.ln_q.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.merger.mlp.0.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.blocks.3.norm1.weight") is Part.VISION
    assert model.part_of("model.audio_tower.proj2.weight") is Part.VISION

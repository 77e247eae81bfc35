"""Micro batches of every family that the planner knows and transformers has: the model takes them, and as planned."""

import copy
import json
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import outcomes_of

from image_batches import packaged_preprocessor
from image_models import DESCRIBED_MODELS
from model_table import packaged_config
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, image_shape
from vlmplan.model_types.encoder_decoder import ONE_IMAGE_TYPES

HERE = Path(__file__).parent
MICRO_BATCH, IMAGES, TEXT_TOKENS = 2, 2, 67
SIZE = (700, 500)
REMOTE = {"qwen"}
"""Their code is not in transformers, so the trainer has no model of them."""
ALIASES = {
    "blip-2": "blip2-opt-2.7b",
    "fast_vlm": "fastvlm-0.5b",
    "gemma3": "gemma-3-4b",
    "gemma3n": "gemma-3n-e2b",
    "gemma4": "gemma-4-31b",
    "gemma4_unified": "gemma-4-12b",
    "glm46v": "glm-4.6v-flash",
    "glm4v": "glm-4.1v-9b",
    "glm4v_moe": "glm-4.5v",
    "glm_ocr": "glm-ocr",
    "idefics2": "idefics2-8b",
    "idefics3": "smolvlm-256m",
    "instructblip": "instructblip-vicuna-7b",
    "internvl": "internvl3-1b",
    "lfm2_vl": "lfm2-vl-1.6b",
    "lighton_ocr": "lighton-ocr-1b",
    "llama4": "llama-4-scout",
    "llava": "llava-1.5-7b",
    "llava_next": "llava-v1.6-mistral-7b",
    "llava_onevision": "llava-onevision-0.5b",
    "minicpmv4_6": "minicpm-v-4.6",
    "mistral3": "mistral-small-3.1-24b",
    "mllama": "llama-3.2-11b-vision",
    "ovis2": "ovis2-1b",
    "paddleocr_vl": "paddleocr-vl",
    "paligemma": "paligemma-3b",
    "phi4_multimodal": "phi-4-multimodal",
    "pixtral": "pixtral-12b",
    "qwen2_5_omni_thinker": "qwen2.5-omni-7b",
    "qwen2_5_vl": "qwen2.5-vl-3b",
    "qwen2_vl": "qwen2-vl-2b",
    "qwen3_5": "qwen3.5-0.8b",
    "qwen3_5_moe": "qwen3.5-35b-a3b",
    "qwen3_omni_moe_thinker": "qwen3-omni-30b-a3b",
    "qwen3_vl": "qwen3-vl-2b",
    "qwen3_vl_moe": "qwen3-vl-30b-a3b",
    "smolvlm": "smolvlm2-256m",
}
ONE_IMAGE = {"blip-2", "instructblip"}
NUM_LAYERS = 2


CASES = {**{family: family for family in DESCRIBED_MODELS}, **ALIASES}
"""Published files where there are any, which have keys that the classes do not."""


def cut(alias):
    """The published configuration with few layers of each kind."""
    config = copy.deepcopy(dict(DESCRIBED_MODELS[alias])) if alias in DESCRIBED_MODELS else packaged_config(alias)
    for part in (config, config.get("text_config", {}), config.get("vision_config", {})):
        for key in ("num_hidden_layers", "depth", "num_global_layers"):
            if key in part:
                part[key] = NUM_LAYERS
        part.pop("layer_types", None)
        for key in ("intermediate_size", "activation_sparsity_pattern"):
            if isinstance(part.get(key), list):
                part[key] = part[key][:NUM_LAYERS]
        if "insert_layer_id" in part:
            part["insert_layer_id"] = 0
        if "num_kv_shared_layers" in part:
            part["num_kv_shared_layers"] = 0
        if "cross_attention_layers" in part:
            part["cross_attention_layers"] = [1]
        for key in ("fullatt_block_indexes", "deepstack_visual_indexes", "intermediate_layers_indices"):
            if key in part:
                part[key] = [index % NUM_LAYERS for index in range(len(part[key]))]
    return config


def test_no_family_is_left_out():
    """Of an image and what is written about it ``tests/trainer/test_image_encoders.py`` tells."""
    assert set(CASES) - {"pixtral"} == set(IMAGE_MODEL_TYPES) - REMOTE - ONE_IMAGE_TYPES


@pytest.fixture(scope="module")
def asked():
    found = {}
    for family, alias in CASES.items():
        config = cut(alias)
        if family == "glm46v":  # no published file has it: its class takes the parts of GLM-4.6V
            config["model_type"] = family
        num_images = 1 if family in ONE_IMAGE else IMAGES
        image = image_shape(
            config, packaged_preprocessor(alias), width=SIZE[0], height=SIZE[1], num_images_per_sample=num_images
        )
        samples = {
            "micro_batch": MICRO_BATCH,
            "num_tokens": num_images * image.num_tokens + TEXT_TOKENS,
            "images_per_sample": num_images,
            "image": asdict(image),
            "width": SIZE[0],
            "height": SIZE[1],
        }
        found[family] = {"config": config, "samples": samples}
    return found


IN_EVERY_SWEEP = ("qwen2_5_vl",)
NEED_TIMM = set() if find_spec("timm") else {"fast_vlm", "gemma3n"}
"""Whose towers are timm's, where that is not installed."""
IN_LONG_SWEEPS = tuple(family for family in CASES if family not in IN_EVERY_SWEEP and family not in NEED_TIMM)
FAMILIES = [*IN_EVERY_SWEEP, *(pytest.param(family, marks=pytest.mark.long) for family in IN_LONG_SWEEPS)]


@pytest.fixture(scope="module")
def outcomes(asked, tmp_path_factory):
    """What was found of each family; those of every sweep share a process, and so do the others."""
    folder = tmp_path_factory.mktemp("asked")
    for family, content in asked.items():
        (folder / f"{family}.json").write_text(json.dumps(content))

    @cache
    def found(families):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FOLDER", str(folder))
            return outcomes_of(HERE / "batch_checks.py", families)

    return lambda family: found(IN_EVERY_SWEEP if family in IN_EVERY_SWEEP else IN_LONG_SWEEPS)[family]


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_model_takes_the_micro_batch(asked, outcomes, family):
    assert "found" in outcomes(family), outcomes(family)
    found, samples = outcomes(family)["found"], asked[family]["samples"]
    assert found["logits"][:2] == found["input_ids"] == [samples["micro_batch"], samples["num_tokens"]]


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_a_micro_batch_is_gone_once_it_has_been_used_as_a_data_loaders_is(outcomes, family):
    assert outcomes(family)["found"]["num_kept"] == 0

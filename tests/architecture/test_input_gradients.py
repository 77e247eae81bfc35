"""Which input embeddings need gradients, beside the hooks of transformers' own ``enable_input_require_grads``."""

import json
from functools import cache

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from vlmplan.architecture.families import build_model
from vlmplan.architecture.input_gradients import input_embeddings
from vlmplan.models.packaged import PACKAGED_MODELS, packaged_models

TYPES = {
    *(
        "blip-2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "glm4v",
        "glm4v_moe",
        "idefics2",
        "idefics3",
        "instructblip",
        "internvl",
    ),
    *(
        "lfm2_vl",
        "llama4",
        "llava",
        "llava_next",
        "llava_onevision",
        "minicpmv4_6",
        "mistral3",
        "mllama",
        "ovis2",
        "paligemma",
    ),
    *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "qwen3_vl_moe", "smolvlm"),
}


@cache
def configs():
    """The first packaged config.json of each type."""
    found = {}
    for model in packaged_models().values():
        folder = PACKAGED_MODELS / model.folder
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "auto_map" not in config:
            found.setdefault(config.get("model_type"), folder)
    return found


def test_all_packaged_types_that_see_are_looked_at():
    assert set(configs()) >= TYPES


@pytest.mark.parametrize("model_type", sorted(TYPES))
def test_hooks_are_where_transformers_puts_them(model_type):
    if model_type == "gemma3n":  # whose tower is timm's
        pytest.importorskip("timm", exc_type=ImportError)
    config = AutoConfig.from_pretrained(configs()[model_type])
    for part in (config, *(getattr(config, name) for name in getattr(config, "sub_configs", {}))):
        if getattr(part, "num_hidden_layers", 0) > 4 and not hasattr(part, "layer_types"):
            part.num_hidden_layers = 4
    with torch.device("meta"):
        theirs = AutoModelForImageTextToText.from_config(config)
    theirs.enable_input_require_grads()
    ours = build_model(json.loads((configs()[model_type] / "config.json").read_text(encoding="utf-8")))
    assert set(input_embeddings(ours)) == {name for name, one in theirs.named_modules() if one._forward_hooks}

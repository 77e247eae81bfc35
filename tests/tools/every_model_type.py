"""Write ``tests/data/model_types.csv``: every model type of transformers with a language-model head, and how it fares.

For each ``model_type`` of MODEL_FOR_CAUSAL_LM_MAPPING and MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, whose default
configuration is planned as a user's would be: what refuses it, and how many parameters transformers' own model has on
the meta device. It raises where the planner counts others. Takes half a minute of processor time, and no weights:

    PYTHONPATH=planner:trainer:tests python tests/tools/every_model_type.py
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

from hub_server import isolated_cache
from model_types import FILE, TypeRow, write_rows
from planned import cluster
from vlmplan.architecture.families import FAMILIES
from vlmplan.errors import VlmplanError
from vlmplan.estimation import estimate
from vlmplan.models import context_length
from vlmplan.models import probe as model_probe
from vlmplan.models.description import with_layout
from vlmplan.models.tree import model_tree
from vlmplan.plain_text import one_line
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rehearsal.layers import with_kept_layers
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.rules import default_attention, default_lora_exclude, model_facts
from vlmplan.workload import ModelFiles
from vlmplan_trainer.probe import CAUSAL_TYPES_WITH_IMAGES, RefusedModelError, configuration, layout, model_class

TEXT = frozenset(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
IMAGES = frozenset((*modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *CAUSAL_TYPES_WITH_IMAGES))
RECIPE = Recipe(method=Method.LORA, zero_stage=None, micro_batch=1, activation_checkpointing=False)
NUM_TOKENS = 256

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_HALF = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}}
_INDEXER = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}
COMPLETED: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16}
    },
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "kv_n_heads": 8}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_ocr2": {
        "text_config": {
            "num_hidden_layers": 12,
            "mlp_layer_types": ["dense", *["sparse"] * 11],
            "num_experts_per_tok": 6,
        }
    },
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5}},
    "gemma3": {"mm_tokens_per_image": 196},
    "glm46v": {"text_config": _HALF},
    "glm4v": {"text_config": _HALF},
    "glm4v_moe": {"text_config": {**_HALF, "head_dim": 128}},
    "glmga": {"text_config": _HALF},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [0],
        "downsample_rate": "4/8",
        "qformer_config": {"model_type": "blip_2_qformer"},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 256},
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "lfm2_moe": {"layer_types": [*["conv"] * 3, "full_attention"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "perception_lm": {
        "vision_config": {
            "model_type": "timm_wrapper",
            "architecture": "vit_pe_core_large_patch14_336",
            "model_args": {"embed_dim": 1024},
        }
    },
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True},
}
"""What transformers' default configurations of these types leave out and its own models need, so that there is a model
to count: not those of a published checkpoint."""


def default_config(model_type: str) -> dict[str, Any]:
    """A config.json that leaves all to the defaults of transformers' class but what that lacks."""
    return {"model_type": model_type, **COMPLETED.get(model_type, {})}


COUNTED_WITH_TIMM: Mapping[str, tuple[str, int]] = {
    "fast_vlm": ("FastVlmForConditionalGeneration", 7_762_651_744),
    "gemma3n": ("Gemma3nForConditionalGeneration", 7_818_517_072),
    "perception_lm": ("PerceptionLMForConditionalGeneration", 7_075_497_984),
}
"""Types whose own model needs timm: counted where timm 1.0.31 was, and those without a family planned there as well.
Planning gemma3n does without (``tools/timm_steps.py``)."""
NEEDS_TIMM = "requires the timm library"
"""What transformers says where it is not."""


def real_count(config: Mapping[str, Any]) -> tuple[str, int]:
    """Class and number of parameters of transformers' own model. Raises whatever transformers does."""
    values = configuration(dict(config))
    kind = model_class(values)
    with torch.device("meta"):
        model = kind._from_config(values, dtype=torch.bfloat16)
    return kind.__name__, sum(parameter.numel() for parameter in model.parameters())


def answer_here(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the probe answers in a process of its own, which takes seconds for each."""
    try:
        return {"layout": json.loads(json.dumps(layout(dict(config))))}
    except RefusedModelError as error:
        return {"error": error.kind, "message": str(error)}
    except Exception as error:
        return {"error": "refused", "message": f"{type(error).__name__}: {error}"}


def row_of(model_type: str) -> TypeRow:
    """How a type fares. Raises AssertionError where parameters are counted wrongly."""
    config = default_config(model_type)
    try:
        class_name, num_params = real_count(config)
    except Exception:
        class_name, num_params = COUNTED_WITH_TIMM.get(model_type, ("", 0))
    refusal, counted = "", 0
    try:
        files = with_kept_layers(with_layout(ModelFiles(id=model_type, config=config)))
        counted = sum(named.parameter.numel for named in model_tree(files).parameters())
        facts = model_facts(files)
        recipe = RECIPE.with_changes(attention=default_attention(facts), lora_exclude=default_lora_exclude(facts))
        num_tokens = min(NUM_TOKENS, context_length(files) or NUM_TOKENS)
        asked = WorkloadRequest(seq_len=None if files.hears_prompt else num_tokens, images_per_sample=0)
        if not files.encodes_one_image:  # else a sample has an image, and those are tried by every_image_type.py
            estimate(workload_of(files, asked), recipe, cluster())
    except VlmplanError as error:
        refusal = one_line(str(error))
    if NEEDS_TIMM in refusal and model_type in COUNTED_WITH_TIMM:
        refusal = ""
    assert counted in (0, num_params), f"{model_type}: {counted:,} parameters, transformers has {num_params:,}"
    assert not (refusal and model_type in FAMILIES), f"{model_type} has a family and is refused: {refusal}"
    takes = "images" if model_type in IMAGES else "text"
    return TypeRow(model_type=model_type, takes=takes, class_name=class_name, num_params=num_params, refusal=refusal)


def measured_rows() -> list[TypeRow]:
    """How all types fare."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        isolated_cache(patch, Path(folder))
        patch.setattr(model_probe, "_answer", answer_here)
        return [row_of(model_type) for model_type in sorted(TEXT | IMAGES)]


if __name__ == "__main__":
    rows = measured_rows()
    write_rows(rows)
    refused = [row for row in rows if row.how == "refused"]
    for row in refused:
        sys.stdout.write(f"{row.model_type}: {row.refusal}\n")
    sys.stdout.write(f"{FILE.name}: {len(rows)} types, {len(refused)} refused\n")

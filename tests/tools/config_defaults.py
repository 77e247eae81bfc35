"""Write ``planner/vlmplan/data/config_defaults.json``: the defaults of transformers' configuration classes.

Published ``config.json`` files leave out what equals the default of their class, so the defaults are part of an
architecture. Run with transformers installed after its version in constraints.txt has changed:

    python tests/tools/config_defaults.py
"""

import contextlib
import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OUTPUT = Path(__file__).parents[2] / "planner" / "vlmplan" / "data" / "config_defaults.json"
MODEL_TYPES = """
afmoe apertus arcee aria aria_text axk1 axk2 aya_vision bamba bart bert bert-generation biogpt bitnet blenderbot
blenderbot-small blip-2 bloom camembert clip_vision_model codegen cohere cohere2 cohere2_moe cohere2_vision
cohere_compass cohere_compass_text cosmos3_omni ctrl cwm data2vec-text deepseek_ocr2 deepseek_v2 deepseek_v3
deepseek_v32 deepseek_v4 deepseek_vl deepseek_vl_hybrid diffllama doge dots1 electra ernie ernie4_5 ernie4_5_moe
ernie4_5_vl_moe exaone4 exaone4_5 exaone_moe falcon falcon_h1 falcon_mamba fast_vlm flex_olmo flint florence2 gemma
gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm46v
glm4_moe glm4_moe_lite glm4v glm4v_moe glm_moe_dsa glm_ocr glmga got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox
gpt_neox_japanese gpt_oss gptj granite granite4_vision granite_docling granite_swa granitemoe granitemoe_swa
granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hy_v3 hyperclovax
hyperclovax_vision_v2 idefics2 idefics3 instructblip internlm3 internvl iquestcoder jais2 jamba janus jetmoe kimi_k25
kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr llama llama4 llava llava_next
llava_next_video llava_onevision longcat_flash mamba mamba2 marian mbart megatron-bert mellum mimo_v2_flash minicpm3
minicpm_ocr minicpmv4_6 minicpmv4_7 minimax minimax_m2 ministral ministral3 mistral mistral3 mistral4 mixtral mllama
modernbert-decoder molmo2 mpt muse_glimmer nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt
opt ovis2 paddleocr_vl paligemma pegasus persimmon phi phi3 phi4_multimodal phimoe pixtral plbart pp_chart2table
qianfan_ocr qwen2 qwen2_5_omni_thinker qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text
qwen3_5_text qwen3_moe qwen3_next qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen4_exp qwen4_exp_text rembert roberta
roberta-prelayernorm roc_bert roformer seed_oss siglip2_vision_model siglip_vision_model smollm3 smolvlm solar_open
stablelm starcoder2 vaultgemma video_llama_3 video_llava vipllava whisper xglm xlm-roberta xlm-roberta-xl youtu zamba
zamba2 zaya
""".split()
NEWER_TYPES = "exaone sarvam_mla sarvam_moe".split()
"""Which transformers 5.23 does not know: with that they stay as 5.24 has them."""
IGNORED = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"tie_word_embeddings"}
NOT_ARCHITECTURE = ("_token_id", "initializer_", "use_cache", "rope_parameters", "_eps", "_theta")
TOLD = ("model_args",)
"""Mappings that say how a section's model is built."""
ANY_NUMBER = 96
"""Which no class has as a default of what it takes under another name."""


def entry(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Scalar defaults, sections with their default model type, and aliases of one configuration class."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        if field.name in IGNORED or any(part in field.name for part in NOT_ARCHITECTURE):
            continue
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is None or isinstance(value, bool | int | float | str | list | tuple):
            defaults[field.name] = value
    sections = {
        key: {
            "model_type": spec.model_type,
            "is_fixed": issubclass(spec.config_class, PreTrainedConfig),
            "values": {name: v for name, v in spec.init_kwargs.items() if not isinstance(v, dict) or name in TOLD},
        }
        for key, spec in (config_class.sub_configs_defaults or {}).items()
    }
    aliases = {**(config_class.attribute_map or {}), **older_names(config_class)}
    result: dict[str, Any] = {"defaults": defaults}
    if sections:
        result["sections"] = sections
    if aliases:
        result["aliases"] = aliases
    return result


def older_names(config_class: type[PreTrainedConfig]) -> dict[str, str]:
    """The names of published files under which ``__post_init__`` takes a number for a field (``n_embed`` of BLOOM)."""
    own = {field.name for field in dataclasses.fields(config_class)} - IGNORED
    names = re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(config_class.__post_init__))
    found: dict[str, str] = {}
    for name in sorted({*names} - own - IGNORED):
        with contextlib.suppress(Exception):  # no number is taken under this name
            unlike, like = vars(config_class()), vars(config_class(**{name: ANY_NUMBER}))
            taken = [key for key in own if like.get(key) == ANY_NUMBER != unlike.get(key)]
            found |= {name: taken[0]} if len(taken) == 1 else {}
    return found


def table() -> dict[str, Any]:
    packaged = json.loads(OUTPUT.read_text())["model_types"]
    pending = [*MODEL_TYPES, *(name for name in NEWER_TYPES if name in CONFIG_MAPPING)]
    types: dict[str, Any] = {name: packaged[name] for name in NEWER_TYPES if name not in CONFIG_MAPPING}
    while pending:
        model_type = pending.pop(0)
        if model_type in types:
            continue
        types[model_type] = entry(CONFIG_MAPPING[model_type])
        pending += [section["model_type"] for section in types[model_type].get("sections", {}).values()]
    return {
        "source": f"transformers {transformers.__version__} (Apache-2.0), models/*/configuration_*.py",
        "model_types": dict(sorted(types.items())),
    }


if __name__ == "__main__":
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes\n")

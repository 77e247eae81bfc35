"""The language model inside a composite model, chosen by the model_type of its ``text_config``.

Source: transformers 5.23, ``AutoModel.from_config(config.text_config)`` in the composite models.
"""

from importlib import import_module
from typing import Any

from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Model
from vlmplan.errors import UnknownNameError

TEXT_FAMILIES = {
    "afmoe": "afmoe",
    "apertus": "apertus",
    "arcee": "arcee",
    "aria_text": "aria_text",
    "axk1": "axk1",
    "axk2": "axk2",
    "bamba": "bamba",
    "bert": "bert",
    "bert-generation": "bert_generation",
    "biogpt": "biogpt",
    "bitnet": "bitnet",
    "bloom": "bloom",
    "camembert": "bert",
    "codegen": "gptj",
    "cohere": "cohere",
    "cohere2": "cohere",
    "cohere2_moe": "cohere2_moe",
    "cohere_compass_text": "cohere_compass_text",
    "ctrl": "ctrl",
    "cwm": "cwm",
    "data2vec-text": "bert",
    "deepseek_v2": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "diffllama": "diffllama",
    "doge": "doge",
    "dots1": "dots1",
    "electra": "electra",
    "ernie": "bert",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5_moe",
    "exaone": "llama",
    "exaone4": "exaone4",
    "exaone_moe": "exaone_moe",
    "falcon": "falcon",
    "falcon_h1": "falcon_h1",
    "falcon_mamba": "mamba",
    "flex_olmo": "flex_olmo",
    "flint": "flint",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4",
    "glm": "glm",
    "glm4": "glm4",
    "glm4_moe": "glm4_moe",
    "glm4_moe_lite": "deepseek_v3",
    "glm_moe_dsa": "glm_moe_dsa",
    "gpt-sw3": "gpt2",
    "gpt2": "gpt2",
    "gpt_bigcode": "gpt_bigcode",
    "gpt_neo": "gpt_neo",
    "gpt_neox_japanese": "gpt_neox_japanese",
    "gptj": "gptj",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "granite_swa": "granite_swa",
    "granitemoe": "granitemoe",
    "granitemoe_swa": "granite_swa",
    "granitemoehybrid": "granitemoehybrid",
    "granitemoeshared": "granitemoe",
    "helium": "helium",
    "hunyuan_v1_dense": "hunyuan",
    "hunyuan_v1_moe": "hunyuan_moe",
    "hy_v3": "hy_v3",
    "hyperclovax": "granite",
    "internlm3": "internlm3",
    "iquestcoder": "llama",
    "jais2": "jais2",
    "jamba": "jamba",
    "kimi_linear": "kimi_linear",
    "jetmoe": "jetmoe",
    "kolibri1": "kolibri1",
    "laguna": "laguna",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2_moe",
    "lfm3": "lfm3",
    "llama": "llama",
    "llama4_text": "llama4",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "megatron-bert": "megatron_bert",
    "mellum": "mellum",
    "mimo_v2_flash": "mimo_v2_flash",
    "minicpm3": "minicpm3",
    "minimax": "minimax",
    "minimax_m2": "minimax_m2",
    "ministral": "ministral",
    "ministral3": "ministral3",
    "mistral": "llama",
    "mistral4": "deepseek_v3",
    "mixtral": "mixtral",
    "modernbert-decoder": "modernbert_decoder",
    "mpt": "mpt",
    "nanochat": "nanochat",
    "nemotron": "nemotron",
    "nemotron_h": "nemotron_h",
    "olmo": "olmo",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "olmo_hybrid": "olmo_hybrid",
    "olmoe": "olmoe",
    "openai-gpt": "openai_gpt",
    "opt": "opt",
    "persimmon": "persimmon",
    "phi": "phi",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen2": "llama",
    "qwen2_moe": "qwen2_moe",
    "qwen3": "llama",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_moe": "mixtral",
    "qwen3_next": "qwen3_next",
    "qwen4_exp_text": "qwen4_exp",
    "rembert": "rembert",
    "roberta": "bert",
    "roberta-prelayernorm": "bert_pre_norm",
    "roc_bert": "roc_bert",
    "roformer": "roformer",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "glm4_moe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "solar_open": "solar_open",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "vaultgemma": "gemma",
    "xglm": "biogpt",
    "xlm-roberta": "bert",
    "xlm-roberta-xl": "bert_pre_norm",
    "youtu": "deepseek_v3",
    "zaya": "zaya",
}
"""Model_types of language models, and the modules of families: with ``decoder(config)``, the model without its head as
composite models hold it, and ``causal_lm``, which makes the whole of that and the config; without it ``CausalLM``."""


def text_decoder(config: Config) -> Any:
    """The decoder of a text configuration, without an output head.

    A module with ``embed(ids)``, ``forward(x, backend)`` and ``shape``, which has ``hidden_size`` and ``vocab_size``.
    Raises UnknownNameError for a model_type without one.
    """
    return _family(config).decoder(config)


def text_model(config: Config) -> Model:
    """The ``...ForCausalLM`` of a text configuration. Raises UnknownNameError for a model_type without a family."""
    family = _family(config)
    return getattr(family, "causal_lm", CausalLM)(family.decoder(config), config)


def _family(config: Config) -> Any:
    if config.model_type not in TEXT_FAMILIES:
        raise UnknownNameError(f"{config.path}.model_type", config.model_type, TEXT_FAMILIES)
    return import_module(f"vlmplan.architecture.families.{TEXT_FAMILIES[config.model_type]}")


def ties_word_embeddings(config: Config, text: Config) -> bool:
    """Whether the checkpoint shares embedding and head where the top level's class default is true.

    The file's own key decides. Without it, files written by transformers 5 follow the composite class's default, but
    older ones were written when the text configuration decided (``get_text_config().tie_word_embeddings`` in
    ``tie_weights`` of 4.x), and a value equal to the default was left out: InternVL3-hf and Mistral-Small-3.1 are
    untied that way. transformers 5 does not tie them either: ``tie_weights`` refuses where a checkpoint holds both
    weights and they differ.
    """
    if config.has_own("tie_word_embeddings"):
        return config.boolean("tie_word_embeddings")
    major = config.text("transformers_version").split(".")[0]
    return (text if major in ("2", "3", "4") else config).boolean("tie_word_embeddings")

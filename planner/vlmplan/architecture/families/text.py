"""The language model inside a composite model, chosen by the model_type of its ``text_config``.

Source: transformers 5.23, ``AutoModel.from_config(config.text_config)`` in the composite models.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Model
from vlmplan.errors import UnknownNameError


def by_model_type(called_so: str, others: Mapping[str, str]) -> dict[str, str]:
    """Model_types and the modules that describe them. ``called_so``: those whose module has their name; ``others``: of
    a module, those that have another.

    >>> by_model_type("gemma llama", {"gemma": "gemma2"})
    {'gemma': 'gemma', 'gemma2': 'gemma', 'llama': 'llama'}
    """
    named = {name: name for name in called_so.split()}
    return dict(sorted((named | {name: module for module, names in others.items() for name in names.split()}).items()))


TEXT_FAMILIES = by_model_type(
    """afmoe apertus arcee aria_text axk1 axk2 bamba bert biogpt bitnet bloom cohere cohere2_moe cohere_compass_text
    ctrl cwm deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dots1 electra ernie4_5 ernie4_5_moe exaone4
    exaone_moe falcon falcon_h1 flex_olmo flint gemma glm glm4 glm4_moe glm_moe_dsa gpt2 gpt_bigcode gpt_neo gpt_neox
    gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoehybrid helium hy_v3 internlm3 jais2 jamba
    jetmoe kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm3 llama longcat_flash mamba mamba2 mellum mimo_v2_flash
    minicpm3 minimax minimax_m2 ministral ministral3 mixtral mpt nanochat nemotron nemotron_h olmo olmo_hybrid olmoe
    opt persimmon phi phi3 phimoe qwen2_moe qwen3_next rembert roc_bert roformer seed_oss smollm3 solar_open stablelm
    starcoder2 zamba2 zaya""",
    {
        "bert": "camembert data2vec-text ernie roberta xlm-roberta",
        "bert_generation": "bert-generation",
        "bert_pre_norm": "roberta-prelayernorm xlm-roberta-xl",
        "biogpt": "xglm",
        "cohere": "cohere2",
        "deepseek_v3": "deepseek_v2 glm4_moe_lite mistral4 sarvam_mla youtu",
        "gemma": "gemma2 gemma3_text vaultgemma",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text gemma4_unified_text",
        "glm4_moe": "sarvam_moe",
        "gpt2": "gpt-sw3",
        "gptj": "codegen",
        "granite": "hyperclovax",
        "granite_swa": "granitemoe_swa",
        "granitemoe": "granitemoeshared",
        "hunyuan": "hunyuan_v1_dense",
        "hunyuan_moe": "hunyuan_v1_moe",
        "llama": "exaone iquestcoder mistral qwen2 qwen3",
        "llama4": "llama4_text",
        "mamba": "falcon_mamba",
        "megatron_bert": "megatron-bert",
        "mixtral": "qwen3_moe",
        "modernbert_decoder": "modernbert-decoder",
        "olmo": "olmo2 olmo3",
        "openai_gpt": "openai-gpt",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "qwen4_exp": "qwen4_exp_text",
    },
)
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

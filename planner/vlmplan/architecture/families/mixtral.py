"""Mixtral and Qwen3-MoE: Llama-like decoders with mixtures of experts.

Source: transformers 5.23 ``models/mixtral/modeling_mixtral.py`` and ``models/qwen3_moe/modeling_qwen3_moe.py``.
"""

from dataclasses import replace

from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderShape, decoder_shape
from vlmplan.architecture.families.moe import moe_layers
from vlmplan.architecture.modules import Module


class Mixtral(CausalLM):
    """``MixtralForCausalLM``. The names of its experts in transformers 4 still work as LoRA targets."""

    PARAMETER_TARGETS = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}


def moe_shape(config: Config) -> DecoderShape:
    """The shape of the decoder; if a window is set, all layers have it."""
    shape = decoder_shape(config)
    window = config.optional_integer("sliding_window")
    is_qwen = config.model_type == "qwen3_moe"
    if is_qwen and not config.boolean("use_sliding_window"):
        window = None
    return replace(shape, qk_norm=is_qwen, windows=(window,) * shape.num_layers)


def decoder(config: Config) -> Decoder:
    shape = moe_shape(config)
    return Decoder(shape, moe_layers(config, shape))


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``MixtralForCausalLM`` or ``Qwen3MoeForCausalLM``."""
    return (Mixtral if config.model_type == "mixtral" else NamedExpertsLM)(decoder, config)

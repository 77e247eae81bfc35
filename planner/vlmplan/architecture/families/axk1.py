"""A.X-K1: DeepSeek-V3 with a norm behind each mixture of experts.

Source: transformers 5.23 ``models/axk1/modeling_axk1.py``. Its attention always has queries out of a narrow tensor, and
``mlp_layer_types`` says which layers have experts.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.deepseek_v3 import latent_decoder
from vlmplan.architecture.families.group_router import SharedExpertsBlock
from vlmplan.architecture.families.latent_attention import latent_shape
from vlmplan.architecture.families.llama import Decoder
from vlmplan.architecture.families.moe import sparse_by_name
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.tensor import Tensor


class NormedExpertsBlock(SharedExpertsBlock):
    """``AXK1MoE``."""

    def __init__(self, gate: Any, experts: Any, shared: Any) -> None:
        super().__init__(gate, experts, shared)
        self.post_mlp_layernorm = RMSNorm(gate.weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores).view(*x.shape)
        summed = ops.add(routed, self.shared_experts(x))
        del routed
        summed = self.post_mlp_layernorm(summed)
        del _logits, scores, indices
        return summed


def decoder(config: Config) -> Decoder:
    return latent_decoder(config, sparse_layers(config), NormedExpertsBlock)


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``AXK1ForCausalLM``. peft does not know its experts' names."""
    causal = CausalLM(decoder, config)
    causal.attention_linears = latent_shape(config).linears
    return causal


def sparse_layers(config: Config) -> list[bool]:
    """Whether each layer has experts: by ``mlp_layer_types``, or by the keys of checkpoints that have not got it."""
    if config.names_by_layer("mlp_layer_types") is not None:
        return sparse_by_name(config)
    first = config.count("first_k_dense_replace") if "first_k_dense_replace" in config else 1
    step = config.integer("moe_layer_freq", 1)
    return [index >= first and index % step == 0 for index in range(config.integer("num_hidden_layers"))]

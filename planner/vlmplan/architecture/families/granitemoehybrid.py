"""Granite 4.0 H: Mamba-2 or attention, then an MLP that sees every token, beside experts where there are any.

Source: transformers 5.23 ``models/granitemoehybrid/modeling_granitemoehybrid.py``. Embeddings, what is added to the
residual and logits are scaled as in Granite. Attention has positions only where ``position_embedding_type`` is
``rope``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.granite import GraniteDecoder
from vlmplan.architecture.families.llama import (
    Attention,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.families.nemotron_h import OLD_NAMES
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.families.state_space import NamedInputMixer, expanded_shape
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

LINEAR, FULL = "linear_attention", "full_attention"
ROPE = "rope"


class FusedMlp(Module):
    """``GraniteMoeHybridMLP``: gate and up in one projection."""

    def __init__(self, shape: DecoderShape) -> None:
        self.input_linear = Linear(shape.hidden_size, 2 * shape.intermediate_size)
        self.output_linear = Linear(shape.intermediate_size, shape.hidden_size)
        self.activation = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input_linear(x)
        half = (*x.shape[:-1], x.shape[-1] // 2)
        gate, up = ops.split(x, half, half)
        return self.output_linear(ops.mul(self.activation(gate), up))


class LogitRouter(AdaptableModule):
    """``GraniteMoeHybridTopKRouter``: the k largest logits of each token, and a softmax among them."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.num_per_token = num_per_token

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.to(ops.linear(x, self.weight_of("weight")), DType.FLOAT32)
        best, indices = top(logits, self.num_per_token)
        return logits, ops.to(ops.softmax(best), x.dtype), indices


class RoutedExperts(Module):
    """``GraniteMoeHybridMoE``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_local_experts"), shape.hidden_size
        self.router: Any = LogitRouter(num_experts, width, config.integer("num_experts_per_tok"))
        self.experts: Any = Experts(
            num_experts, width, config.integer("intermediate_size"), activation=shape.activation
        )

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.router(flat)
        return self.experts(flat, indices, scores).view(*x.shape)


class GraniteHybridLayer(Module):
    """``GraniteMoeHybridDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, kind: str) -> None:
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.has_experts = config.count("num_local_experts") > 0
        if self.has_experts:
            self.block_sparse_moe = RoutedExperts(config, shape)
        self.shared_mlp = FusedMlp(shape)
        self.is_linear = kind == LINEAR
        if self.is_linear:
            self.mamba = NamedInputMixer(expanded_shape(config))
        else:
            attention = Attention if config.get("position_embedding_type") == ROPE else PositionlessAttention
            self.self_attn = attention(shape, None)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.mamba(x, context) if self.is_linear else self.self_attn(x, context)
        x = ops.add(residual, ops.scale(x))
        residual = x
        x = self.post_attention_layernorm(x)
        routed = self.block_sparse_moe(x) if self.has_experts else None
        x = self.shared_mlp(x) if routed is None else ops.add(routed, self.shared_mlp(x))
        return ops.add(residual, ops.scale(x))


class GraniteHybridDecoder(GraniteDecoder):
    """``GraniteMoeHybridModel``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(
            shape, stack_of_kinds(layer_types(config), lambda kind: GraniteHybridLayer(config, shape, kind))
        )
        self.has_positions = config.get("position_embedding_type") == ROPE
        self.ROTARY_MODULES = GraniteDecoder.ROTARY_MODULES if self.has_positions else ()

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.has_positions:
            return super().positions(x)
        nothing = x.tape.tensor((0,), x.dtype)
        return nothing, nothing


def layer_types(config: Config) -> Sequence[str]:
    """The mixer of each layer; Mamba-2 everywhere where the file does not say."""
    names = config.layer_types()
    if names is None:
        return [LINEAR] * config.integer("num_hidden_layers")
    types = [OLD_NAMES.get(name, name) for name in names]
    if not set(types) <= {LINEAR, FULL}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(types)), f"names out of {LINEAR} and {FULL}")
    return types


def decoder(config: Config) -> GraniteHybridDecoder:
    shape = replace(decoder_shape(config), intermediate_size=config.integer("shared_intermediate_size"))
    return GraniteHybridDecoder(config, shape)


causal_lm = ScaledCausalLM

"""Granite 3 with experts: Granite's attention and scaling, and experts, perhaps beside an MLP that sees every token.

Source: transformers 5.23 ``models/granitemoe/modeling_granitemoe.py`` and, with that MLP,
``models/granitemoeshared/modeling_granitemoeshared.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.granite import GraniteDecoder
from vlmplan.architecture.families.granitemoehybrid import FusedMlp, RoutedExperts
from vlmplan.architecture.families.llama import Attention, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.modules import Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor


class GraniteMoeLayer(Module):
    """``GraniteMoeDecoderLayer``, ``GraniteMoeSharedDecoderLayer``."""

    def __init__(
        self, config: Config, shape: DecoderShape, shared_size: int, *, attention: Attention | None = None
    ) -> None:
        self.self_attn = attention or Attention(shape, None)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.block_sparse_moe = RoutedExperts(config, shape)
        self.is_shared = shared_size > 0
        if self.is_shared:
            self.shared_mlp = FusedMlp(replace(shape, intermediate_size=shared_size))

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(residual, ops.scale(x))
        residual = x
        x = self.post_attention_layernorm(x)
        if self.is_shared:
            routed = self.block_sparse_moe(x)
            x = ops.add(routed, self.shared_mlp(x))
            return ops.add(residual, ops.scale(x))
        x = self.block_sparse_moe(x)
        return ops.add(residual, ops.scale(x))


def decoder(config: Config) -> GraniteDecoder:
    shape = decoder_shape(config)
    shared_size = config.count("shared_intermediate_size") if config.model_type == "granitemoeshared" else 0
    layer = GraniteMoeLayer(config, shape, shared_size)
    return GraniteDecoder(shape, Stack.of(layer, shape.num_layers, label="layers"))


causal_lm = ScaledCausalLM

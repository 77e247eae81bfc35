"""Granite: a Llama that scales embeddings, what attention and MLP add to the residual, and logits.

Source: transformers 5.23 ``models/granite/modeling_granite.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
    with_head,
)
from vlmplan.architecture.model import CausalLM
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor


class GraniteLayer(DecoderLayer):
    """``GraniteDecoderLayer``."""

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(residual, ops.scale(x))
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        return ops.add(residual, ops.scale(x))


class GraniteDecoder(Decoder):
    """``GraniteModel``."""

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return ops.scale(self.embed_tokens(ids))


def decoder(config: Config) -> GraniteDecoder:
    """The decoder alone, as composite models hold it (``families.text``)."""
    shape = decoder_shape(config)
    return GraniteDecoder(shape, Stack.of(GraniteLayer(shape), shape.num_layers, label="layers"))


def build(config: Config) -> CausalLM:
    """``GraniteForCausalLM``."""
    model = with_head(decoder(config), config)
    model.scales_logits = True
    return model

"""nanochat: a decoder whose norms have no weights, also one before the layers; queries and keys are normed in place.

Source: transformers 5.23 ``models/nanochat/modeling_nanochat.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CappedCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.llama import (
    Attention,
    DecoderShape,
    RotaryContext,
    causal_masks,
    decoder_shape,
)
from vlmplan.architecture.families.llama4 import l2_normed
from vlmplan.architecture.modules import Embedding, Module, Stack
from vlmplan.architecture.tensor import Tensor


class NanoChatAttention(Attention):
    """``NanoChatAttention``: norms come behind positions."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q, k = super().positioned(q, k, context)
        q = ops.called(l2_normed, q)
        return q, ops.called(l2_normed, k)


class NanoChatLayer(Module):
    """``NanoChatDecoderLayer``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.self_attn = NanoChatAttention(shape, None)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size, shape.activation, has_bias=False)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = ops.called(l2_normed, x)
        x = self.self_attn(x, context)
        x = ops.add(residual, x)
        residual = x
        x = ops.called(l2_normed, x)
        x = self.mlp(x)
        return ops.add(residual, x)


class NanoChatDecoder(Module):
    """``NanoChatModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: DecoderShape) -> None:
        self.shape = shape
        self.embed_tokens = Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = Stack.of(NanoChatLayer(shape), shape.num_layers, label="layers")

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays beside what the norm makes of it until this returns."""
        tape = x.tape
        with tape.section("positions"):
            shape = (1, 1, x.shape[1], self.shape.head_dim)
            tape.prefetch()  # for the module of the positions
            masks = causal_masks(x, backend, (None,))
            context = RotaryContext(backend, tape.tensor(shape, x.dtype), tape.tensor(shape, x.dtype), masks)
            normed = [ops.called(l2_normed, x)]
        hidden = self.layers.run(normed.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return ops.called(l2_normed, hidden)


def decoder(config: Config) -> NanoChatDecoder:
    return NanoChatDecoder(replace(decoder_shape(config), mlp_bias=False))


causal_lm = CappedCausalLM

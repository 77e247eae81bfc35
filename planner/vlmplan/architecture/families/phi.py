"""Phi 1, 1.5 and 2: attention and an MLP of two Linears behind one layer norm, side by side, and a head with a bias.

Source: transformers 5.23 ``models/phi/modeling_phi.py`` and ``configuration_phi.py``. Positions are on part of each
head.
"""

from functools import partial

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.families.partial_rotary import parts_of_heads, rotary_fraction
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor`` that ``PhiConfig`` sets where the file has none."""


class PhiAttention(Module):
    """``PhiAttention``; ``is_normed``: queries and keys pass a layer norm for each head."""

    def __init__(self, shape: DecoderShape, *, is_normed: bool) -> None:
        self.shape, self.is_normed, width = shape, is_normed, shape.hidden_size
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(width, query_width, bias=True)
        self.k_proj = Linear(width, key_width, bias=True)
        self.v_proj = Linear(width, key_width, bias=True)
        self.dense = Linear(query_width, width, bias=True)
        if is_normed:
            self.q_layernorm = LayerNorm(width // shape.num_heads)
            self.k_layernorm = LayerNorm(width // shape.num_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        keys = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        q = by_head(self.q_proj(x), shape.num_heads)
        k = by_head(self.k_proj(x), shape.num_kv_heads)
        v = context.values(q, k, self.v_proj(x).view(*keys))
        if self.is_normed:
            q = self.q_layernorm(q)
            k = self.k_layernorm(k)
        q_part, q_rest = parts_of_heads(q, context.cos.shape[-1])
        k_part, k_rest = parts_of_heads(k, context.cos.shape[-1])
        q_part = ops.rotate(q_part, context.cos, context.sin)
        k_part = ops.rotate(k_part, context.cos, context.sin)
        q = ops.concatenate([q_part, q_rest], q.shape)
        k = ops.concatenate([k_part, k_rest], k.shape)
        out = context.attended(q, k, v, scores=shape.scores)
        return self.dense(out)


class PhiLayer(Module):
    """``PhiDecoderLayer``."""

    def __init__(self, shape: DecoderShape, *, is_normed: bool, dropout: float) -> None:
        self.self_attn = PhiAttention(shape, is_normed=is_normed)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size, shape.activation)
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.dropout = dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended = self.self_attn(x, context)
        attended = ops.dropout(attended, self.dropout)
        fed_forward = ops.dropout(self.mlp(x), self.dropout)
        return ops.add(ops.add(attended, fed_forward), residual)


class PhiDecoder(Decoder):
    """``PhiModel``."""

    NORM = "final_layernorm"

    def __init__(self, shape: DecoderShape, layer: PhiLayer, rotary_width: int, *, dropout: float) -> None:
        layers = Stack.of(layer, shape.num_layers, label="layers")
        super().__init__(shape, layers, norm=LayerNorm, rotary_width=rotary_width)
        self.dropout = dropout

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return ops.dropout(self.embed_tokens(ids), self.dropout)


class Phi(CausalLM):
    """``PhiForCausalLM``."""

    attention_linears = ("q_proj", "k_proj", "v_proj", "dense")


def decoder(config: Config) -> PhiDecoder:
    shape = decoder_shape(config)
    layer = PhiLayer(shape, is_normed=config.boolean("qk_layernorm"), dropout=config.number("resid_pdrop"))
    rotary_width = int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION))
    return PhiDecoder(shape, layer, rotary_width, dropout=config.number("embd_pdrop"))


causal_lm = partial(Phi, has_bias=True)

"""Persimmon: a Llama with layer norms, also of queries and keys, one Linear for all three, and positions on half heads.

Source: transformers 5.23 ``models/persimmon/modeling_persimmon.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gpt_neox import NeoXMlp
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.families.partial_rotary import parts_of_heads, rotary_fraction
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor`` that ``PersimmonConfig`` sets where the file has none."""


class PersimmonAttention(Module):
    """``PersimmonAttention``; ``is_normed``: queries and keys pass a layer norm for each head."""

    def __init__(self, shape: DecoderShape, *, is_normed: bool) -> None:
        self.shape, self.is_normed, width = shape, is_normed, shape.hidden_size
        self.query_key_value = Linear(width, 3 * width, bias=True)
        self.dense = Linear(width, width, bias=True)
        if is_normed:
            self.q_layernorm = LayerNorm(shape.head_dim)
            self.k_layernorm = LayerNorm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        heads = (batch, self.shape.num_heads, num_tokens, self.shape.head_dim)
        fused = self.query_key_value(x)
        q, k, v = ops.part(fused, *heads), ops.part(fused, *heads), ops.part(fused, *heads)
        if self.is_normed:
            q = self.q_layernorm(q)
            k = self.k_layernorm(k)
        q_part, q_rest = parts_of_heads(q, context.cos.shape[-1])
        k_part, k_rest = parts_of_heads(k, context.cos.shape[-1])
        q_part = ops.rotate(q_part, context.cos, context.sin)
        k_part = ops.rotate(k_part, context.cos, context.sin)
        q = ops.concatenate([q_part, q_rest], q.shape)
        k = ops.concatenate([k_part, k_rest], k.shape)
        out = self.dense(context.attended(q, k, v, scores=self.shape.scores))
        del fused
        return out


class PersimmonLayer(Module):
    """``PersimmonDecoderLayer``."""

    def __init__(self, shape: DecoderShape, *, is_normed: bool, dropout: float) -> None:
        self.self_attn = PersimmonAttention(shape, is_normed=is_normed)
        self.mlp = NeoXMlp(shape)
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.post_attention_layernorm = LayerNorm(shape.hidden_size)
        self.dropout = dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = ops.dropout(x, self.dropout)
        return ops.add(x, residual)


class PersimmonDecoder(Decoder):
    """``PersimmonModel``."""

    NORM = "final_layernorm"


class Persimmon(CausalLM):
    """``PersimmonForCausalLM``."""

    attention_linears = ("query_key_value", "dense")


def decoder(config: Config) -> PersimmonDecoder:
    shape = replace(decoder_shape(config), windows=())
    shape = replace(shape, head_dim=shape.hidden_size // shape.num_heads, num_kv_heads=shape.num_heads)
    is_normed, dropout = config.boolean("qk_layernorm"), config.number("hidden_dropout")
    layers = Stack.of(PersimmonLayer(shape, is_normed=is_normed, dropout=dropout), shape.num_layers, label="layers")
    width = int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION))
    return PersimmonDecoder(shape, layers, norm=LayerNorm, rotary_width=width)


causal_lm = Persimmon

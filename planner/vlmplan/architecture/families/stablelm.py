"""StableLM: a Llama with layer norms, positions on part of each head, and perhaps attention beside the MLP.

Source: transformers 5.23 ``models/stablelm/modeling_stablelm.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Attention, Decoder, DecoderShape, GatedMlp, RotaryContext, decoder_shape
from vlmplan.architecture.families.partial_rotary import parts_of_heads, rotary_fraction
from vlmplan.architecture.modules import LayerNorm, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError

ROTARY_FRACTION = 0.25
"""``StableLmConfig``: the part of each head that is rotated where the file does not say."""


class StableLmAttention(Attention):
    """``StableLmAttention``: both parts of each head stay with the layer until it returns."""

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v)
        width = context.cos.shape[-1]
        q_part, q_rest = parts_of_heads(q, width)
        k_part, k_rest = parts_of_heads(k, width)
        q_part = ops.rotate(q_part, context.cos, context.sin)
        k_part = ops.rotate(k_part, context.cos, context.sin)
        q = ops.concatenate([q_part, q_rest], q.shape)
        k = ops.concatenate([k_part, k_rest], k.shape)
        out = context.attended(q, k, v, scores=self.shape.scores)
        return self.o_proj(out)


class StableLmLayer(Module):
    """``StableLmDecoderLayer``; with ``is_parallel`` one norm serves attention and MLP."""

    def __init__(self, shape: DecoderShape, *, is_parallel: bool, dropout: float) -> None:
        self.is_parallel, self.dropout = is_parallel, dropout
        self.self_attn = StableLmAttention(shape, None)
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.input_layernorm = LayerNorm(shape.hidden_size)
        if not is_parallel:
            self.post_attention_layernorm = LayerNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended = self.self_attn(x, context)
        if self.is_parallel:
            out = ops.dropout(self.mlp(x), self.dropout)
            return ops.add(ops.add(residual, attended), out)
        residual = ops.add(residual, attended)
        out = ops.dropout(self.mlp(self.post_attention_layernorm(residual)), self.dropout)
        return ops.add(residual, out)


def decoder(config: Config) -> Decoder:
    """Raises InputError for norms of each head."""
    if config.boolean("qk_layernorm"):
        raise InputError("config.json: qk_layernorm is set; StableLM models with a norm for each head are not planned")
    shape = decoder_shape(config)
    shape = replace(
        shape,
        head_dim=shape.hidden_size // shape.num_heads,
        qkv_bias=config.boolean("use_qkv_bias"),
        output_bias=False,
        windows=(),
        scores=Scores(dropout=config.number("attention_dropout")),
    )
    rotary_width = int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION))
    is_parallel, dropout = config.boolean("use_parallel_residual"), config.number("hidden_dropout")
    layer = StableLmLayer(shape, is_parallel=is_parallel, dropout=dropout)
    layers = Stack.of(layer, shape.num_layers, label="layers")
    return Decoder(shape, layers, norm=LayerNorm, rotary_width=rotary_width)

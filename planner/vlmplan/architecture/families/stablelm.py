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

ROTARY_FRACTION = 0.25
"""``StableLmConfig``: the part of each head that is rotated where the file does not say."""


class NormList(Module):
    """``nn.ModuleList`` of a norm for each head."""

    def __init__(self, width: int, num_heads: int) -> None:
        for index in range(num_heads):
            setattr(self, str(index), LayerNorm(width, bias=False))


class NormPerHead(Module):
    """``StableLmLayerNormPerHead``: every head is cut out, normed by itself, and put back."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.norms = NormList(width, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, num_heads, length, width = x.shape
        heads = ops.split(x, *[(batch, 1, length, width)] * num_heads)
        norms = [norm for _, norm in self.norms.children()]
        normed = [norm(head) for norm, head in zip(norms, heads, strict=True)]
        return ops.concatenate(normed, x.shape)


class StableLmAttention(Attention):
    """``StableLmAttention``: both parts of each head stay with the layer until it returns."""

    q_layernorm: NormPerHead | None = None
    k_layernorm: NormPerHead | None = None

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            q, k = self.q_layernorm(q), self.k_layernorm(k)
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

    def __init__(self, shape: DecoderShape, *, is_parallel: bool, norms_heads: bool, dropout: float) -> None:
        self.is_parallel, self.dropout = is_parallel, dropout
        self.self_attn = StableLmAttention(shape, None)
        if norms_heads:
            self.self_attn.q_layernorm = NormPerHead(shape.head_dim, shape.num_heads)
            self.self_attn.k_layernorm = NormPerHead(shape.head_dim, shape.num_kv_heads)
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
    norms_heads = config.boolean("qk_layernorm")
    layer = StableLmLayer(shape, is_parallel=is_parallel, norms_heads=norms_heads, dropout=dropout)
    layers = Stack.of(layer, shape.num_layers, label="layers")
    return Decoder(shape, layers, norm=LayerNorm, rotary_width=rotary_width)

"""StarCoder 2: a Llama with layer norms, biases, an MLP of two Linears, and a window in every layer.

Source: transformers 5.23 ``models/starcoder2/modeling_starcoder2.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor


class Starcoder2Attention(Attention):
    """``Starcoder2Attention``: its result is dropped out while queries, keys and values are still there."""

    def __init__(self, shape: DecoderShape, dropout: float, window: int | None) -> None:
        super().__init__(shape, window)
        self.dropout = dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v, window=self.window)
        q, k = self.positioned(q, k, context)
        mask = context.masks.get(self.window)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=self.shape.scores)
        out = self.o_proj(out)
        return ops.dropout(out, self.dropout, is_module=False)


class Starcoder2Mlp(Module):
    """``Starcoder2MLP``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.c_fc = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.c_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=shape.mlp_bias)
        self.act = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = self.act(x)
        return self.c_proj(x)


class Starcoder2Layer(Module):
    """``Starcoder2DecoderLayer``; what attention and MLP add to the residual is dropped out."""

    def __init__(self, shape: DecoderShape, dropout: float, window: int | None) -> None:
        self.self_attn = Starcoder2Attention(shape, dropout, window)
        self.mlp = Starcoder2Mlp(shape)
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.post_attention_layernorm = LayerNorm(shape.hidden_size)
        self.dropout = dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        """The last operation that saves anything is the layer's own dropout: there backward runs the layer again, and
        what that gathers goes when the layer's backward is over."""
        x.tape.enter_block()
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = ops.dropout(self.mlp(x), self.dropout, is_module=False)
        x = ops.add(residual, x)
        x.tape.leave_block()
        return x


class Starcoder2Decoder(Decoder):
    """``Starcoder2Model``."""

    def __init__(self, shape: DecoderShape, residual_dropout: float, embedding_dropout: float) -> None:
        layers = stack_of_kinds(shape.windows, lambda window: Starcoder2Layer(shape, residual_dropout, window))
        super().__init__(shape, layers, norm=LayerNorm)
        self.dropout = embedding_dropout

    def entering(self, x: Tensor) -> Tensor:
        with x.tape.section("dropout"):
            return ops.dropout(x, self.dropout, is_module=False)


def decoder(config: Config) -> Starcoder2Decoder:
    shape, bias = decoder_shape(config), config.boolean("use_bias")
    shape = replace(
        shape,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        windows=(config.optional_integer("sliding_window"),) * shape.num_layers,
        scores=Scores(dropout=config.number("attention_dropout")),
    )
    return Starcoder2Decoder(shape, config.number("residual_dropout"), config.number("embedding_dropout"))

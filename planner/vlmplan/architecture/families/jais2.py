"""Jais 2: a Llama with layer norms, biases, and an MLP of two Linears with a squared ReLU between them.

Source: transformers 5.23 ``models/jais2/modeling_jais2.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor


class Jais2Mlp(Module):
    """``Jais2MLP``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size, bias=shape.mlp_bias)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=shape.mlp_bias)
        self.act_fn = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class Jais2Layer(DecoderLayer):
    """``Jais2DecoderLayer``."""

    norm = LayerNorm

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape, mlp=Jais2Mlp(shape))


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    return Decoder(shape, Stack.of(Jais2Layer(shape), shape.num_layers, label="layers"), norm=LayerNorm)

"""Apertus: a Llama with a norm for queries and keys of each head, and an MLP of two Linears around a learned xIELU.

Source: transformers 5.23 ``models/apertus/modeling_apertus.py``, and ``XIELUActivation`` in ``activations.py`` as it
runs without the package xielu.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    decoder_shape,
)
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType

LEARNED_ACTIVATION = "xielu"


class Xielu(Module):
    """``XIELUActivation._xielu_python``: two branches of x with a learned number each, of which ``where`` takes one."""

    def __init__(self) -> None:
        self.alpha_p = Parameter(1)
        self.alpha_n = Parameter(1)

    def forward(self, x: Tensor) -> Tensor:
        tape = x.tape
        alpha_p = _softplus(ops.expand_weight(self.alpha_p, (1,), tape))
        alpha_n = ops.shift(_softplus(ops.expand_weight(self.alpha_n, (1,), tape)))
        is_positive = tape.tensor(x.shape, DType.BOOL)
        tape.move(x.num_bytes + is_positive.num_bytes)
        squared = ops.mul(ops.mul(x, alpha_p), x)
        above = ops.add(squared, ops.scale(x))
        del squared
        less_x = ops.subtract(_exponential(_smaller(x)), x)
        below = ops.mul(less_x, alpha_n)
        del less_x
        curve = ops.add(below, ops.scale(x))
        del below
        return ops.where(is_positive, above, curve)


def _softplus(x: Tensor) -> Tensor:
    """Under autocast in float32 (AT_FORALL_FP32 in ``autocast_mode.h``)."""
    return ops.unary(x if x.tape.autocast is None else ops.to(x, DType.FLOAT32), saves_input=True)


def _exponential(x: Tensor) -> Tensor:
    """``torch.expm1``: saves its result, to which backward adds one first (``derivatives.yaml``). Under autocast in
    float32 (AT_FORALL_FP32 in ``autocast_mode.h``)."""
    x = x if x.tape.autocast is None else ops.to(x, DType.FLOAT32)
    tape = x.tape
    node = tape.node((x,), _exponential_backward)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, out)
    tape.move(2 * x.num_bytes)
    return out


def _exponential_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    tape = g.tape
    slope = tape.tensor(g.shape, g.dtype)
    out = tape.tensor(g.shape, g.dtype)
    tape.move(5 * g.num_bytes)
    del slope
    return (out,)


def _smaller(x: Tensor) -> Tensor:
    """``torch.min(x, number)``: saves x. Its gradient is half of g where they are equal, else g, filled with zeros
    where x is larger (``minimum`` in ``derivatives.yaml``)."""
    tape = x.tape
    node = tape.node((x,), _smaller_backward, (x.detached(),))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _smaller_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    tape = g.tape
    is_equal, half = tape.tensor(g.shape, DType.BOOL), tape.tensor(g.shape, g.dtype)
    out, is_larger = tape.tensor(g.shape, g.dtype), tape.tensor(g.shape, DType.BOOL)
    tape.move(7 * g.num_bytes + 4 * is_larger.num_bytes)
    del is_equal, half, is_larger
    return (out,)


class ApertusMlp(Module):
    """``ApertusMLP``."""

    def __init__(self, shape: DecoderShape) -> None:
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)
        is_learned = shape.activation == LEARNED_ACTIVATION
        self.act_fn = Xielu() if is_learned else ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class ApertusLayer(PreNormLayer):
    """``ApertusDecoderLayer``."""

    MODULES = ("attention_layernorm", "self_attn", "feedforward_layernorm", "mlp")

    def __init__(self, shape: DecoderShape) -> None:
        self.self_attn = Attention(shape, None)
        self.mlp = ApertusMlp(shape)
        self.attention_layernorm = RMSNorm(shape.hidden_size)
        self.feedforward_layernorm = RMSNorm(shape.hidden_size)


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), qk_norm=True, norms_behind_projections=True)
    return Decoder(shape, Stack.of(ApertusLayer(shape), shape.num_layers, label="layers"))

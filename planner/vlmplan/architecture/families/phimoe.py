"""Phi-3.5-MoE: a Mixtral with layer norms and biases, whose two experts a token are drawn by SparseMixer.

Source: transformers 5.23 ``models/phimoe/modeling_phimoe.py``. Inputs of experts may be multiplied by noise, in place,
and those of the router once more.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape
from vlmplan.architecture.families.moe import Experts
from vlmplan.architecture.modules import DerivedLinear, LayerNorm, Module, Stack
from vlmplan.architecture.ops import Grads, chunks
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType


class PhimoeRouter(DerivedLinear):
    """``PhimoeTopKRouter``: a Linear that returns more than its result."""

    def __init__(self, hidden_size: int, num_experts: int, *, has_noise: bool) -> None:
        super().__init__(hidden_size, num_experts)
        self.has_noise = has_noise

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x with its noise; (logits, scores, indices)."""
        if self.has_noise:
            x = _view_times_noise(x)
        logits = self(x)
        first, of_first = _drawn(logits, logits)
        others = _without_drawn(logits, of_first)
        second, of_second = _drawn(logits, others)
        shape = (logits.shape[0], 2)
        scores = ops.concatenate([first, second], shape)
        indices = x.tape.tensor(shape, DType.INT64)
        del of_first, of_second, others, first, second
        return x, logits, scores, indices


def _times_noise(x: Tensor) -> Tensor:
    """``x *= torch.empty_like(x).uniform_()``: the noise is saved."""
    return ops.scale_in_place(x, x.tape.tensor(x.shape, x.dtype))


def _view_times_noise(x: Tensor) -> Tensor:
    """The same of a view: its gradient is copied whole, and multiplied in a copy of what the view shows
    (``CopySlices`` in ``torch/csrc/autograd/functions/tensor.cpp``)."""
    noise = x.tape.tensor(x.shape, x.dtype)
    node = x.tape.node((x,), _view_backward, (noise,) if x.requires_grad else ())
    x.tape.move(3 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _view_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    whole, shown = g.tape.tensor(g.shape, g.dtype), g.tape.tensor(g.shape, g.dtype)
    product = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(9 * g.num_bytes, num_kernels=4)
    del shown, product
    return (whole,)


def _drawn(logits: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """One expert of each token by ``sparsemixer``: its multiplier and its index. The gradient goes to the logits by
    ``PhimoeMultiplier``, which saves the probabilities; their own graph is there until then."""
    tape, (num_tokens, _) = logits.tape, logits.shape
    mask = tape.tensor(among.shape, DType.BOOL)
    factor = tape.tensor(among.shape, among.dtype)
    gates = ops.softmax(chunks.masked_fill(among.detached(), mask))
    index = tape.tensor((num_tokens, 1), DType.INT64)
    value = tape.tensor((num_tokens, 1), gates.dtype)
    tape.move(12 * among.num_bytes, num_kernels=12)
    node = tape.node((logits,), _multiplier_backward, (value, index, gates.detached(), mask), logits.dtype)
    multiplier = tape.tensor((num_tokens, 1), gates.dtype, node)
    del factor
    return multiplier, index


def _multiplier_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    gates = node.saved[2]
    assert isinstance(gates, Tensor)
    out = g.tape.tensor(gates.shape, gates.dtype)
    g.tape.move(3 * out.num_bytes, num_kernels=4)
    return (ops.to(out, node.meta),)


def _without_drawn(logits: Tensor, index: Tensor) -> Tensor:
    """``torch.scatter(scores, -1, index, number)``."""
    logits.tape.move(2 * logits.num_bytes)
    return logits.tape.tensor(logits.shape, logits.dtype)


class PhimoeBlock(Module):
    """``PhimoeSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_local_experts"), shape.hidden_size
        self.has_noise = config.number("input_jitter_noise") > 0
        self.router = PhimoeRouter(width, num_experts, has_noise=self.has_noise)
        self.experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        if self.has_noise:
            x = _times_noise(x)
        flat = x.view(x.numel // width, width)
        flat, _logits, scores, indices = self.router.routed(flat)
        return self.experts(flat, indices, scores).view(*x.shape)


class PhimoeLayer(DecoderLayer):
    """``PhimoeDecoderLayer``."""

    norm = LayerNorm


def decoder(config: Config) -> Decoder:
    """Every layer has the window, where the file has one."""
    window = config.optional_integer("sliding_window")
    shape = decoder_shape(config)
    shape = replace(shape, windows=(window,) * shape.num_layers)
    layer = PhimoeLayer(shape, window, mlp=PhimoeBlock(config, shape))
    layers = Stack.of(layer, shape.num_layers, label="layers")
    return Decoder(shape, layers, norm=LayerNorm)


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``PhimoeForCausalLM``."""
    return CausalLM(decoder, config, has_bias=config.boolean("lm_head_bias"))

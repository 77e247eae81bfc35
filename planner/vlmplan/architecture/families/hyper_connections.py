"""Manifold-constrained hyper-connections: several residual streams, mixed by weights that each token computes.

Source: transformers 5.23 ``models/deepseek_v4/modeling_deepseek_v4.py`` (``DeepseekV4HyperConnection``,
``DeepseekV4HyperHead``, ``DeepseekV4UnweightedRMSNorm`` and the sums in ``DeepseekV4DecoderLayer``). Streams lie in one
tensor (batch, tokens, streams, width). All weights are computed in float32, and each division of the Sinkhorn-Knopp
iterations keeps what it divides and by what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.modules import Module
from vlmplan.architecture.ops import Grads, chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """The dimensions of the residual streams."""

    num_streams: int
    hidden_size: int
    num_iterations: int
    """Of Sinkhorn-Knopp."""


def stream_shape(config: Config) -> StreamShape:
    """The residual streams of a text configuration."""
    return StreamShape(
        num_streams=config.integer("hc_mult"),
        hidden_size=config.integer("hidden_size"),
        num_iterations=config.count("hc_sinkhorn_iters"),
    )


def unweighted_norm(x: Tensor) -> Tensor:
    """``DeepseekV4UnweightedRMSNorm``: x times a factor a row, which is computed in float32 and cast to x's type."""
    variance = ops.mean_last(ops.power(ops.to(x, DType.FLOAT32)))
    factor = ops.unary(ops.shift(variance), saves_output=True)
    return ops.mul(x, ops.to(factor, x.dtype))


def parts_of_weight(weight: Parameter, shapes: Sequence[tuple[int, ...]], tape: ForwardTape) -> list[Tensor]:
    """``weight.split(...)`` or ``unbind``: views; their gradients are put together again."""
    node = tape.node((weight,), _parts_backward, meta=(weight.shape, weight.dtype))
    parts: list[Tensor] = []
    for index, shape in enumerate(shapes):
        part = Tensor(tape.tensor((0,), weight.dtype).storage, shape, weight.dtype, node)
        part.output_index = index
        parts.append(part)
    return parts


def _parts_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    shape, dtype = node.meta
    return (next(g for g in grads if g is not None).tape.gradient(shape, dtype),)


class HyperConnection(Module):
    """``DeepseekV4HyperConnection``: (post, comb, collapsed) of the streams.

    ``collapsed`` is what attention or the experts get, ``post`` (batch, tokens, streams) and ``comb``
    (batch, tokens, streams, streams) say how their result and the streams are mixed.
    """

    def __init__(self, shape: StreamShape) -> None:
        self.shape = shape
        num_streams = shape.num_streams
        num_weights = (2 + num_streams) * num_streams
        self.fn = Parameter(num_weights, num_streams * shape.hidden_size)
        self.base = Parameter(num_weights)
        self.scale = Parameter(3)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        *rows, num_streams, width = streams.shape
        tape, vector, square = streams.tape, (num_streams,), (num_streams, num_streams)
        x = ops.to(ops.viewed(streams, *rows, num_streams * width), DType.FLOAT32)
        x = unweighted_norm(x)
        x = ops.linear(x, ops.cast_weight(self.fn, DType.FLOAT32, tape))
        pre, post, comb = ops.split(x, *[(*rows, *shape) for shape in (vector, vector, square)])
        pre_base, post_base, comb_base = parts_of_weight(self.base, [vector, vector, square], tape)
        pre_scale, post_scale, comb_scale = parts_of_weight(self.scale, [(), (), ()], tape)
        pre = ops.shift(ops.sigmoid(ops.add(ops.mul(pre, pre_scale), pre_base)))
        post = ops.scale(ops.sigmoid(ops.add(ops.mul(post, post_scale), post_base)))
        comb = ops.shift(ops.softmax(ops.add(ops.mul(comb, comb_scale), comb_base)))
        comb = chunks.divide(comb, _column_sums(comb))
        for _ in range(self.shape.num_iterations - 1):
            comb = chunks.divide(comb, _row_sums(comb))
            comb = chunks.divide(comb, _column_sums(comb))
        return post, comb, collapsed(streams, pre)


def _row_sums(comb: Tensor) -> Tensor:
    """``comb.sum(dim=-1, keepdim=True) + eps``."""
    return ops.shift(ops.total(comb, (*comb.shape[:-1], 1)))


def _column_sums(comb: Tensor) -> Tensor:
    """``comb.sum(dim=-2, keepdim=True) + eps``."""
    return ops.shift(ops.total(comb, (*comb.shape[:-2], 1, comb.shape[-1])))


def collapsed(streams: Tensor, pre: Tensor) -> Tensor:
    """``(pre.unsqueeze(-1) * streams).sum(dim=2)`` in the type of the streams."""
    *rows, width = streams.shape
    summed = ops.total(chunks.outer(pre.view(*rows, 1), streams, streams.shape), (*rows[:-1], width))
    return ops.to(summed, streams.dtype)


def mixed(streams: Tensor, post: Tensor, comb: Tensor, result: Tensor) -> Tensor:
    """The streams behind attention or the experts, whose ``result`` (batch, tokens, width) every stream gets."""
    batch, num_tokens, num_streams, width = streams.shape
    dtype = streams.dtype
    added = chunks.outer(
        ops.to(post, dtype).view(*post.shape, 1), result.view(batch, num_tokens, 1, width), streams.shape
    )
    return ops.add(added, chunks.product(ops.to(comb, dtype), streams, streams.shape, num_streams))


class HyperHead(Module):
    """``DeepseekV4HyperHead``: the one tensor that the streams become behind all layers."""

    def __init__(self, shape: StreamShape) -> None:
        num_streams = shape.num_streams
        self.hc_fn = Parameter(num_streams, num_streams * shape.hidden_size)
        self.hc_base = Parameter(num_streams)
        self.hc_scale = Parameter(1)

    def forward(self, streams: Tensor) -> Tensor:
        *rows, num_streams, width = streams.shape
        tape = streams.tape
        flat = unweighted_norm(ops.to(ops.viewed(streams, *rows, num_streams * width), DType.FLOAT32))
        mixes = ops.linear(flat, ops.cast_weight(self.hc_fn, DType.FLOAT32, tape))
        mixes = ops.mul(mixes, ops.cast_weight(self.hc_scale, DType.FLOAT32, tape))
        pre = ops.shift(ops.sigmoid(ops.add(mixes, ops.cast_weight(self.hc_base, DType.FLOAT32, tape))))
        return collapsed(streams, pre)

"""JetMoE: a Llama whose MLPs and whose projections of queries and of what attention has found are mixtures of experts.

Source: transformers 5.23 ``models/jetmoe/modeling_jetmoe.py``. Rows are sorted by expert and split; each expert is one
product with its part of a three-dimensional weight. How many rows each gets is not known: they are shared evenly here,
and what all get together does not depend on it. The class has no activation checkpointing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_head, cached
from vlmplan.architecture.attention_kernels import repeat_kv
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.families.moe import top
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.indexing import add_rows, take_rows
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType


class Routed(NamedTuple):
    """What a router returns: of each pair of a token and an expert, sorted by expert, its place among the pairs, its
    token and its weight; and the logits."""

    pairs: Tensor
    tokens: Tensor
    scores: Tensor
    logits: Tensor


class TopKGating(Module):
    """``JetMoeTopKGating``."""

    def __init__(self, hidden_size: int, num_experts: int, num_per_token: int) -> None:
        self.num_experts, self.num_per_token = num_experts, num_per_token
        self.layer = Linear(hidden_size, num_experts)

    def forward(self, x: Tensor) -> Routed:
        tape, (num_tokens, _) = x.tape, x.shape
        num_pairs = num_tokens * self.num_per_token
        logits = ops.to(self.layer(x), DType.FLOAT32)
        best, top_indices = top(logits, self.num_per_token)
        gates = ops.to(ops.softmax(best), x.dtype)
        zeros, ones = (tape.tensor((num_tokens, self.num_experts), gates.dtype) for _ in range(2))
        counted = tape.tensor(ones.shape, DType.INT64)
        del counted
        sizes = tape.tensor((self.num_experts,), DType.INT64)
        sorted_experts, pairs, tokens = (tape.tensor((num_pairs,), DType.INT64) for _ in range(3))
        tape.move(2 * zeros.num_bytes + 4 * pairs.num_bytes)
        scores = take_rows(gates.view(num_pairs), pairs, (num_pairs,))
        del best, top_indices, gates, zeros, ones, sizes, sorted_experts
        return Routed(pairs, tokens, scores, logits)


class ParallelExperts(Module):
    """``JetMoeParallelExperts``."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        self.weight = Parameter(num_experts, out_features, in_features)

    def forward(self, x: Tensor) -> Tensor:
        """x (pairs, in), sorted by expert; the result (pairs, out)."""
        num_experts, out_width, width = self.weight.shape
        share, rest = divmod(x.shape[0], num_experts)
        sizes = [share + (index < rest) for index in range(num_experts)]
        inputs = ops.split(x, *[(size, width) for size in sizes])
        outs = [ops.linear(part, one_of_weight(self.weight, x.tape), view_of=self.weight) for part in inputs]
        return ops.concatenate(outs, (x.shape[0], out_width))


def one_of_weight(weight: Parameter, tape: ForwardTape) -> Tensor:
    """``weight[i]``: a view of a weight; its gradient is put into zeros of the whole size."""
    node = tape.node((weight,), _one_of_weight_backward, meta=(weight.shape, weight.dtype))
    return Tensor(tape.tensor((0,), weight.dtype).storage, weight.shape[1:], weight.dtype, node)


def _one_of_weight_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    out = g.tape.gradient(*node.meta)
    g.tape.move(out.num_bytes + 2 * g.num_bytes)
    return (out,)


class MixtureOfExperts(Module):
    """``JetMoeMoE``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        width, num_experts = shape.hidden_size, config.integer("num_local_experts")
        self.bias = Parameter(width)
        self.input_linear = ParallelExperts(num_experts, width, 2 * shape.intermediate_size)
        self.output_linear = ParallelExperts(num_experts, shape.intermediate_size, width)
        self.router = TopKGating(width, num_experts, config.integer("num_experts_per_tok"))
        self.activation = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        width, shape = x.shape[-1], x.shape
        x = x.view(x.numel // width, width)
        routed = self.router(x)
        inputs = take_rows(x, routed.tokens, (routed.tokens.numel, width))
        hidden = self.input_linear(inputs)
        half = (hidden.shape[0], hidden.shape[1] // 2)
        gate, up = ops.split(hidden, half, half)
        hidden = ops.mul(self.activation(gate), up)
        outs = self.output_linear(hidden)
        outs = ops.mul(outs, routed.scores.view(outs.shape[0], 1))
        zeros = x.tape.tensor(x.shape, outs.dtype)
        out = add_rows(zeros, routed.tokens, outs)
        out = ops.add(out.view(*shape), self.bias)
        del inputs, hidden, gate, up, outs, zeros, routed
        return out


class MixtureOfAttention(Module):
    """``JetMoeMoA``: what makes queries for each of a token's experts, and puts together what they found."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        width, num_experts = shape.hidden_size, config.integer("num_local_experts")
        self.hidden_size, self.num_per_token = (
            shape.num_kv_heads * shape.head_dim,
            config.integer("num_experts_per_tok"),
        )
        self.bias = Parameter(width)
        self.input_linear = ParallelExperts(num_experts, width, self.hidden_size)
        self.output_linear = ParallelExperts(num_experts, self.hidden_size, width)
        self.router = TopKGating(width, num_experts, self.num_per_token)

    def map(self, x: Tensor) -> tuple[Tensor, Routed]:
        """The queries of x, (batch, tokens, experts, width of an expert), and how its tokens are routed."""
        batch, num_tokens, width = x.shape
        x = x.view(batch * num_tokens, width)
        routed = self.router(x)
        inputs = take_rows(x, routed.tokens, (routed.tokens.numel, width))
        outs = self.input_linear(inputs)
        zeros = x.tape.tensor(outs.shape, outs.dtype)
        queries = add_rows(zeros, routed.pairs, outs)
        del inputs, outs, zeros
        return queries.view(batch, num_tokens, self.num_per_token, self.hidden_size), routed

    def reduce(self, x: Tensor, routed: Routed) -> Tensor:
        """What attention has found, (batch, tokens, experts, width of an expert), as wide as the layer."""
        batch, num_tokens, _, width = x.shape
        x = x.view(routed.pairs.numel, width)
        inputs = take_rows(x, routed.pairs, x.shape)
        outs = self.output_linear(inputs)
        outs = ops.mul(outs, routed.scores.view(outs.shape[0], 1))
        zeros = x.tape.tensor((batch * num_tokens, outs.shape[1]), outs.dtype)
        out = add_rows(zeros, routed.tokens, outs)
        out = ops.add(out.view(batch, num_tokens, outs.shape[1]), self.bias)
        del inputs, outs, zeros
        return out


class JetMoeAttention(Module):
    """``JetMoeAttention``: keys and values are those of all experts, which are repeated for each of a token's."""

    takes_keywords = True

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        self.shape = shape
        self.experts = MixtureOfAttention(config, shape)
        self.kv_proj = Linear(shape.hidden_size, 2 * shape.num_kv_heads * shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        shape, (batch, num_tokens, _) = self.shape, x.shape
        queries, routed = self.experts.map(x)
        half = (batch, num_tokens, shape.num_kv_heads * shape.head_dim)
        k, v = ops.split(self.kv_proj(x), half, half)
        q = by_head(queries.view(batch, num_tokens, shape.num_heads * shape.head_dim), shape.num_heads)
        del queries
        k, v = by_head(k, shape.num_kv_heads), by_head(v, shape.num_kv_heads)
        q = ops.rotate(q, context.cos, context.sin)
        k = ops.rotate(k, context.cos, context.sin)
        k, v = cached(k, v)
        k, v = repeat_kv(k, shape.num_heads), repeat_kv(v, shape.num_heads)
        mask = context.masks.get(None)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=shape.scores, is_cached=False)
        del mask
        out = out.view(batch, num_tokens, self.experts.num_per_token, self.experts.hidden_size)
        out = self.experts.reduce(out, routed)
        del q, k, v, routed
        return out


class JetMoeLayer(PreNormLayer):
    """``JetMoeDecoderLayer``."""

    MODULES = ("input_layernorm", "self_attention", "post_attention_layernorm", "mlp")

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        self.mlp = MixtureOfExperts(config, shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.self_attention = JetMoeAttention(config, shape)


class JetMoeDecoder(Decoder):
    """``JetMoeModel``."""

    def windows_of(self, layer: JetMoeLayer) -> Sequence[int | None]:
        return (None,)


def decoder(config: Config) -> JetMoeDecoder:
    num_kv_heads, num_per_token = config.integer("num_key_value_heads"), config.integer("num_experts_per_tok")
    heads = {"num_attention_heads": num_kv_heads * num_per_token, "head_dim": config.integer("kv_channels")}
    shape = replace(decoder_shape(config.changed(heads)), activation=config.text("activation_function"))
    return JetMoeDecoder(shape, Stack.of(JetMoeLayer(config, shape), shape.num_layers, label="layers"))

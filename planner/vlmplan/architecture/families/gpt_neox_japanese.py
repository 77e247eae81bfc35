"""GPT-NeoX Japanese: NeoX's layers without biases, but for one of attention's result in the last layer, and attention
that is written out.

Source: transformers 5.23 ``models/gpt_neox_japanese/modeling_gpt_neox_japanese.py``. The class has neither fused
attention nor activation checkpointing.
"""

from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import cast, product
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bloom import biased_product
from vlmplan.architecture.families.gpt_neox import rotary_fraction
from vlmplan.architecture.families.held_weights import HoldingContext
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.partial_rotary import parts_of_heads
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class JapaneseShape:
    """The dimensions of a decoder; ``rotary_width`` of each head is rotated."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    rotary_width: int
    vocab_size: int
    activation: str
    attention_dropout: float
    hidden_dropout: float


class JapaneseContext(HoldingContext):
    """What every layer is called with besides the hidden states."""

    __slots__ = ("cos", "sin")

    def __init__(self, backend: AttentionBackend, mask: Tensor, cos: Tensor, sin: Tensor) -> None:
        super().__init__(backend, mask)
        self.cos, self.sin = cos, sin


class JapaneseAttention(Module):
    """``GPTNeoXJapaneseAttention``: (result, weights). ``has_bias``: its bias is added behind it."""

    def __init__(self, shape: JapaneseShape, *, has_bias: bool) -> None:
        self.shape, self.dense_bias = shape, None
        if has_bias:
            self.dense_bias = Parameter(shape.hidden_size)
        self.query_key_value = Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.dense = Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Tensor, context: JapaneseContext) -> tuple[Tensor, Tensor]:
        batch, num_tokens, width = x.shape
        head = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        fused = self.query_key_value(x)
        q, k, v = ops.part(fused, *head), ops.part(fused, *head), ops.part(fused, *head)
        q_part, q_rest = parts_of_heads(q, context.cos.shape[-1])
        k_part, k_rest = parts_of_heads(k, context.cos.shape[-1])
        q, k = ops.rotate(q_part, context.cos, context.sin), ops.rotate(k_part, context.cos, context.sin)
        q = ops.concatenate([q, q_rest], head)
        k = ops.concatenate([k, k_rest], head)
        k, v = cached(k, v)
        out, weights = self._attend(q, k, v, context)
        out = self.dense(ops.copy(out, batch, num_tokens, width))
        del fused, q, k, v, q_part, q_rest, k_part, k_rest
        return out, weights

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: JapaneseContext) -> tuple[Tensor, Tensor]:
        """``_attn``: the product is added to zeros."""
        shape, num_keys = (*q.shape[:3], k.shape[2]), k.shape[2]
        zeros = q.tape.tensor(shape, q.dtype)
        scores = biased_product(cast(q), cast(k), cast(zeros), shape)
        assert context.mask is not None
        scores = ops.add(scores, context.mask)
        weights = ops.softmax(scores)
        weights = ops.dropout(weights, self.shape.attention_dropout)
        weights = ops.to(weights, v.dtype)
        out = product(weights, v, q.shape, num_keys, copies=(False, q.shape[0] > 1))
        del zeros, scores
        return out, weights


class JapaneseMlp(Module):
    """``GPTNeoXJapaneseMLP``."""

    def __init__(self, shape: JapaneseShape) -> None:
        self.dense_h_to_4h = Linear(shape.hidden_size, shape.intermediate_size)
        self.dense_4h_to_h = Linear(shape.intermediate_size, shape.hidden_size)
        self.act = ops.activation_module(shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        between = self.dense_h_to_4h(x)
        between = self.act(between)
        return self.dense_4h_to_h(between)


class JapaneseLayer(Module):
    """``GPTNeoXJapaneseLayer``."""

    def __init__(self, shape: JapaneseShape, *, has_bias: bool) -> None:
        self.dropout, self.attention_dropout = shape.hidden_dropout, shape.attention_dropout
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.post_attention_layernorm = LayerNorm(shape.hidden_size)
        self.attention: Any = JapaneseAttention(shape, has_bias=has_bias)
        self.mlp = JapaneseMlp(shape)

    def forward(self, x: Tensor, context: JapaneseContext) -> Tensor:
        held = context.held(x)
        normed = self.input_layernorm(x)
        attended, weights = self.attention(normed, context)
        attended = self._added(attended, x, self.attention.dense_bias)
        fed_forward = self.mlp(self.post_attention_layernorm(attended))
        attended = self._added(fed_forward, attended, None)
        context.hold(weights, dropout=self.attention_dropout)
        del weights, held, normed, fed_forward
        return attended

    def _added(self, x: Tensor, residual: Tensor, bias: Parameter | None) -> Tensor:
        """``bias_dropout_add``."""
        if bias is not None:
            x = ops.add(x, ops.expand_weight(bias, x.shape, x.tape))
        out = ops.dropout(x, self.dropout, is_module=False)
        return ops.add(residual, out)


class JapaneseDecoder(Module):
    """``GPTNeoXJapaneseModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: JapaneseShape) -> None:
        self.shape = shape
        self.embed_in = Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = _layers(shape)
        self.final_layer_norm = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_in(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays until this returns."""
        tape = x.tape
        with tape.section("positions"):
            mask = causal_masks(x, backend, (None,))[None]
            positions = (1, 1, x.shape[1], self.shape.rotary_width)
            tape.prefetch()  # for the module of the positions
            context = JapaneseContext(backend, mask, tape.tensor(positions, x.dtype), tape.tensor(positions, x.dtype))
        hidden = self.layers.run(x, lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.final_layer_norm(hidden)


def _layers(shape: JapaneseShape) -> Stack:
    """The first layer, which has none before that returns weights, those between, and the last, which has a bias."""
    last = shape.num_layers - 1
    roles = [(index > 0, index == last) for index in range(shape.num_layers)]
    distinct = list(dict.fromkeys(roles))
    kinds = [JapaneseLayer(shape, has_bias=is_last) for _, is_last in distinct]
    stack = Stack(kinds, [distinct.index(role) for role in roles], label="layers", can_checkpoint=False)
    stack.alike = [int(is_last) for _, is_last in distinct]
    return stack


class GPTNeoXJapanese(Model):
    """``GPTNeoXJapaneseForCausalLM``."""

    EMBEDDINGS = "gpt_neox_japanese.embed_in"
    HEAD = "embed_out"
    attention_linears = ("query_key_value", "dense")

    def __init__(self, decoder: JapaneseDecoder, config: Config) -> None:
        self.gpt_neox_japanese = decoder
        self.embed_out = Linear(decoder.shape.hidden_size, decoder.shape.vocab_size)
        if config.boolean("tie_word_embeddings"):
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.gpt_neox_japanese.forward(self.gpt_neox_japanese.embed(ids), backend)


causal_lm = GPTNeoXJapanese


def decoder(config: Config) -> JapaneseDecoder:
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = JapaneseShape(
        hidden_size=hidden_size,
        intermediate_size=int(hidden_size * config.number("intermediate_multiple_size")),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        rotary_width=int(hidden_size // num_heads * rotary_fraction(config, 1.0)),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("hidden_act"),
        attention_dropout=config.number("attention_dropout"),
        hidden_dropout=config.number("hidden_dropout"),
    )
    return JapaneseDecoder(shape)

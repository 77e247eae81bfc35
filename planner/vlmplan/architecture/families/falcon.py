"""Falcon 7B, 40B and 11B, and Falcon RW: attention beside the MLP or before it, few heads of keys, ALiBi or rotation.

Source: transformers 5.23 ``models/falcon/modeling_falcon.py`` and ``configuration_falcon.py``. Its Linears are of a
class of their own, which writes the product out and which bitsandbytes leaves in 16 bit. A mask of attention is always
made, so that sdpa is the memory-efficient kernel, or torch's fallback where all heads share their keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import cast, folded, repeat_kv, shared_head_attention
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.modules import DerivedLinear, Embedding, LayerNorm, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconShape:
    """The dimensions of a Falcon decoder. ``is_new``: attention beside the MLP and grouped heads (40B), where there may
    be two norms; ``is_parallel``: attention beside the MLP."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    has_bias: bool
    is_new: bool
    is_parallel: bool
    has_two_norms: bool
    has_alibi: bool
    activation: str
    attention_dropout: float
    hidden_dropout: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class FalconContext(HoldingContext):
    """What every layer is called with besides the hidden states. ``mask`` holds ALiBi too, where there is ``alibi``."""

    __slots__ = ("alibi", "cos", "sin")

    def __init__(
        self, backend: AttentionBackend, cos: Tensor, sin: Tensor, mask: Tensor | None, alibi: Tensor | None
    ) -> None:
        super().__init__(backend, mask)
        self.cos, self.sin, self.alibi = cos, sin, alibi


class FalconLinear(DerivedLinear):
    """``FalconLinear``: ``x @ weight.T``, to which a bias is added apart. autocast keeps no casts of such views."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.weight.meets_autocast = False
        if self.bias is not None:
            self.bias.meets_autocast = False

    def forward(self, x: Tensor) -> Tensor:
        out = ops.linear(x, self.weight, is_written_out=True)
        return out if self.bias is None else ops.add(out, self.bias)


class FalconAttention(Module):
    """``FalconAttention``: (result, weights of eager attention), which the layer holds to its end."""

    def __init__(self, shape: FalconShape) -> None:
        self.shape, width = shape, shape.hidden_size
        fused_width = width + 2 * shape.num_kv_heads * shape.head_dim
        self.query_key_value = FalconLinear(width, fused_width, bias=shape.has_bias)
        self.dense = FalconLinear(width, width, bias=shape.has_bias)

    def forward(self, x: Tensor, context: FalconContext) -> tuple[Tensor, Tensor | None]:
        """The projection of x is there until attention ends."""
        fused = self.query_key_value(x)
        q, k, v = self._split(fused)
        if context.alibi is None:
            q_rotated = ops.rotate(q, context.cos, context.sin)
            k_rotated = ops.rotate(k, context.cos, context.sin)
            q, k = q_rotated, k_rotated
            del q_rotated, k_rotated
        if context.backend.implementation == "eager":
            return self._eager(q, *cached(k, v), context, x.dtype)
        if context.backend.implementation == "sdpa" and k.shape[1] != q.shape[1]:
            out = shared_head_attention(q, *cached(k, v), mask=context.mask)
        else:
            scores = Scores(dropout=0.0 if context.alibi is None else self.shape.attention_dropout)
            out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=scores)
        return self.dense(out), None

    def _split(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``_split_heads``: keys and values that several heads share are picked by an index, which copies them; then
        the 40B's are written out for the heads of each group."""
        batch, num_tokens, _ = fused.shape
        shape = self.shape
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        q = ops.part(fused, *heads)
        if shape.num_kv_heads == shape.num_heads and not shape.is_new:
            return q, ops.part(fused, *heads), ops.part(fused, *heads)
        shared = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        k = take_rows(fused, fused.tape.tensor((1,), DType.INT64), shared)
        v = take_rows(fused, fused.tape.tensor((1,), DType.INT64), shared)
        if not shape.is_new or shape.num_kv_heads == shape.num_heads:
            return q, k, v
        if shape.num_kv_heads == 1:
            return q, ops.expand(k, *heads), ops.expand(v, *heads)
        q = ops.copy(q)
        return q, chunks.repeat_heads(k, *heads), chunks.repeat_heads(v, *heads)

    def _eager(
        self, q: Tensor, k: Tensor, v: Tensor, context: FalconContext, dtype: DType
    ) -> tuple[Tensor, Tensor | None]:
        """The softmax gives the ``dtype`` of what attention takes; with ALiBi scores are float32, and all of them live
        to the end."""
        batch, num_heads, num_tokens, head_dim = q.shape
        scores = _product(q, k, (batch, num_heads, num_tokens, num_tokens), head_dim, copies=batch > 1)
        logits: Tensor | None = None
        if context.alibi is None:
            scores = ops.scale_in_place(scores)
            weights = ops.softmax(ops.add(scores, _mask(context)), dtype)
            del scores
        else:
            wide = ops.to(scores, DType.FLOAT32)
            logits = ops.scale_in_place(ops.add(wide, context.alibi))
            masked = ops.add(logits, _mask(context))
            weights = ops.softmax(masked, dtype)
            del masked
            weights = ops.dropout(weights, self.shape.attention_dropout)
        out = _product(weights, v, q.shape, num_tokens, copies=False)
        out = ops.copy(out, batch, num_tokens, num_heads * head_dim)
        out = self.dense(out)
        del logits
        return out, weights


def _product(x: Tensor, y: Tensor, shape: tuple[int, ...], inner: int, *, copies: bool) -> Tensor:
    """``x @ y``, y of keys or values: what autocast casts is there until it returns, beside what is written out of it
    (``attention_kernels.product``); ``copies``: so is x, which lies out of order."""
    second = cast(y)  # the last argument first (``ops.matmuls``)
    first = cast(x)
    return ops.matmul(folded(first, copies=copies), for_all_heads(second, x.shape[1]), shape, inner)


def for_all_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values as a product takes them: where there are several samples, a copy with a head for each of the
    queries'."""
    several = x.shape[0] > 1
    return folded(x, copies=several) if x.shape[1] == num_heads else repeat_kv(x, num_heads, copies=several)


def _mask(context: FalconContext) -> Tensor:
    assert context.mask is not None
    return context.mask


class FalconMlp(Module):
    """``FalconMLP``."""

    def __init__(self, shape: FalconShape) -> None:
        self.dense_h_to_4h = FalconLinear(shape.hidden_size, shape.intermediate_size, bias=shape.has_bias)
        self.act: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)
        self.dense_4h_to_h = FalconLinear(shape.intermediate_size, shape.hidden_size, bias=shape.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.dense_h_to_4h(x))
        return self.dense_4h_to_h(x)


class FalconLayer(Module):
    """``FalconDecoderLayer``."""

    def __init__(self, shape: FalconShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.self_attention = FalconAttention(shape)
        self.mlp = FalconMlp(shape)
        if not shape.is_parallel:
            self.post_attention_layernorm = LayerNorm(width)
            self.input_layernorm = LayerNorm(width)
        elif shape.has_two_norms:
            self.ln_attn = LayerNorm(width)
            self.ln_mlp = LayerNorm(width)
        else:
            self.input_layernorm = LayerNorm(width)

    def forward(self, x: Tensor, context: FalconContext) -> Tensor:
        shape, residual = self.shape, x
        held = context.held(x)
        if shape.has_two_norms:
            normed = self.ln_attn(x)
            for_mlp = self.ln_mlp(x)
        else:
            normed = for_mlp = self.input_layernorm(x)
        attended, weights = self.self_attention(normed, context)
        if not shape.is_parallel:
            dropped = ops.dropout(attended, shape.attention_dropout, is_module=False)
            residual = ops.add(residual, dropped)
            for_mlp = self.post_attention_layernorm(residual)
        out = self.mlp(for_mlp)
        if shape.is_parallel:
            out = ops.add_in_place(out, attended)
        dropped = ops.dropout(out, shape.hidden_dropout, is_module=False)
        out = ops.add(residual, dropped)
        context.hold(weights)
        del weights, normed, attended, held
        return out


class FalconDecoder(Module):
    """``FalconModel``."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, shape: FalconShape) -> None:
        self.shape = shape
        self.word_embeddings = Embedding(shape.vocab_size, shape.hidden_size)
        self.h = stack_of_holding(lambda: FalconLayer(shape), shape.num_layers)
        self.ln_f = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.word_embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, shape = x.tape, self.shape
        with tape.section("positions"):
            alibi, mask = None, always_masked(x, backend)
            if shape.has_alibi:
                alibi = tape.tensor((x.shape[0], shape.num_heads, 1, x.shape[1]), x.dtype)
                mask = mask and tape.tensor((x.shape[0], shape.num_heads, x.shape[1], x.shape[1]), x.dtype)
            positions = (1, 1, x.shape[1], shape.head_dim)
            tape.prefetch()  # for the module of the positions
            cos, sin = tape.tensor(positions, x.dtype), tape.tensor(positions, x.dtype)
            context = FalconContext(backend, cos, sin, mask, alibi)
        hidden = self.h.run(x, lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.ln_f(hidden)


def always_masked(x: Tensor, backend: AttentionBackend) -> Tensor | None:
    """The mask of attention where ``create_causal_mask`` may not leave it out: none for flash_attention_2."""
    batch, num_tokens, _ = x.shape
    shape = (batch, 1, num_tokens, num_tokens)
    if backend.implementation == "eager":
        return x.tape.tensor(shape, x.dtype)
    if backend.implementation != "sdpa":
        return None
    mask = x.tape.tensor((batch if backend.gets_mask else 1, *shape[1:]), DType.BOOL)
    return ops.expand(mask, *shape)


class Falcon(CausalLM):
    """``FalconForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.word_embeddings"
    attention_linears = ("query_key_value", "dense")


def falcon_shape(config: Config) -> FalconShape:
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    is_new, is_parallel = config.boolean("new_decoder_architecture"), config.boolean("parallel_attn")
    shares_heads = config.boolean("multi_query") and not is_new
    return FalconShape(
        hidden_size=hidden_size,
        intermediate_size=config.integer("ffn_hidden_size", 4 * hidden_size),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=1 if shares_heads else config.integer("num_kv_heads", num_heads) if is_new else num_heads,
        vocab_size=config.integer("vocab_size"),
        has_bias=config.boolean("bias"),
        is_new=is_new,
        is_parallel=is_parallel,
        has_two_norms=is_new and config.integer("num_ln_in_parallel_attn", 2) == 2,
        has_alibi=config.boolean("alibi"),
        activation=config.text("activation"),
        attention_dropout=config.number("attention_dropout"),
        hidden_dropout=config.number("hidden_dropout"),
    )


def decoder(config: Config) -> FalconDecoder:
    return FalconDecoder(falcon_shape(config))


causal_lm = Falcon

"""BLOOM: ALiBi, a norm behind the embeddings, fused projections, and a GELU that is written out.

Source: transformers 5.23 ``models/bloom/modeling_bloom.py``. Attention is eager: there is no sdpa and no flash
attention. ``slow_but_exact``, which cuts two products by ``pretraining_tp``, is not described.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import cast, folded
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomShape:
    """The dimensions of a BLOOM decoder. ``adds_normed``: what norms give is the residual, too."""

    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    adds_normed: bool
    attention_dropout: float
    hidden_dropout: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class BloomContext(HoldingContext):
    """What every layer is called with besides the hidden states."""

    __slots__ = ("alibi",)

    def __init__(self, backend: AttentionBackend, mask: Tensor, alibi: Tensor) -> None:
        super().__init__(backend, mask)
        self.alibi = alibi


def biased_product(q: Tensor, k: Tensor, bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``bias.baddbmm(q, k, alpha=number)``: saves q and k; each gradient is a product, and a multiple of that
    (``baddbmm`` in ``derivatives.yaml``)."""
    tape, inner = q.tape, q.shape[-1]
    saved = (q.detached() if k.requires_grad else None, k.detached() if q.requires_grad else None)
    node = tape.node((q, k), _biased_product_backward, saved, (q.shape, k.shape, inner))
    out = tape.tensor(shape, q.dtype, node)
    tape.matmul(2 * out.numel * inner, q.num_bytes + k.num_bytes + bias.num_bytes + out.num_bytes, q.dtype)
    return out


def _biased_product_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    q_shape, k_shape, inner = node.meta
    made: list[Tensor | None] = []
    for shape, needed in zip((q_shape, k_shape), node.needs, strict=True):
        made.append(_multiple_of_product(g, shape, inner) if needed else None)
    return made


def _multiple_of_product(g: Tensor, shape: tuple[int, ...], inner: int) -> Tensor:
    tape = g.tape
    product, multiple = tape.tensor(shape, g.dtype), tape.tensor(shape, g.dtype)
    tape.matmul(2 * g.numel * inner, g.num_bytes + 2 * product.num_bytes, g.dtype)
    tape.move(2 * product.num_bytes)
    return multiple


INNER = "b c d -c e -d f -b -e t -f"
"""``tanh(0.79788456 * x * (1 + 0.044715 * x * x))``: names of tensors like x, which come, and go behind a ``-``."""
FORWARD = f"a {INNER} h -t"
"""Up to ``(x * 0.5) * (1.0 + tanh)``, the result of ``bloom_gelu_forward``."""
BACKWARD = f"{INNER} p q r -q s u -s v -u w -r -v y -p -w z k -z ff -y -k"
"""Up to ``ff * g``, that of ``bloom_gelu_back``."""


def gelu(x: Tensor) -> Tensor:
    """``GeLUFunction``: saves x."""
    tape = x.tape
    node = tape.node((x,), _gelu_backward, (x.detached(),) if x.requires_grad else ())
    tape.move(18 * x.num_bytes, num_kernels=9)
    return _written_out(x, FORWARD, node)


def _gelu_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    g.tape.move(44 * g.num_bytes, num_kernels=19)
    return (_written_out(g, BACKWARD),)


def _written_out(x: Tensor, steps: str, node: GraphNode | None = None) -> Tensor:
    """The result of an expression whose ``steps`` make tensors like x, which go one by one."""
    passing: dict[str, Tensor] = {}
    for step in steps.split():
        if step.startswith("-"):
            del passing[step[1:]]
        else:
            passing[step] = x.tape.tensor(x.shape, x.dtype)
    return x.tape.tensor(x.shape, x.dtype, node)


class BloomAttention(Module):
    """``BloomAttention``: (result with the residual added, weights)."""

    def __init__(self, shape: BloomShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.query_key_value = Linear(width, 3 * width, bias=True)
        self.dense = Linear(width, width, bias=True)

    def forward(self, x: Tensor, residual: Tensor, context: BloomContext) -> tuple[Tensor, Tensor]:
        """The projection and the scores before they are masked live until attention ends."""
        batch, num_tokens, width = x.shape
        shape = self.shape
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        fused = self.query_key_value(x)
        k, v = cached(ops.part(fused, *heads), ops.part(fused, *heads))
        q = _in_rows(ops.part(fused, *heads))
        if x.tape.key_cache is None:  # what is kept is in rows
            k = _in_rows(k)
            v = _in_rows(v)
        scores = biased_product(cast(q), cast(k), context.alibi, (batch, shape.num_heads, num_tokens, num_tokens))
        assert context.mask is not None
        masked = ops.add(scores, context.mask)
        weights = ops.to(ops.softmax(masked, DType.FLOAT32), q.dtype)
        weights = ops.dropout(weights, shape.attention_dropout)
        out = ops.matmul(cast(weights), cast(v), heads, num_tokens)
        out = self.dense(ops.copy(out, batch, num_tokens, width))
        out = added(out, residual, shape.hidden_dropout)
        del fused, scores, masked
        return out, weights


def _in_rows(x: Tensor) -> Tensor:
    """``reshape`` of (batch, heads, ...) into one dimension: a copy, unless there is one sample."""
    return folded(x, copies=x.shape[0] > 1)


def added(x: Tensor, residual: Tensor, dropout: float) -> Tensor:
    """``dropout_add``."""
    out = ops.dropout(x, dropout, is_module=False)
    return ops.add(residual, out)


class BloomMlp(Module):
    """``BloomMLP``."""

    def __init__(self, shape: BloomShape) -> None:
        width = shape.hidden_size
        self.dense_h_to_4h = Linear(width, 4 * width, bias=True)
        self.dense_4h_to_h = Linear(4 * width, width, bias=True)
        self.dropout = shape.hidden_dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = ops.called(gelu, self.dense_h_to_4h(x))
        out = self.dense_4h_to_h(x)
        return added(out, residual, self.dropout)


class BloomLayer(Module):
    """``BloomBlock``."""

    def __init__(self, shape: BloomShape) -> None:
        self.adds_normed = shape.adds_normed
        self.input_layernorm = LayerNorm(shape.hidden_size)
        self.self_attention = BloomAttention(shape)
        self.post_attention_layernorm = LayerNorm(shape.hidden_size)
        self.mlp = BloomMlp(shape)

    def forward(self, x: Tensor, context: BloomContext) -> Tensor:
        held = context.held(x)
        normed = self.input_layernorm(x)
        attended, weights = self.self_attention(normed, normed if self.adds_normed else x, context)
        normed = self.post_attention_layernorm(attended)
        out = self.mlp(normed, normed if self.adds_normed else attended)
        context.hold(weights)
        del weights, held, attended, normed
        return out


class BloomDecoder(Module):
    """``BloomModel``."""

    def __init__(self, shape: BloomShape) -> None:
        self.shape = shape
        self.word_embeddings = Embedding(shape.vocab_size, shape.hidden_size)
        self.word_embeddings_layernorm = LayerNorm(shape.hidden_size)
        self.h = stack_of_holding(lambda: BloomLayer(shape), shape.num_layers)
        self.ln_f = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.word_embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays beside their norm until this returns."""
        tape = x.tape
        with tape.section("positions"):
            embedded = [self.word_embeddings_layernorm(x)]
            alibi = tape.tensor((x.shape[0], self.shape.num_heads, 1, x.shape[1]), embedded[0].dtype)
            context = BloomContext(backend, causal_masks(x, backend, (None,))[None], alibi)
        hidden = self.h.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.ln_f(hidden)


class Bloom(CausalLM):
    """``BloomForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.word_embeddings"
    attention_linears = ("query_key_value", "dense")


def decoder(config: Config) -> BloomDecoder:
    """Raises InputError where products are cut."""
    if config.boolean("slow_but_exact") and config.integer("pretraining_tp") > 1:
        raise InputError("config.json: slow_but_exact is set; BLOOM can be planned without it only")
    shape = BloomShape(
        hidden_size=config.integer("hidden_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        adds_normed=config.boolean("apply_residual_connection_post_layernorm"),
        attention_dropout=config.number("attention_dropout"),
        hidden_dropout=config.number("hidden_dropout"),
    )
    return BloomDecoder(shape)


causal_lm = Bloom

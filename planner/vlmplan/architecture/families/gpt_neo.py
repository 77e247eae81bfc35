"""GPT-Neo: learned positions, and scores of attention in float32 that are not scaled; every other layer has a window.

Source: transformers 5.23 ``models/gpt_neo/modeling_gpt_neo.py``. Every layer holds a table of which token sees which,
which masks its scores before the model's own mask does. There is no sdpa, and flash_attention_2 looks at everything.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gpt2 import GPT2Decoder, GPT2Mlp, GPT2Shape
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

KINDS = frozenset({"global", "local"})


class GptNeoSelfAttention(Module):
    """``GPTNeoSelfAttention``: (result, weights of eager attention or what flash attention gives)."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, context: HoldingContext) -> tuple[Tensor, Tensor]:
        batch, num_tokens, width = x.shape
        heads = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        q = self.q_proj(x).view(*heads)
        k = self.k_proj(x).view(*heads)
        v = self.v_proj(x).view(*heads)
        if context.backend.implementation == "eager":
            out, weights = self._eager(q, *cached(k, v), context)
        else:
            out = attend(context.backend, q, k, v, is_causal=True, scores=self.shape.scores)
            weights = out.detached()
        out = self.out_proj(out)
        return ops.dropout(out, self.shape.residual_dropout), weights

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, context: HoldingContext) -> tuple[Tensor, Tensor]:
        """``_attn``: the table of the layer masks in a tensor of its own; it is a part of what the layer holds."""
        batch, num_heads, num_tokens, head_dim = q.shape
        scores_shape, several = (batch, num_heads, num_tokens, num_tokens), batch > 1
        q_wide, k_wide = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
        scores = product(q_wide, k_wide, scores_shape, head_dim, copies=(several, several))
        scores = chunks.masked_fill(scores, q.tape.tensor((0,), DType.BOOL))
        assert context.mask is not None
        scores = ops.add(scores, context.mask)
        weights = ops.softmax(scores)
        del scores
        weights = ops.to(weights, v.dtype)
        weights = ops.dropout(weights, self.shape.scores.dropout)
        out = product(weights, v, q.shape, num_tokens, copies=(False, several))
        del q_wide, k_wide
        return ops.copy(out, batch, num_tokens, num_heads * head_dim), weights


class GptNeoAttention(Module):
    """``GPTNeoAttention``: what has the window or not."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.attention = GptNeoSelfAttention(shape)

    def forward(self, x: Tensor, context: HoldingContext) -> tuple[Tensor, Tensor]:
        return self.attention(x, context)


class GptNeoBlock(Module):
    """``GPTNeoBlock``."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.ln_1 = LayerNorm(shape.hidden_size)
        self.attn = GptNeoAttention(shape)
        self.ln_2 = LayerNorm(shape.hidden_size)
        self.mlp = GPT2Mlp(shape, _biased)

    def forward(self, x: Tensor, context: HoldingContext) -> Tensor:
        held = context.held(x)
        residual = x
        x = self.ln_1(x)
        attended, weights = self.attn(x, context)
        x = ops.add(attended, residual)
        residual = x
        x = self.ln_2(x)
        fed_forward = self.mlp(x)
        out = ops.add(residual, fed_forward)
        context.hold(weights)
        del weights, held, attended
        return out


def _biased(in_features: int, out_features: int) -> Linear:
    return Linear(in_features, out_features, bias=True)


class GptNeoDecoder(GPT2Decoder):
    """``GPTNeoModel``."""

    def __init__(self, shape: GPT2Shape) -> None:
        super().__init__(shape, stack_of_holding(lambda: GptNeoBlock(shape), shape.num_layers))
        self.layer_buffer_bytes = shape.num_layers * shape.num_positions**2 * DType.BOOL.num_bytes

    def context(self, x: Tensor, backend: AttentionBackend) -> HoldingContext:
        return HoldingContext(backend, causal_masks(x, backend, (None,)).get(None))


class GptNeo(CausalLM):
    """``GPTNeoForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.wte"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")


def kinds_of_attention(config: Config) -> list[str]:
    """What each layer looks at, as ``attention_types`` lists it: kinds that take turns, and how often they do."""
    listed: Any = config.get("attention_types")
    if listed is None:
        listed = [[["global", "local"], 12]]
    try:
        kinds = [kind for names, number in listed for _ in range(number) for kind in names]
    except (TypeError, ValueError):
        kinds = []
    num_layers = config.integer("num_hidden_layers")
    if len(kinds) != num_layers or not set(kinds) <= KINDS:
        allowed = f"lists of names (global, local) and how often they come, {num_layers} names in all"
        raise not_allowed(CONFIG, "attention_types", listed, allowed)
    return kinds


def decoder(config: Config) -> GptNeoDecoder:
    hidden_size = config.integer("hidden_size")
    shape = GPT2Shape(
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 4 * hidden_size),
        num_layers=len(kinds_of_attention(config)),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("activation_function"),
        embedding_dropout=config.number("embed_dropout"),
        residual_dropout=config.number("resid_dropout"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )
    return GptNeoDecoder(shape)


causal_lm = GptNeo

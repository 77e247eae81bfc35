"""GPT-2: learned positions, layer norms, fused projections stored as 1-D convolutions, dropout.

Source: transformers 5.23 ``models/gpt2/modeling_gpt2.py``. The published files drop out with probability 0.1 in four
places, which keeps a mask each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, position_rows
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.layer_calls import called_with, with_mask_by_position
from vlmplan.architecture.modules import Conv1D, Embedding, LayerNorm, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Shape:
    """The dimensions of a GPT-2 decoder, and its probabilities of dropout."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    vocab_size: int
    activation: str
    embedding_dropout: float
    residual_dropout: float
    scores: Scores


class GPT2Context:
    """What every block is called with besides the hidden states."""

    __slots__ = ("backend", "mask")

    def __init__(self, backend: AttentionBackend, mask: Tensor | None) -> None:
        self.backend, self.mask = backend, mask


class GPT2Attention(Module):
    """Attention with one projection for q, k and v."""

    def __init__(self, shape: GPT2Shape) -> None:
        self.shape = shape
        self.c_attn = Conv1D(shape.hidden_size, 3 * shape.hidden_size)
        self.c_proj = Conv1D(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        batch, num_tokens, width = x.shape
        num_heads = self.shape.num_heads
        head = (batch, num_heads, num_tokens, width // num_heads)
        q, k, v = ops.split(self.c_attn(x), head, head, head)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=self.shape.scores)
        return ops.dropout(self.c_proj(out), self.shape.residual_dropout)


class GPT2Mlp(Module):
    """``c_proj(act(c_fc(x)))`` and dropout; ``projection`` makes both."""

    def __init__(self, shape: GPT2Shape, projection: Callable[[int, int], Any] = Conv1D) -> None:
        self.c_fc = projection(shape.hidden_size, shape.intermediate_size)
        self.c_proj = projection(shape.intermediate_size, shape.hidden_size)
        self.act = ops.activation_module(shape.activation)
        self.dropout = shape.residual_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = self.act(x)
        x = self.c_proj(x)
        return ops.dropout(x, self.dropout)


class GPT2Block(Module):
    """Pre-norm attention and MLP, each added to the residual; ``attention`` and ``mlp`` where they are others."""

    def __init__(self, shape: GPT2Shape, attention: Module | None = None, mlp: Module | None = None) -> None:
        self.ln_1 = LayerNorm(shape.hidden_size)
        self.attn: Any = attention or GPT2Attention(shape)
        self.ln_2 = LayerNorm(shape.hidden_size)
        self.mlp = mlp or GPT2Mlp(shape)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        residual = x
        x = self.ln_1(x)
        attended = self.attn(x, context)
        x = ops.add(attended, residual)
        residual = x
        x = self.ln_2(x)
        fed_forward = self.mlp(x)
        return ops.add(residual, fed_forward)


class GPT2Decoder(Module):
    """``GPT2Model``."""

    def __init__(self, shape: GPT2Shape, blocks: Stack | None = None) -> None:
        """``blocks``: those of another model, which get the mask by keyword."""
        self.shape, self.calls_by_position = shape, blocks is None
        self.wte = Embedding(shape.vocab_size, shape.hidden_size)
        self.wpe = Embedding(shape.num_positions, shape.hidden_size)
        self.h = blocks or Stack.of(GPT2Block(shape), shape.num_layers, label="layers")
        self.ln_f = LayerNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.wte(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        longest = x.shape[1] if backend.sequences is None else backend.sequences.longest
        require_positions(longest, self.shape.num_positions)
        with tape.section("positions"):
            position_ids = tape.tensor((position_rows(x), x.shape[1]), DType.INT64)
            positions = self.wpe(position_ids)
            hidden = ops.add(x, positions)
            context = self.context(x, backend)
            embedded = [ops.dropout(hidden, self.shape.embedding_dropout)]
            del hidden
        call, beside = with_mask_by_position(context) if self.calls_by_position else (partial(called_with, context), ())
        hidden = self.h.run(embedded.pop(), call, beside=beside)
        with tape.section("norm"):
            return self.ln_f(hidden)

    def context(self, x: Tensor, backend: AttentionBackend) -> Any:
        """What every block is called with besides the hidden states."""
        return GPT2Context(backend, causal_masks(x, backend, (None,)).get(None))


class GPT2(CausalLM):
    """``GPT2LMHeadModel``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.wte"
    attention_linears = ("attn.c_attn", "attn.c_proj")


def gpt2_shape(config: Config, scores: Scores) -> GPT2Shape:
    """The shape of a decoder whose configuration has GPT-2's keys."""
    hidden_size = config.integer("hidden_size")
    return GPT2Shape(
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("activation_function"),
        embedding_dropout=config.number("embd_pdrop"),
        residual_dropout=config.number("resid_pdrop"),
        scores=scores,
    )


def decoder(config: Config) -> GPT2Decoder:
    """Raises InputError for variants that compute something else."""
    # reorder_and_upcast_attn changes eager attention only, but a memory plan that ignores it would be wrong there.
    for key in ("add_cross_attention", "reorder_and_upcast_attn"):
        if config.boolean(key):
            raise InputError(f"config.json: {key} is set; GPT-2 can be planned without it only")
    return GPT2Decoder(gpt2_shape(config, Scores(dropout=config.number("attn_pdrop"), upcasts=False)))


causal_lm = GPT2

"""Embeddings of the last tokens together: each order of n-grams is hashed by several heads into rows of one table.

Source: transformers 5.23 ``models/qwen4_exp/modeling_qwen4_exp.py`` (``Qwen4ExpTextNGramEmbedding``,
``Qwen4ExpTextPLELayer``). Each head has a prime number of rows, none of which another has; the table is padded. What is
looked up becomes a value of all residual streams and a key for each, whose product with the stream gates the value; a
dilated convolution over tokens is added. CUDA's autocast sums up that product in float32 (AT_FORALL_FP32 in
``aten/src/ATen/autocast_mode.h``), so that the streams are float32 from there on.
"""

from dataclasses import dataclass
from itertools import count, islice
from math import isqrt

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gated_delta import CausalConvolution
from vlmplan.architecture.families.gated_residual import GroupedRMSNorm
from vlmplan.architecture.modules import Embedding, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NGRAM_SIZE, HEADS_PER_NGRAM, VOCAB_BASE, ROW_DIVISOR, NUM_TAPS = 3, 8, 20_000_000, 128, 4
"""``Qwen4ExpTextConfig``: ``ngram_size``, ``heads_per_ngram``, ``ngram_vocab_size_base``,
``make_ngram_vocab_size_divisible_by`` and ``ple_conv_kernel_size`` where the file has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramShape:
    """The dimensions of a layer's embedding of n-grams."""

    hidden_size: int
    num_streams: int
    width: int
    """Of what is looked up for a token, of all heads."""
    ngram_size: int
    """Tokens of the longest n-gram."""
    heads_per_ngram: int
    num_taps: int
    num_rows: int
    """Of the table."""

    @property
    def num_heads(self) -> int:
        return (self.ngram_size - 1) * self.heads_per_ngram


def ngram_shape(config: Config, index: int) -> NGramShape:
    """The ``index``-th embedding of a text configuration."""
    hidden_size, size = config.integer("hidden_size"), config.integer("ngram_size", NGRAM_SIZE)
    per_ngram = config.integer("heads_per_ngram", HEADS_PER_NGRAM)
    width, num_heads = config.optional_integer("ple_embed_dim") or hidden_size, (size - 1) * per_ngram
    if size < 2 or width % num_heads:
        allowed = f"a multiple of {num_heads}, the heads of n-grams of up to {size} tokens, 2 or more"
        raise not_allowed(CONFIG, "ple_embed_dim", width, allowed)
    divisor = config.integer("make_ngram_vocab_size_divisible_by", ROW_DIVISOR)
    sizes = primes_from(config.integer("ngram_vocab_size_base", VOCAB_BASE), index * num_heads, num_heads)
    return NGramShape(
        hidden_size=hidden_size,
        num_streams=config.integer("hc_count"),
        width=width,
        ngram_size=size,
        heads_per_ngram=per_ngram,
        num_taps=config.integer("ple_conv_kernel_size", NUM_TAPS),
        num_rows=-(-sum(sizes) // divisor) * divisor,
    )


def primes_from(start: int, skipped: int, number: int) -> list[int]:
    """The primes from ``start`` on behind the first ``skipped``, as many as asked for.

    >>> primes_from(10, 1, 3)
    [13, 17, 19]
    """
    primes = (one for one in count(max(start, 2)) if all(one % divisor for divisor in range(2, isqrt(one) + 1)))
    return list(islice(primes, skipped, skipped + number))


class NGramEmbedding(Module):
    """``Qwen4ExpTextNGramEmbedding``."""

    def __init__(self, shape: NGramShape) -> None:
        self.shape = shape
        self.ngram_embedding = Embedding(shape.num_rows, shape.width // shape.num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) of as many tokens as x has."""
        batch, num_tokens, _ = x.shape
        found = self.ngram_embedding(self._rows(x, batch, num_tokens))
        return found.view(batch, num_tokens, self.shape.width)

    def _rows(self, x: Tensor, batch: int, num_tokens: int) -> Tensor:
        """Positions in the table (batch, tokens, heads) in 64 bit: of n-grams that begin before the sample, too, which
        are cut off. What is made of the tokens stays until all are there."""
        tape, shape = x.tape, self.shape
        history = (batch, num_tokens + shape.ngram_size - 1)
        if tape.key_cache is not None:
            tape.key_cache.hold_state(tape.tensor((batch, shape.ngram_size - 1), DType.INT64))
        held = [tape.tensor(history, DType.INT64) for _ in range(shape.ngram_size)]  # shifted by 0, 1, ...
        of_order = (*history, shape.heads_per_ngram)
        orders = [tape.tensor(of_order, DType.INT64) for _ in range(shape.ngram_size - 1)]
        all_rows = tape.tensor((*history, shape.num_heads), DType.INT64)
        tape.move(held[0].num_bytes * NUM_HASH_KERNELS * len(held) + 4 * all_rows.num_bytes, NUM_HASH_KERNELS * 3)
        del held, orders
        return Tensor(all_rows.storage, (batch, num_tokens, shape.num_heads), DType.INT64)


NUM_HASH_KERNELS = 12
"""Kernels with which the tokens are shifted once and mixed into an n-gram (``_shift_right_ignore_eos``), counted."""


class NGramLayer(Module):
    """``Qwen4ExpTextPLELayer``: what is added to the streams (batch, tokens, streams * width)."""

    def __init__(self, shape: NGramShape) -> None:
        self.shape = shape
        all_width = shape.num_streams * shape.hidden_size
        self.ple_embedding = NGramEmbedding(shape)
        self.key_proj = Linear(shape.width, all_width)
        self.value_proj = Linear(shape.width, shape.hidden_size)
        self.norm_key = GroupedRMSNorm(all_width, shape.num_streams)
        self.norm_query = GroupedRMSNorm(all_width, shape.num_streams)
        self.norm_conv = GroupedRMSNorm(all_width, shape.num_streams)
        self.conv1d = CausalConvolution(all_width, shape.num_taps)

    def forward(self, streams: Tensor) -> Tensor:
        batch, num_tokens, all_width = streams.shape
        rows, num_streams, width = (batch, num_tokens), self.shape.num_streams, self.shape.hidden_size
        split = (*rows, num_streams, width)
        found = self.ple_embedding(streams)
        key = self.norm_key(self.key_proj(found)).view(*split)
        value = self.value_proj(found)
        query = self.norm_query(streams).view(*split)
        summed = None if streams.tape.autocast is None else DType.FLOAT32
        gate = ops.scale(ops.total(ops.mul(key, query), (*rows, num_streams, 1), summed))
        size = ops.unary(ops.clamp(ops.unary(gate, saves_input=True), num_limits=1), saves_output=True)
        gate = ops.mul(size, ops.unary(gate))  # its sign, whose gradient is zeros
        gated = chunks.outer(ops.sigmoid(gate), value.view(*rows, 1, width), split).view(batch, num_tokens, all_width)
        normed = self.norm_conv(gated)
        return ops.add(gated, self._convolved(normed))

    def _convolved(self, x: Tensor) -> Tensor:
        """``_short_conv``: behind as many zeros as it looks back."""
        batch, num_tokens, all_width = x.shape
        past = (self.shape.num_taps - 1) * self.shape.ngram_size
        keep_state(x, batch, all_width, past)
        padded = chunks.pad(x.view(batch, all_width, num_tokens), batch, all_width, num_tokens + past)
        out = ops.convolution(padded, self.conv1d.weight, None, (batch, all_width, num_tokens))
        return ops.silu(out).view(*x.shape)

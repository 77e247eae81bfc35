"""Qwen4-Exp (Qwen3.8-Flash-Next): Qwen3.5's gated delta nets and experts between gated residual streams, attention to
blocks that an indexer chooses in every fourth layer, and embeddings of n-grams in some.

Source: transformers 5.23 ``models/qwen4_exp/modeling_qwen4_exp.py`` and ``configuration_qwen4_exp.py``. Layers have no
norms of their own, and there is none behind them: streams are normed where they are mixed. Layers of published
checkpoints that predict more than one token are left out by transformers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.block_indexer import (
    BlockIndexer,
    BlockIndexerShape,
    block_indexer_shape,
)
from vlmplan.architecture.families.deepseek_v32 import MaskedDecoder
from vlmplan.architecture.families.gated_delta import DeltaShape, GatedDeltaNet, delta_shape
from vlmplan.architecture.families.gated_residual import GatedResidual, given_back
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext, stack_of_kinds
from vlmplan.architecture.families.ngram_embedding import NGramLayer, NGramShape, ngram_shape
from vlmplan.architecture.families.packed_patches import InterleavedDecoder
from vlmplan.architecture.families.partial_rotary import rotary_fraction
from vlmplan.architecture.families.qwen3_5 import FULL_ATTENTION_INTERVAL, LINEAR, GatedAttention, hybrid_shape
from vlmplan.architecture.families.qwen3_5_moe import SharedExpertBlock
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

INDEXED, FULL = "indexed_attention", "full_attention"
"""Names of ``layer_types``; published files have the second where the first is meant."""


class IndexedAttention(GatedAttention):
    """``Qwen4ExpTextAttention``."""

    def __init__(self, shape: DecoderShape, indexer: BlockIndexerShape) -> None:
        super().__init__(shape)
        self.indexer = BlockIndexer(indexer)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        chosen = self.indexer(x, context, context.masks[None])
        masks: dict[int | None, Tensor] = {None: _both(context.masks[None], chosen)}
        out = super().forward(x, RotaryContext(context.backend, context.cos, context.sin, masks))
        del chosen
        return out


def _both(causal: Tensor, chosen: Tensor) -> Tensor:
    """The causal mask of the keys that are ``chosen``."""
    tape = causal.tape
    if causal.dtype is DType.BOOL:
        mask = tape.tensor(chosen.shape, DType.BOOL)
        tape.move(3 * mask.num_bytes)
        return mask
    hidden = tape.tensor(chosen.shape, DType.BOOL)
    mask = tape.tensor(causal.shape, causal.dtype)
    tape.move(3 * hidden.num_bytes + 2 * mask.num_bytes, 2)
    del hidden
    return mask


class StreamLayer(Module):
    """``Qwen4ExpTextDecoderLayer``."""

    def __init__(self, config: Config, mixer: Module, ngrams: NGramShape | None, block: Module) -> None:
        width, num_streams, rank = _stream_sizes(config)
        self.is_linear = isinstance(mixer, GatedDeltaNet)
        setattr(self, "linear_attn" if self.is_linear else "self_attn", mixer)
        self.mlp = block
        if ngrams is not None:
            self.ple = NGramLayer(ngrams)
        self.has_ngrams = ngrams is not None
        self.attn_hyper_connection = GatedResidual(width, num_streams, rank)
        self.mlp_hyper_connection = GatedResidual(width, num_streams, rank)

    def forward(self, streams: Tensor, context: RotaryContext) -> Tensor:
        if self.has_ngrams:
            streams = ops.add(streams, self.ple(streams))
        hidden, shares = self.attn_hyper_connection(streams)
        mixer = self.modules_by_name["linear_attn" if self.is_linear else "self_attn"]
        hidden = mixer(hidden, context)
        given = given_back(hidden, shares)
        streams = ops.add(streams, given)
        hidden, shares = self.mlp_hyper_connection(streams)
        hidden = self.mlp(hidden)
        given = given_back(hidden, shares)
        return ops.add(streams, given)


class StreamDecoder(MaskedDecoder, InterleavedDecoder):
    """``Qwen4ExpTextModel``."""

    NORM = "hyper_connection_mixer"

    def __init__(self, config: Config, shape: DecoderShape, layers: Stack, *, rotary_width: int) -> None:
        width, num_streams, rank = _stream_sizes(config)
        super().__init__(
            shape,
            layers,
            norm=lambda _: GatedMean(width, num_streams, rank),
            rotary_width=rotary_width,
        )
        self.num_streams = num_streams

    def entering(self, x: Tensor) -> Tensor:
        *rows, width = x.shape
        return chunks.repeat_heads(x, *rows, self.num_streams * width)


class GatedMean(GatedResidual):
    """The streams' mean behind all layers (``use_combine=False``)."""

    def __init__(self, width: int, num_streams: int, rank: int) -> None:
        super().__init__(width, num_streams, rank, gives_back=False)

    def forward(self, streams: Tensor) -> Any:
        return self.mean(streams)


def _stream_sizes(config: Config) -> tuple[int, int, int]:
    """(width of a stream, how many there are, rank of their gates)."""
    num_streams = config.integer("hc_count", 4)
    if num_streams < 2:
        raise not_allowed(CONFIG, "hc_count", num_streams, "2 or more")
    return config.integer("hidden_size"), num_streams, config.integer("hc_lowrank", 320)


def layer_types(config: Config) -> Sequence[str]:
    """The token mixer of each layer (``Qwen4ExpTextConfig.__post_init__``)."""
    names = config.layer_types()
    if names is None:
        interval = config.integer("full_attention_interval", FULL_ATTENTION_INTERVAL)
        return [LINEAR if (at + 1) % interval else INDEXED for at in range(config.integer("num_hidden_layers"))]
    if not set(names) <= {LINEAR, INDEXED, FULL}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(names)), f"names out of {LINEAR} and {INDEXED}")
    return [INDEXED if name == FULL else name for name in names]


def ngram_layers(config: Config, types: Sequence[str]) -> list[int]:
    """Places of the layers that embed n-grams: ``ple_layer_ids`` counts from one."""
    places = [
        number - 1 for number in sorted(set(config.integers("ple_layer_ids") if config.get("ple_layer_ids") else ()))
    ]
    for place in places:
        if not 0 <= place < len(types) or types[place] != LINEAR:
            raise not_allowed(CONFIG, "ple_layer_ids", place + 1, f"numbers of layers with {LINEAR}, from 1 on")
    return places


def _delta_shape(config: Config) -> DeltaShape:
    activation = config.get("output_gate_type") or config.text("hidden_act")
    if activation not in ("sigmoid", "silu"):
        raise not_allowed(CONFIG, "output_gate_type", activation, "sigmoid or silu")
    return replace(delta_shape(config), gate_activation=activation)


def decoder(config: Config) -> StreamDecoder:
    shape = hybrid_shape(config, intermediate_size=config.integer("shared_expert_intermediate_size"))
    width, types = int(shape.head_dim * rotary_fraction(config)), layer_types(config)
    places = ngram_layers(config, types)

    def layer(kind: tuple[str, int, bool]) -> StreamLayer:
        name, at, _ = kind
        if name == LINEAR:
            mixer: Module = GatedDeltaNet(_delta_shape(config))
        else:
            mixer = IndexedAttention(shape, block_indexer_shape(config, width))
        ngrams = None if at < 0 else ngram_shape(config, at)
        return StreamLayer(config, mixer, ngrams, SharedExpertBlock(config, shape))

    # Behind embeddings of n-grams streams may be of another type.
    kinds = [
        (name, places.index(at) if at in places else -1, any(place < at for place in places))
        for at, name in enumerate(types)
    ]
    return StreamDecoder(config, shape, stack_of_kinds(kinds, layer), rotary_width=width)

"""GLM-5: a DeepSeek-V3.2 whose layers hand on which tokens they have chosen, and may take over those of a layer before.

Source: transformers 5.23 ``models/glm_moe_dsa/modeling_glm_moe_dsa.py`` and ``configuration_glm_moe_dsa.py``. Every
layer is given what the one before has chosen, whether it chooses itself or not: where it runs again in backward, it
keeps that.
"""

from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families import deepseek_v32
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.deepseek_v32 import MaskedDecoder
from vlmplan.architecture.families.group_router import shared_experts_block
from vlmplan.architecture.families.latent_attention import latent_shape
from vlmplan.architecture.families.llama import DecoderLayer, DecoderShape, RotaryContext, stack_of_kinds
from vlmplan.architecture.families.moe import sparse_by_name
from vlmplan.architecture.families.sparse_attention import (
    ChoiceContext,
    IndexerShape,
    SparseLatentAttention,
    indexer_shape,
)
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

FULL, SHARED = "full", "shared"
"""Layers that choose, and those that take over what was chosen (``indexer_types``)."""
LETTERS = {"F": FULL, "S": SHARED}
"""The same in ``index_topk_pattern``."""
FIRST_SHARED = 2
"""``index_skip_topk_offset`` where the file has none."""


class HandingLayer(DecoderLayer):
    """``GlmMoeDsaDecoderLayer``."""

    def forward(self, x: Tensor, context: RotaryContext, before: Tensor | None = None) -> Any:
        """The result, and which tokens were chosen; ``before``: those of the layer before."""
        own = ChoiceContext(context, before)
        x = super().forward(x, own)
        return x, own.chosen


class HandingDecoder(MaskedDecoder):
    """``GlmMoeDsaModel``."""

    def __init__(self, shape: DecoderShape, layers: Stack, indexer: IndexerShape, *, shares: bool) -> None:
        """``shares``: whether layers take over what another has chosen."""
        super().__init__(shape, layers, rotary_width=indexer.rotary_width)
        self.indexer_shape, self.shares = indexer, shares

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            context = self.contexts(x, backend)(None)
        if self.shares:
            hidden, *chosen = self._run_handing(x, context)
        else:
            hidden, chosen = self._run_alike(x, context), []
        with tape.section("norm"):
            chosen = chosen or [self._chosen_before(x)]  # of the last layer, until this returns
            hidden = self.final_norm(hidden)
            del chosen
        return hidden

    def _run_alike(self, x: Tensor, context: RotaryContext) -> Tensor:
        """Every layer chooses: what it is given of the one before is of the same size as that which it hands on, and
        goes when it does, so that equal layers are alike."""

        def before(index: int) -> tuple[Tensor, ...]:
            return (self._chosen_before(x),) if index else ()

        def call(layer: Any, x: Tensor, *before: Tensor) -> Tensor:
            result, _ = layer(x, context, *before)
            return result

        return self.layers.run_each(x, call, own_inputs=before)

    def _run_handing(self, x: Tensor, context: RotaryContext) -> tuple[Tensor, ...]:
        """Layer by layer: several hold one tensor."""

        def call(layer: Any, x: Tensor, *before: Tensor) -> Any:
            return layer(x, context, *before)

        inputs: tuple[Tensor, ...] = (x,)
        for index in range(self.shape.num_layers):
            inputs = self.layers.run_one(index, call, *inputs)
        return inputs

    def _chosen_before(self, x: Tensor) -> Tensor:
        batch, num_tokens, _ = x.shape
        return x.tape.tensor((batch, num_tokens, self.indexer_shape.num_chosen_of(num_tokens)), DType.INT32)


def indexer_types(config: Config) -> list[str]:
    """Which layers choose (``GlmMoeDsaConfig.__post_init__``): by name, by a pattern of letters, or every so many."""
    num_layers = config.integer("num_hidden_layers")
    names, pattern = config.names_by_layer("indexer_types"), config.get("index_topk_pattern")
    if names is None and pattern is None:
        period = config.optional_integer("index_topk_freq") or 1
        offset = config.count("index_skip_topk_offset") if "index_skip_topk_offset" in config else FIRST_SHARED
        return [FULL if max(index - offset + 1, 0) % period == 0 else SHARED for index in range(num_layers)]
    key = "index_topk_pattern" if names is None else "indexer_types"
    if names is None and isinstance(pattern, str):
        names = tuple(LETTERS.get(letter, letter) for letter in pattern)
    elif names is None:
        names = config.names_by_layer(key)
    if names is None or len(names) != num_layers or not set(names) <= {FULL, SHARED} or names[0] == SHARED:
        allowed = f"{FULL} or {SHARED} for each of {num_layers} layers, {FULL} for the first"
        raise not_allowed(CONFIG, key, config.get(key), allowed)
    return list(names)


def decoder(config: Config) -> HandingDecoder:
    latent = latent_shape(config)
    shape, indexer = latent_decoder_shape(config, latent), indexer_shape(config, latent)
    is_sparse = sparse_by_name(config, num_dense=config.count("first_k_dense_replace"))
    types = indexer_types(config)
    # The first layer is given nothing.
    kinds = list(zip(is_sparse, types, [index == 0 for index in range(shape.num_layers)], strict=True))

    def layer(kind: tuple[bool, str, bool]) -> HandingLayer:
        has_experts, name, _ = kind
        attention = SparseLatentAttention(latent, indexer if name == FULL else None)
        return HandingLayer(
            shape, attention=attention, mlp=shared_experts_block(config, shape) if has_experts else None
        )

    return HandingDecoder(shape, stack_of_kinds(kinds, layer), indexer, shares=SHARED in types)


causal_lm = deepseek_v32.causal_lm

"""DeepSeek-V3.2: a DeepSeek-V3 whose attention sees the tokens that an indexer chooses.

Source: transformers 5.23 ``models/deepseek_v32/modeling_deepseek_v32.py`` and ``configuration_deepseek_v32.py``. The
layer of published checkpoints that predicts more than one token is left out by transformers.
"""

from collections.abc import Callable
from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.group_router import NamedExpertsLM, shared_experts_block
from vlmplan.architecture.families.latent_attention import latent_shape
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, RotaryContext, causal_masks, stack_of_kinds
from vlmplan.architecture.families.moe import sparse_by_name
from vlmplan.architecture.families.sparse_attention import SparseLatentAttention, indexer_shape
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor


class MaskedDecoder(Decoder):
    """``DeepseekV32Model``, which makes a causal mask where plain causality would do too (``allow_is_causal_skip``)."""

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        whole = x.shape[1]  # a window of all tokens hides nothing, and has a mask
        mask = causal_masks(x, backend, (whole,))[whole]
        context = RotaryContext(backend, *self.positions(x), {None: mask})
        return lambda layer: context


def decoder(config: Config) -> MaskedDecoder:
    latent = latent_shape(config)
    shape, indexer = latent_decoder_shape(config, latent), indexer_shape(config, latent)
    layers = stack_of_kinds(
        sparse_by_name(config, num_dense=config.count("first_k_dense_replace")),
        lambda is_sparse: DecoderLayer(
            shape,
            attention=SparseLatentAttention(latent, indexer),
            mlp=shared_experts_block(config, shape) if is_sparse else None,
        ),
    )
    return MaskedDecoder(shape, layers, rotary_width=latent.rotary_width)


def causal_lm(decoder: Module, config: Config) -> NamedExpertsLM:
    causal = NamedExpertsLM(decoder, config)
    causal.attention_linears = latent_shape(config).linears
    return causal

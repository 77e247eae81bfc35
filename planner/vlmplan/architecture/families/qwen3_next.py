"""Qwen3-Next: three gated delta nets to one layer of gated attention, as in Qwen3.5, and a mixture of experts.

Source: transformers 5.23 ``models/qwen3_next/modeling_qwen3_next.py``. Against Qwen3.5, one Linear makes queries, keys,
values and gates of each key head, and one makes what decays and ``beta``; some layers may have a dense MLP. The layer
of published checkpoints that predicts more than one token is left out by transformers
(``_keys_to_ignore_on_load_unexpected``). peft takes its names for those of Qwen2-MoE's experts in transformers 4.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gated_delta import GatedDeltaNet, GatedRMSNorm, Projections, delta_shape
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, GatedMlp, stack_of_kinds
from vlmplan.architecture.families.moe import has_experts
from vlmplan.architecture.families.qwen3_5 import (
    LINEAR,
    DecoderLayer,
    GatedAttention,
    hybrid_shape,
    layer_types,
    rotary_width,
)
from vlmplan.architecture.families.qwen3_5_moe import SharedExpertBlock
from vlmplan.architecture.modules import GemmaRMSNorm, Linear
from vlmplan.architecture.tensor import Tensor


class FusedGatedDeltaNet(GatedDeltaNet):
    """``Qwen3NextGatedDeltaNet``."""

    def make_projections(self) -> None:
        shape = self.shape
        self.in_proj_qkvz = Linear(shape.hidden_size, 2 * shape.key_width + 2 * shape.value_width)
        self.in_proj_ba = Linear(shape.hidden_size, 2 * shape.num_value_heads)
        self.norm = GatedRMSNorm(shape.value_dim)
        self.out_proj = Linear(shape.value_width, shape.hidden_size)

    def projected(self, x: Tensor) -> Projections:
        """``fix_query_key_value_ordering``: what belongs to one key head lies side by side, so that reshapes copy."""
        shape, tokens = self.shape, x.shape[:-1]
        keys, values = (*tokens, shape.key_width), (*tokens, shape.num_value_heads, shape.value_dim)
        qkvz = self.in_proj_qkvz(x)
        ba = self.in_proj_ba(x)
        q, k, v, z = ops.split(qkvz, keys, keys, values, values)
        b, a = ops.split(ba, *[(*tokens, shape.num_value_heads)] * 2)
        if shape.num_value_heads > shape.num_key_heads > 1:
            v, z = ops.copy(v), ops.copy(z)
        b, a = ops.copy(b), ops.copy(a)
        joined = [self._flat(part, tokens) for part in (q, k, v)]
        mixed = ops.concatenate(joined, (*tokens, 2 * shape.key_width + shape.value_width))
        return Projections(mixed, z, b, a, joined, (qkvz, ba))

    def _flat(self, x: Tensor, tokens: Sequence[int]) -> Tensor:
        return ops.copy(x, *tokens, x.numel // (tokens[0] * tokens[1]))


def decoder(config: Config) -> Decoder:
    """``Qwen3NextModel``, the decoder without a head."""
    shape = hybrid_shape(config, intermediate_size=config.integer("shared_expert_intermediate_size"))
    kinds = list(zip(layer_types(config), has_experts(config, shape.num_layers), strict=True))

    def layer(kind: tuple[str, bool]) -> DecoderLayer:
        mixer_type, is_sparse = kind
        is_linear = mixer_type == LINEAR
        mixer = FusedGatedDeltaNet(delta_shape(config)) if is_linear else GatedAttention(shape)
        inner = config.integer("intermediate_size")
        mlp = SharedExpertBlock(config, shape) if is_sparse else GatedMlp(shape.hidden_size, inner)
        return DecoderLayer(shape.hidden_size, {"linear_attn" if is_linear else "self_attn": mixer}, mlp)

    layers, width = stack_of_kinds(kinds, layer), rotary_width(config, shape.head_dim)
    return Decoder(shape, layers, norm=GemmaRMSNorm, rotary_width=width)


causal_lm = NamedExpertsLM

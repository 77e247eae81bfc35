"""GLM-4.5 and 4.6, Sarvam 30B: positions on half of each head or all, DeepSeek-V3's experts behind the first layers.

Source: transformers 5.23 ``models/glm4_moe/modeling_glm4_moe.py``. The last layer of published checkpoints, which
predicts more than one token, is left out by transformers (``_keys_to_ignore_on_load_unexpected``).
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM, shared_experts_block
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    DecoderShape,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.partial_rotary import PartlyRotatedAttention, rotary_fraction
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTIONS = {"sarvam_moe": 1.0}
ROTARY_FRACTION = 0.5
"""``partial_rotary_factor`` that ``SarvamMoEConfig`` (5.24) and ``Glm4MoeConfig`` set where the file has none."""


class Glm4MoeAttention(PartlyRotatedAttention):
    """``Glm4MoeAttention``."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        if shape.qk_norm:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v


class Glm4MoeLayer(DecoderLayer):
    """``Glm4MoeDecoderLayer``: a dense MLP, or a mixture of experts."""

    attention = Glm4MoeAttention


def moe_shape(config: Config) -> DecoderShape:
    """The dimensions of the decoder."""
    return replace(decoder_shape(config), output_bias=False, qk_norm=config.boolean("use_qk_norm"))


def moe_layers(config: Config, shape: DecoderShape) -> Stack:
    """The layers of the decoder: the first ``first_k_dense_replace`` are dense."""
    num_dense = config.count("first_k_dense_replace")
    is_sparse = [index >= num_dense for index in range(shape.num_layers)]
    return stack_of_kinds(
        is_sparse, lambda sparse: Glm4MoeLayer(shape, mlp=shared_experts_block(config, shape) if sparse else None)
    )


def rotary_width(config: Config, shape: DecoderShape) -> int:
    """How much of each head is rotated."""
    return int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTIONS.get(config.model_type, ROTARY_FRACTION)))


def decoder(config: Config) -> Decoder:
    shape = moe_shape(config)
    return Decoder(shape, moe_layers(config, shape), rotary_width=rotary_width(config, shape))


causal_lm = NamedExpertsLM

"""Bamba: Mamba-2 in most layers, attention with positions on half of each head in the others, a gated MLP behind both.

Source: transformers 5.23 ``models/bamba/modeling_bamba.py`` and ``configuration_bamba.py``. The loss of the logarithms
of all logits' sums (``z_loss_coefficient``) is not described: it is off by default.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4_moe import Glm4MoeAttention
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    GatedMlp,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.state_space import NamedInputMixer, expanded_shape
from vlmplan.architecture.modules import RMSNorm

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor``, whatever the file says (``BambaConfig.__post_init__``)."""


class BambaLayer(PreNormLayer):
    """``BambaDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, *, is_linear: bool) -> None:
        width, activation = shape.hidden_size, shape.activation
        self.feed_forward = GatedMlp(width, shape.intermediate_size, activation=activation, bias=shape.mlp_bias)
        self.input_layernorm = RMSNorm(width)
        self.pre_ff_layernorm = RMSNorm(width)
        self.MODULES = ("input_layernorm", "mamba" if is_linear else "self_attn", "pre_ff_layernorm", "feed_forward")
        if is_linear:
            self.mamba = NamedInputMixer(expanded_shape(config))
        else:
            self.self_attn = Glm4MoeAttention(shape, None)


class BambaDecoder(Decoder):
    """``BambaModel``."""

    NORM = "final_layernorm"


def decoder(config: Config) -> BambaDecoder:
    shape = decoder_shape(config)
    attending = set(config.integers("attn_layer_indices"))
    kinds = [index not in attending for index in range(shape.num_layers)]
    layers = stack_of_kinds(kinds, lambda is_linear: BambaLayer(config, shape, is_linear=is_linear))
    return BambaDecoder(shape, layers, rotary_width=int(shape.head_dim * ROTARY_FRACTION))

"""Bamba: Mamba-2 in most layers, attention with positions on half of each head in the others, a gated MLP behind both.

Source: transformers 5.23 ``models/bamba/modeling_bamba.py`` and ``configuration_bamba.py``. The loss of the logarithms
of all logits' sums (``z_loss_coefficient``) is not described: it is off by default.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4_moe import Glm4MoeAttention
from vlmplan.architecture.families.llama import (
    DecoderShape,
    GatedMlp,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.state_space import NamedInputMixer, expanded_shape
from vlmplan.architecture.modules import Embedding, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor``, whatever the file says (``BambaConfig.__post_init__``)."""


class BambaLayer(Module):
    """``BambaDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, *, is_linear: bool) -> None:
        width, activation = shape.hidden_size, shape.activation
        self.feed_forward = GatedMlp(width, shape.intermediate_size, activation=activation, bias=shape.mlp_bias)
        self.input_layernorm = RMSNorm(width)
        self.pre_ff_layernorm = RMSNorm(width)
        self.is_linear = is_linear
        if is_linear:
            self.mamba = NamedInputMixer(expanded_shape(config))
        else:
            self.self_attn = Glm4MoeAttention(shape, None)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.mamba(x, context) if self.is_linear else self.self_attn(x, context)
        x = ops.add(residual, x)
        residual = x
        x = self.pre_ff_layernorm(x)
        x = self.feed_forward(x)
        return ops.add(residual, x)


class FinalNormDecoder(Module):
    """``BambaModel``, ``FalconH1Model``: a decoder whose last norm is called ``final_layernorm``."""

    def __init__(self, shape: DecoderShape, layers: Stack, rotary_width: int) -> None:
        self.shape, self.rotary_width = shape, rotary_width
        self.embed_tokens = Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = layers
        self.final_layernorm = RMSNorm(shape.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            shape = (1, 1, x.shape[1], self.rotary_width)
            cos, sin = tape.tensor(shape, x.dtype), tape.tensor(shape, x.dtype)
            tape.prefetch()  # for the module of the positions
            context = RotaryContext(backend, cos, sin, causal_masks(x, backend, (None,)))
            del cos, sin
        hidden = self.layers.run(x, lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.final_layernorm(hidden)


def decoder(config: Config) -> FinalNormDecoder:
    shape = decoder_shape(config)
    attending = set(config.integers("attn_layer_indices"))
    kinds = [index not in attending for index in range(shape.num_layers)]
    layers = stack_of_kinds(kinds, lambda is_linear: BambaLayer(config, shape, is_linear=is_linear))
    return FinalNormDecoder(shape, layers, int(shape.head_dim * ROTARY_FRACTION))

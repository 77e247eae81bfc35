"""Mamba-2 alone: one mixer in every layer, and no attention.

Source: transformers 5.23 ``models/mamba2/modeling_mamba2.py`` and ``configuration_mamba2.py``. The residual is float32
where ``residual_in_fp32`` says so. The model's forward asks for the type of its head's weight.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.families.nemotron_h import UnpositionedDecoder
from vlmplan.architecture.families.state_space import (
    StateSpaceKeys,
    StateSpaceMixer,
    state_space_shape,
)
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

KEYS = StateSpaceKeys(
    num_heads="num_heads",
    head_dim="head_dim",
    num_groups="n_groups",
    state_size="state_size",
    num_taps="conv_kernel",
    chunk_size="chunk_size",
    activation="hidden_act",
    has_bias="use_bias",
    convolution_bias="use_conv_bias",
)


class Mamba2Block(Module):
    """``Mamba2Block``."""

    def __init__(self, width: int, mixer: Module, *, widens_residual: bool) -> None:
        self.norm = RMSNorm(width)
        self.mixer = mixer
        self.widens_residual = widens_residual

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.norm(ops.to(x, self.norm.weight.dtype))
        if self.widens_residual:
            residual = ops.to(residual, DType.FLOAT32)
        x = self.mixer(x, context)
        return ops.add(residual, x)


class Mamba2(CausalLM):
    """``Mamba2ForCausalLM``."""

    DECODER = "backbone"
    EMBEDDINGS = "backbone.embeddings"
    widens_logits = True
    reads_own_head = True

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """The hidden states in the type of the head."""
        hidden = self.decoder.forward(self.decoder.embed(ids), backend)
        ids.tape.locals.append(hidden.detached())
        return ops.to(hidden, getattr(self.lm_head, "base_layer", self.lm_head).weight.dtype)


def decoder(config: Config) -> UnpositionedDecoder:
    width = config.integer("hidden_size")
    mixer = state_space_shape(config, KEYS, inner_width=config.integer("expand") * width)
    block = Mamba2Block(width, StateSpaceMixer(mixer), widens_residual=config.boolean("residual_in_fp32"))
    layers = Stack.of(block, config.integer("num_hidden_layers"), label="layers")
    return UnpositionedDecoder(config.integer("vocab_size"), layers, RMSNorm(width), attends=False)


causal_lm = Mamba2

"""Mamba and Falcon Mamba: one mixer in every layer, and no attention.

Source: transformers 5.23 ``models/mamba/modeling_mamba.py`` and ``models/falcon_mamba/modeling_falcon_mamba.py``, which
norms steps, b and c. What is around the mixers is Mamba-2's.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.mamba2 import Mamba2, Mamba2Block
from vlmplan.architecture.families.nemotron_h import UnpositionedDecoder
from vlmplan.architecture.families.selective_mixer import (
    SelectiveMixer,
    SelectiveShape,
    WeightlessNorm,
    refuse_mambapy,
    step_rank,
)
from vlmplan.architecture.modules import Module, RMSNorm, Stack
from vlmplan.architecture.packed_weight import LEAST_BLOCK_BYTES

FALCON, NUM_LAYERS = "falcon_mamba", "num_hidden_layers"


def selective_shape(config: Config) -> SelectiveShape:
    """The dimensions of the mixers."""
    refuse_mambapy(config)
    width = config.integer("hidden_size")
    return SelectiveShape(
        hidden_size=width,
        # ``intermediate_size`` of a file is kept (``MambaConfig.__post_init__``).
        inner_width=config.integer("intermediate_size", int(config.positive_number("expand") * width)),
        state_size=config.integer("state_size"),
        step_rank=step_rank(config, "time_step_rank"),
        num_taps=config.integer("conv_kernel"),
        activation=config.text("hidden_act"),
        has_bias=config.boolean("use_bias"),
        convolution_bias=config.boolean("use_conv_bias"),
    )


class Mamba(Mamba2):
    """``MambaForCausalLM``, ``FalconMambaForCausalLM``."""

    buffer_widths: Sequence[int] = ()
    """Of the ones that Falcon Mamba's norms hold, which only kernels would read."""

    def __init__(self, decoder: Any, config: Config) -> None:
        super().__init__(decoder, config)
        if config.model_type == FALCON:
            shape = selective_shape(config)
            self.buffer_widths = (shape.inner_width, shape.state_size, shape.state_size) * config.integer(NUM_LAYERS)

    @property
    def buffer_bytes(self) -> int:
        """A tensor for each norm, in whole blocks of the allocator."""
        sizes = [width * self.buffer_dtype.num_bytes for width in self.buffer_widths]
        return sum([-(-num_bytes // LEAST_BLOCK_BYTES) * LEAST_BLOCK_BYTES for num_bytes in sizes])


def _weightless(width: int) -> Module:
    return WeightlessNorm()


def decoder(config: Config) -> UnpositionedDecoder:
    shape = selective_shape(config)
    mixer = SelectiveMixer(shape, _weightless if config.model_type == FALCON else None)
    block = Mamba2Block(shape.hidden_size, mixer, widens_residual=config.boolean("residual_in_fp32"))
    layers = Stack.of(block, config.integer(NUM_LAYERS), label="layers")
    return UnpositionedDecoder(config.integer("vocab_size"), layers, RMSNorm(shape.hidden_size), attends=False)


causal_lm = Mamba

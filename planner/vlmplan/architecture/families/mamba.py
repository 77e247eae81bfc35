"""Mamba and Falcon Mamba: one mixer in every layer, and no attention.

Source: transformers 5.23 ``models/mamba/modeling_mamba.py`` and ``models/falcon_mamba/modeling_falcon_mamba.py``, which
norms steps, b and c. What is around the mixers is Mamba-2's.
"""

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


def selective_shape(config: Config) -> SelectiveShape:
    """The dimensions of the mixers."""
    refuse_mambapy(config)
    width = config.integer("hidden_size")
    return SelectiveShape(
        hidden_size=width,
        inner_width=int(config.positive_number("expand") * width),
        state_size=config.integer("state_size"),
        step_rank=step_rank(config, "time_step_rank"),
        num_taps=config.integer("conv_kernel"),
        activation=config.text("hidden_act"),
        has_bias=config.boolean("use_bias"),
        convolution_bias=config.boolean("use_conv_bias"),
    )


def _weightless(width: int) -> Module:
    return WeightlessNorm()


def decoder(config: Config) -> UnpositionedDecoder:
    shape = selective_shape(config)
    mixer = SelectiveMixer(shape, _weightless if config.model_type == "falcon_mamba" else None)
    block = Mamba2Block(shape.hidden_size, mixer, widens_residual=config.boolean("residual_in_fp32"))
    layers = Stack.of(block, config.integer("num_hidden_layers"), label="layers")
    return UnpositionedDecoder(config.integer("vocab_size"), layers, RMSNorm(shape.hidden_size), attends=False)


causal_lm = Mamba2

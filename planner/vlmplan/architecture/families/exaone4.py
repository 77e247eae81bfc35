"""EXAONE 4: queries and keys normed per head, norms behind attention and MLP, no positions where a layer sees all.

Source: transformers 5.23 ``models/exaone4/modeling_exaone4.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.olmo import PostNormLayer
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.modules import RMSNorm


def exaone_shape(config: Config, windows: tuple[int | None, ...]) -> DecoderShape:
    """``windows``: that of each layer; None: it sees all."""
    return replace(
        decoder_shape(config),
        qk_norm=True,
        norms_behind_projections=True,
        windows=windows,
        qkv_bias=False,
        output_bias=False,
    )


def decoder(config: Config) -> Decoder:
    has_windows = config.optional_integer("sliding_window") is not None
    period = config.integer("sliding_window_pattern", 1) if has_windows and config.layer_types() is None else 1
    windows = windows_by_type(config, lambda index: (index + 1) % period != 0)
    shape = exaone_shape(config, windows)

    def layer(window: int | None) -> PostNormLayer:
        rotates = not has_windows or window is not None
        return PostNormLayer(shape, (Attention if rotates else PositionlessAttention)(shape, window), RMSNorm)

    return Decoder(shape, stack_of_kinds(windows, layer), masked_windows=(None,))

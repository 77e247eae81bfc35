"""SmolLM3: a Llama of which every fourth layer has no rotary positions.

Source: transformers 5.23 ``models/smollm3/modeling_smollm3.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError


class PositionlessAttention(Attention):
    """Attention without rotary positions."""

    has_positions = False

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        return q, k


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    has_positions = positions_of_layers(config, shape.num_layers)
    windows: tuple[int | None, ...] = (None,) * shape.num_layers
    if config.boolean("use_sliding_window"):
        windows = windows_by_type(config, lambda index: not has_positions[index])
    shape = replace(shape, windows=windows)
    kinds = list(zip(windows, has_positions, strict=True))

    def layer(kind: tuple[int | None, bool]) -> DecoderLayer:
        window, rotates = kind
        return DecoderLayer(shape, attention=(Attention if rotates else PositionlessAttention)(shape, window))

    return Decoder(shape, stack_of_kinds(kinds, layer), masked_windows=(None,))


def positions_of_layers(config: Config, num_layers: int) -> list[bool]:
    """Whether each layer has rotary positions: ``no_rope_layers``, 1 for each that has, or
    ``no_rope_layer_interval``."""
    given = config.integers("no_rope_layers")
    if given:
        if len(given) != num_layers:
            raise InputError(f"config.json: no_rope_layers has {len(given)} numbers for {num_layers} layers")
        return [bool(rotates) for rotates in given]
    interval = config.integer("no_rope_layer_interval")
    return [(index + 1) % interval != 0 for index in range(num_layers)]

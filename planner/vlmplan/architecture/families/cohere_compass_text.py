"""The language model of Cohere Compass (North Micro Vision): Cohere 2's layers, of which each kind may have rotary
positions of its own, in Qwen3-VL's decoder, which adds features of several depths behind its first layers.

Source: transformers 5.23 ``models/cohere_compass/modeling_cohere_compass.py``, ``CohereCompassTextModel``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import ScaledCausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.cohere import CohereAttention, CohereLayer, CohereNorm
from vlmplan.architecture.families.llama import (
    Attention,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.qwen3_vl import DeepstackDecoder
from vlmplan.architecture.tensor import Tensor

FULL, SLIDING = "full_attention", "sliding_attention"
"""Names of the kinds of layers in ``layer_types`` and ``rope_parameters``."""


class CompassAttention(CohereAttention):
    """``CohereCompassAttention``: positions in the model's type."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        return Attention.positioned(self, q, k, context) if self.has_positions else (q, k)


class CompassLayer(CohereLayer):
    """``CohereCompassDecoderLayer``."""

    attention = CompassAttention


class CompassDecoder(DeepstackDecoder):
    """``CohereCompassTextModel``: a mask, and cos and sin, for each kind of layers."""

    def __init__(self, config: Config, num_features: int = 0) -> None:
        shape = decoder_shape(config)
        # ``CohereCompassTextConfig.__post_init__``: all layers see everything unless the file says otherwise.
        windows = windows_by_type(config, lambda index: False)
        shape = replace(shape, windows=windows)
        self.rotated_windows = [window for window in dict.fromkeys(windows) if has_positions(config, window)]
        layers = stack_of_kinds(
            windows,
            lambda window: CompassLayer(shape, window, norms_heads=False, has_positions=has_positions(config, window)),
        )
        masked = (None, config.integer("sliding_window"))
        super().__init__(shape, num_features, layers, norm=CohereNorm, masked_windows=masked)

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        masks, none = causal_masks(x, backend, self.windows), x.tape.tensor((0,), x.dtype)
        tables = {window: self.positions(x) for window in self.rotated_windows}
        contexts = {
            window: RotaryContext(backend, *tables.get(window, (none, none)), masks).with_masks_of([window])
            for window in dict.fromkeys(self.windows)
        }
        del masks, tables
        return lambda layer: contexts[layer.self_attn.window]


def has_positions(config: Config, window: int | None) -> bool:
    """Whether the file has ``rope_parameters`` for layers of this window; null means none."""
    parameters = config.get("rope_parameters")
    kind = FULL if window is None else SLIDING
    return not isinstance(parameters, dict) or kind not in parameters or parameters[kind] is not None


def decoder(config: Config) -> CompassDecoder:
    return CompassDecoder(config)


causal_lm = ScaledCausalLM

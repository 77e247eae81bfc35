"""Rotary positions on the first part of each head, halves rotated (``apply_rotary_pos_emb`` of GLM and Qwen3.5)."""

from collections.abc import Mapping, Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import ROTATIONS, Config
from vlmplan.architecture.families.llama import Attention, RotaryContext
from vlmplan.architecture.families.olmo import PositionsByWindow
from vlmplan.architecture.tensor import Tensor


def partly_rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated part, as wide as cos, and the rest of each head, however narrow, in new tensors."""
    width = cos.shape[-1]
    rest = q.shape[-1] - width
    q_part, q_rest = ops.slice_last(q, width), ops.slice_last(q, rest)
    k_part, k_rest = ops.slice_last(k, width), ops.slice_last(k, rest)
    q_rotated = ops.rotate(q_part, cos, sin)
    k_rotated = ops.rotate(k_part, cos, sin)
    q_rotated = ops.concatenate([q_rotated, q_rest], q.shape)
    k_rotated = ops.concatenate([k_rotated, k_rest], k.shape)
    return q_rotated, k_rotated


def parts_of_heads(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first ``width`` of each head, which are rotated, and the rest, where a layer keeps both in variables of its
    own (StableLM, Phi). A slice of everything is x itself, without an operation of its own."""
    rest = x.shape[-1] - width
    return ops.slice_last(x, width) if rest else x, ops.slice_last(x, rest)


class PartlyRotatedAttention(Attention):
    """Llama's attention with positions on the first part of each head, as wide as cos."""

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v)
        q, k = self.positioned(q, k, context)
        out = context.attended(q, k, v, scores=self.shape.scores)
        return self.o_proj(out)

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        return partly_rotated(q, k, context.cos, context.sin)


class KindsRotatedDecoder(PositionsByWindow):
    """A decoder that makes positions for each kind of layer, as wide as the part of a head that those rotate."""

    rotary_widths: Mapping[int | None, int]
    """By the window of a layer."""

    def positions_within(self, window: int | None, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, 1, x.shape[1], self.rotary_widths[window])
        return x.tape.tensor(shape, x.dtype), x.tape.tensor(shape, x.dtype)


FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as ``rope_parameters`` names them."""


def rotary_widths(
    config: Config, head_dim: int, windows: Sequence[int | None], *, default: float, unnamed: Mapping[str, float]
) -> dict[int | None, int]:
    """How much of each head is rotated by the windows that layers have. ``default``: the fraction that a kind of layer
    has where its ``rope_parameters`` name none; ``unnamed``: those of a file without ``rope_parameters``."""
    parameters = config.mapping("rope_parameters") if config.get("rope_parameters") else None
    widths: dict[int | None, int] = {}
    for window in dict.fromkeys(windows):
        kind = FULL if window is None else SLIDING
        named = (
            unnamed[kind] if parameters is None else parameters.mapping(kind).number("partial_rotary_factor", default)
        )
        widths[window] = int(head_dim * named)
    return widths


def rotary_fraction(text: Config, default: float = 1.0) -> float:
    """The rotated part of each head: in ``rope_parameters`` (once ``rope_scaling``), else beside it, else ``default``.

    Source: ``convert_rope_params_to_dict`` in ``modeling_rope_utils.py``.
    """
    for key in ROTATIONS:
        if text.get(key):
            return text.mapping(key).number("partial_rotary_factor", text.number("partial_rotary_factor", default))
    return text.number("partial_rotary_factor", default)

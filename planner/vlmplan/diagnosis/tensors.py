"""Which tensor it was that found no room, by its size: how many tokens its sample has, or which weight it is.

The size that torch prints is that of the block it asked the driver for: rounded up to 2 MiB from 10 MiB on
(``get_allocation_size`` in ``CUDACachingAllocator.cpp``), then printed with two decimals. So a tensor has a range of
sizes, and the sample a range of tokens. What a traceback names is taken as said; without one, a size may fit many
tensors, and only weights, whose sizes are known, and logits are compared, as a possibility.

    logits              tokens x vocabulary x 4 bytes where they are upcast, x 2 as the head makes them
    attention scores    heads x tokens x tokens; torch's math kernel has them in 32 bit from torch 2.5 on
                        (``_scaled_dot_product_attention_math``, ``allow_fp16_bf16_reduction_math_sdp``), before in 16
                        (the versions are assumed: no such run was measured here)
    an MLP              tokens x intermediate width x 2
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Part as ModelPart
from vlmplan.diagnosis.places import Part, Phase, Place
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.memory_messages import MemoryMessage
from vlmplan.models import context_length
from vlmplan.units import GIB, MIB
from vlmplan.workload import ModelFiles

BLOCK_ROUNDING_BYTES = 2 * MIB
SMALLEST_TOLD_BYTES = GIB // 4
"""Of a request without a traceback, below which nothing is said of logits: too many tensors are as large. A choice."""
PRECISIONS = (4, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSize:
    """What the request may have been: ``low`` to ``high`` tokens, or patches of images, of one micro batch.

    ``formula`` says how they make the bytes, with the numbers of the model. ``is_named``: a traceback names the tensor.
    """

    part: Part
    low: int
    high: int
    formula: str
    num_bytes: int = 0
    is_of_patches: bool = False
    is_quadratic: bool = False
    is_named: bool = True
    condition: str = ""
    """On which it depends, where several are possible."""

    @property
    def count(self) -> int:
        return (self.low + self.high) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSize:
    """A weight of the model that has the size: its name without the layer's number, shape and bytes of an element."""

    name: str
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """What tensors of a model are made of; None where its configuration does not say."""

    vocab_size: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    num_vision_heads: int | None = None
    patch_side: int | None = None
    context_length: int | None = None


def widths_of(model: ModelFiles, table: ParameterTable) -> Widths:
    """The widths of a model: those of weights by their shapes, the rest by its configuration."""
    config = Config(model.config)
    text = config.section("text_config", is_flat=True)
    vision = config.section("vision_config")
    language = [entry for entry in table.entries if entry.part is ModelPart.LANGUAGE]
    shapes = {entry.name.removesuffix(".weight").rpartition(".")[2]: entry.parameter.shape for entry in language}
    vocabulary = next((shapes[name][0] for name in ("lm_head", "embed_tokens", "wte") if name in shapes), None)
    heads, hidden = _integer(text, "num_attention_heads"), _integer(text, "hidden_size")
    return Widths(
        vocab_size=vocabulary,
        num_heads=heads,
        head_dim=_integer(text, "head_dim") or (hidden // heads if heads and hidden else None),
        intermediate_size=_integer(text, "intermediate_size"),
        num_vision_heads=_integer(vision, "num_heads") or _integer(vision, "num_attention_heads"),
        patch_side=_integer(vision, "patch_size"),
        context_length=context_length(model),
    )


def _integer(config: Config, key: str) -> int | None:
    try:
        return config.integer(key) if key in config else None
    except InputError:
        return None


def tensor_sizes(message: MemoryMessage, place: Place, widths: Widths, *, micro_batch: int) -> list[TensorSize]:
    """What activations the request may have been; empty where nothing tells. Several where it depends on something."""
    if message.requested_bytes is None or message.is_on_host:
        return []
    low, high = _range(message)
    if place.part is Part.LOGITS and widths.vocab_size:
        element_bytes = 2 if place.phase is not Phase.LOSS else 4
        return list(_linear(Part.LOGITS, low, high, widths.vocab_size, element_bytes, "vocabulary"))
    if place.part is Part.MLP and widths.intermediate_size and not place.is_in_vision:
        return list(_linear(Part.MLP, low, high, widths.intermediate_size, 2, "intermediate width"))
    if place.part is Part.ATTENTION:
        return list(_attention(place, widths, low, high, micro_batch))
    if place.phase is None and widths.vocab_size and message.requested_bytes >= SMALLEST_TOLD_BYTES:
        found = list(_linear(Part.LOGITS, low, high, widths.vocab_size, 4, "vocabulary", is_named=False))
        longest = (widths.context_length or 0) * micro_batch
        return [one for one in found if one.low <= longest]
    return []


def _range(message: MemoryMessage) -> tuple[int, int]:
    """Bytes that the tensor has at the least and at the most."""
    assert message.requested_bytes is not None
    size, half = message.requested_bytes, message.requested_rounding_bytes
    return max(0, size - half - BLOCK_ROUNDING_BYTES), size + half


def _linear(
    part: Part, low: int, high: int, width: int, element_bytes: int, name: str, *, is_named: bool = True
) -> Iterator[TensorSize]:
    row = width * element_bytes
    least, most = -(-low // row), high // row
    if 0 < least <= most:
        formula = f"tokens x {name} {width:,} x {element_bytes} bytes"
        yield TensorSize(part=part, low=least, high=most, formula=formula, num_bytes=high, is_named=is_named)


def _attention(place: Place, widths: Widths, low: int, high: int, micro_batch: int) -> Iterator[TensorSize]:
    """The images of a micro batch are one sequence of the vision encoder; samples are apart in the language model."""
    heads = widths.num_vision_heads if place.is_in_vision else widths.num_heads
    if not heads:
        return
    if not place.is_in_vision and widths.head_dim and widths.context_length:
        for one in _linear(Part.ATTENTION, low, high, heads * widths.head_dim, 2, "width of all heads"):
            if one.high <= widths.context_length * micro_batch:  # a projection or the output, not scores
                yield one
                return
    unit = "patches" if place.is_in_vision else "tokens"
    batch = 1 if place.is_in_vision else micro_batch
    conditions = {4: "torch 2.5 or later", 2: "torch before 2.5"}
    for element_bytes in PRECISIONS:
        if place.is_of_16_bit_scores is False and element_bytes == 2:
            continue
        row = heads * element_bytes * batch
        least, most = _root_up(-(-low // row)), isqrt(high // row)
        if 0 < least <= most:
            samples = f" x {batch} samples" if batch > 1 else ""
            yield TensorSize(
                part=Part.ATTENTION,
                low=least * batch,
                high=most * batch,
                formula=f"{unit} x {unit} x {heads} heads{samples} x {element_bytes} bytes",
                num_bytes=high,
                is_of_patches=place.is_in_vision,
                is_quadratic=True,
                condition="" if place.is_of_16_bit_scores is False else conditions[element_bytes],
            )


def _root_up(number: int) -> int:
    root = isqrt(number)
    return root if root * root == number else root + 1


def weight_of_size(message: MemoryMessage, place: Place, table: ParameterTable) -> WeightSize | None:
    """The weight that has the size of the request, where weights were being loaded or gathered; None: none has."""
    if message.requested_bytes is None or place.part not in (Part.WEIGHTS, Part.GATHERED_WEIGHTS):
        return None
    low, high = _range(message)
    for element_bytes in (2, 4, 1):
        for entry in table.entries:
            if low <= entry.parameter.numel * element_bytes <= high:
                return WeightSize(name=entry.name, shape=entry.parameter.shape, element_bytes=element_bytes)
    return None

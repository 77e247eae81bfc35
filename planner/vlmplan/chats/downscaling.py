"""Images made no larger than the plan's.

The measure is the output of the model's processor for an image: tokens in the language model and patches in the vision
tower. An image that gives no more of either than the planned one stays as it is; so nothing is lost with a processor
that brings every image to one size. A larger one is scaled to the planned area, or a little less where rounding to
patches wants it; where no scale helps, as with tiles chosen by aspect ratio, it is put on a canvas of the planned size.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from vlmplan.errors import InputError

Size = tuple[int, int]
SHRINKAGES = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.85, 0.8)
"""Of the sides: half a patch on either side of eleven patches is 0.91."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downscaling:
    """An image is scaled to ``scaled`` and put in the middle of ``canvas``; both (width, height)."""

    scaled: Size
    canvas: Size


class Meter(Protocol):
    """The size of a processor's output for an image, by the image's size alone."""

    def amounts(self, size: Size) -> tuple[float, float]:
        """Tokens and patches of an image of (width, height); infinite for one that the processor refuses."""
        ...


class ImageDownscaler:
    """Fits images to the planned size (width, height), or leaves all as they are if that is None."""

    def __init__(self, meter: Meter, planned: Size | None) -> None:
        self._meter, self._planned = meter, planned
        if planned is not None and not math.isfinite(meter.amounts(planned)[0]):
            raise InputError(f"the planned image size {planned[0]}x{planned[1]} is refused by the model's processor")

    def fit(self, size: Size) -> Downscaling:
        """How an image of ``size`` is brought to what the plan has room for."""
        if self._planned is None or self._has_room(size):
            return Downscaling(scaled=size, canvas=size)
        area = math.sqrt(math.prod(self._planned) / math.prod(size))
        for shrinkage in SHRINKAGES:
            scaled = _scaled(size, min(1.0, area) * shrinkage)
            if self._has_room(scaled):
                return Downscaling(scaled=scaled, canvas=scaled)
        box = min(planned / side for planned, side in zip(self._planned, size, strict=True))
        return Downscaling(scaled=_scaled(size, min(1.0, box)), canvas=self._planned)

    def _has_room(self, size: Size) -> bool:
        assert self._planned is not None
        found, planned = self._meter.amounts(size), self._meter.amounts(self._planned)
        return all(amount <= most for amount, most in zip(found, planned, strict=True))


def _scaled(size: Size, factor: float) -> Size:
    return max(1, int(size[0] * factor)), max(1, int(size[1] * factor))

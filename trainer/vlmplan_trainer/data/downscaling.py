"""Images made no larger than the plan's.

The measure is what the model's processor makes of an image: tokens in the language model and patches in the vision
tower. An image that gives no more of either than the planned one stays as it is; so nothing is lost with a processor
that brings every image to one size. A larger one is scaled to the planned area, or a little less where rounding to
patches wants it; where no scale helps, as with tiles chosen by aspect ratio, it is put on a canvas of the planned size.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vlmplan.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
SHRINKAGES = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.85, 0.8)
"""Of the sides: half a patch on either side of eleven patches is 0.91."""
KEPT_SIZES = 4096
CANVAS_COLOUR = "white"


@dataclass(frozen=True, slots=True, kw_only=True)
class Downscaling:
    """An image is scaled to ``scaled`` and put in the middle of ``canvas``; both (width, height)."""

    scaled: Size
    canvas: Size


class ImageMeter:
    """What a processor makes of an image, by its size alone."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._counts = getattr(processor, "_get_num_multimodal_tokens", None)
        self.num_tokens = lru_cache(KEPT_SIZES)(self._num_tokens)
        self.amounts = lru_cache(KEPT_SIZES)(self._amounts)
        self._num_other_tokens: int | None = None

    def _amounts(self, size: Size) -> tuple[float, float]:
        """Tokens and patches (numbers of pixels, for processors that do not tell) of an image of (width, height).

        Infinite for an image that the processor refuses, such as one 200 times as long as wide.
        """
        width, height = size
        try:
            if self._counts is None:
                made = self._made(size)
                return made["input_ids"].shape[1], made["pixel_values"].numel()
            counted = self._counts(image_sizes=[(height, width)])
            return counted["num_image_tokens"][0], counted["num_image_patches"][0]
        except (ValueError, ZeroDivisionError):
            return math.inf, math.inf

    def _num_tokens(self, size: Size) -> int:
        """Tokens that stand in the text for an image: its placeholders, and those that begin and end it or a row.

        Exact where the processor's own count is off by a constant, which two unlike sizes show; else a blank image of
        this size is processed.
        """
        if self._num_other_tokens is None:
            probes = [(112, 112), (336, 224)]
            extras = {self._made(probe)["input_ids"].shape[1] - self.amounts(probe)[0] for probe in probes}
            self._num_other_tokens = int(extras.pop()) if len(extras) == 1 else -1
        amount = self.amounts(size)[0]
        if not math.isfinite(amount):
            raise InputError(f"an image of {size[0]} x {size[1]} pixels is refused by the model's image processor")
        if self._counts is None or self._num_other_tokens < 0:
            return int(self._made(size)["input_ids"].shape[1])
        return int(amount) + self._num_other_tokens

    def _made(self, size: Size) -> Any:
        from PIL import Image

        blank = Image.new("RGB", size, CANVAS_COLOUR)
        return self._processor(
            text=[self._processor.image_token], images=[[blank]], add_special_tokens=False, return_tensors="pt"
        )


class ImageDownscaler:
    """Fits images to the planned size (width, height), or leaves all as they are if that is None."""

    def __init__(self, meter: ImageMeter, planned: Size | None) -> None:
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


def downscaled_image(image: "Image", fit: Downscaling) -> "Image":
    from PIL import Image

    if image.size != fit.scaled:
        image = image.resize(fit.scaled, Image.Resampling.BICUBIC, reducing_gap=2.0)
    if image.size == fit.canvas:
        return image
    canvas = Image.new("RGB", fit.canvas, CANVAS_COLOUR)
    (width, height), (inner_width, inner_height) = fit.canvas, fit.scaled
    canvas.paste(image, ((width - inner_width) // 2, (height - inner_height) // 2))
    return canvas


def _scaled(size: Size, factor: float) -> Size:
    return max(1, int(size[0] * factor)), max(1, int(size[1] * factor))

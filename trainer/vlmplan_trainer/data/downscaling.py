"""The size of a processor's output for an image, measured by running it, and images scaled down by
``ImageDownscaler``."""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vlmplan.chats.downscaling import Downscaling, Size
from vlmplan.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

PIXELS = ("pixel_values", "image_pixel_values")
"""What models call the pixels of their images."""
KEPT_SIZES = 4096
CANVAS_COLOUR = "white"


class ImageMeter:
    """The size of a processor's output for an image, by the image's size alone."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._counts = getattr(processor, "_get_num_multimodal_tokens", None)
        self.num_tokens = lru_cache(KEPT_SIZES)(self._num_tokens)
        self.amounts = lru_cache(KEPT_SIZES)(self._amounts)
        self.num_tiles = lru_cache(KEPT_SIZES)(self._num_tiles)
        self._num_other_tokens: int | None = None

    def _amounts(self, size: Size) -> tuple[float, float]:
        """Tokens and patches (numbers of pixels, for processors that do not tell) of an image of (width, height).

        Infinite for an image that the processor refuses, such as one 200 times as long as wide.
        """
        width, height = size
        try:
            if self._counts is None:
                made = self._made(size)
                return made["input_ids"].shape[1], next(made[name] for name in PIXELS if name in made).numel()
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

    def _num_tiles(self, size: Size) -> int:
        """Tiles that the only image of a sample is cut into, with that of all of it, for processors that cut."""
        return self._made(size)["pixel_values"].shape[1]

    def _made(self, size: Size) -> Any:
        from PIL import Image

        blank = Image.new("RGB", size, CANVAS_COLOUR)
        return self._processor(
            text=[self._processor.image_token], images=[[blank]], add_special_tokens=False, return_tensors="pt"
        )


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

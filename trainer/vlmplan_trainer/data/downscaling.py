"""The size of a processor's output for an image, measured by running it, and images scaled down by
``ImageDownscaler``."""

import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from vlmplan.chats.downscaling import Downscaling, Size
from vlmplan.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

PIXELS = ("pixel_values", "pixel_values_images", "image_pixel_values")
"""What models, and Video-LLaVA's processor, call the pixels of images."""
KEPT_SIZES = 4096
CANVAS_COLOUR = "white"
PROBES = ((112, 112), (336, 224))
"""Sizes by which a rule of a processor is told: unlike in area and shape."""


class ImageMeter:
    """The size of a processor's output for an image, by the image's size alone."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._counts = getattr(processor, "_get_num_multimodal_tokens", None)
        self.num_tokens = lru_cache(KEPT_SIZES)(self._num_tokens)
        self.amounts = lru_cache(KEPT_SIZES)(self._amounts)
        self.num_tiles = lru_cache(KEPT_SIZES)(self._num_tiles)
        self._among = lru_cache(KEPT_SIZES)(self._among_others)
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

    def num_patches(self, size: Size) -> float:
        """Patches of an image, infinite for one that is refused; those of a processor that does not tell are of its
        ``patch_size``, and of three colours."""
        amount = self.amounts(size)[1]
        return amount if self._counts is not None else amount / (3 * self._processor.image_processor.patch_size**2)

    def _num_tokens(self, size: Size) -> int:
        """Tokens that stand in the text for an image: its placeholders, and those that begin and end it or a row.

        Exact where the processor's own count is off by a constant, which two unlike sizes show; else a blank image of
        this size is processed.
        """
        if self._num_other_tokens is None:
            extras = {self._made(probe)["input_ids"].shape[1] - self.amounts(probe)[0] for probe in PROBES}
            self._num_other_tokens = int(extras.pop()) if len(extras) == 1 else -1
        amount = self.amounts(size)[0]
        if not math.isfinite(amount):
            raise InputError(f"an image of {size[0]} x {size[1]} pixels is refused by the model's image processor")
        if self._counts is None or self._num_other_tokens < 0:
            return int(self._made(size)["input_ids"].shape[1])
        return int(amount) + self._num_other_tokens

    def num_tokens_among(self, size: Size, *, is_first: bool) -> int:
        """As ``num_tokens``, of one image of a sample with several: LLaVA-OneVision cuts none of those into tiles, and
        PaliGemma writes what is around images once."""
        if not self._takes_several_otherwise:
            return self.num_tokens(size)
        first, later = self._among(size if self._goes_by_size else PROBES[0])
        return first if is_first else later

    @cached_property
    def _takes_several_otherwise(self) -> bool:
        return any(self._among(probe) != (self.num_tokens(probe),) * 2 for probe in PROBES)

    @cached_property
    def _goes_by_size(self) -> bool:
        """Whether images of a sample with several have other numbers of tokens by their sizes."""
        return len({self._among(probe) for probe in PROBES}) > 1

    def _among_others(self, size: Size) -> tuple[int, int]:
        """Tokens of the first of a sample's images of this size, and of each later one."""
        two, three = (self._made(size, number)["input_ids"].shape[1] for number in (2, 3))
        return 2 * two - three, three - two - self._num_between

    def _num_tiles(self, size: Size) -> int:
        """Tiles that the only image of a sample is cut into, with that of all of it, for processors that cut."""
        return self._made(size)["pixel_values"].shape[1]

    def more_digits(self, place: int) -> int:
        """Tokens that the number before an image of this place in its sample has beyond those of the first, in
        processors that number them (MiniCPM-V's)."""
        numbers = hasattr(self._processor, "image_id_start_token") and self._processor.image_processor.use_image_id
        return len(self._ids(str(place))) - len(self._ids("0")) if numbers else 0

    @cached_property
    def stand_in(self) -> tuple[str, int]:
        """A short text that joins those around it as what the processor writes for an image does, and its tokens.

        One special token with the blanks that are written around images (Gemma 3): a tokenizer may join them to those
        of the text. It is another than the placeholder where that is no token of its own (Ovis 2).
        """
        token, tokenizer = image_text(self._processor), self._processor.tokenizer
        written = self._written
        special = [match.span() for match in _any_of(tokenizer.get_added_vocab()).finditer(written)]
        is_whole = len(self._ids(token)) == 1
        if not special or (is_whole and (special[0][0], special[-1][1]) == (0, len(written))):
            return token, len(self._ids(token))
        (start, end), (_, last) = special[0], special[-1]
        text = written[:start] + (token if is_whole else written[start:end]) + written[last:]
        return text, len(self._ids(text))

    @cached_property
    def shown_text(self) -> str:
        """A text that shows an image and nothing else."""
        return image_text(self._processor)

    @property
    def takes_text(self) -> bool:
        """Whether the processor takes a text without an image."""
        return not hasattr(self._processor, "multi_page")

    @cached_property
    def needs_image(self) -> bool:
        """Whether no text can be encoded without an image: the processor writes what stands around it, and refuses one
        without (PaliGemma's)."""
        try:
            self._processor(text=["a"])
        except Exception:  # ValueError of PaliGemma's; of another whatever it is that it cannot do
            return self.takes_text
        return False

    @property
    def _written(self) -> str:
        """What the processor writes for an image; empty where it does not say it."""
        made = self._made(PROBES[0], return_text_replacement_offsets=True)
        places = (made.get("text_replacement_offsets") or [[]])[0]
        return places[0]["replacement"] if places else ""

    def _ids(self, text: str) -> list[int]:
        return self._processor.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    @cached_property
    def _between(self) -> str:
        """A token between images, across which a tokenizer joins nothing of what is written around them."""
        return self._processor.tokenizer.eos_token or ""

    @property
    def _num_between(self) -> int:
        return len(self._ids(self._between)) if self._between else 0

    def _made(self, size: Size, number: int = 1, **options: bool) -> Any:
        from PIL import Image

        blank = Image.new("RGB", size, CANVAS_COLOUR)
        return self._processor(
            text=[self._between.join([self.shown_text] * number)],
            images=images_of_sample(self._processor, [blank] * number),
            add_special_tokens=False,
            return_tensors="pt",
            **options,
        )


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """One of the texts, the longest that there is; those of blanks alone, as Gemma's line breaks are, are none."""
    shown = sorted(filter(str.strip, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, shown)) or "(?!)")


def image_text(processor: Any) -> Any:
    """What stands for an image in a text that the processor is given: not always the token that it repeats for it
    (``QianfanOCRProcessor``)."""
    return getattr(processor, "image_placeholder_token", None) or getattr(processor, "image_token", None)


def images_of_sample(processor: Any, images: Sequence[Any]) -> Sequence[Any]:
    """The images of a sample alone, as its processor takes them: to ``GotOcr2Processor`` a list of images in a list are
    pages of one document."""
    return images if hasattr(processor, "multi_page") else [images]


def text_of(processor: Any, kind: str) -> str | None:
    """What stands in a text for an ``image``, a ``video`` or ``audio``; None: the processor takes none."""
    return image_text(processor) if kind == "image" else getattr(processor, f"{kind}_token", None)


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

"""Samples of Idefics2, whose processor writes its images into the text by replacing strings.

transformers 5.23 ``Idefics2Processor.__call__``: in place of each ``<image>`` as many as a picture has features,
between two ``<fake_token_around_image>``; of images that are cut, five pictures in a row. Where two of those tokens
meet, one stays, and a blank follows the last of them before anything but blanks and ``<``. It does not say where it
wrote.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from vlmplan.chats.learnt import Rendered, Span
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan_trainer.data.encode import Encoded, Encoder
from vlmplan_trainer.data.places import ShownTokens

PIXELS, PIXEL_MASK = "pixel_values", "pixel_attention_mask"
NUM_PICTURES_OF_SPLIT = 5
"""Four quarters and the image (``image_str * 5``)."""


class FencedImageEncoder(Encoder):
    """Encodes samples whose images stand between two tokens that neighbours share."""

    asks_places = False

    def rendered(self, sample: Sample) -> Rendered:
        """As ``Encoder.rendered``; the token around images is refused in a text, of which the processor takes one
        away where two meet."""
        made = super().rendered(sample)
        self._refuse_fences(sample, made.text)
        return made

    def prompt(self, sample: Sample) -> str:
        text = super().prompt(sample)
        self._refuse_fences(sample, text)
        return text

    def _refuse_fences(self, sample: Sample, text: str) -> None:
        fence = self.processor.fake_image_token
        if fence in text:
            raise InputError(f"{sample.source}: the text has {fence}, which the processor writes around images; a text "
                             f"must not hold that token")  # fmt: skip

    def alongside(self, rows: Sequence[Encoded]) -> Sequence[Encoded]:
        """Rows without images with an empty one, as the processor has them beside others; the model leaves it out."""
        shown = next((row for row in rows if PIXELS in row), None)
        if shown is None:
            return rows
        empty = {name: torch.zeros_like(shown[name][:, :1]) for name in (PIXELS, PIXEL_MASK) if name in shown}
        return [row if PIXELS in row else {**row, **empty} for row in rows]

    def with_images(self, sample: Sample, text: str, first: int) -> tuple[str, ShownTokens]:
        """The text as the processor writes it. Raises InputError, saying which, for an image that it refuses."""
        num_reduced = 0
        for image in sample.images:
            size = (image.width, image.height)
            fit = self.fit(size)
            num_reduced += fit.scaled != size
            assert self.meter is not None
            if not math.isfinite(self.meter.amounts(fit.canvas)[0]):
                raise InputError(
                    f"{sample.source}: an image of {size[0]} x {size[1]} pixels is refused by the model's image "
                    f"processor"
                )
        written, spans = self._written(text)
        places = tuple((end - 1, 0) for _, (start, end) in spans if start < end)
        ends = tuple((before[1], after[1]) for before, after in spans)
        return written, ShownTokens(places=places, num_reduced=num_reduced, ends=ends)

    def _processed(self, sample: Sample, rendered: Rendered) -> dict[str, Any]:
        """With the places of the images."""
        made = super()._processed(sample, rendered)
        places = [{"span": before, "new_span": after} for before, after in self._written(rendered.text)[1]]
        return made | {"text_replacement_offsets": [places]}

    def _written(self, text: str) -> tuple[str, list[tuple[Span, Span]]]:
        """``text`` as the processor writes it, and where each image stood and stands; what is written behind the last
        of a row has a place of its own, without a character."""
        processor = self.processor
        fence, token = processor.fake_image_token, processor.image_token
        is_split = processor.image_processor.do_image_splitting
        image = fence.join([token * processor.image_seq_len] * (NUM_PICTURES_OF_SPLIT if is_split else 1)) + fence
        pieces, spans, end, length = list[str](), list[tuple[Span, Span]](), 0, 0
        for found in re.finditer(re.escape(token), text):
            start, stop = found.span()
            shown = image if spans and start == end else fence + image
            pieces += [text[end:start], shown]
            length += start - end + len(shown)
            spans.append(((start, stop), (length - len(shown), length)))
            if re.match(r"[^\s<]", text[stop:]):
                pieces.append(" ")
                length += 1
                spans.append(((stop, stop), (length, length)))
            end = stop
        return "".join([*pieces, text[end:]]), spans

"""Samples of Llama 3.2 Vision, whose text has one marker for each image and looks at it through cross-attention.

Its inputs beside the text have the samples of a micro batch in dimension 0 and their images in the next (transformers
5.23 ``MllamaProcessor``): pixels (samples, images, tiles, 3, height, width), ``aspect_ratio_ids`` (samples, images),
``aspect_ratio_mask`` (samples, images, tiles) and ``cross_attention_mask`` (samples, tokens, images, tiles), which says
what tiles each token looks at. A sample that has fewer images than others beside it has empty ones, as the processor
makes them: pixels of 0 and a first tile that nothing looks at.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.downscaling import Size
from vlmplan.chats.learnt import Rendered
from vlmplan.chats.samples import Sample
from vlmplan_trainer.data.downscaling import ImageMeter
from vlmplan_trainer.data.encode import CROSS_MASK, SEQUENCE_KEYS, Encoded, Encoder
from vlmplan_trainer.data.places import moved

TILES = "aspect_ratio_mask"


class MarkerMeter(ImageMeter):
    """The size of a processor's output, which writes the marker of an image as it stands."""

    @property
    def _written(self) -> str:
        return ""

    @cached_property
    def _between(self) -> str:
        return ""

    def _made(self, size: Size, number: int = 1, **options: bool) -> Any:
        """Without the token that begins a text, which the processor writes behind markers that begin one."""
        made = super()._made(size, number, **options)
        made["input_ids"] = made["input_ids"][:, :number]
        return made


class CrossAttendedEncoder(Encoder):
    """Encodes samples whose images are looked at through cross-attention."""

    meter_class = MarkerMeter
    asks_places = False
    needs_blanks = False

    def rendered(self, sample: Sample) -> Rendered:
        """As ``Encoder.rendered``, with the token that begins a text where the processor would write it: behind the
        markers that stand first (``build_string_from_input``)."""
        made = super().rendered(sample)
        bos = self.tokenizer.bos_token
        if bos in made.text:
            return made
        first = re.match(f"(?:{re.escape(self.processor.image_token)})*", made.text)
        at = first.end() if first else 0
        written = [{"span": (at, at), "new_span": (at, at + len(bos))}]
        spans = tuple((moved(start, written), moved(end, written)) for start, end in made.spans)
        return replace(made, text=made.text[:at] + bos + made.text[at:], spans=spans)

    def adds_special_tokens(self, rendered: Rendered) -> bool:
        """The text has the token that begins it."""
        return False

    def _processed(self, sample: Sample, rendered: Rendered) -> dict[str, Any]:
        """With the places of the markers, which stay as they are in the text."""
        made = super()._processed(sample, rendered)
        markers = [found.span() for found in re.finditer(re.escape(self.processor.image_token), rendered.text)]
        return made | {"text_replacement_offsets": [[{"span": span, "new_span": span} for span in markers]]}

    def alongside(self, rows: Sequence[Encoded]) -> Sequence[Encoded]:
        """Rows with as many images as the most of them, at least one, of which none of their tokens looks at more."""
        most = max(1, *(_num_images(row) for row in rows))
        return [self._with_empty(row, most - _num_images(row)) for row in rows]

    def _with_empty(self, row: Encoded, number: int) -> Encoded:
        """``row`` with so many empty images more."""
        if not number:
            return row
        blank = self.blank_image
        empty = {name: torch.zeros_like(value) for name, value in blank.items() if name not in SEQUENCE_KEYS}
        empty[TILES][..., 0] = 1
        empty[CROSS_MASK] = torch.zeros_like(blank[CROSS_MASK][:, :1]).repeat(1, row["input_ids"].shape[1], 1, 1)
        shown = {name: [row[name]] if name in row else [] for name in empty}
        images = {
            name: torch.cat([*shown[name], *[value] * number], dim=2 if name == CROSS_MASK else 1)
            for name, value in empty.items()
        }
        return {**row, **images}


def _num_images(row: Encoded) -> int:
    return row[TILES].shape[1] if TILES in row else 0

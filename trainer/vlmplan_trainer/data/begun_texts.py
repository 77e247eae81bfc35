"""Texts before each of which the processor writes the token that begins one (Molmo 2).

Source: transformers 5.23 ``models/molmo2/processing_molmo2.py`` (``Molmo2Processor.__call__``). The token stands in the
text before the processor gets it, so that the characters of the text are those that the processor's offsets are of.
"""

from dataclasses import replace
from typing import Any

from vlmplan.chats.downscaling import Size
from vlmplan.chats.learnt import Rendered
from vlmplan.chats.samples import Sample
from vlmplan_trainer.data.downscaling import ImageMeter
from vlmplan_trainer.data.encode import Encoder


class BegunMeter(ImageMeter):
    """The size of a processor's output without the token that begins a text."""

    def _made(self, size: Size, number: int = 1, **options: bool) -> Any:
        made = super()._made(size, number, **options)
        made["input_ids"] = made["input_ids"][:, 1:]
        return made


class BegunTextEncoder(Encoder):
    """Encodes samples whose texts begin with a token that no chat template has to write."""

    meter_class = BegunMeter

    def rendered(self, sample: Sample) -> Rendered:
        """As ``Encoder.rendered``, begun."""
        made = super().rendered(sample)
        num_more = len(self._begin(made.text))
        spans = tuple((start + num_more, end + num_more) for start, end in made.spans)
        return replace(made, text=self._begin(made.text) + made.text, spans=spans)

    def prompt(self, sample: Sample) -> str:
        """As ``Encoder.prompt``, begun."""
        text = super().prompt(sample)
        return self._begin(text) + text

    def _begin(self, text: str) -> str:
        """What the processor would write before ``text``."""
        token = self.tokenizer.bos_token or self.tokenizer.eos_token
        return "" if text.startswith(token) else token

"""Samples of BLIP-2 and InstructBLIP, whose processors put the tokens of an image before all tokens of the text.

transformers 5.23 ``Blip2Processor`` and ``InstructBlipProcessor``: ``num_query_tokens`` times ``<image>``, of one
image, in front of the tokens of the text, in which no image has a place; the models' classes take no text without an
image.

The Q-Former of InstructBLIP reads text too. It gets what comes before the first answer, as it does when the model
writes one: its attention sees all of its text, so that of the whole chat the image's features would give the answer
away.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.downscaling import Size
from vlmplan.chats.learnt import Rendered
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan_trainer.data.batches import padded
from vlmplan_trainer.data.downscaling import CANVAS_COLOUR, PROBES, ImageMeter
from vlmplan_trainer.data.encode import Encoded, Encoder, LeftOutError, PlannedSamples
from vlmplan_trainer.data.places import ShownTokens
from vlmplan_trainer.labels import IGNORED_LABEL

QFORMER_IDS, QFORMER_MASK = "qformer_input_ids", "qformer_attention_mask"
BEFORE_TEXT = -1
"""A place before its first character."""


class QueryMeter(ImageMeter):
    """The size of the output of a processor that makes every image as large as every other."""

    @cached_property
    def made_of_blank(self) -> Any:
        """What the processor makes of a white image without a text."""
        from PIL import Image

        blank = Image.new("RGB", PROBES[0], CANVAS_COLOUR)
        return self._processor(text=[""], images=[blank], add_special_tokens=False, return_tensors="pt")

    def _made(self, size: Size, number: int = 1, **options: bool) -> Any:
        return self.made_of_blank


class QueriedImageEncoder(Encoder):
    """Encodes samples of one image each, whose tokens come first."""

    meter_class = QueryMeter
    asks_places = False
    places_no_images = True
    needs_images = True

    def __init__(self, processor: Any, planned: PlannedSamples, **more: Any) -> None:
        super().__init__(processor, planned, **more)
        self._num_queries = int(getattr(processor, "num_query_tokens", None) or 0)
        if not self._num_queries:
            raise InputError(
                f"the model's {type(processor).__name__} does not say num_query_tokens (processor_config.json), so it "
                f"writes no tokens for images; give it the number that config.json has"
            )
        self._asks: Any = getattr(processor, "qformer_tokenizer", None)
        """The tokenizer of a Q-Former that reads text."""

    @cached_property
    def shown_ids(self) -> torch.Tensor:
        return torch.tensor([self.tokenizer.convert_tokens_to_ids(str(self.processor.image_token))])

    @cached_property
    def blank_image(self) -> Encoded:
        """As ``Encoder`` has it. The text of its Q-Former is one token that nothing looks at."""
        assert isinstance(self.meter, QueryMeter)
        made = dict(self.meter.made_of_blank)
        made["labels"] = torch.full_like(made["input_ids"], IGNORED_LABEL)
        if self._asks is not None:
            made[QFORMER_IDS] = torch.tensor([[self._asks.pad_token_id or 0]])
            made[QFORMER_MASK] = torch.zeros_like(made[QFORMER_IDS])
        return self._known(made)

    def with_images(self, sample: Sample, text: str, first: int) -> tuple[str, ShownTokens]:
        """The text as it stands. Raises LeftOutError for one that the Q-Former has no room for."""
        if not sample.images:
            return text, ShownTokens(places=())
        if self._asks is not None:
            self._asked(sample, text, first)
        sizes = [(image.width, image.height) for image in sample.images]
        num_reduced = sum(self.fit(size).scaled != size for size in sizes)
        return text, ShownTokens(places=((BEFORE_TEXT, self._num_queries),), num_reduced=num_reduced)

    def alongside(self, rows: Sequence[Encoded]) -> Sequence[Encoded]:
        """Rows whose Q-Former reads as many tokens, padded as its tokenizer does."""
        longest = max((row[QFORMER_IDS].shape[1] for row in rows if QFORMER_IDS in row), default=0)
        return [self._padded(row, longest) if QFORMER_IDS in row else row for row in rows]

    def _padded(self, row: Encoded, longest: int) -> Encoded:
        ids, mask = row[QFORMER_IDS], row[QFORMER_MASK]
        pad_id = self._asks.pad_token_id if self._asks is not None and self._asks.pad_token_id is not None else 0
        return {**row, QFORMER_IDS: padded(ids, [longest], pad_id), QFORMER_MASK: padded(mask, [longest], 0)}

    def _refuse_other_image_tokens(self, sample: Sample, text: str) -> None:
        if len(sample.images) > 1:
            raise InputError(
                f"{sample.source}: the sample shows {len(sample.images)} images, but the model's processor writes the "
                f"tokens of one"
            )
        token = str(self.processor.image_token)
        if token in text:
            raise InputError(
                f"{sample.source}: the text has {token}, the model's token for an image, which its processor puts "
                f"before the text; a text must not hold that token"
            )

    def _processed(self, sample: Sample, rendered: Rendered) -> dict[str, Any]:
        """With the text as one that the image's tokens stand in front of."""
        made = super()._processed(sample, rendered)
        if not sample.images:
            return {name: value for name, value in made.items() if name not in (QFORMER_IDS, QFORMER_MASK)}
        if self._asks is not None:
            made |= self._asked(sample, rendered.text, min(start for start, _ in rendered.spans))
        [offsets] = made["offset_mapping"]
        shown = offsets[: self._num_queries]
        written = max(end for _, end in shown)
        text = [(start + written, end + written) for start, end in offsets[self._num_queries :]]
        place = {"span": (0, 0), "new_span": (0, written)}
        return made | {"offset_mapping": [[*shown, *text]], "text_replacement_offsets": [[place]]}

    def _asked(self, sample: Sample, text: str, first: int) -> dict[str, Any]:
        """What the Q-Former reads: the text up to ``first``, where an answer begins. Raises LeftOutError for more than
        a plan has room for."""
        adds = self.adds_special_tokens(Rendered(text=text, spans=()))
        made = self._asks([text[:first]], add_special_tokens=adds, return_token_type_ids=False, verbose=False)
        room = self.seq_len - self._num_queries
        [ids] = made["input_ids"]
        if len(ids) > room:
            raise LeftOutError(
                f"{sample.source}: the text before the answer has {len(ids)} tokens of the Q-Former, for which "
                f"--seq-len {self.seq_len} leaves {room}"
            )
        return {QFORMER_IDS: made["input_ids"], QFORMER_MASK: made["attention_mask"]}

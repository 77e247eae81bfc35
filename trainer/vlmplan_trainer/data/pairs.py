"""A sample as what an encoder reads and what a decoder is to write, each with the tokens that its tokenizer adds.

Both are cut at the plan's lengths, as transformers' examples for ``Seq2SeqTrainer`` do it.
"""

from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.pairs import Pair, pair_of
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan_trainer.data.encode import Encoded, Encoder, PlannedSamples
from vlmplan_trainer.labels import IGNORED_LABEL, TARGET_LABELS


class PairEncoder(Encoder):
    """Encodes samples for a model with an encoder and a decoder.

    ``target_len`` is the plan's length of answers, and those of a sample are padded to a multiple of
    ``target_pads_to``.
    """

    needs_places = False
    reads_images = False
    """Whether prompts have images, whatever else the model's class takes."""
    measures = "prompt"
    """What ``measure`` tells the length of."""

    def __init__(
        self, processor: Any, planned: PlannedSamples, *, target_len: int, target_pads_to: int, **more: Any
    ) -> None:
        super().__init__(processor, planned, **more)
        self.target_len, self._target_pads_to = target_len, target_pads_to

    def encode(self, sample: Sample) -> Encoded:
        """The tensors of a sample. Raises InputError naming it."""
        pair = self.pair(sample)
        ids = torch.tensor([self._prompt(pair, max_length=self.seq_len)])
        labels = self._padded_answer(pair)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), TARGET_LABELS: labels}

    def encode_or_nothing(self, sample: Sample) -> Encoded:
        """As ``encode``: a text that a scan has encoded can be encoded again."""
        return self.encode(sample)

    @cached_property
    def nothing(self) -> Encoded:
        """A token of a prompt, and one of an answer of which nothing is learned."""
        ids = torch.tensor([[self.pad_id]])
        labels = torch.full((1, min(self._target_pads_to, self.target_len)), IGNORED_LABEL)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), TARGET_LABELS: labels}

    def measure(self, sample: Sample) -> tuple[int, int]:
        """Tokens of the prompt before the cut, and no images; an answer that is cut is noted."""
        pair = self.pair(sample)
        if len(self._answer(pair)) > self.target_len:
            self.truncated.add(sample.source)
        return len(self._prompt(pair)), 0

    def pair(self, sample: Sample) -> Pair:
        """Prompt and answer. Raises InputError for what an encoder of text cannot take, and for a chat that ends with
        no answer."""
        self._refuse_unseen_images(sample)
        if (sample.images or sample.videos) and not self.reads_images:
            raise InputError(f"{sample.source}: the sample shows an image, but the model is trained on prompts of text")
        return pair_of(sample)

    def _padded_answer(self, pair: Pair) -> torch.Tensor:
        answer = self._answer(pair, max_length=self.target_len)
        missing = min(-len(answer) % self._target_pads_to, self.target_len - len(answer))
        return torch.tensor([answer + [IGNORED_LABEL] * missing])

    def _prompt(self, pair: Pair, **cut: int) -> list[int]:
        return list(self.tokenizer(pair.prompt, truncation=bool(cut), verbose=False, **cut)["input_ids"])

    def _answer(self, pair: Pair, **cut: int) -> list[int]:
        return list(self.tokenizer(text_target=pair.answer, truncation=bool(cut), verbose=False, **cut)["input_ids"])

"""A sample as an image that an encoder reads, and the answer that a decoder is to write.

What becomes of a prompt differs (transformers 5.23). The encoder of Florence-2 reads it behind the image. Where the
encoder reads the image alone, the decoder of Donut and of Pix2Struct is given it before the answer, as ``generate`` is
(``_prepare_decoder_input_ids_for_generation`` in ``generation/utils.py``, ``processing_pix2struct.py``); a Pix2Struct
that answers questions has it drawn above the image (``is_vqa``); the processors of others, TrOCR's among them, take
none. ``DonutProcessor`` tokenizes without the tokens that begin and end a text; what ends an answer is added here where
the tokenizer does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.pairs import Pair
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan_trainer.data.encode import Encoded, Encoder, LeftOutError, PlannedSamples
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.pairs import PairEncoder
from vlmplan_trainer.labels import DECODER_INPUTS, IGNORED_LABEL, TARGET_LABELS

DONUT = "donut"
"""Part of the model_type of encoders whose decoder is prompted by the first tokens of its text."""
ANSWER = "answer"
"""What is measured of a sample without a prompt."""


class Prompting(Enum):
    """What is done with the prompt of a sample."""

    ENCODER = "read behind the image"
    DRAWN = "drawn above the image"
    DECODER = "given to the decoder"
    NONE = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderStart:
    """``token``: what a decoder without a prompt is given first. ``is_donut``: with one it is given that alone."""

    token: int
    is_donut: bool = False


def prompting_of(config: Mapping[str, Any], processor: Any) -> Prompting:
    """What becomes of prompts, by config.json and the processor."""
    model_type = config.get("model_type")
    if model_type == "florence2":
        return Prompting.ENCODER
    if model_type == "pix2struct":
        return Prompting.DRAWN if processor.image_processor.is_vqa else Prompting.DECODER
    return Prompting.DECODER if is_donut(config) else Prompting.NONE


def is_donut(config: Mapping[str, Any]) -> bool:
    """Whether the encoder is Donut's (Nougat's too)."""
    encoder = config.get("encoder")
    return isinstance(encoder, Mapping) and DONUT in str(encoder.get("model_type", ""))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


class SeenPairEncoder(PairEncoder):
    """Encodes samples of one image each. Where the encoder reads it alone, lengths are those of answers."""

    needs_blanks = False

    reads_images = True

    def __init__(
        self,
        processor: Any,
        planned: PlannedSamples,
        *,
        prompting: Prompting,
        start: DecoderStart | None,
        **more: Any,
    ) -> None:
        super().__init__(processor, planned, **more)
        self._prompting, self._start = prompting, start
        if start is not None:
            self.seq_len, self.measures = self.target_len, ANSWER

    def encode(self, sample: Sample) -> Encoded:
        """The tensors of a sample. Raises InputError naming it."""
        pair = self.pair(sample)
        [part] = sample.images
        image = opened(part.source, name=f"{sample.source}: image 1")
        try:
            return self._encoded(pair, image)
        except ValueError as error:  # such as a task of Florence-2 with more text beside it
            reason = " ".join(str(error).split())
            raise InputError(f"{sample.source}: the model's processor refuses the sample: {reason}") from None

    def encode_or_nothing(self, sample: Sample) -> Encoded:
        """As ``Encoder`` has it: an image may turn out bad during training."""
        return Encoder.encode_or_nothing(self, sample)

    @cached_property
    def nothing(self) -> Encoded:
        """A white image of which nothing is learnt."""
        from PIL import Image

        pair = Pair(prompt="." if self._prompting is Prompting.DRAWN else "", answer="")
        made = self._encoded(pair, Image.new("RGB", (64, 64), "white"))
        return made | {TARGET_LABELS: torch.full_like(made[TARGET_LABELS], IGNORED_LABEL)}

    def measure(self, sample: Sample) -> tuple[int, int]:
        """Tokens of the prompt with its image, or of the answer where the encoder reads no text, before the cut."""
        pair = self.pair(sample)
        if self._start is not None:
            return len(self._labels(pair, cut=False)), 0
        if len(self._answer(pair)) > self.target_len:
            self.truncated.add(sample.source)
        return len(self.tokenizer(self._laid_out(pair, sample), verbose=False)["input_ids"]), 0

    def pair(self, sample: Sample) -> Pair:
        """Prompt and answer. Raises InputError for what the model cannot take."""
        if len(sample.images) != 1:
            raise InputError(
                f"{sample.source}: the sample shows {len(sample.images)} images; the model's encoder reads one image "
                f"in each sample"
            )
        pair = super().pair(sample)
        pair = pair._replace(prompt=pair.prompt.strip("\n"))
        if pair.prompt and self._prompting is Prompting.NONE:
            raise InputError(
                f"{sample.source}: the sample has a prompt, {pair.prompt[:40]!r}, but the model's encoder reads an "
                f"image alone and its processor takes no text; leave the user's text out"
            )
        if not pair.prompt and self._prompting is Prompting.DRAWN:
            raise InputError(
                f"{sample.source}: the sample has no prompt, but the model's image processor draws one above the image "
                f"(is_vqa); give the user's question"
            )
        room = self.target_len - len(self._decoder_prompt(pair))
        if room < 1:
            raise LeftOutError(
                f"{sample.source}: the prompt, which the decoder is given before the answer, leaves no token of "
                f"--target-len {self.target_len} for that"
            )
        return pair

    # -- both sides --------------------------------------------------------------------------------------------------

    def _encoded(self, pair: Pair, image: Any) -> Encoded:
        if self._start is None:
            return self._with_prompt(pair, image)
        drawn = {"header_text": [pair.prompt]} if self._prompting is Prompting.DRAWN else {}
        made = self.processor.image_processor(images=[image], return_tensors="pt", **drawn)
        seen = {name: value for name, value in made.items() if name in self._accepted}
        prompt, labels = self._decoder_prompt(pair), self._labels(pair, cut=True)
        is_alone = self._is_prompted_alone(prompt)
        given = [*([] if is_alone else [self._start.token]), *prompt, *labels[len(prompt) - is_alone :]]
        missing = min(-len(labels) % self._target_pads_to, self.target_len - len(labels))
        num_tokens = len(labels) + missing
        return seen | {
            DECODER_INPUTS: torch.tensor([(given + [self.pad_id] * missing)[:num_tokens]]),
            TARGET_LABELS: torch.tensor([labels + [IGNORED_LABEL] * missing]),
        }

    def _with_prompt(self, pair: Pair, image: Any) -> Encoded:
        """Image and prompt for an encoder that reads both; what is too long is cut before the token that ends it."""
        made = self._known(dict(self.processor(text=[pair.prompt], images=[image], return_tensors="pt")))
        ids = made["input_ids"]
        if ids.shape[1] > self.seq_len:
            ids = torch.cat([ids[:, : self.seq_len - 1], ids[:, -1:]], dim=1)
        made |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return made | {TARGET_LABELS: self._padded_answer(pair)}

    def _laid_out(self, pair: Pair, sample: Sample) -> str:
        """The text that the processor tokenizes: the image's tokens, and the prompt as it words it.
        Raises InputError for a prompt that it refuses."""
        token = self.processor.image_token
        if token in pair.prompt:
            raise InputError(f"{sample.source}: the prompt has {token}, which stands for the image")
        try:
            [text] = self.processor.prepare_inputs_layout(images=None, text=[pair.prompt])[1]
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{sample.source}: the model's processor refuses the sample: {reason}") from None
        return token * self.processor.num_image_tokens + text

    # -- the decoder's side ------------------------------------------------------------------------------------------

    def _decoder_prompt(self, pair: Pair) -> list[int]:
        if self._prompting is not Prompting.DECODER or not pair.prompt:
            return []
        return list(self.tokenizer(pair.prompt, add_special_tokens=False, verbose=False)["input_ids"])

    def _is_prompted_alone(self, prompt: list[int]) -> bool:
        """Whether nothing comes before the prompt: the first token of Donut's says what to do."""
        return bool(prompt) and self._start is not None and self._start.is_donut

    def _labels(self, pair: Pair, *, cut: bool) -> list[int]:
        """What the decoder is to write at each place, nothing before the prompt's last token."""
        prompt = self._decoder_prompt(pair)
        silent = len(prompt) - self._is_prompted_alone(prompt)
        return [IGNORED_LABEL] * silent + self._ended_answer(pair, self.target_len - silent if cut else None)

    def _ended_answer(self, pair: Pair, room: int | None) -> list[int]:
        """The answer's tokens with the one that ends it, in as many as there is room for."""
        is_bare = self._start is not None and self._start.is_donut
        ids = list(self.tokenizer(text_target=pair.answer, add_special_tokens=not is_bare, verbose=False)["input_ids"])
        end = self.tokenizer.eos_token_id
        if end is not None and ids[-1:] != [end]:
            ids.append(end)
        if room is None or len(ids) <= room:
            return ids
        return [*ids[: room - 1], ids[-1]]

"""Tokens of a sample's text: by the model's own tokenizer and chat template, else estimated from its bytes.

Counted are the tokens that the trainer makes (``vlmplan_trainer/data/encode.py``): the whole chat through the template;
of a prompt and a completion that are texts, both and the token that ends a text. A token that stands for an image
or a sound is not among them: how many it becomes is known from its size or length. What a processor writes between the
frames of a video is: when they are, with the tokens around each.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from vlmplan.chats.frame_rules import FrameRule
from vlmplan.chats.frame_texts import IMAGE_TOKEN, SMOLVLM_TEMPLATE, VIDEO_TAG, FrameTexts, frame_texts
from vlmplan.chats.learnt import Span, plain_text
from vlmplan.chats.learnt_tokens import learnt_tokens
from vlmplan.chats.samplers import Sampler
from vlmplan.chats.samples import ImagePart, Sample, SoundPart, TextPart, Turn, VideoPart
from vlmplan.data_rules import OF_BUNDLED, LearntRule
from vlmplan.dataset.image_texts import NUM_AROUND, ImageTexts, beginning, refuse_own_tokens, with_images
from vlmplan.dataset.learnt_by import learnt_of_plain
from vlmplan.dataset.model_texts import ModelTexts
from vlmplan.dataset.record import PairTokens, TextTokens
from vlmplan.dataset.rendered_chats import rendered_chat
from vlmplan.dataset.rendering import ChatRenderer
from vlmplan.errors import InputError, MissingPackageError

MISSING = "counting tokens needs the package tokenizers: pip install 'vlmplan[data]'"
BYTES_PER_TOKEN = 3.2
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 2.3, 4.8
"""Of text in UTF-8. Measured in 2026: Vim's tutor in 32 languages, this project's documents, three licences and
Python's standard library, with the tokenizers of Qwen (152 thousand tokens, of dashscope 2.0.2) and of Mistral's
Tekken (131 thousand, of mistral-common 1.13.1): from 2.3 (Greek by Qwen's) to 4.8 (licences by Qwen's), 3.2 in the
middle. With 32 thousand tokens (Mistral v1) 2.8 in the middle, from 2.0 to 4.3."""
TOKENS_PER_TURN = 5
"""That a template writes around a turn: ``<|im_start|>user\\n`` and ``<|im_end|>\\n`` in ChatML, as many in Llama 3."""
TOKENS_PER_TEXT = 2
"""That a tokenizer puts around a text alone: BART's ``<s>`` and ``</s>``, mBART's language and end; T5's has one."""
PROBE = "a"
KEPT_TEXTS = 2**14
"""Of those between frames."""


class TokenCounter(Protocol):
    """``digest`` says what the counts depend on, ``about`` in words how they are made."""

    @property
    def digest(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

    def counts(self, samples: Sequence[Sample]) -> Sequence[TextTokens | PairTokens | InputError]:
        """Tokens of the text of each sample, or of its prompt and its answer, or why it has none."""
        ...


@dataclass(frozen=True, slots=True)
class BytesCounter:
    """Estimates tokens where the model's tokenizer is not at hand, ``why``."""

    why: str
    frames: FrameRule | None = None

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def digest(self) -> str:
        return f"bytes/{BYTES_PER_TOKEN}/{TOKENS_PER_TURN}"

    @property
    def about(self) -> str:
        least, most = BYTES_PER_TOKEN / MOST_BYTES_PER_TOKEN, BYTES_PER_TOKEN / LEAST_BYTES_PER_TOKEN
        return (
            f"tokens are estimated, {BYTES_PER_TOKEN} bytes each and {TOKENS_PER_TURN} a turn: the true number is "
            f"{least:.2f} to {most:.2f} times that, by language and tokenizer ({self.why})"
        )

    def counts(self, samples: Sequence[Sample]) -> list[TextTokens | InputError]:
        return [self._count(sample) for sample in samples]

    def texts(self, texts: Sequence[str], *, adds_special_tokens: bool) -> list[int]:
        """Tokens of each text by itself."""
        added = TOKENS_PER_TEXT if adds_special_tokens else 0
        return [max(1, round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)) + added for text in texts]

    def _count(self, sample: Sample) -> TextTokens | InputError:
        try:
            written = [*_between_frames(sample, self.frames)]
        except InputError as error:
            return InputError(f"{sample.source}: {error}")
        num_bytes = sum(len(turn.text.encode("utf-8", "replace")) for turn in sample.turns)
        more = [*sample.tools, *(turn.more.text for turn in sample.turns if turn.more is not None)]
        num_bytes += sum(len(text.encode("utf-8", "replace")) for text in more)
        num_bytes += sum(len(text) for one in written for text in one.texts)
        num_special = sum(one.num_special for one in written)
        num_tokens = max(1, round(num_bytes / BYTES_PER_TOKEN)) + TOKENS_PER_TURN * len(sample.turns) + num_special
        return TextTokens(num_tokens)


class _Written(NamedTuple):
    """A sample's text, and the characters of it that are learnt; None: these are not known."""

    text: str
    spans: Sequence[Span] | None


class ExactCounter:
    """Counts with tokenizer.json, through the chat template. Raises MissingPackageError without the packages for it,
    InputError for files that are no tokenizer or no template."""

    def __init__(
        self,
        texts: ModelTexts,
        frames: FrameRule | None = None,
        *,
        may_lose_thoughts: bool = False,
        learns: LearntRule = OF_BUNDLED,
    ) -> None:
        self._texts, self._frames, self._may_lose_thoughts, self._learns = texts, frames, may_lose_thoughts, learns
        self._tokens_of = lru_cache(KEPT_TEXTS)(self._num_tokens)
        self._tokenizer = _tokenizer(texts)
        self._renderer = None
        if texts.template is not None:
            self._renderer = ChatRenderer(texts.template, texts.special_tokens, source=texts.source)
        self._of_videos = self._renderer
        self._writes_videos = frames is not None and frames.sampler is Sampler.SMOLVLM
        if self._writes_videos:
            self._of_videos = ChatRenderer(SMOLVLM_TEMPLATE, texts.special_tokens, source=texts.source)
        self._placeholders: dict[str, int | None] = {}

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        return self._texts.digest

    @property
    def about(self) -> str:
        return f"tokens are counted with {self._texts.source} and its chat template"

    def counts(self, samples: Sequence[Sample]) -> list[TextTokens | InputError]:
        results: list[TextTokens | InputError] = [TextTokens(0)] * len(samples)
        waiting: dict[bool, list[tuple[int, _Written]]] = {True: [], False: []}
        for index, sample in enumerate(samples):
            try:
                written = self._begun(self._written(sample))
            except InputError as error:
                results[index] = InputError(f"{sample.source}: {str(error).removeprefix(f'{sample.source}: ')}")
                continue
            waiting[self._adds_special_tokens(sample, written.text)].append((index, written))
        for adds, texts in waiting.items():
            made: list[Any] = self._tokenizer.encode_batch([one.text for _, one in texts], add_special_tokens=adds)
            for (index, one), encoded in zip(texts, made, strict=True):
                num_tokens = self._count(samples[index], encoded.ids)
                spans, is_bad = one.spans, isinstance(num_tokens, InputError)
                tokens = None if spans is None or is_bad else learnt_tokens(encoded, spans)
                learnt = None if tokens is None else sum(end - begin for begin, end in tokens)
                results[index] = num_tokens if isinstance(num_tokens, InputError) else TextTokens(num_tokens, learnt)
        return results

    def _is_plain(self, sample: Sample) -> bool:
        is_before = self._texts.images is ImageTexts.BEFORE
        return sample.is_plain or (is_before and self._renderer is None and sample.is_exchange)

    def _adds_special_tokens(self, sample: Sample, text: str) -> bool:
        """Whether special tokens come around a text: around a processor's as its ``apply_chat_template`` decides it,
        around any that no template wrote."""
        begin = self._texts.special_tokens.get("bos_token")
        adds = self._texts.takes_parts or self._is_plain(sample)
        return adds and not (begin is not None and text.startswith(begin))

    def _written(self, sample: Sample) -> "_Written":
        if self._is_plain(sample):
            plain = plain_text(sample, self._texts.special_tokens)
            return _Written(plain.text, learnt_of_plain(self._learns, plain, sample))
        renderer = self._of_videos if sample.videos else self._renderer
        if renderer is None:
            raise InputError("the model has no chat template; samples with prompt and completion as texts can be used")
        text, learnt = rendered_chat(
            renderer, sample, self._content, may_lose_thoughts=self._may_lose_thoughts, learns=self._learns
        )
        num_tags = text.count(VIDEO_TAG) if self._writes_videos else len(sample.videos)
        if num_tags != len(sample.videos):
            raise InputError(f"the text has {num_tags} times {VIDEO_TAG}, and the sample shows {len(sample.videos)}")
        written = self._as_processed(text, sample)
        if learnt is None:
            return _Written(written, None)
        if written == text:
            return _Written(text, learnt.spans)
        # What is learnt shows nothing: what is written stands before a place in it or behind.
        places = [[len(self._as_processed(text[:place], sample)) for place in span] for span in learnt.spans]
        return _Written(written, [(first, last) for first, last in places])

    def _begun(self, written: "_Written") -> "_Written":
        begin = beginning(written.text, self._texts.images, self._texts.special_tokens)
        spans = written.spans
        if spans is not None:
            spans = [(first + len(begin), last + len(begin)) for first, last in spans]
        return _Written(begin + written.text, spans)

    def _as_processed(self, text: str, sample: Sample) -> str:
        """``text``, or its beginning, with what the processor writes around images and in place of videos."""
        text = self._with_images(text, sample)
        return self._with_written_videos(text, sample) if self._writes_videos else text

    def _content(self, turn: Turn) -> str | list[dict[str, str]]:
        if not self._texts.takes_parts:
            return turn.text
        return [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": _type_of(part)}
            for part in turn.content
        ]

    def _count(self, sample: Sample, ids: list[int]) -> int | InputError:
        if self._texts.images is ImageTexts.BEFORE:
            return self._count_behind_image(sample, ids)
        placed = 0
        for kind, one, shown in self._shown(sample):
            if not shown:
                continue
            token = self._placeholder(kind)
            if token is None:
                return InputError(f"{sample.source}: the model's chat template writes no token of its own for {one}")
            found = ids.count(token)
            if found != shown:
                return InputError(
                    f"{sample.source}: the model's token for {one} comes {found} times in the text, and the sample "
                    f"shows {shown}; a text must not hold that token, and the chat template has to place every "
                    f"{one.partition(' ')[2]}"
                )
            placed += shown
        placed += NUM_AROUND.get(self._texts.images, 0) * len(sample.images)
        if self._writes_videos:
            return len(ids) - placed
        try:
            written = [*_between_frames(sample, self._frames)]
        except InputError as error:
            return InputError(f"{sample.source}: {error}")
        between = sum(one.num_special + sum(map(self._tokens_of, one.texts)) for one in written)
        return len(ids) - placed + between

    def _count_behind_image(self, sample: Sample, ids: list[int]) -> int | InputError:
        """Tokens of a text that its image comes before."""
        if len(sample.images) > 1:
            return InputError(
                f"{sample.source}: the sample shows {len(sample.images)} images, but the model's processor writes the "
                f"tokens of one"
            )
        if not set(self._texts.placeholders).isdisjoint(ids):
            return InputError(
                f"{sample.source}: the text has the model's token for an image, which its processor puts before the "
                f"text; a text must not hold that token"
            )
        return len(ids)

    def _shown(self, sample: Sample) -> list[tuple[str, str, int]]:
        """What tokens stand for, and how often they do: frames are images where videos are written in the text."""
        images, videos = len(sample.images), len(sample.videos)
        if self._writes_videos and videos:
            assert self._frames is not None
            images += sum(len(self._frames.indices(video.header)) for video in sample.videos)
            videos = 0
        return [("image", "an image", images), ("video", "a video", videos), ("audio", "a sound", len(sample.sounds))]

    def _with_images(self, text: str, sample: Sample) -> str:
        """``text`` with what the processor writes around images, and one token for each."""
        text = self._with_tokens(text)
        if self._texts.images not in NUM_AROUND:
            return text
        refuse_own_tokens(text, self._texts.images, self._texts.special_tokens)
        token = self._placeholder("image") if sample.images else None
        if token is None:
            return text
        written = self._tokenizer.id_to_token(token)
        return with_images(text, self._texts.images, written, self._texts.special_tokens)

    def _with_tokens(self, text: str) -> str:
        return text if self._texts.image is None else text.replace(*self._texts.image)

    def _with_written_videos(self, text: str, sample: Sample) -> str:
        """``text``, or its beginning, with what SmolVLM's processor writes in place of each video, one token for a
        frame. Raises InputError where it refuses one."""
        written = [IMAGE_TOKEN.join(one.texts) for one in _between_frames(sample, self._frames)]
        pieces = text.split(VIDEO_TAG)
        return "".join(part for pair in zip(pieces, [*written[: len(pieces) - 1], ""], strict=True) for part in pair)

    def texts(self, texts: Sequence[str], *, adds_special_tokens: bool) -> list[int]:
        """Tokens of each text by itself."""
        made: list[Any] = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=adds_special_tokens)
        return [len(one.ids) for one in made]

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _placeholder(self, kind: str) -> int | None:
        if kind not in self._placeholders:
            self._placeholders[kind] = self._found_placeholder(kind)
        return self._placeholders[kind]

    def _found_placeholder(self, kind: str) -> int | None:
        """The token that the template writes once for one image, one video or one sound: one that config.json names,
        or for a video or a sound the only added token that is there with it alone (InternVL's videos and
        Phi-4-multimodal's sounds, which config.json does not name)."""
        if self._renderer is None or (kind == "image" and not self._texts.placeholders):
            return None
        try:
            without, ids = self._probed(), self._probed({"type": kind})
        except InputError:
            return None
        named = next((token for token in self._texts.placeholders if ids.count(token) == 1), None)
        if named is not None or kind == "image":
            return named
        added = [token for token in self._tokenizer.get_added_tokens_decoder() if ids.count(token) == 1]
        new = [token for token in added if token not in without]
        return new[0] if len(new) == 1 else None

    def _probed(self, *shown: dict[str, str]) -> list[int]:
        """The tokens of a chat whose user shows this beside his text."""
        assert self._renderer is not None
        said = {"type": "text", "text": PROBE}
        chat = [{"role": "user", "content": [*shown, said]}, {"role": "assistant", "content": [said]}]
        text = self._with_tokens(self._renderer.text(chat))
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _type_of(part: ImagePart | VideoPart | SoundPart) -> str:
    """What templates call it."""
    return "image" if isinstance(part, ImagePart) else "audio" if isinstance(part, SoundPart) else "video"


def _tokenizer(texts: ModelTexts) -> Any:
    try:
        tokenizers: Any = importlib.import_module("tokenizers")
    except ImportError:
        raise MissingPackageError(MISSING) from None
    try:
        made = tokenizers.Tokenizer.from_str(texts.tokenizer)
    except BaseException as error:  # Rust's panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{texts.source} is no tokenizer that the package tokenizers reads: {reason}") from None
    made.no_truncation()
    made.no_padding()
    return made


def token_counter(
    texts: ModelTexts | None,
    frames: FrameRule | None = None,
    *,
    may_lose_thoughts: bool = False,
    learns: LearntRule = OF_BUNDLED,
) -> TokenCounter:
    """The exact counter where tokenizer and packages are at hand, else the estimate. ``frames``: how the model's
    processor takes them, where it writes what stands between them; ``may_lose_thoughts`` and ``learns`` as of
    ``MediaReading``."""
    if texts is None:
        return BytesCounter("no tokenizer.json of the model is in its folder or the Hub's cache", frames)
    try:
        return ExactCounter(texts, frames, may_lose_thoughts=may_lose_thoughts, learns=learns)
    except MissingPackageError as error:
        return BytesCounter(str(error), frames)


def _between_frames(sample: Sample, frames: FrameRule | None) -> Iterator[FrameTexts]:
    """What is written between the frames of each video. Raises InputError, naming the video, for one that the model's
    processor refuses."""
    if frames is None:
        return
    taken: list[list[int]] = []
    for video in sample.videos:
        try:
            taken.append(frames.indices(video.header))
        except InputError as error:
            raise InputError(f"the video {video.source}: {error}") from None
    most = max(map(len, taken), default=0)
    for video, indices in zip(sample.videos, taken, strict=True):
        yield frame_texts(frames, indices, video.header, num_shown=most)

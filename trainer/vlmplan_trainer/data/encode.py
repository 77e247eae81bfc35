"""A sample as the tensors that the model's forward takes, with labels on the assistant's tokens.

Works with every fast tokenizer, and every processor of transformers 5.23 that says where it put image tokens: all that
leave that to ``ProcessorMixin``. Tested are those of Qwen2-VL, LLaVA, LLaVA-NeXT, Gemma 3, Idefics3 and InternVL; the
later Qwen-VL, GLM-4V, LLaVA-OneVision, SmolVLM, Pixtral and Ovis2 are of the same kind. What others write is known by
their code, in modules of their own (Llama 3.2 Vision, Idefics2, BLIP-2); the rest is refused by name.

A sample is a dict of tensors of shape (1, tokens), and of what the processor makes of its images, images first.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from vlmplan.chats.downscaling import Downscaling, ImageDownscaler, Size
from vlmplan.chats.image_files import PixelBudget
from vlmplan.chats.learnt import Rendered
from vlmplan.chats.samples import LEAVES_OUT, Sample, SoundPart, VideoPart
from vlmplan.errors import InputError
from vlmplan_trainer.data.downscaling import ImageMeter, downscaled_image, images_of_sample, text_of
from vlmplan_trainer.data.forward_inputs import accepted_names
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.places import ShownTokens, last, moved, overlapping
from vlmplan_trainer.data.sounds import PlannedSounds, SoundMeter
from vlmplan_trainer.data.templates import ChatTemplate
from vlmplan_trainer.data.videos import VideoLimits, VideoMeter, frames_of, videos_as_images
from vlmplan_trainer.labels import IGNORED_LABEL

CROSS_MASK = "cross_attention_mask"
"""What each token looks at, of models that show images to their text through cross-attention."""
TOKEN_KINDS = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
"""What processors say each token is of."""
SEQUENCE_KEYS = ("input_ids", "attention_mask", "labels", *TOKEN_KINDS, CROSS_MASK)
"""Tensors that begin with (samples, tokens); the others are about what is shown."""
BLANK_SIDE = 28

Encoded = dict[str, Tensor]


class LeftOutError(InputError):
    """A sound sample that the plan has no room for."""


class TooLongError(LeftOutError):
    """A cut at the plan's length would hit an image, a video or a sound."""

    def __init__(self, source: str, seq_len: int, shown: str = "image") -> None:
        super().__init__(
            f"{source}: the {shown}s do not fit into --seq-len {seq_len}, and {shown} tokens cannot be cut"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSamples:
    """What a plan says of its samples: longer ones than ``seq_len`` are cut, larger images than ``image_size`` (width,
    height) made smaller, and samples with more images than ``images_per_sample`` left out; None leaves images as they
    are."""

    seq_len: int
    image_size: Size | None = None
    images_per_sample: int | None = None
    videos: VideoLimits = field(default_factory=VideoLimits)
    """Within them those frames of a video are taken that the processor itself takes."""
    clip_frames: int | None = None
    """Where images are videos: of so many frames."""
    sounds: PlannedSounds | None = None
    """None: samples have none."""


class Encoder:
    """Encodes samples for one model, as they are planned.

    ``truncated`` and ``skipped`` are the sources of such samples, of all scans and of all that were encoded; ``late``
    has the sentences of those that no scan had found, by their sources.
    """

    needs_places = True
    """Whether the tokenizer has to say where tokens stand in a text."""
    needs_blanks = True
    """Whether samples without images get a blank one where others have some."""
    asks_places = True
    """Whether the processor is asked where it put the tokens of images."""
    places_no_images = False
    """Whether images have no place in a text."""
    needs_images = False
    """Whether the model's class takes no text without an image."""
    meter_class = ImageMeter

    def __init__(
        self,
        processor: Any,
        planned: PlannedSamples,
        *,
        model_type: str,
        skips_bad: bool = False,
    ) -> None:
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.is_vision = getattr(processor, "image_processor", None) is not None
        self.seq_len, self.images_per_sample = planned.seq_len, planned.images_per_sample
        self.skips_bad = skips_bad
        if self.needs_places and not getattr(self.tokenizer, "is_fast", False):
            raise InputError(f"the model's {type(self.tokenizer).__name__} does not say where tokens stand in a text; "
                             "a fast tokenizer (tokenizer.json) is needed")  # fmt: skip
        self._template = ChatTemplate(processor, needs_none=self.places_no_images)
        self._accepted = accepted_names(model_type) if self.is_vision else {"input_ids", "attention_mask"}
        self.meter = self.meter_class(processor) if self.is_vision else None
        self._planned = planned
        self._fitter = ImageDownscaler(self.meter, planned.image_size) if self.meter is not None else None
        self.sound_meter = None if planned.sounds is None else SoundMeter(processor, planned.sounds)
        self._tried_pixels = PixelBudget()
        self.truncated: set[str] = set()
        self.skipped: set[str] = set()
        self.late: dict[str, str] = {}

    @cached_property
    def video_meter(self) -> VideoMeter:
        """The meter of samples with videos. Raises InputError for a processor that has no part for them."""
        if getattr(self.processor, "video_processor", None) is None:
            raise InputError(f"the model's {type(self.processor).__name__} takes no videos")
        return VideoMeter(self.processor, self._planned.videos)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._template.is_there

    @property
    def num_truncated(self) -> int:
        return len(self.truncated)

    @property
    def num_skipped(self) -> int:
        return len(self.skipped)

    @property
    def pad_id(self) -> int:
        """What padding is filled with; masked, so any token will do where the tokenizer has none for it."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(token for token in ids if token is not None)

    @cached_property
    def shown_ids(self) -> Tensor:
        """Tokens that stand for images, videos and sounds."""
        named = (getattr(self.processor, f"{kind}_token_id", None) for kind in ("image", "video", "audio"))
        return torch.tensor([token for token in named if isinstance(token, int)], dtype=torch.int64)

    def encode(self, sample: Sample) -> Encoded:
        """The tensors of a sample. Raises InputError naming it, TooLongError if a cut would hit one of its images,
        videos or sounds."""
        rendered = self.rendered(sample)
        made = self._processed(sample, rendered)
        [offsets] = made.pop("offset_mapping")
        places = (made.pop("text_replacement_offsets", None) or [[]])[0]
        if sample.shown and not places:
            raise InputError(
                f"the model's {type(self.processor).__name__} does not say where it put {kind_of_last(sample)} tokens, "
                "so the assistant's turns cannot be told from them; it is not supported"
            )
        tensors = dict(BatchFeature(made).convert_to_tensors("pt"))
        if sample.sounds and self.sound_meter is not None:
            self.sound_meter.check(sample, tensors["input_ids"])
        if sample.videos:
            tensors = self.video_meter.with_seconds(sample, tensors)
        characters = torch.as_tensor(offsets).reshape(-1, 2)
        spans = [(moved(start, places), moved(end, places)) for start, end in rendered.spans]
        tensors["labels"] = torch.where(overlapping(characters, spans), tensors["input_ids"][0], IGNORED_LABEL)[None]
        image_tokens = overlapping(characters, [place["new_span"] for place in places])
        known = self._known(tensors)
        if sample.videos and self.video_meter.makes_images:
            known = videos_as_images(known, [isinstance(part, VideoPart) for part in sample.shown])
        return self._cut(sample, known, last(image_tokens))

    def encode_or_nothing(self, sample: Sample) -> Encoded:
        """The sample as ``encode`` has it, but ``nothing`` for a sample that does not fit after all and, if
        ``skips_bad``, a bad one."""
        try:
            return self.encode(sample)
        except InputError as error:
            if not self.skips_bad and not isinstance(error, LeftOutError):
                raise InputError(f"{error} ({LEAVES_OUT})") from None
            self.skipped.add(sample.source)
            if sample.source not in self.late:
                self.late[sample.source] = str(error)
                sys.stdout.write(f"left out: {error}\n")
                sys.stdout.flush()
            return self.nothing

    def alongside(self, rows: Sequence[Encoded]) -> Sequence[Encoded]:
        """``rows`` as they stand in one micro batch of data with images."""
        return rows

    @cached_property
    def nothing(self) -> Encoded:
        """One token that nothing is learned from, in place of a sample that turned out bad during training. Its kind is
        said where the processor says it of texts: Molmo 2's class is not trained without."""
        ids = torch.tensor([[self.pad_id]])
        text = self._processed(Sample(source="", turns=()), Rendered(text=".", spans=()))
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.full_like(ids, IGNORED_LABEL),
            **{name: torch.zeros_like(ids) for name in TOKEN_KINDS if name in text and name in self._accepted},
        }

    @cached_property
    def blank_image(self) -> Encoded:
        """A small white image and its tokens, without labels.

        Behind the text of a sample it changes nothing, because what comes later is not seen by what comes before; but
        the vision tower runs, as it has to on every rank where ranks gather its weights together.
        """
        from PIL import Image

        assert self.meter is not None
        blank = Image.new("RGB", (BLANK_SIDE, BLANK_SIDE), "white")
        made = dict(self.processor(
            text=[self.meter.shown_text],
            images=images_of_sample(self.processor, [blank]),
            add_special_tokens=False,
            return_tensors="pt",
        ))  # fmt: skip
        made["labels"] = torch.full_like(made["input_ids"], IGNORED_LABEL)
        return self._known(made)

    @cached_property
    def blank_video(self) -> Encoded:
        """A video like ``blank_image``: as few white frames as become one row of patches."""
        if self.video_meter.makes_images:
            return self.blank_image
        num_frames = self.video_meter.rule.merged_frames
        blank = torch.full((num_frames, 3, BLANK_SIDE, BLANK_SIDE), 255, dtype=torch.uint8)
        metadata = {"total_num_frames": num_frames, "fps": 1.0, "frames_indices": [*range(num_frames)]}
        made = dict(self.processor(
            text=[self.processor.video_token],
            videos=[blank],
            video_metadata=[metadata],
            do_sample_frames=False,
            add_special_tokens=False,
            return_tensors="pt",
        ))  # fmt: skip
        made["labels"] = torch.full_like(made["input_ids"], IGNORED_LABEL)
        return self._known(dict(BatchFeature(made).convert_to_tensors("pt")))

    @cached_property
    def blank_sound(self) -> Encoded:
        """A sound like ``blank_image``: a short silence."""
        assert self.sound_meter is not None
        made = self.sound_meter.blank
        return self._known(made | {"labels": torch.full_like(made["input_ids"], IGNORED_LABEL)})

    def rendered(self, sample: Sample) -> Rendered:
        """The text of a sample, one placeholder per image, video and sound. Raises InputError for what the model cannot
        take."""
        self._refuse_unseen_images(sample)
        rendered = self._template.rendered(sample)
        self._refuse_other_image_tokens(sample, rendered.text)
        return rendered

    def prompt(self, sample: Sample) -> str:
        """The text of a sample that has no answer yet; as ``rendered``."""
        self._refuse_unseen_images(sample)
        text = self._template.prompt(sample)
        self._refuse_other_image_tokens(sample, text)
        return text

    def _refuse_unseen_images(self, sample: Sample) -> None:
        if (sample.images or sample.videos) and not self.is_vision:
            shown = "an image" if sample.images else "a video"
            raise InputError(f"{sample.source}: the sample shows {shown}, but the model takes text only")
        if self.meter is not None and not sample.images and self.meter.needs_image:
            raise InputError(f"{sample.source}: the sample shows no image, and the model's processor needs one")
        if sample.sounds and self.sound_meter is None:
            raise InputError(f"{sample.source}: the sample has a sound, but the model takes none")

    def _refuse_other_image_tokens(self, sample: Sample, text: str) -> None:
        counts = (("image", "an image", sample.images), ("video", "a video", sample.videos))
        counts = (*counts, ("audio", "a sound", sample.sounds))
        has_part = {"video": getattr(self.processor, "video_processor", None), "audio": self.sound_meter}
        for kind, one, shown in counts:
            token = text_of(self.processor, kind)
            if token is None or has_part.get(kind, token) is None:
                continue
            if text.count(token) != len(shown):
                raise InputError(
                    f"{sample.source}: the text has {text.count(token)} times {token}, the model's token for {one}, "
                    f"and the sample shows {len(shown)}; a text must not hold that token, and the model's chat "
                    f"template has to place every {one.partition(' ')[2]}"
                )

    def with_images(self, sample: Sample, text: str, first: int) -> tuple[str, ShownTokens] | None:
        """``text`` with its images as a processor writes them that does it without a look at them, and what is shown in
        it; None of other processors. ``first``: where an answer begins."""
        return None

    def adds_special_tokens(self, rendered: Rendered) -> bool:
        """Whether the processor puts special tokens around a text: around a template's as its ``apply_chat_template``
        decides it, around any that has none."""
        bos = self.tokenizer.bos_token
        return (self.is_vision or rendered.is_plain) and not (bos is not None and rendered.text.startswith(bos))

    def measure(self, sample: Sample) -> tuple[int, int]:
        """Tokens of a sample before the cut, and its images that are made smaller; of encoders that know it without a
        scan's help."""
        raise NotImplementedError(type(self).__name__)

    def fit(self, size: Size) -> Downscaling:
        assert self._fitter is not None
        return self._fitter.fit(size)

    def has_room(self, sample: Sample) -> bool:
        """Whether the patches of all that a sample shows are no more than those of the plan's images."""
        if self.images_per_sample is None:
            return True
        if self._planned.image_size is None or self.meter is None:
            return False
        fits = [self.fit((image.width, image.height)).canvas for image in sample.images]
        if self.video_meter.makes_clips:  # tiles, each of which is a frame to the vision tower
            each = self.video_meter.frames_of_image
            room = self._planned.clip_frames or each or self.meter.num_tiles(self._planned.image_size)
            tiles = self.meter.num_tiles(fits[0]) if len(fits) == 1 and not each else len(fits) * (each or 1)
            tiles += sum(self.video_meter.num_patches(video.header) for video in sample.videos)
            return tiles <= self.images_per_sample * room
        patches = sum(map(self.meter.num_patches, fits))
        patches += sum(self.video_meter.num_patches(video.header) for video in sample.videos)
        frames, size = self._planned.clip_frames, self._planned.image_size
        room = self.meter.num_patches(size) if frames is None else self.video_meter.num_patches_of(frames, size)
        return patches <= self.images_per_sample * room

    def _processed(self, sample: Sample, rendered: Rendered) -> dict[str, Any]:
        options = {
            "add_special_tokens": self.adds_special_tokens(rendered),
            "return_offsets_mapping": True,
        }
        if self.meter is None or not (sample.images or self.meter.takes_text):
            return dict(self.tokenizer([rendered.text], **options))
        images = []
        for number, part in enumerate(sample.images, start=1):
            image = opened(part.source, name=f"{sample.source}: image {number}")
            images.append(downscaled_image(image, self.fit(image.size)))
        options |= {"images": images_of_sample(self.processor, images) if images else None}
        options |= {"return_text_replacement_offsets": True} if self.asks_places else {}
        options |= {"images_kwargs": {"return_tensors": "pt"}} if images else {}  # Ovis2's reads sizes from a tensor
        options |= self._videos(sample)
        if sample.sounds and self.sound_meter is not None:
            options |= self.sound_meter.inputs(sample)
        try:
            return dict(self.processor(text=[rendered.text], **options))
        except ValueError as error:  # such as an image 200 times as long as wide
            reason = " ".join(str(error).split())
            raise InputError(f"{sample.source}: the model's processor refuses the sample: {reason}") from None

    def _videos(self, sample: Sample) -> dict[str, Any]:
        """The frames that are taken of each video, as the processor is given them."""
        if not sample.videos:
            return {}
        meter = self.video_meter
        metadata = [meter.metadata(part.header) for part in sample.videos]
        frames = [
            frames_of(meter.fitted(part), one["frames_indices"], name=f"{sample.source}: video {number}")
            for number, (part, one) in enumerate(zip(sample.videos, metadata, strict=True), start=1)
        ]
        found = {"videos": frames, "video_metadata": metadata, "do_sample_frames": False}
        return found | ({"videos_kwargs": {"return_tensors": "pt"}} if meter.needs_tensors else {})

    def try_video(self, part: VideoPart, *, name: str) -> None:
        """Decode a video, of the first ones before training. Raises InputError, naming ``name``, for a broken one."""
        indices = self.video_meter.rule.indices(part.header)
        if self._tried_pixels.takes((part.header.width * part.header.height, max(indices) + 1)):
            frames_of(part, indices, name=name)

    def _known(self, made: dict[str, Any]) -> Encoded:
        """What the model's forward names."""
        made.setdefault("attention_mask", torch.ones_like(made["input_ids"]))
        names = self._accepted | {"input_ids", "attention_mask", "labels"}
        return {name: value for name, value in made.items() if name in names and isinstance(value, Tensor)}

    def _cut(self, sample: Sample, made: Encoded, last_image_token: int) -> Encoded:
        if made["input_ids"].shape[1] <= self.seq_len:
            return made
        if last_image_token >= self.seq_len:
            raise TooLongError(sample.source, self.seq_len, kind_of_last(sample))
        self.truncated.add(sample.source)
        return {name: value[:, : self.seq_len] if name in SEQUENCE_KEYS else value for name, value in made.items()}


def kind_of_last(sample: Sample) -> str:
    """What a sample shows last, in a word."""
    last = sample.shown[-1]
    return "video" if isinstance(last, VideoPart) else "sound" if isinstance(last, SoundPart) else "image"

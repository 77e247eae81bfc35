"""What is trained on what: a model, the shape of a sample, and how many samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from vlmplan.errors import InputError, require_positive, require_within
from vlmplan.files.json_reader import JsonDict
from vlmplan.model_types.encoder_decoder import (
    DEFAULT_TARGET_LEN,
    IMAGE_ENCODER_TYPES,
    ONE_IMAGE_TYPES,
    hears_prompt,
    is_encoder_decoder,
)
from vlmplan.model_types.language_parts import SUFFIX
from vlmplan.run.saving import Saving
from vlmplan.units import MAX_COUNT

DEFAULT_NUM_SAMPLES = 10_000
DEFAULT_EPOCHS = 1.0
DEFAULT_GLOBAL_BATCH = 16
DEFAULT_SEQ_LEN = 1024
DEFAULT_IMAGE_SIZE = (448, 448)
"""What is taken where nobody says otherwise, and told as ``assumed``. Choices."""
MAX_NUM_SAMPLES = 10**12
"""More than anybody has. A choice."""
BITSANDBYTES = "bitsandbytes"
"""``quant_method`` of checkpoints in 4 or 8 bits of that library."""
EAGER_TOWER_TYPES = frozenset({"gemma4"})
"""Models whose audio tower has attention of its own, and refuses the names of others: ``_supports_sdpa`` of
``Gemma4AudioModel`` is False in transformers 5.23."""
MAX_AUDIO_SECONDS = 86_400
"""A day."""
TYPES_WITHOUT_CHECKPOINTS = frozenset({"ctrl", "gpt_neox_japanese", "jetmoe", "openai-gpt"})
"""Families whose class does not say ``supports_gradient_checkpointing``."""
LEAST_TEXT_TOKENS = 256
"""Room for text beside images and sounds that take more than the default length, which is then a multiple of this.
A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model by its files: ``config`` is config.json, ``preprocessor`` preprocessor_config.json where there is one.

    ``id`` is what the user calls it (an alias, a Hugging Face id or a path), ``hub_id`` where the trainer loads it.
    ``notes`` are sentences that the user should see with every number about it, ``not_counted`` what it takes beside
    text that no number has (``images``, ``sound``). ``video_settings`` are those of the video processor; samples are
    made of them, and a plan does not keep them.
    """

    id: str
    config: Mapping[str, Any] = field(hash=False)
    preprocessor: Mapping[str, Any] | None = field(default=None, hash=False)
    hub_id: str | None = None
    notes: tuple[str, ...] = ()
    not_counted: tuple[str, ...] = ()
    video_settings: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def is_language_part(self) -> bool:
        """Whether it is the language model alone of a checkpoint that has more."""
        return self.id.endswith(SUFFIX)

    @property
    def attention(self) -> frozenset[str] | None:
        """The values of ``attn_implementation`` that transformers says it takes; None where nobody asked."""
        return None

    @property
    def can_checkpoint(self) -> bool:
        """Whether transformers can run its layers again in backward."""
        return self.model_type not in TYPES_WITHOUT_CHECKPOINTS

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompt and a decoder writes the answer."""
        return is_encoder_decoder(self.config)

    @property
    def reads_text_alone(self) -> bool:
        """Whether that encoder is planned and trained on text alone, whatever else its class takes (T5Gemma 2)."""
        return self.is_encoder_decoder and not self.hears_prompt and not self.encodes_one_image

    @property
    def hears_prompt(self) -> bool:
        """Whether that encoder hears a sound in the place of a prompt."""
        return hears_prompt(self.config)

    @property
    def switches_cache_off(self) -> bool:
        """Whether config.json has ``use_cache: false``, by which answers are generated without a cache of keys and
        values, unless ``generation_config.json`` or the call says otherwise (transformers 5.23 ``generate``)."""
        text: Mapping[str, Any] = self.config.get("text_config") or {}
        return self.config.get("use_cache") is False or text.get("use_cache") is False

    @property
    def encodes_images_alone(self) -> bool:
        """Whether that encoder reads an image and no text, so that a sample has no prompt."""
        return self.model_type in IMAGE_ENCODER_TYPES

    @property
    def reads_prompt(self) -> bool:
        """Whether text comes before an answer: not where an encoder has a sound or an image alone."""
        return not (self.hears_prompt or self.encodes_images_alone)

    @property
    def encodes_one_image(self) -> bool:
        """Whether that encoder reads one image in each sample."""
        return self.model_type in ONE_IMAGE_TYPES

    @property
    def has_audio_tower(self) -> bool:
        """Whether it has a tower for sound."""
        return bool(self.config.get("audio_config"))

    @property
    def has_eager_tower(self) -> bool:
        """Whether it has a tower for which transformers knows eager attention alone (Gemma 4 E2B)."""
        return self.has_audio_tower and self.model_type in EAGER_TOWER_TYPES

    @property
    def quant_method(self) -> str | None:
        """What the checkpoint's weights are packed with (``quantization_config.quant_method``); None: with nothing.

        Files of 2023 have bitsandbytes' ``load_in_4bit`` without its name (``AutoQuantizationConfig.from_dict`` of
        transformers), and those of MLX ``quantization``.
        """
        section = self.config.get("quantization_config")
        if not isinstance(section, Mapping) or not section:
            return "MLX" if isinstance(self.config.get("quantization"), Mapping) else None
        settings = cast(Mapping[str, Any], section)
        if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
            return BITSANDBYTES
        is_mlx = settings == self.config.get("quantization")
        return str(settings.get("quant_method", "MLX" if is_mlx else "an unnamed method"))

    @property
    def is_mxfp4(self) -> bool:
        """Whether the checkpoint holds its stacked weights in MXFP4."""
        return self.quant_method == "mxfp4"

    @property
    def is_fp8(self) -> bool:
        """Whether it holds its Linears in FP8, with a scale for each block (DeepSeek-V3, Qwen3-8B-FP8)."""
        return self.quant_method == "fp8"


def check_audio(audios_per_sample: int, seconds: float) -> None:
    """Raise InputError for numbers of sounds, and for their seconds, that cannot be."""
    require_within("--audios-per-sample", audios_per_sample, least=0, most=MAX_COUNT)
    if audios_per_sample and not 0 < seconds <= MAX_AUDIO_SECONDS:
        raise InputError(f"--audio-seconds is {seconds:g}; above 0 and at most {MAX_AUDIO_SECONDS:,} is needed")


def seq_len_with_text(num_encoded_tokens: int) -> int:
    """Tokens of a sample whose images and sounds take more than the default length.

    >>> seq_len_with_text(1024)
    1280
    """
    return -(-(num_encoded_tokens + LEAST_TEXT_TOKENS) // LEAST_TEXT_TOKENS) * LEAST_TEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, a sample shape and an amount of training.

    ``seq_len`` are tokens per sample in the language model, image tokens included. Where rows are packed they are those
    of a row, which counts as a sample everywhere, and ``sample_len`` those of the samples in it; None: one fills it.
    Of a model with an encoder and a decoder they are those of the prompt, or of the sound that it hears in its place, 0
    where it reads an image alone, and ``target_len`` those of the answer.
    ``global_batch`` is samples per optimizer step over all GPUs; None where micro batch and accumulation decide it.
    ``saving`` says when checkpoints are written and how many stay, which no byte and second of training depends on.
    ``loader_workers`` are the processes of each rank that open images while the GPU computes; 0: it opens them itself.
    ``video_fps`` frames of each second and ``video_frames`` of each video are taken at the most where samples have
    videos, each of ``video_pixels`` at the most; None: as the model's processor takes them. ``clip_frames``: what
    counts as images are videos of so many frames, of a model that sees those otherwise than images; None: they are
    images. ``audios_per_sample`` sounds are of ``audio_seconds`` each.
    """

    model: ModelFiles
    seq_len: int = DEFAULT_SEQ_LEN
    sample_len: int | None = None
    target_len: int | None = None
    images_per_sample: int = 0
    image_width: int = DEFAULT_IMAGE_SIZE[0]
    image_height: int = DEFAULT_IMAGE_SIZE[1]
    num_samples: int = DEFAULT_NUM_SAMPLES
    epochs: float = DEFAULT_EPOCHS
    global_batch: int | None = None
    samples_per_entry: int = 1
    """Samples that one of ``num_samples`` makes: answers to a prompt, where they are generated."""
    saving: Saving = field(default_factory=Saving)
    loader_workers: int = 0
    video_fps: float | None = None
    video_frames: int | None = None
    video_pixels: int | None = None
    audios_per_sample: int = 0
    audio_seconds: float = 0.0
    clip_frames: int | None = None

    def __post_init__(self) -> None:
        least = {
            "seq_len": self.least_tokens,
            "images_per_sample": 0,
            "image_width": 1,
            "image_height": 1,
            "num_samples": 1,
        }
        for name, minimum in least.items():
            most = MAX_NUM_SAMPLES if name == "num_samples" else MAX_COUNT
            require_within(f"--{name.replace('_', '-')}", getattr(self, name), least=minimum, most=most)
        for name in ("video_frames", "video_pixels", "clip_frames"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_COUNT:
                raise InputError(f"{name} of the workload is {value}; 1 to {MAX_COUNT:,} is needed")
        check_audio(self.audios_per_sample, self.audio_seconds)
        if self.sample_len is not None and not 1 <= self.sample_len <= self.seq_len:
            raise InputError(
                f"--sample-len is {self.sample_len}; 1 to {self.seq_len}, the tokens of a packed row (--seq-len), is "
                f"needed"
            )
        self._check_target()
        self._check_images()
        require_positive("--epochs", self.epochs, most=MAX_COUNT)
        require_within("--global-batch", self.global_batch, least=1, most=MAX_COUNT)

    def _check_target(self) -> None:
        if self.target_len is None:
            return
        if not self.model.is_encoder_decoder:
            raise InputError(
                f"--target-len {self.target_len} is for models with an encoder and a decoder; {self.model.id} reads "
                f"prompt and answer as one text, of --seq-len"
            )
        require_within("--target-len", self.target_len, least=1, most=MAX_COUNT)

    def _check_images(self) -> None:
        """Refuse prompts, and other than one image a sample, for an encoder that reads an image alone."""
        if self.model.encodes_images_alone and self.seq_len:
            raise InputError(
                f"--seq-len {self.seq_len} is the length of prompts, and a sample of {self.model.id} has none: its "
                f"encoder reads an image alone; the answer is of --target-len"
            )
        if self.model.encodes_one_image and self.images_per_sample != 1:
            raise InputError(
                f"--images-per-sample is {self.images_per_sample}; the encoder of {self.model.id} reads one image in "
                f"each sample"
            )

    @property
    def least_tokens(self) -> int:
        """The fewest tokens that a sample can have in ``seq_len``."""
        return 0 if self.model.encodes_images_alone else 1

    @property
    def target_tokens(self) -> int:
        """Tokens of an answer that a decoder of its own writes; 0 where ``seq_len`` counts them."""
        return (self.target_len or DEFAULT_TARGET_LEN) if self.model.is_encoder_decoder else 0

    @property
    def has_encoded_inputs(self) -> bool:
        """Whether samples have what a tower encodes: images or sound."""
        return self.images_per_sample + self.audios_per_sample > 0

    @property
    def total_samples(self) -> float:
        return self.num_samples * self.epochs * self.samples_per_entry

    def num_steps(self, samples_per_step: int) -> int:
        """Optimizer steps of the whole run; the last may be of fewer samples."""
        return max(1, -(-round(self.total_samples) // samples_per_step))

    def as_json(self) -> JsonDict:
        return {
            "model": self.model.id,
            "seq_len": self.seq_len,
            "sample_len": self.sample_len,
            **({} if self.target_len is None else {"target_len": self.target_len}),
            "images_per_sample": self.images_per_sample,
            "image_size": f"{self.image_width}x{self.image_height}" if self.images_per_sample else None,
            "audios_per_sample": self.audios_per_sample,
            "audio_seconds": self.audio_seconds if self.audios_per_sample else None,
            **({} if self.clip_frames is None else {"frames_per_video": self.clip_frames}),
            "num_samples": self.num_samples,
            "epochs": self.epochs,
            "global_batch": self.global_batch,
        }

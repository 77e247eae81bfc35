"""What a trainer does with samples before they are a micro batch: order, padding, packing, cuts, sizes of images."""

import math
from dataclasses import dataclass
from enum import Enum


class Order(Enum):
    """The order of samples in an epoch."""

    RANDOM = "random"
    BY_LENGTH = "by length"
    SEQUENTIAL = "as in the file"


class Learnt(Enum):
    """What of a sample the loss counts. A prompt with its completion is learnt as far as the completion, but where all
    is, or contents are."""

    ANSWERS = "what the assistant says"
    LAST_ROUND = "what the assistant says after the user's last turn"
    LAST_ANSWER = "the assistant's last turn"
    TAGGED = "what the chat template tags as generated"
    COMPLETIONS = "completions, and all of chats"
    CONTENTS = "what all turns say"
    EVERYTHING = "all"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntRule:
    """``heeds_turns``: turns that a sample says are not to be learnt are not. ``with_blanks``: the blanks that a
    template writes behind a turn are learnt with it."""

    what: Learnt = Learnt.ANSWERS
    heeds_turns: bool = True
    with_blanks: bool = False


OF_BUNDLED = LearntRule()
NOT_KNOWN = LearntRule(what=Learnt.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRules:
    """The frames of a video that a trainer takes: ``fps`` in each second, ``most_frames`` at the most, each brought
    between ``min_pixels`` and ``max_pixels``.

    Defaults and rule are those of LLaMA-Factory 0.9.5 (``hparams/model_args.py``, ``_get_video_sample_indices`` and
    ``Qwen2VLPlugin._regularize_videos`` in ``data/mm_plugin.py``).
    """

    fps: float = 2.0
    most_frames: int = 128
    min_pixels: int = 16 * 16
    max_pixels: int = 256 * 256

    def num_frames(self, *, of: int, seconds: float) -> int:
        """Frames that the model is given of a video with ``of``: an even number, as two make a patch.

        >>> VideoRules().num_frames(of=243, seconds=9.72), VideoRules().num_frames(of=9000, seconds=300)
        (20, 128)
        """
        taken = min(of, self.most_frames, max(1, math.floor(seconds * self.fps)))
        return taken + taken % 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVideoRules:
    """The model's own processor decides which frames it takes and how large, as for the bundled trainer: ``fps`` of
    each second and ``most_frames`` of a video where the user says so, and frames of ``max_pixels`` at the most."""

    fps: float | None = None
    most_frames: int | None = None
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRules:
    """The bundled trainer's where nothing else is said.

    ``pads_to`` is the multiple of tokens that a micro batch is padded to. ``drops_long``: samples over the limit are
    left out, where others are cut. ``packs`` samples into rows of the limit. Without ``pads`` a micro batch has the
    tokens of its samples alone; ``fills_rows``: but for packed rows, which are padded to the limit all the same.
    Images of more than ``max_pixels`` are made smaller, of fewer than ``min_pixels`` larger. ``names`` are the data
    sets of a dataset_info.json. ``image_folder`` is where the trainer looks for images first, by its name in the
    configuration.
    ``videos`` is None where they are not planned. ``most_samples`` are taken where there are more. ``prefers``: a
    sample is a prompt with two answers, whose rows are both as long as the longer one (``DataCollatorForPreference`` in
    trl 1.16 ``trainer/dpo_trainer.py``); ``has_labels``: it is an answer that is marked as good or bad. ``learns`` is
    what of a sample the loss counts.
    """

    trainer: str = "vlmplan"
    order: Order = Order.RANDOM
    pads_to: int = 8
    packs: bool = False
    pads: bool = True
    fills_rows: bool = False
    drops_long: bool = False
    min_pixels: int = 0
    max_pixels: int | None = None
    names: tuple[str, ...] = ()
    image_folder: str | None = None
    videos: VideoRules | OwnVideoRules | None = None
    most_samples: int | None = None
    prefers: bool = False
    has_labels: bool = False
    learns: LearntRule = OF_BUNDLED

    @property
    def is_bundled(self) -> bool:
        return self.trainer == BUNDLED


BUNDLED = "vlmplan"
OF_EVERY_IMAGE = "every image is taken as large as"
"""How a note on the size of images begins that has no meaning where the samples are known."""
FOR_LONGEST = "give --seq-len for the longest of yours"
FOR_LARGEST = "give --image-size for the largest of yours"
"""How notes end on what a file sets no limit for; neither has a meaning where the samples are known, or the option."""
LLAMA_FACTORY_PIXELS = 768 * 768, 32 * 32
"""The most and the fewest of an image, where nothing else is said (``hparams/model_args.py``, 0.9.5)."""

OF_TRL = LearntRule(what=Learnt.COMPLETIONS, heeds_turns=False)
OF_LLAMA_FACTORY = LearntRule(heeds_turns=False, with_blanks=True)
OF_MS_SWIFT = LearntRule(with_blanks=True)
OF_AXOLOTL = LearntRule(heeds_turns=False)
"""What each trainer learns where its file says nothing else; ``transformers``: what labels a script makes."""


def rules_of(tool: str | None) -> DataRules:
    """The rules of a trainer that is planned for, where its configuration says nothing; None is the bundled one."""
    if tool is None:
        return DataRules(videos=OwnVideoRules())
    if tool == "llamafactory":
        most, fewest = LLAMA_FACTORY_PIXELS
        return DataRules(trainer=tool, max_pixels=most, min_pixels=fewest, videos=VideoRules(), learns=OF_LLAMA_FACTORY)
    if tool == "axolotl":
        return DataRules(trainer=tool, pads_to=64, drops_long=True, fills_rows=True, learns=OF_AXOLOTL)
    learns = {"ms-swift": OF_MS_SWIFT, "trl": OF_TRL}.get(tool, NOT_KNOWN)
    return DataRules(trainer=tool, pads_to=1, drops_long=tool == "ms-swift", learns=learns)


def loader_workers_of(tool: str | None) -> int:
    """Processes of each rank that open images where a trainer's configuration says nothing: ms-swift 4.6 takes one
    (``trainers/arguments.py``), ``TrainingArguments`` none; None is the bundled one, which has none.
    """
    return int(tool == "ms-swift")

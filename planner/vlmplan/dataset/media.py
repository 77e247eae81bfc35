"""How samples with videos and sounds are read, for one model and one trainer."""

from dataclasses import dataclass
from enum import Enum

from vlmplan.chats.formats import NO_SOUNDS, NO_VIDEOS
from vlmplan.chats.frame_rules import FrameRule
from vlmplan.chats.named_columns import KTO_TAG, RANKING
from vlmplan.chats.samplers import no_videos
from vlmplan.data_rules import OF_BUNDLED, DataRules, LearntRule, OwnVideoRules
from vlmplan.dataset.counting import TokenCounter, token_counter
from vlmplan.dataset.model_texts import ModelTexts
from vlmplan.dataset.pairs import PairCounter
from vlmplan.dataset.videos import own_rule
from vlmplan.sample_audio import no_sounds
from vlmplan.workload import ModelFiles

LLAMA_FACTORY_MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")


class Pairs(Enum):
    """What the encoder is given."""

    PROMPT = "prompt"
    SOUND = "sound"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReading:
    """``no_videos`` and ``no_sounds`` say why samples with such are not read; None: they are. ``frames`` is the rule by
    which the model's own processor takes frames, where the trainer leaves it to that. ``pairs``: of models with an
    encoder and a decoder; None: a sample is one text. ``prefers``: a sample is a prompt with two answers;
    ``has_labels``: it is one that is marked as good or bad, or two that are.
    ``may_lose_thoughts``: samples are trained on whose thoughts the chat template leaves out, as by other trainers.
    ``learns`` is what of a sample the loss counts."""

    no_videos: str | None = NO_VIDEOS
    no_sounds: str | None = NO_SOUNDS
    frames: FrameRule | None = None
    pairs: Pairs | None = None
    prefers: bool = False
    has_labels: bool = False
    may_lose_thoughts: bool = False
    learns: LearntRule = OF_BUNDLED

    @property
    def takes(self) -> tuple[str, ...]:
        """What is read of a dataset_info.json beside images: columns, and whether a data set is of preferences."""
        whys = {"videos": self.no_videos, "audios": self.no_sounds}
        of_task = (RANKING,) if self.prefers else (RANKING, KTO_TAG) if self.has_labels else ()
        return (*(name for name, why in whys.items() if why is None), *of_task)


def media_reading(model: ModelFiles, rules: DataRules) -> MediaReading:
    """How samples with videos and sounds are read.

    Sounds are by the bundled trainer alone. LLaMA-Factory's videos are planned for models to which two frames are what
    one image is, in tokens, patches and attention, and whose processor has the same limits for both. Source:
    transformers 5.23 ``Qwen2VLVideoProcessor``, which takes the limits of preprocessor_config.json, and ``cu_seqlens``
    of the models' vision towers: attention within a pair of frames.
    """
    if rules.is_bundled and isinstance(rules.videos, OwnVideoRules):
        why = no_videos(model.model_type)
        frames = None if why is not None else own_rule(model, rules.videos)
        return MediaReading(no_videos=why, no_sounds=no_sounds(model), frames=frames, pairs=_pairs(model))
    settings = model.preprocessor or {}
    is_known = rules.videos is not None and model.model_type in LLAMA_FACTORY_MODEL_TYPES
    has_limits = "size" in settings or {"min_pixels", "max_pixels"} <= settings.keys()
    no_sound = f"sounds of samples are not planned for {rules.trainer}, only for vlmplan's own trainer"
    why = None if is_known and has_limits else NO_VIDEOS
    return MediaReading(
        no_videos=why,
        no_sounds=no_sound,
        pairs=_pairs(model),
        prefers=rules.prefers,
        has_labels=rules.has_labels,
        may_lose_thoughts=not (rules.is_bundled or rules.prefers or rules.has_labels),
        learns=rules.learns,
    )


def _pairs(model: ModelFiles) -> Pairs | None:
    if not model.is_encoder_decoder:
        return None
    return Pairs.SOUND if model.hears_prompt else Pairs.PROMPT


def sample_counter(texts: ModelTexts | None, media: MediaReading) -> TokenCounter:
    """What counts the tokens of samples that are read so, by the model's ``texts`` where those are at hand."""
    counter = token_counter(texts, media.frames, may_lose_thoughts=media.may_lose_thoughts, learns=media.learns)
    return counter if media.pairs is None else PairCounter(counter, hears=media.pairs is Pairs.SOUND)

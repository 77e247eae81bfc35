"""What the sounds of one sample become, and with its images: tokens of the language model."""

from vlmplan.architecture.audio import AUDIO_MODEL_TYPES, MAY_BE_DEAF, AudioShape, audio_shape
from vlmplan.errors import InputError
from vlmplan.sample_images import image_tokens
from vlmplan.workload import ModelFiles, Workload

BLANK_SECONDS = 0.2
"""Of the silence that a micro batch without a sound is given, so that all ranks run the encoder. A choice."""


def sample_audio(workload: Workload) -> AudioShape | None:
    """What one sound of the workload becomes; None for samples without sound.

    Raises InputError if the model hears nothing, or vlmplan does not describe how, or if images and sounds do not fit
    in the sequence.
    """
    model = workload.model
    if model.hears_prompt and workload.audios_per_sample != 1:
        raise InputError(
            f"--audios-per-sample is {workload.audios_per_sample}, but a sample of {model.id} is one sound and what is "
            f"said in it; leave it off"
        )
    if not workload.audios_per_sample:
        return None
    if not _hears(model):
        is_unknown = model.has_audio_tower
        why = f"vlmplan does not describe how {model.id} hears" if is_unknown else f"{model.id} takes no sound"
        raise InputError(f"--audio-seconds is {workload.audio_seconds:g}, but {why}; leave it off")
    audio = sound_shape(model, workload.audio_seconds)
    needed = encoded_tokens(workload)
    if needed > workload.seq_len:
        images = f"{workload.images_per_sample} image(s) and " if workload.images_per_sample else ""
        raise InputError(
            f"--seq-len is {workload.seq_len}, but {images}{workload.audios_per_sample} sound(s) of "
            f"{workload.audio_seconds:g} s take {needed} tokens of {model.id}; give at least that many tokens, or "
            f"fewer or shorter sounds"
        )
    return audio


def no_sounds(model: ModelFiles) -> str | None:
    """Why sounds of samples are not read for a model; None: they are."""
    if _hears(model):
        return None
    deaf = " without an audio tower" if model.model_type in MAY_BE_DEAF else ""
    return (
        f"sounds are not read for models of type {model.model_type}{deaf}; they are for those of "
        f"{', '.join(AUDIO_MODEL_TYPES)}"
    )


def sound_shape(model: ModelFiles, seconds: float) -> AudioShape:
    """What a sound of so many seconds becomes in a model that hears. Raises what ``audio_shape`` does."""
    return audio_shape(model.config, model.preprocessor, seconds=seconds)


def _hears(model: ModelFiles) -> bool:
    """Whether it is of a type of which vlmplan describes how, and has a tower for that."""
    return model.model_type in AUDIO_MODEL_TYPES and (model.has_audio_tower or model.model_type not in MAY_BE_DEAF)


def audio_tokens(workload: Workload) -> int:
    """Tokens that the sounds of one sample take in the language model; 0 where the model is not known to hear.

    Raises InputError for sounds that the feature extractor refuses.
    """
    model = workload.model
    if not workload.audios_per_sample or not _hears(model):
        return 0
    return sound_shape(model, workload.audio_seconds).num_tokens * workload.audios_per_sample


def encoded_tokens(workload: Workload) -> int:
    """Tokens that the images and the sounds of one sample take; the others are text. Raises as both do."""
    return image_tokens(workload) + audio_tokens(workload)


def encoded_kinds(workload: Workload) -> str:
    """What ``encoded_tokens`` are of, in words."""
    kinds = {"images": workload.images_per_sample, "sounds": workload.audios_per_sample}
    return " and ".join(name for name, count in kinds.items() if count)

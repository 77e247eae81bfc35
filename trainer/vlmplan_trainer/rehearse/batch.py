"""A micro batch as the plan's samples would give it: real token ids with places for images, pixels by shape alone.

What an image becomes (tokens, patches, tiles) is the planner's ``ImageShape``, which is held to transformers' own
processors; ``rehearse.pictures`` lays it out as each family's forward takes it.
"""

from collections.abc import Mapping
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.processors.image_encoder import encodes_images_alone
from vlmplan_trainer.rehearse.pictures import FIRST_IMAGE, needs_pictures, picture_inputs, takes_pictures
from vlmplan_trainer.rehearse.pictures_of_batch import Pictures
from vlmplan_trainer.rehearse.processed import as_processed, for_image_encoder
from vlmplan_trainer.rehearse.rows import answers, laid_out, pairs
from vlmplan_trainer.rehearse.samples import ImageSpec, MicroBatch, Samples
from vlmplan_trainer.rehearse.sounds import audio_token, sound_inputs, with_sounds

BETWEEN_IMAGES = 2
"""Tokens of text between images, if there are so many: what chat templates write around each."""
TEXT_TOKENS = 60
"""Ids that text is made of, from 5 on, the images' own left out."""
TYPED_SOUNDS = {"gemma3n": "token_type_ids", **dict.fromkeys(("gemma4", "gemma4_unified"), "mm_token_type_ids")}
"""What the processors say in of each token of a sample with sound what it is of."""

TYPED_TEXTS = ("molmo2",)
"""Whose processors say of each token what it is of, whatever is shown, and whose classes are not trained without."""


def micro_batch(config: Any, samples: Samples, preprocessor: Mapping[str, Any] | None = None) -> MicroBatch:
    """What the data loader hands to the loop. ``config`` is transformers' own; ``preprocessor`` are the settings of its
    image processor, which is asked where no function here says what it makes."""
    if encodes_images_alone(config):
        return for_image_encoder(config, samples, preprocessor)
    if samples.image is not None and not takes_pictures(config.model_type):
        return as_processed(config, samples, preprocessor)
    if samples.target_tokens and samples.audio is not None:
        shapes = {"input_features": (samples.micro_batch, config.num_mel_bins, samples.audio.num_padded_frames)}
        return MicroBatch(answers(samples.micro_batch, samples.target_tokens), shapes)
    if samples.target_tokens:
        return MicroBatch(pairs(samples.micro_batch, samples.num_tokens, samples.target_tokens), {})
    if samples.image is None and needs_pictures(config.model_type):
        raise InputError(
            f"transformers' class of {config.model_type} takes no text without an image; give --images-per-sample 1"
        )
    token = _image_token(config, samples.image)
    ids = _token_ids(config, samples, token)
    labels = ids.clone()
    labels[:, : ids.shape[1] // 2] = IGNORED_LABEL
    labels[ids == token] = IGNORED_LABEL
    values, shapes = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}, {}
    if config.model_type in TYPED_TEXTS:
        values["mm_token_type_ids"] = (ids == token).long() if token is not None else torch.zeros_like(ids)
    if samples.audio is not None:
        labels[ids == audio_token(config)] = IGNORED_LABEL
        num_audios = samples.micro_batch * samples.audios_per_sample
        more, shapes = sound_inputs(config, samples.audio, num_audios)
        values |= more
        if config.model_type in TYPED_SOUNDS and samples.image is None:
            values[TYPED_SOUNDS[config.model_type]] = torch.zeros_like(ids)
    if samples.image is not None and token is not None:
        more, of_images = picture_inputs(Pictures(config, samples, samples.image, ids, token))
        values, shapes = values | more, shapes | of_images
    return MicroBatch(laid_out(values, samples.sequences), shapes)


def _image_token(config: Any, image: ImageSpec | None) -> int | None:
    """The id that features take the place of; SmolVLM's is that of images and videos."""
    if image is None:
        return None
    if image.is_clip and config.model_type != "smolvlm":
        return int(config.video_token_id)
    for section in (config, getattr(config, "vision_config", None)):
        for key in ("image_token_id", "image_token_index"):
            value = getattr(section, key, None)
            if value is not None:
                return int(value)
    raise InputError(f"the configuration of {config.model_type} has no image_token_id")


def _token_ids(config: Any, samples: Samples, token: int | None) -> torch.Tensor:
    """(micro_batch, tokens): text, then every image's placeholders with the rest of its tokens as text around them, and
    sounds at the end."""
    num_sound_tokens = 0 if samples.audio is None else samples.audio.num_tokens * samples.audios_per_sample
    row = torch.arange(samples.num_tokens - num_sound_tokens) % TEXT_TOKENS + 5
    if token is not None:
        row[row == token] += 1
        assert samples.image is not None
        num_text = len(row) - samples.image.num_tokens * samples.images_per_sample
        between = min(BETWEEN_IMAGES, num_text // samples.images_per_sample)
        place = min(FIRST_IMAGE, num_text - between * (samples.images_per_sample - 1))
        for _ in range(samples.images_per_sample):
            row[place : place + samples.image.num_placeholder_tokens] = token
            place += samples.image.num_tokens + between
    if samples.audio is not None:
        row = with_sounds(config, row, samples.audio, samples.audios_per_sample)
    return row.repeat(samples.micro_batch, 1)

"""A step of a model on sounds, as a rehearsal lays them out, against its tree (needs torch and transformers)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from transformers import AutoConfig

from family_checks import assert_step_matches
from vlmplan.architecture.audio import audio_shape
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan_trainer.rehearse.batch import micro_batch
from vlmplan_trainer.rehearse.samples import ImageSpec, Samples
from vlmplan_trainer.rehearse.sounds import AudioSpec

NUM_TEXT_TOKENS = 64


def assert_audio_step(
    config: Mapping[str, Any],
    *,
    seconds: float,
    audios_per_sample: int = 2,
    rows: int = 2,
    image: tuple[int, int] | None = None,
    extractor: Mapping[str, Any] | None = None,
    tolerance: float = 0.001,
    **options: Any,
) -> None:
    """``rows`` samples, each of ``audios_per_sample`` sounds behind an ``image`` (width, height) where one is given."""
    audio = audio_shape(config, extractor, seconds=seconds)
    shape = None if image is None else image_shape(config, None, width=image[0], height=image[1])
    num_tokens = NUM_TEXT_TOKENS + audio.num_tokens * audios_per_sample + (0 if shape is None else shape.num_tokens)
    sizes = {"micro_batch": rows, "num_tokens": num_tokens, "audios_per_sample": audios_per_sample}
    images = {"images_per_sample": 0 if shape is None else 1}
    spec = None if shape is None else ImageSpec(**asdict(shape))
    samples = Samples(**sizes, **images, image=spec, audio=AudioSpec(**asdict(audio)))
    values = {key: value for key, value in config.items() if key != "model_type"}
    made = micro_batch(AutoConfig.for_model(config["model_type"], **values), samples)
    batch = Batch(**sizes, **images, image=shape, audio=audio)
    assert_step_matches(config, batch, made.values, made.shapes, tolerance=tolerance, **options)

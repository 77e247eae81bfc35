"""Which frames a model is given of a video, by the files of its processor: ``vlmplan.chats.frame_rules`` for them."""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.images.settings import Settings, count, file_settings, section
from vlmplan.architecture.images.videos import is_glm46v, merged_frames
from vlmplan.chats.frame_rules import FrameRule, FrameSettings
from vlmplan.chats.frame_rules import frame_rule as rule_of
from vlmplan.chats.samplers import SAMPLERS, Sampler
from vlmplan.errors import UnknownNameError


def frame_rule(
    config: Mapping[str, Any],
    video_settings: Mapping[str, Any] | None,
    *,
    fps: float | None = None,
    most_frames: int | None = None,
    max_pixels: int | None = None,
) -> FrameRule:
    """The frames that the model's video processor takes, ``fps`` of each second, ``most_frames`` and ``max_pixels`` of
    each where that is said.

    ``video_settings`` are those of the video processor, as of ``video_images``.
    Raises UnknownNameError for a model type without a rule, InputError for settings that are none.
    """
    model_type = str(config.get("model_type"))
    if model_type not in SAMPLERS:
        raise UnknownNameError("model type with videos", model_type, SAMPLERS)
    settings = file_settings(video_settings or {}, "settings of videos: ")
    named = file_settings(config, "config.json: ")
    sampler = SAMPLERS[model_type]
    sampling: Settings = section(settings, "video_sampling") if sampler is Sampler.SMOLVLM else {}
    said = sampling.get("fps", settings.get("fps"))
    if sampler in (Sampler.GLM4V, Sampler.GLM46V):
        sampler = Sampler.GLM46V if is_glm46v(named, settings) else Sampler.GLM4V
    numbers = {name: count(settings, name, 0) or None for name in ("num_frames", "min_frames", "max_frames")}
    # ``MiniCPMV4_6VideoProcessor`` and ``SmolVLMVideoProcessor``
    numbers["max_frames"] = count(settings, "max_num_frames", 0) or numbers["max_frames"]
    numbers["num_frames"] = count(sampling, "max_frames", 0) or numbers["num_frames"]
    found = FrameSettings(
        fps=float(said) if isinstance(said, int | float) and said > 0 else None,
        max_seconds=count(settings, "max_duration", 0) or None,
        merged_frames=merged_frames(named, settings),
        stacked_frames=count(settings, "stack_frames", 1),
        **numbers,
    )
    return rule_of(sampler, found, fps=fps, most_frames=most_frames, max_pixels=max_pixels)


def sampled_frames(
    config: Mapping[str, Any], video_settings: Mapping[str, Any] | None, *, seconds: float, fps: float | None
) -> int:
    """Frames that the model's video processor takes of a video of ``seconds``, ``fps`` of each second. It is taken to
    have at least the frames that are asked for: no processor takes more than there are.

    Raises what ``frame_rule`` does, and InputError where nothing says how often a frame is taken.
    """
    return frame_rule(config, video_settings, fps=fps).wanted_frames(seconds)

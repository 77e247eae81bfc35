"""How many frames a model is given of a video, by its length: ``sample_frames`` of transformers 5.23's processors.

Source: models/*/video_processing_*.py of ``qwen2_vl``, ``qwen3_vl``, ``glm4v``, ``glm46v`` and ``internvl``. A video is
taken to have at least the frames that are asked for: no processor takes more than there are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

from vlmplan.architecture.images.settings import Settings, count, file_settings
from vlmplan.architecture.images.videos import (
    GLM46V_MOST_FRAMES,
    GLM_TYPES,
    INTERNVL_TYPE,
    MOST_FRAMES,
    QWEN2_VL_TYPES,
    QWEN3_VL_TYPES,
    is_glm46v,
    merged_frames,
)
from vlmplan.errors import InputError, UnknownNameError

FRAMES_PER_SECOND = 2.0
"""``fps`` of the classes ``Qwen3VLVideoProcessor`` and ``Glm4vVideoProcessor``, and ``FPS`` of qwen-vl-utils, which
samples for Qwen2-VL and Qwen2.5-VL."""
LEAST_FRAMES = 4
"""``min_frames`` of Qwen's classes."""
GLM_MOST_SECONDS = 300
"""``max_duration`` of ``Glm4vVideoProcessor``: longer videos are sampled as thinly as it takes."""
GLM46V_RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
"""``DYNAMIC_FPS_THRES``: up to so many seconds, pairs of frames a second. The last is ``MAX_DURATION`` too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """A video of ``seconds``, and the files of the model that is to look at it; ``fps`` None: as those have it."""

    config: Settings
    settings: Settings
    seconds: float
    fps: float | None

    def rate(self, default: float | None) -> float:
        """Frames a second. Raises InputError where nothing says them."""
        said = self.fps or self.settings.get("fps") or default
        if not isinstance(said, int | float) or said <= 0:
            raise InputError("its video processor says no frames a second; give --video-fps with --video-seconds")
        return float(said)

    @property
    def merged(self) -> int:
        return merged_frames(self.config, self.settings)


def _qwen2_vl(video: _Sampled) -> int:
    """A multiple of the frames that are merged."""
    merged = video.merged
    most = count(video.settings, "max_frames", MOST_FRAMES) // merged * merged
    wanted = video.seconds * video.rate(FRAMES_PER_SECOND)
    return floor(min(max(wanted, count(video.settings, "min_frames", LEAST_FRAMES)), most) / merged) * merged


def _qwen3_vl(video: _Sampled) -> int:
    wanted = int(video.seconds * video.rate(FRAMES_PER_SECOND))
    least, most = count(video.settings, "min_frames", LEAST_FRAMES), count(video.settings, "max_frames", MOST_FRAMES)
    return min(max(wanted, least), most)


def _glm4v(video: _Sampled) -> int:
    """An even number; GLM-4.6V has rates of its own, by the length."""
    if is_glm46v(video.config, video.settings):
        if video.fps is not None:
            raise InputError(
                f"--video-fps is {video.fps:g}, but the processor of GLM-4.6V goes by a video's length; leave it off"
            )
        rate = next((rate for most, rate in GLM46V_RATES if video.seconds <= most), GLM46V_RATES[-1][1])
        seconds = min(video.seconds, GLM46V_RATES[-1][0])
        return _even(min(int(seconds * rate * video.merged), GLM46V_MOST_FRAMES))
    seconds = min(video.seconds, count(video.settings, "max_duration", GLM_MOST_SECONDS))
    return _even(max(1, floor(seconds * video.rate(FRAMES_PER_SECOND))))


def _internvl(video: _Sampled) -> int:
    """``num_frames`` of its settings, whatever the length, unless a rate is said."""
    fixed = count(video.settings, "num_frames", 0)
    if fixed and video.fps is None:
        return fixed
    return max(1, int(video.seconds * video.rate(None)))


def _even(num_frames: int) -> int:
    """The last frame comes twice where they are odd."""
    return num_frames + num_frames % 2


_RULES: Mapping[str, Callable[[_Sampled], int]] = {
    **dict.fromkeys(QWEN2_VL_TYPES, _qwen2_vl),
    **dict.fromkeys(QWEN3_VL_TYPES, _qwen3_vl),
    **dict.fromkeys(GLM_TYPES, _glm4v),
    INTERNVL_TYPE: _internvl,
}


def sampled_frames(
    config: Mapping[str, Any], video_settings: Mapping[str, Any] | None, *, seconds: float, fps: float | None
) -> int:
    """Frames that the model's video processor takes of a video of ``seconds``, ``fps`` of each second.

    ``video_settings`` are those of the video processor, as of ``video_images``. ``fps`` None: as they or their class
    have it.
    Raises UnknownNameError for a model type without a rule, InputError where nothing says how often a frame is taken.
    """
    model_type = str(config.get("model_type"))
    if model_type not in _RULES:
        raise UnknownNameError("model type with videos", model_type, _RULES)
    settings = file_settings(video_settings or {}, "settings of videos: ")
    named = file_settings(config, "config.json: ")
    return _RULES[model_type](_Sampled(config=named, settings=settings, seconds=seconds, fps=fps))


__all__ = ["sampled_frames"]

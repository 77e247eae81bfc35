"""What a video is in memory: images, each of one frame or of the frames that the vision tower merges.

Follows transformers 5.23: ``resize`` and ``patchify`` of ``Qwen2VLVideoProcessor``, ``Qwen3VLVideoProcessor``,
``Glm4vVideoProcessor`` and ``Glm46VVideoProcessor`` (models/*/video_processing_*.py), and ``InternVLVideoProcessor``,
``SmolVLMVideoProcessor``, ``LlavaOnevisionVideoProcessor`` and ``LlavaNextVideoVideoProcessor``, which make one tile of
a frame, and ``Gemma4VideoProcessor`` and ``MiniCPMV4_6VideoProcessor``, which make of a frame what images are with
settings of its own. The towers of the first four attend within the patches of ``temporal_patch_size`` frames
(``cu_seqlens`` by ``grid_thw``: ``t`` sequences of ``h x w`` patches), which are those of one image, whose pixels stand
there as often; that of LFM3-VL convolves all frames of a video at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from vlmplan.architecture.config import MAX_INTEGER
from vlmplan.architecture.images.anyres import POOLED_SIDE, frame_tile
from vlmplan.architecture.images.by_model import image_shape
from vlmplan.architecture.images.minicpmv import minicpmv_clip
from vlmplan.architecture.images.settings import Settings, count, edge, file_settings, flag, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.architecture.images.smart_resize import check_aspect_ratio, patch_and_merge_size, smart_resize
from vlmplan.chats.frame_rules import GLM46V_MOST_FRAMES, GLM_MOST_FRAMES, QWEN_MOST_FRAMES
from vlmplan.chats.samplers import CLIP_TYPES, GEMMA4_SAMPLERS, LLAVA_SAMPLERS, MINICPMV_SAMPLERS, SAMPLERS, Sampler
from vlmplan.errors import InputError, UnknownNameError

BUDGET_SHARE = 0.9
"""Of ``max_video_tokens``, that all frames of Qwen2-VL share where ``cap_pixels_per_frame`` is on."""
FLOOR_FACTOR = 1.05
"""Of ``size.shortest_edge``, below which that cap does not go."""


OMNI_TOKEN_PIXELS: Mapping[str, int] = {"qwen2_5_omni_thinker": 28 * 28, "qwen3_omni_moe_thinker": 32 * 32}
"""Pixels of a token in ``videos_kwargs`` of ``Qwen2_5OmniProcessor`` and ``Qwen3OmniMoeProcessor`` (``size``), which is
given to their ``Qwen2VLVideoProcessor`` with every call, whatever its file says of pixels."""
UNLIMITED = {"min_pixels": None, "max_pixels": None, "size": {"shortest_edge": 1, "longest_edge": MAX_INTEGER}}
"""Settings of images that leave a frame as it was resized."""
FRAME_TOKENS = {"max_soft_tokens": 70}
"""Of each frame in ``Gemma4VideoProcessor``, where its file says nothing else."""


class VideoImages(NamedTuple):
    """``num_images`` of ``width`` x ``height`` pixels, each of ``frames_per_image`` frames; the last frame is repeated
    to fill the last of them."""

    num_images: int
    width: int
    height: int
    frames_per_image: int


class _Video(NamedTuple):
    """Frames of a video of ``width`` x ``height`` pixels, and the files of the model that is to look at them."""

    config: Settings
    settings: Settings
    num_frames: int
    width: int
    height: int

    @property
    def vision(self) -> Settings:
        return section(self.config, "vision_config")

    @property
    def merged_frames(self) -> int:
        return merged_frames(self.config, self.settings)

    def merged_patch(self, default_patch_size: int) -> int:
        """Pixels of a side of what becomes one token."""
        patch_size, merge_size = patch_and_merge_size(self.settings, self.vision, default_patch_size=default_patch_size)
        return patch_size * merge_size

    def check(self, *, least: int, most: int) -> None:
        if not least <= self.num_frames <= most:
            raise InputError(
                f"--video-frames is {self.num_frames}; {least} to {most:,} are needed, as its processor takes"
            )

    def images(self, *, width: int, height: int, frames_per_image: int) -> VideoImages:
        num_images = -(-self.num_frames // frames_per_image)
        return VideoImages(num_images=num_images, width=width, height=height, frames_per_image=frames_per_image)


def merged_frames(config: Settings, settings: Settings) -> int:
    """Frames that become one row of patches."""
    vision = section(config, "vision_config")
    return count(settings, "temporal_patch_size", count(vision, "temporal_patch_size", 2))


def is_glm46v(config: Settings, settings: Settings) -> bool:
    """Whether the processor is ``Glm46VVideoProcessor``, by the file that names it or by the model's type."""
    return str(settings.get("video_processor_type", config.get("model_type"))).casefold().startswith("glm46v")


def _qwen2_vl(video: _Video) -> VideoImages:
    """Every frame within the limits of a frame, whose defaults are not those of an image."""
    settings, factor, merged = video.settings, video.merged_patch(14), video.merged_frames
    video.check(least=1, most=count(settings, "max_frames", QWEN_MOST_FRAMES))
    min_pixels, max_pixels = _limits_of_qwen2_vl(video)
    if flag(settings, "cap_pixels_per_frame", False):
        total = int(count(settings, "max_video_tokens", 128_000) * factor * factor * BUDGET_SHARE)
        share = total * merged // video.num_frames
        max_pixels = max(min(max_pixels, share), int(min_pixels * FLOOR_FACTOR))
    _check_ratio(video, height=video.height, width=video.width)
    height, width = smart_resize(video.height, video.width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    return video.images(width=width, height=height, frames_per_image=merged)


def _limits_of_qwen2_vl(video: _Video) -> tuple[int, int]:
    of_token = OMNI_TOKEN_PIXELS.get(str(video.config.get("model_type")))
    if of_token is not None:
        return 128 * of_token, 768 * of_token
    settings = video.settings
    min_pixels = count(settings, "min_pixels", 0) or edge(settings, "size", "shortest_edge", 128 * 28 * 28)
    max_pixels = count(settings, "max_pixels", 0) or edge(settings, "size", "longest_edge", 768 * 28 * 28)
    return min_pixels, max_pixels


def _qwen3_vl(video: _Video) -> VideoImages:
    """All frames together within the limits."""
    settings, factor = video.settings, video.merged_patch(16)
    video.check(least=video.merged_frames, most=count(settings, "max_frames", QWEN_MOST_FRAMES))
    min_pixels = edge(settings, "size", "shortest_edge", 128 * 32 * 32)
    max_pixels = edge(settings, "size", "longest_edge", 768 * 32 * 32)
    if flag(settings, "cap_pixels_per_frame", False):
        most = count(settings, "max_video_tokens", 768) * factor * factor
        share = max(min(most, max_pixels // video.num_frames), int(min_pixels * FLOOR_FACTOR))
        max_pixels = share * video.num_frames
    return _of_shared_pixels(video, factor, min_pixels=min_pixels, max_pixels=max_pixels)


def _glm4v(video: _Video) -> VideoImages:
    """GLM-4V does as Qwen3-VL does."""
    settings = video.settings
    most = GLM46V_MOST_FRAMES if is_glm46v(video.config, settings) else GLM_MOST_FRAMES
    video.check(least=video.merged_frames, most=most)
    min_pixels = edge(settings, "size", "shortest_edge", 112 * 112)
    max_pixels = edge(settings, "size", "longest_edge", 28 * 28 * 2 * 30_000)
    return _of_shared_pixels(video, video.merged_patch(14), min_pixels=min_pixels, max_pixels=max_pixels)


def _glmga(video: _Video) -> VideoImages:
    """As GLM-4.6V with sides that are multiples of ``patch_expand_factor`` merged patches, and more pixels."""
    settings = video.settings
    video.check(least=video.merged_frames, most=count(settings, "max_frames", GLM46V_MOST_FRAMES))
    factor = video.merged_patch(14) * count(settings, "patch_expand_factor", 1)
    min_pixels = edge(settings, "size", "shortest_edge", 112 * 112)
    max_pixels = edge(settings, "size", "longest_edge", 28 * 28 * 2 * 55_790)
    return _of_shared_pixels(video, factor, min_pixels=min_pixels, max_pixels=max_pixels)


def _of_shared_pixels(video: _Video, factor: int, *, min_pixels: int, max_pixels: int) -> VideoImages:
    height, width, merged = video.height, video.width, video.merged_frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(video, height=height, width=width)
    height, width = smart_resize(
        height,
        width,
        factor=factor,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        num_frames=video.num_frames,
        num_rounded_frames=round(video.num_frames / merged) * merged,
    )
    return video.images(width=width, height=height, frames_per_image=merged)


def _internvl(video: _Video) -> VideoImages:
    """A tile of a frame, whatever its size; the tower's positions fix the tile."""
    video.check(least=1, most=10**6)
    tile = side(video.vision, "image_size", 448)
    return video.images(width=tile, height=tile, frames_per_image=1)


def _clip(video: _Video) -> VideoImages:
    """The whole video, a tile of each frame."""
    video.check(least=1, most=10**6)
    image = clip_shape(video.config, video.settings, video.settings, num_frames=1, size=(video.width, video.height))
    size = {"width": image.resized_width, "height": image.resized_height}
    return VideoImages(num_images=1, frames_per_image=video.num_frames, **size)


def _as_stored(video: _Video) -> VideoImages:
    """The whole video, its frames as they are stored: what they are resized to is not resized to itself again."""
    video.check(least=1, most=10**6)
    size = {"width": video.width, "height": video.height}
    return VideoImages(num_images=1, frames_per_image=video.num_frames, **size)


def _lfm3_vl(video: _Video) -> VideoImages:
    """The whole video, its frames as large as Qwen3-VL's."""
    return _qwen3_vl(video)._replace(num_images=1, frames_per_image=video.num_frames)


def clip_shape(
    config: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    video_settings: Mapping[str, Any] | None,
    *,
    num_frames: int,
    size: tuple[int, int],
) -> ImageShape:
    """A video whose model sees a frame otherwise than an image; ``settings`` are those of the processor of images,
    ``size`` the (width, height) of a frame.

    SmolVLM's frame is an image that is not split, and LLaVA-OneVision's a tile, both whatever its size. The latter
    halves the sides of a frame's features, and puts a newline behind those of all (``get_video_features`` in
    modeling_llava_onevision.py), LLaVA-NeXT-Video's has the size that the video processor crops it to, and features
    are pooled. Gemma 4's is an image with the video processor's budget, MiniCPM-V's one with its
    other settings too. Of LFM3-VL ``size`` is that of frames that are resized already. Raises InputError for other
    models.
    """
    if config.get("model_type") not in CLIP_TYPES:
        raise InputError(
            f"clip_frames is {num_frames}, but a {config.get('model_type')} sees frames of videos as images"
        )
    sampler = SAMPLERS[str(config.get("model_type"))]
    more = dict(settings or {})
    if sampler in MINICPMV_SAMPLERS:
        named = file_settings(video_settings or {}, "settings of videos: ")
        shown = Image(config=config, preprocessor=named, width=size[0], height=size[1])
        return minicpmv_clip(shown, more, num_frames)
    if sampler is Sampler.QWEN3_VL:
        return _clip_of_rows(config, more, num_frames=num_frames, size=size)
    frame, features, others = _clip_tokens(config, more, video_settings, num_frames=num_frames, size=size)
    return replace(
        frame,
        num_tokens=features + others,
        num_placeholder_tokens=features,
        num_vision_sequences=num_frames,
        is_clip=True,
    )


def _clip_tokens(
    config: Mapping[str, Any],
    settings: dict[str, Any],
    video_settings: Mapping[str, Any] | None,
    *,
    num_frames: int,
    size: tuple[int, int],
) -> tuple[ImageShape, int, int]:
    """(a frame, tokens of features of all frames, tokens beside those)."""
    sampler, whole = SAMPLERS[str(config.get("model_type"))], {"width": 1, "height": 1}
    if sampler in GEMMA4_SAMPLERS:
        frame = image_shape(config, FRAME_TOKENS | dict(video_settings or {}), width=size[0], height=size[1])
    elif sampler is Sampler.SMOLVLM:
        frame = image_shape(config, {**settings, "do_image_splitting": False}, **whole)
    elif sampler is Sampler.LLAVA_NEXT_VIDEO:
        frame = frame_tile(config, video_settings)
        return frame, num_frames * (frame.num_patches // POOLED_SIDE**2), 0
    else:
        frame = image_shape(config, settings, **whole, num_images_per_sample=2)
        return frame, num_frames * (-(-frame.num_patch_rows // 2) * -(-frame.num_patch_columns // 2)) + 1, 0
    features = num_frames * frame.num_placeholder_tokens
    return frame, features, num_frames * frame.num_tokens - features


def _clip_of_rows(
    config: Mapping[str, Any], settings: Mapping[str, Any], *, num_frames: int, size: tuple[int, int]
) -> ImageShape:
    """Rows of patches, each of ``temporal_patch_size`` frames, that are one input of the tower."""
    row = image_shape(config, {**settings, **UNLIMITED}, width=size[0], height=size[1])
    num_rows = -(-num_frames // merged_frames(config, settings))
    return replace(
        row,
        num_tokens=num_rows * row.num_tokens,
        num_placeholder_tokens=num_rows * row.num_placeholder_tokens,
        num_vision_sequences=num_rows,
        is_clip=True,
    )


def _check_ratio(video: _Video, *, height: int, width: int) -> None:
    frame = Image(config=video.config, width=video.width, height=video.height)
    check_aspect_ratio(frame, height=height, width=width)


_OF_SAMPLER: Mapping[Sampler, Callable[[_Video], VideoImages]] = {
    Sampler.QWEN2_VL: _qwen2_vl,
    Sampler.QWEN3_VL: _qwen3_vl,
    Sampler.GLM4V: _glm4v,
    Sampler.GLM46V: _glm4v,
    Sampler.GLMGA: _glmga,
    Sampler.INTERNVL: _internvl,
    **dict.fromkeys((Sampler.SMOLVLM, *LLAVA_SAMPLERS), _clip),
    **dict.fromkeys((*GEMMA4_SAMPLERS, *MINICPMV_SAMPLERS), _as_stored),
}
_RULES: Mapping[str, Callable[[_Video], VideoImages]] = {
    **{name: _OF_SAMPLER[one] for name, one in SAMPLERS.items()},
    "lfm3_vl": _lfm3_vl,
}
VIDEO_MODEL_TYPES = tuple(_RULES)
"""The ``model_type`` values of config.json that ``video_images`` knows."""


def video_images(
    config: Mapping[str, Any],
    video_settings: Mapping[str, Any] | None,
    *,
    num_frames: int,
    width: int,
    height: int,
) -> VideoImages:
    """What ``num_frames`` of a video of ``width x height`` pixels are in memory.

    ``video_settings`` are those of the video processor: video_preprocessor_config.json, or what stands for it; keys
    that they lack, and None, take the defaults of its class.

    Raises UnknownNameError for a model type without a rule, InputError for frames that the processor refuses.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _RULES:
        raise UnknownNameError("model type with videos", str(model_type), _RULES)
    settings = file_settings(video_settings or {}, "settings of videos: ")
    if settings.get("do_resize") is False:
        raise InputError("settings of videos: do_resize is False; videos that are not resized are not supported")
    named_config = file_settings(config, "config.json: ")
    video = _Video(config=named_config, settings=settings, num_frames=num_frames, width=width, height=height)
    return _RULES[model_type](video)


def video_image_shape(
    config: Mapping[str, Any],
    preprocessor: Mapping[str, Any] | None,
    video_settings: Mapping[str, Any] | None,
    found: VideoImages,
) -> ImageShape:
    """What one of the images of a video becomes. They have the size that the processor of videos gives them, whatever
    limits that of images has."""
    if config.get("model_type") in CLIP_TYPES:
        size = found.width, found.height
        return clip_shape(config, preprocessor, video_settings, num_frames=found.frames_per_image, size=size)
    resizes = SAMPLERS[str(config.get("model_type"))] is not Sampler.INTERNVL
    settings = {**(preprocessor or {}), **(UNLIMITED if resizes else {})}
    return image_shape(config, settings, width=found.width, height=found.height)

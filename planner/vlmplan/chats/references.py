"""Where the images and videos of a sample are, as its JSON says it: in a part of a turn, or beside the turns."""

from dataclasses import dataclass
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.json_reader import JsonObject

IMAGE_NAMES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # of a list of frames, not of videos
REFERENCE_KEYS = ("image", "path", "url", "base64", "image_url")
VIDEO_KEYS = ("video", "path")
FRAME_RATE = "sample_fps"
"""What qwen-vl-utils calls the frames a second of a list of frames."""
OWN_IMAGES = ("image", "images")
OWN_VIDEOS = ("video", "videos")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where an image is, as it stands in the JSON: a path, a data: URI or base64; or where a video is: a path, or the
    paths of its ``frames``, of which there are so many a second (``sample_fps``) where that is said."""

    text: str
    is_base64: bool = False
    is_video: bool = False
    frames: tuple[str, ...] = ()
    frames_per_second: float | None = None


def image_of_part(part: JsonObject) -> Reference | None:
    """Where the image of a part is; None where it takes the next of the sample's own."""
    given = [key for key in REFERENCE_KEYS if part.maybe(key, part.raw) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InputError(f"{part.source}: {part.path} names its image twice, by {' and '.join(given)}; one has to go")
    [key] = given
    if isinstance(part.raw(key), dict):  # OpenAI: {"image_url": {"url": "data:..."}}
        return Reference(text=part.object(key).text("url"))
    return Reference(text=part.text(key), is_base64=key == "base64")


def listed_values(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, anything else as a list of it."""
    return [] if value is None else cast("list[Any]", value) if isinstance(value, list) else [value]


def own_images(sample: JsonObject) -> list[Reference]:
    """``image`` or ``images`` of the sample: a text or an object that says where it is, or a list of them."""
    given = [key for key in OWN_IMAGES if sample.maybe(key, sample.raw) is not None]
    if len(given) > 1:
        raise InputError(f"{sample.source}: the sample has both image and images; one of the two has to go")
    if not given:
        return []
    [key] = given
    value = sample.raw(key)
    listed = listed_values(value)
    if all(isinstance(item, str) for item in listed):
        return [Reference(text=item) for item in listed]
    if not all(isinstance(item, dict) for item in listed):
        sample.refuse(key, "a text or a list of texts, or objects with one of path, url and base64,")
    objects = sample.objects(key) if isinstance(value, list) else [sample.object(key)]
    found = [image_of_part(item) for item in objects]
    if None in found:
        sample.refuse(key, f"an object with one of {', '.join(REFERENCE_KEYS)}")
    return [reference for reference in found if reference is not None]


def video_of_part(part: JsonObject) -> Reference | None:
    """Where the video of a part is; None where it takes the next of the sample's own."""
    given = [key for key in VIDEO_KEYS if part.maybe(key, part.raw) is not None]
    if len(given) > 1:
        raise InputError(f"{part.source}: {part.path} names its video twice, by video and path; one has to go")
    if not given:
        return None
    value = part.raw(given[0])
    if not isinstance(value, str) and not _frames(value):
        part.refuse(given[0], "the path of a video file, or a list of the paths of its frames")
    rate = part.maybe(FRAME_RATE, part.number)
    if rate == 0:
        part.refuse(FRAME_RATE, "a number of frames a second above 0")
    return _video_of(value, rate)


def _video_of(value: Any, rate: float | None = None) -> Reference:
    frames = _frames(value)
    return Reference(text=frames[0] if frames else value, is_video=True, frames=frames, frames_per_second=rate)


def _frames(value: Any) -> tuple[str, ...]:
    """The images of a list that are a video's frames; none for what is no such list."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    are_frames = all(isinstance(item, str) and item.lower().endswith(IMAGE_NAMES) for item in listed)
    return tuple(listed) if are_frames else ()


def own_videos(sample: JsonObject) -> list[Reference]:
    """``video`` or ``videos``: a path, a list of the paths of frames, or a list of either."""
    values = [sample.maybe(key, sample.raw) for key in OWN_VIDEOS]
    listed = [item for value in values for item in ([value] if _frames(value) else listed_values(value))]
    if not all(isinstance(item, str) or _frames(item) for item in listed):
        needed = "a path of a video file, a list of the paths of its frames, or a list of either,"
        sample.refuse(next(key for key in OWN_VIDEOS if key in sample), needed)
    return [_video_of(item) for item in listed]

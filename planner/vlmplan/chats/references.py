"""Where images, videos and sounds of a sample are, as its JSON says it: in a part of a turn, or beside the turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject

IMAGE_NAMES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # of a list of frames, not of videos
REFERENCE_KEYS = ("image", "path", "url", "base64", "image_url", "source")
VIDEO_KEYS = ("video", "path")
SOUND_KEYS = ("audio", "path", "url", "base64", "audio_url", "input_audio")
FRAME_RATE = "sample_fps"
"""What qwen-vl-utils calls the frames a second of a list of frames."""
WITH_SOUND = ("use_audio_in_video", "load_audio_from_video")
"""What transformers calls it that the sound of a video is heard too."""
PREFERENCE_KEYS = ("chosen", "rejected")
"""Under which a sample has two answers."""
REJECTED_BESIDE = "rejected_response"
"""Under which a sample of ms-swift has a worse answer than its chat."""
WORSE = (REJECTED_BESIDE, "rejected_messages", "non_preferred_output")
MARKS = ("label", "kto_tag")
"""Under which TRL and ms-swift, and LLaMA-Factory, say whether an answer is good, for KTO."""
OWN_IMAGES = ("image", "images")
OWN_VIDEOS = ("video", "videos")
OWN_SOUNDS = ("audio", "audios")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where an image or a sound is, as it stands in the JSON: a path, a data: URI or base64; or where a video is: a
    path, or the paths of its ``frames``, of which there are so many a second (``sample_fps``) where that is said."""

    text: str
    is_base64: bool = False
    is_video: bool = False
    is_sound: bool = False
    frames: tuple[str, ...] = ()
    frames_per_second: float | None = None

    @property
    def kind(self) -> str:
        return "video" if self.is_video else "sound" if self.is_sound else "image"


def image_of_part(part: JsonObject) -> Reference | None:
    """The reference to the image of a part; None where it takes the next of the sample's own."""
    return _of_part(part, REFERENCE_KEYS, "image")


def sound_of_part(part: JsonObject) -> Reference | None:
    """The reference to the sound of a part; None where it takes the next of the sample's own."""
    return _of_part(part, SOUND_KEYS, "sound")


def _of_part(part: JsonObject, keys: Sequence[str], kind: str) -> Reference | None:
    given = [key for key in keys if part.maybe(key, part.raw) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InputError(f"{part.source}: {part.path} names its {kind} twice, by {' and '.join(given)}; one has to go")
    [key] = given
    is_sound = kind == "sound"
    if not isinstance(part.raw(key), dict):
        return Reference(text=part.text(key), is_base64=key == "base64", is_sound=is_sound)
    said = part.object(key)
    if (
        "data" in said
    ):  # OpenAI: {"input_audio": {"data": "...", "format": "wav"}}, Anthropic: {"source": {"data": ...}}
        return Reference(text=said.text("data"), is_base64=True, is_sound=is_sound)
    return Reference(text=said.text("url"), is_sound=is_sound)  # OpenAI: {"image_url": {"url": "data:..."}}


def listed_values(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, anything else as a list of it."""
    return [] if value is None else cast("list[Any]", value) if isinstance(value, list) else [value]


def own_images(sample: JsonObject) -> list[Reference]:
    """``image`` or ``images`` of the sample: a text or an object that says where it is, or a list of them."""
    return _own(sample, OWN_IMAGES, REFERENCE_KEYS, image_of_part)


def own_sounds(sample: JsonObject) -> list[Reference]:
    """``audio`` or ``audios``, as ``own_images``."""
    return _own(sample, OWN_SOUNDS, SOUND_KEYS, sound_of_part)


def _own(
    sample: JsonObject,
    keys: Sequence[str],
    part_keys: Sequence[str],
    of_part: Callable[[JsonObject], Reference | None],
) -> list[Reference]:
    given = [key for key in keys if sample.maybe(key, sample.raw) is not None]
    if len(given) > 1:
        raise InputError(f"{sample.source}: the sample has both {' and '.join(given)}; one of the two has to go")
    if not given:
        return []
    [key] = given
    value = sample.raw(key)
    listed = listed_values(value)
    if all(isinstance(item, str) for item in listed):
        return [Reference(text=item, is_sound=key in OWN_SOUNDS) for item in listed]
    if not all(isinstance(item, dict) for item in listed):
        sample.refuse(key, "a text or a list of texts, or objects with one of path, url and base64,")
    objects = sample.objects(key) if isinstance(value, list) else [sample.object(key)]
    found = [of_part(item) for item in objects]
    if None in found:
        sample.refuse(key, f"an object with one of {', '.join(part_keys)}")
    return [reference for reference in found if reference is not None]


def video_of_part(part: JsonObject) -> Reference | None:
    """The reference to the video of a part; None where it takes the next of the sample's own."""
    _refuse_its_sound(part)
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


def _refuse_its_sound(said: JsonObject) -> None:
    """Raise InputError where the sound of a video is to be heard with its frames."""
    asked = next((key for key in WITH_SOUND if said.maybe(key, said.flag)), None)
    if asked is not None:
        said.complain(asked, "the sound of a video is not read with its frames; leave it off, or give the sound beside")


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
    _refuse_its_sound(sample)
    values = [sample.maybe(key, sample.raw) for key in OWN_VIDEOS]
    listed = [item for value in values for item in ([value] if _frames(value) else listed_values(value))]
    if not all(isinstance(item, str) or _frames(item) for item in listed):
        needed = "a path of a video file, a list of the paths of its frames, or a list of either,"
        sample.refuse(next(key for key in OWN_VIDEOS if key in sample), needed)
    return [_video_of(item) for item in listed]


def refuse_pair(sample: JsonObject, completion_key: str) -> None:
    """Raise InputError for a pair of answers, or one that is marked as good or bad, where a sample with one is read."""
    beside = next((key for key in WORSE if sample.maybe(key, sample.raw) not in (None, "", [])), None)
    if beside is not None:
        sample.complain(
            beside,
            "it is a worse answer beside the chat: --task dpo trains on prompt, chosen and rejected, supervised "
            "fine-tuning on one answer",
        )
    if completion_key not in PREFERENCE_KEYS and all(key in sample for key in PREFERENCE_KEYS):
        raise InputError(
            f"{sample.source}: the sample has {' and '.join(PREFERENCE_KEYS)}, a pair of answers, on which --task dpo "
            f"trains; supervised fine-tuning needs one answer"
        )
    marked = next((key for key in MARKS if isinstance(sample.values.get(key), bool)), None)
    if marked is not None:
        sample.complain(marked, "samples that are marked as good or bad are for --task kto alone")

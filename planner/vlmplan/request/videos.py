"""Videos of samples, as the images that they are in memory: from here on a plan knows images alone.

So an estimate, a search, a rehearsal and a launch of the same options mean the same bytes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.video_sampling import sampled_frames
from vlmplan.architecture.images.videos import (
    VIDEO_MODEL_TYPES,
    VideoImages,
    video_image_shape,
    video_images,
)
from vlmplan.chats.samplers import CLIP_TYPES, why_not_read
from vlmplan.data_rules import DataRules, OwnVideoRules
from vlmplan.errors import InputError
from vlmplan.request.parts import VideoRequest
from vlmplan.request.record import Options, Request
from vlmplan.units import counted, is_or_are, size_text
from vlmplan.workload import DEFAULT_IMAGE_SIZE, DEFAULT_SEQ_LEN, ModelFiles, seq_len_with_text

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool


def with_videos(own: Request, options: Options) -> Request:
    """``own`` with the images of its samples that stand for their videos, and notes that say so.

    The size of an image that is said beside is that of these images: a change that is proposed of it can be made.
    Raises InputError for videos of a model that takes none, for frames that its processor refuses, and beside images
    or samples that are described in another way.
    """
    asked = own.videos
    if asked == VideoRequest() or _limits_samples(own, options):
        return own
    model = _checked_model(own, options)
    num_frames = _num_frames(asked, model)
    size, said_size = asked.size or DEFAULT_IMAGE_SIZE, own.workload.image_size
    is_clip = model.model_type in CLIP_TYPES
    if is_clip and own.made_for is not None:
        raise InputError(
            f"{_given(asked)} of {model.id}, which sees frames otherwise than images, is planned for vlmplan's own "
            f"trainer alone, and this is for {own.made_for.value}; leave one off"
        )
    found = (_clip if is_clip else _images)(model, num_frames, size, said_size)
    num_videos = 1 if asked.per_sample is None else asked.per_sample
    length = "" if asked.seconds is None else f"{asked.seconds:g} s, "
    text = f"{counted(num_videos, 'video')} of {length}{counted(num_frames, 'frame')} of {size_text(size)}"
    as_said = "" if said_size is None else f" (planned as images of {size_text(said_size)}, as --image-size says)"
    seq_len, length_notes = _seq_len(
        own.workload.seq_len, text + as_said, num_videos * _num_tokens(model, found), model
    )
    workload = replace(
        own.workload,
        seq_len=seq_len,
        images_per_sample=num_videos * found.num_images,
        image_size=(found.width, found.height),
        video_fps=asked.fps,
        video_frames=num_frames,
        clip_frames=num_frames if is_clip else None,
    )
    notes = (
        _planned_as(text, found, num_videos, is_said=said_size is not None, is_clip=is_clip),
        _of_trainer(own.made_for, num_frames, said_size or size),
        *length_notes,
    )
    return replace(own, workload=workload, videos=VideoRequest(), video_notes=notes)


def _limits_samples(own: Request, options: Options) -> bool:
    """Whether what is asked of videos limits the frames of given samples: ``video_fps`` of each second, and
    ``video_frames`` of ``video_size`` pixels at the most."""
    others = (own.videos.seconds, own.videos.per_sample)
    return options.get("data") is not None and options.get("config") is None and others == (None, None)


def with_frame_limits(rules: DataRules, asked: VideoRequest) -> DataRules:
    """``rules`` of samples with what is asked of their videos. Raises InputError for a trainer that has rules of its
    own."""
    if asked == VideoRequest():
        return rules
    if not isinstance(rules.videos, OwnVideoRules):
        limits = {"--video-fps": asked.fps, "--video-frames": asked.frames, "--video-size": asked.size}
        given = next(name for name, value in limits.items() if value is not None)
        raise InputError(
            f"{given} with --data says what vlmplan's own trainer takes of videos, and this is planned for "
            f"{rules.trainer}; leave it off"
        )
    limits = OwnVideoRules(fps=asked.fps, most_frames=asked.frames, max_pixels=asked.max_pixels)
    return replace(rules, videos=limits)


def _checked_model(own: Request, options: Options) -> ModelFiles:
    """What looks at the videos. Raises InputError where what is asked does not go together."""
    asked = own.videos
    _refuse_beside_samples(asked, options)
    if asked.frames is None and asked.seconds is None:
        others = {"--video-fps": asked.fps, "--video-size": asked.size, "--videos-per-sample": asked.per_sample}
        given = next(name for name, value in others.items() if value is not None)
        raise InputError(
            f"{given} is given without --video-frames; give the frames that the model sees of a video too, or its "
            f"--video-seconds"
        )
    if asked.frames is not None and (asked.seconds, asked.fps) != (None, None):
        more = "--video-fps" if asked.seconds is None else "--video-seconds"
        raise InputError(f"--video-frames does not go with {more}, which says how many frames there are; leave one off")
    given = _given(asked)
    if own.workload.images_per_sample:
        raise InputError(
            f"{given} does not go with --images-per-sample: samples are planned with videos or with images, "
            f"which models look at one after the other; leave one of them off"
        )
    if own.model is None:
        raise InputError(f"{given} is given without --model, whose processor decides what they become")
    model = own.model_files
    if model.model_type not in VIDEO_MODEL_TYPES:
        number = asked.seconds if asked.frames is None else asked.frames
        raise InputError(
            f"{given} is {number:g}, but videos are not planned of {model.id}, whose model type is "
            f"{model.model_type}{why_not_read(model.model_type)}; those of {', '.join(VIDEO_MODEL_TYPES)} are"
        )
    return model


def _refuse_beside_samples(asked: VideoRequest, options: Options) -> None:
    """Raise InputError for what is asked of videos beside a file that has samples of its own."""
    asked_for = {
        "--video-seconds": asked.seconds,
        "--video-size": asked.size,
        "--videos-per-sample": asked.per_sample,
        "--video-frames": asked.frames,
        "--video-fps": asked.fps,
    }
    given = next(name for name, value in asked_for.items() if value is not None)
    for name in ("data", "config"):
        if options.get(name) is not None:
            raise InputError(
                f"{given} does not go with --{name} {options[name]}, which says itself what samples are like; "
                f"leave one of them off"
            )


def _given(asked: VideoRequest) -> str:
    """The option by which frames are told of."""
    return "--video-seconds" if asked.frames is None else "--video-frames"


def _num_frames(asked: VideoRequest, model: ModelFiles) -> int:
    """The number of frames that is said, or as many as the model's processor takes of so many seconds."""
    if asked.frames is not None:
        return asked.frames
    assert asked.seconds is not None
    return sampled_frames(model.config, model.video_settings, seconds=asked.seconds, fps=asked.fps)


def _images(
    model: ModelFiles, num_frames: int, size: tuple[int, int], said_size: tuple[int, int] | None
) -> VideoImages:
    """What a video is, in images of ``said_size`` where that is said."""
    found = video_images(model.config, model.video_settings, num_frames=num_frames, width=size[0], height=size[1])
    if said_size is not None:
        return found._replace(width=said_size[0], height=said_size[1])
    image = image_shape(model.config, model.preprocessor, width=found.width, height=found.height)
    resized = image.resized_width, image.resized_height
    if (*resized, image.num_vision_sequences) != (found.width, found.height, 1):
        raise InputError(
            f"--video-size is {size_text(size)}, of which {model.id} sees frames of {found.width}x{found.height}; its "
            f"images of that size become {size_text(resized)}, and frames are planned as images: give larger or fewer "
            f"frames, or --image-size {size_text(resized)} to plan them so large"
        )
    return found


def _clip(model: ModelFiles, num_frames: int, size: tuple[int, int], said_size: tuple[int, int] | None) -> VideoImages:
    """What a video is of a model that sees its frames otherwise than images."""
    found = video_images(model.config, model.video_settings, num_frames=num_frames, width=size[0], height=size[1])
    if said_size is not None:
        made = (found.width, found.height)
        why = "--video-size says how large they are" if made == size else f"every one becomes one of {size_text(made)}"
        raise InputError(
            f"--image-size is {size_text(said_size)}, but frames of videos are no images to {model.id}, and {why}; "
            f"leave it off"
        )
    return found


def _num_tokens(model: ModelFiles, found: VideoImages) -> int:
    """Tokens of one video in the language model."""
    if model.model_type in CLIP_TYPES:
        return video_image_shape(model.config, model.preprocessor, model.video_settings, found).num_tokens
    size = {"width": found.width, "height": found.height}
    image = image_shape(model.config, model.preprocessor, **size, num_images_per_sample=found.num_images)
    return found.num_images * image.num_tokens


def _seq_len(said: int | None, text: str, num_tokens: int, model: ModelFiles) -> tuple[int | None, tuple[str, ...]]:
    """Tokens of a sample with videos, and a note where they are taken; None: as without."""
    if said is not None and num_tokens > said:
        raise InputError(
            f"--seq-len is {said}, but {text} take {num_tokens} tokens of {model.id}; give at least that many tokens, "
            f"or fewer frames (--video-frames, --video-fps), a smaller --video-size or fewer --videos-per-sample"
        )
    if said is not None or num_tokens <= DEFAULT_SEQ_LEN:
        return said, ()
    taken = seq_len_with_text(num_tokens)
    return taken, (f"--seq-len is taken as {taken:,}: the videos of a sample take {num_tokens:,} tokens",)


def _planned_as(text: str, found: VideoImages, num_videos: int, *, is_said: bool, is_clip: bool) -> str:
    if is_clip:
        return (
            f"{text} in each sample {'is' if num_videos == 1 else 'are'} planned as "
            f"{counted(num_videos * found.frames_per_image, 'frame')} of {found.width}x{found.height}, which the model "
            f"sees otherwise than images"
        )
    merged = "a frame is" if found.frames_per_image == 1 else f"{found.frames_per_image} frames are"
    images = counted(num_videos * found.num_images, "image")
    size = f"{found.width}x{found.height}{', as --image-size says' if is_said else ''}"
    verb = is_or_are(num_videos)
    return f"{text} in each sample {verb} planned as {images} of {size}: to the model {merged} what an image is"


def _of_trainer(tool: "Tool | None", num_frames: int, size: tuple[int, int]) -> str:
    """What the user has to do so that his trainer does the same."""
    if tool is None:
        return (
            f"vlmplan's own trainer takes the frames that the model's processor does, at most {num_frames} of a video "
            f"with this plan, and leaves out samples for which it has no room"
        )
    from vlmplan.other_trainers.writing import Tool, title_of

    if tool is Tool.LLAMA_FACTORY:
        return (
            f"LLaMA-Factory takes no more with video_maxlen: {num_frames} and video_max_pixels: "
            f"{size[0] * size[1]}, which are not written for it"
        )
    return f"what is written for {title_of(tool)} limits images; limit the frames of videos where it reads them"

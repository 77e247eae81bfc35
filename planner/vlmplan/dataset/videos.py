"""Videos of a sample as the images that they are in memory, by the rules of the trainer that shows them."""

from dataclasses import dataclass
from functools import lru_cache

from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.video_sampling import frame_rule
from vlmplan.architecture.images.videos import video_image_shape, video_images
from vlmplan.chats.downscaling import Size
from vlmplan.chats.frame_rules import FrameRule, refuse_together
from vlmplan.chats.samplers import CLIP_TYPES, ONE_INPUT_SAMPLERS, SAMPLERS
from vlmplan.chats.video_files import VideoHeader
from vlmplan.data_rules import DataRules, OwnVideoRules, VideoRules
from vlmplan.dataset.images import ImageAmounts, limited
from vlmplan.dataset.record import SampleSize
from vlmplan.errors import InputError
from vlmplan.workload import ModelFiles

KEPT_VIDEOS = 2**14
LEAST_SIDE, MOST_ASPECT, FEWER_ASPECT = 28, 200, 180
"""Of a frame, in LLaMA-Factory (``Qwen2VLPlugin._preprocess_image``)."""
MOST_FRAMES_OF_AN_IMAGE = 64
"""Small frames that are planned as one image, side by side. A choice: images are no smaller than 256 x 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVideo:
    """A video as ``num_images`` of ``size``, with the tokens and patches of all its frames."""

    num_images: int
    size: Size
    num_tokens: int
    num_patches: int


def own_rule(model: ModelFiles, rules: OwnVideoRules) -> FrameRule:
    """The rule by which the model's own processor takes frames."""
    limits = {"most_frames": rules.most_frames, "max_pixels": rules.max_pixels}
    return frame_rule(model.config, model.video_settings, fps=rules.fps, **limits)


class VideoAmounts:
    """What videos become, by their headers. ``images`` are the amounts of images of the same samples."""

    def __init__(self, model: ModelFiles, rules: DataRules, images: ImageAmounts) -> None:
        self._model, self._rules, self._images = model, rules.videos, images
        self.seen = lru_cache(KEPT_VIDEOS)(self._seen)
        self.num_frames = lru_cache(KEPT_VIDEOS)(self._num_frames)

    @property
    def needs_both_kinds(self) -> bool:
        """Whether the trainer gives every micro batch an image and a video where the samples have both: for models that
        see them one after the other, so that all ranks run the vision tower as often."""
        takes_one = SAMPLERS.get(self._model.model_type) in ONE_INPUT_SAMPLERS
        return isinstance(self._rules, OwnVideoRules) and not takes_one

    @property
    def are_clips(self) -> bool:
        """Whether videos are no images to the model."""
        return isinstance(self._rules, OwnVideoRules) and self._model.model_type in CLIP_TYPES

    def refuse_together(self, sample: SampleSize) -> None:
        """Raises what ``frame_rules.refuse_together`` does."""
        if sample.videos and isinstance(self._rules, OwnVideoRules):
            rule = own_rule(self._model, self._rules)
            refuse_together(rule, sample.videos, has_images=bool(sample.images))

    def blank(self, side: int) -> SeenVideo:
        """A square video of as few frames as become one row of patches."""
        assert isinstance(self._rules, OwnVideoRules)
        return self._of_frames(own_rule(self._model, self._rules).merged_frames, (side, side))

    def _num_frames(self, video: VideoHeader) -> int:
        """Frames that the model is given of a video."""
        assert self._rules is not None
        if isinstance(self._rules, OwnVideoRules):
            return len(own_rule(self._model, self._rules).indices(video))
        return frames_of(video, self._rules)

    def _seen(self, video: VideoHeader) -> SeenVideo:
        """Raises InputError for a video that the model's processor refuses."""
        if isinstance(self._rules, OwnVideoRules):
            return self._of_frames(self.num_frames(video), video.within(self._rules.max_pixels).shown_size)
        assert self._rules is not None
        [size, *others] = frame_pairs(video, self._rules)
        num_images, shape = 1 + len(others), self._images.shape(size, 1)
        return SeenVideo(
            num_images=num_images,
            size=size,
            num_tokens=num_images * shape.num_tokens,
            num_patches=num_images * shape.num_patches,
        )

    def _of_frames(self, num_frames: int, size: Size) -> SeenVideo:
        """Frames of a video of this size, as the model's own processor makes them."""
        model = self._model
        found = video_images(model.config, model.video_settings, num_frames=num_frames, width=size[0], height=size[1])
        shape = video_image_shape(model.config, model.preprocessor, model.video_settings, found)
        at_once = self._frames_of_an_image((found.width, found.height), found.num_images)
        width, height = found.width, found.height
        return SeenVideo(
            num_images=-(-found.num_images // at_once),
            size=(width * at_once, height) if width < height else (width, height * at_once),
            num_tokens=found.num_images * shape.num_tokens,
            num_patches=found.num_images * shape.num_encoded_patches,
        )

    def _frames_of_an_image(self, size: Size, most: int) -> int:
        """The fewest frames side by side that the image processor does not make larger: all, where it does so with all
        of them too."""
        width, height = size
        most = min(most, MOST_FRAMES_OF_AN_IMAGE)
        for number in range(1, most + 1):
            whole = (width * number, height) if width < height else (width, height * number)
            try:
                shape = image_shape(self._model.config, self._model.preprocessor, width=whole[0], height=whole[1])
            except InputError:  # too long a strip
                return max(1, number - 1)
            if shape.resized_width * shape.resized_height <= whole[0] * whole[1]:
                return number
        return most


def frames_of(video: VideoHeader, rules: VideoRules) -> int:
    """Frames that LLaMA-Factory gives the model, an even number: all of a list."""
    if video.is_listed:
        return video.num_frames + video.num_frames % 2
    return rules.num_frames(of=video.num_frames, seconds=video.seconds)


def frame_pairs(video: VideoHeader, rules: VideoRules) -> list[Size]:
    """What stands for a video in LLaMA-Factory: an image of the frames' size for each two of them."""
    count = frames_of(video, rules)
    size = limited((video.width, video.height), min_pixels=rules.min_pixels, max_pixels=rules.max_pixels)
    width, height = (max(LEAST_SIDE, side) for side in size) if min(size) < LEAST_SIDE else size
    if width > MOST_ASPECT * height:
        width = FEWER_ASPECT * height
    elif height > MOST_ASPECT * width:
        height = FEWER_ASPECT * width
    return [(width, height)] * (count // 2)

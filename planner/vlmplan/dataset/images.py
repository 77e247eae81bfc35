"""Images of a sample as the model sees them: tokens in the language model and patches in the vision encoder."""

import math
from functools import lru_cache

from vlmplan.architecture.images import ImageShape, image_settings, image_shape
from vlmplan.architecture.images.minicpmv import more_digits
from vlmplan.architecture.images.videos import clip_shape, merged_frames
from vlmplan.chats.downscaling import ImageDownscaler, Size
from vlmplan.chats.samplers import CLIPS_OF_ROWS
from vlmplan.data_rules import DataRules
from vlmplan.errors import InputError
from vlmplan.workload import ModelFiles

KEPT_SIZES = 2**17


class ImageAmounts:
    """What the model's processor makes of images, by their size, after the trainer has made them smaller.

    ``planned`` is the size that the bundled trainer brings larger images to; None leaves them.
    """

    def __init__(self, model: ModelFiles, rules: DataRules, planned: Size | None = None) -> None:
        self._rules = rules
        self._config, self._preprocessor = image_settings(model.config, model.preprocessor)
        self._video_settings = model.video_settings
        self._sees_rows = model.model_type in CLIPS_OF_ROWS
        self._shape = lru_cache(KEPT_SIZES)(self._new_shape)
        self._downscaler = None if planned is None else ImageDownscaler(self, planned)

    def amounts(self, size: Size) -> tuple[float, float]:
        """Tokens and patches of an image as it is; infinite for one that the processor refuses."""
        try:
            shape = self._shape(size, 1)
        except InputError:
            return math.inf, math.inf
        return shape.num_tokens, shape.num_patches

    def shape(self, size: Size, num_images: int) -> ImageShape:
        """What one of ``num_images`` of a sample becomes, of an image that is made smaller already.

        Raises InputError for one that the processor refuses.
        """
        return self._shape(size, num_images)

    def clip(self, num_frames: int, size: Size) -> ImageShape:
        """What a video of so many frames of this size becomes, of a model that sees those otherwise than images."""
        return clip_shape(self._config, self._preprocessor, self._video_settings, num_frames=num_frames, size=size)

    def more_tokens(self, num_images: int, num_videos: int) -> int:
        """What images and videos of one sample take beside the tokens that each takes alone."""
        return more_digits(self._config, self._preprocessor, images=num_images, videos=num_videos)

    def clip_frames(self, num_patches: float, size: Size) -> int:
        """The fewest frames of this size that have so many patches: those that are seen together come together."""
        together = merged_frames(self._config, self._video_settings or {}) if self._sees_rows else 1
        return together * math.ceil(num_patches / self.clip(1, size).num_encoded_patches)

    def seen_size(self, size: Size) -> Size:
        """The size that the processor is given."""
        size = limited(size, min_pixels=self._rules.min_pixels, max_pixels=self._rules.max_pixels)
        return size if self._downscaler is None else self._downscaler.fit(size).canvas

    def _new_shape(self, size: Size, num_images: int) -> ImageShape:
        return image_shape(
            self._config,
            self._preprocessor,
            width=size[0],
            height=size[1],
            num_images_per_sample=num_images,
        )


def limited(size: Size, *, min_pixels: int, max_pixels: int | None) -> Size:
    """An image brought between both limits with its shape kept.

    Source: ``_preprocess_image`` in LLaMA-Factory's ``data/mm_plugin.py``, and ``rescale_image`` in ms-swift's
    ``template/vision_utils.py``, which has no lower limit.

    >>> limited((1000, 500), min_pixels=0, max_pixels=125_000)
    (500, 250)
    """
    width, height = size
    pixels = width * height
    if max_pixels is not None and pixels > max_pixels:
        factor = math.sqrt(max_pixels / pixels)
    elif pixels < min_pixels:
        factor = math.sqrt(min_pixels / pixels)
    else:
        return size
    return max(1, int(width * factor)), max(1, int(height * factor))

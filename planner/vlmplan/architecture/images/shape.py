"""The result, ``ImageShape``, and the question, ``Image``. A leaf of this subpackage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmplan.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageShape:
    """What one image becomes: the vision encoder's input and the language model's tokens.

    ``num_tokens`` is every position that the image takes in the language model's sequence: the placeholders
    and the text tokens that the processor (not the chat template) puts around them, such as start, end,
    row, column, tile and newline tokens. ``num_placeholder_tokens`` is the part of it that image features
    are scattered into; learned newline features (llava_next, llava_onevision) belong to it. What only the
    chat template writes (Qwen's ``<|vision_start|>`` and ``<|vision_end|>``, GLM's ``<|begin_of_image|>``)
    counts as text in neither.

    The vision encoder sees ``num_vision_sequences`` tiles of ``num_patch_columns x num_patch_rows`` patches
    each. Tiles are independent batch items, except in mllama, whose encoder attends over all
    (padded) tiles of an image at once. Class tokens and the encoder's own padding are not counted.
    ``resized_width x resized_height`` pixels is the canvas that is cut into
    ``num_tile_columns x num_tile_rows`` tiles; an untiled image is one tile. Tiles beyond columns x rows
    are a thumbnail of the whole image or, in mllama, padding.

    ``num_cross_attention_states`` is not zero where the language model looks at the image through
    cross-attention and only a marker enters its sequence (mllama).

    ``num_unpadded_columns x num_unpadded_rows`` features of the whole canvas are left where those that only cover
    padding are cut off (llava_next, llava_onevision, before the latter shrinks them).

    ``has_padded_sequences`` where the pictures differ in size and are padded to the largest, so that the vision
    encoder masks attention (idefics2). ``num_padding_patches`` behind those of the image fill up its sequence to the
    length of all (gemma4, gemma4_unified).

    ``num_overview_columns x num_overview_rows`` patches of the whole image come before its tiles where these have
    another number (minicpmv4_6, minicpmv4_7); it is one of the ``num_vision_sequences``. Of a video each of the
    ``num_frames`` has one.

    ``is_clip``: it is no image but a video whose model sees a frame otherwise than an image (smolvlm, llava_onevision,
    llava_next_video, gemma4, gemma4_unified, minicpmv4_6, minicpmv4_7, minicpm_ocr), each frame a sequence of its own
    or several, or takes all frames of a video at once (lfm3_vl), two of which are a sequence.
    """

    num_tokens: int
    num_placeholder_tokens: int
    num_vision_sequences: int
    num_patch_columns: int
    num_patch_rows: int
    resized_width: int
    resized_height: int
    num_tile_columns: int = 1
    num_tile_rows: int = 1
    num_cross_attention_states: int = 0
    num_unpadded_columns: int = 0
    num_unpadded_rows: int = 0
    has_padded_sequences: bool = False
    num_padding_patches: int = 0
    num_overview_columns: int = 0
    num_overview_rows: int = 0
    is_clip: bool = False
    num_frames: int = 1

    @property
    def num_patches_per_sequence(self) -> int:
        """Patch tokens of one tile, class token and padding not counted."""
        return self.num_patch_columns * self.num_patch_rows

    @property
    def num_patches(self) -> int:
        """Patch tokens of the whole image, thumbnail and padded tiles included."""
        num_overviews = self.num_frames if self.num_overview_patches else 0
        num_tiles = self.num_vision_sequences - num_overviews
        return num_overviews * self.num_overview_patches + num_tiles * self.num_patches_per_sequence

    @property
    def num_encoded_patches(self) -> int:
        """``num_patches`` with those that fill up the sequences, which the vision encoder computes too."""
        return self.num_patches + self.num_vision_sequences * self.num_padding_patches

    @property
    def num_overview_patches(self) -> int:
        return self.num_overview_columns * self.num_overview_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of ``width x height`` pixels and the files of the model that is to look at it.

    ``config`` is config.json; ``preprocessor`` is preprocessor_config.json, empty where it is not known.
    ``num_images_per_sample`` matters to llava_onevision only.
    """

    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any] = field(default_factory=dict[str, Any])
    width: int
    height: int
    num_images_per_sample: int = 1

    def __post_init__(self) -> None:
        for name in ("width", "height", "num_images_per_sample"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                kind = "pixels" if name != "num_images_per_sample" else "images"
                raise InputError(f"image {name} is {value!r}; a whole number of {kind}, 1 or more, is needed")

    @property
    def text(self) -> str:
        """The size as ``WxH``, for messages."""
        return f"{self.width}x{self.height}"

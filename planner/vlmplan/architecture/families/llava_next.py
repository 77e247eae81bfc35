"""LLaVA-NeXT (1.6): tiles of an image and the whole of it, laid out as one picture with a newline behind each row.

Source: transformers 5.23 ``models/llava_next/modeling_llava_next.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llava import Llava, LlavaModel, side_by_side
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor


class TilePacking(Module):
    """How the features of an image's tiles become a sequence (``pack_image_features``)."""

    image_newline: Parameter

    def packed(self, features: Tensor, image: ImageShape) -> Tensor:
        """``pack_image_features``: features (tiles, positions, width) of one image, the first tile being all of it."""
        num_tiles, num_features, width = features.shape
        tape = features.tape
        base = ops.part(features, num_features, width)
        if num_tiles == 1:
            newline = ops.to(ops.expand_weight(self.image_newline, (1, width), tape), base.dtype)
            return ops.concatenate([base, newline], (num_features + 1, width))
        picture = self.picture(ops.part(features, num_tiles - 1, num_features, width), image)
        _, rows, columns = picture.shape
        newlines = ops.to(ops.expand_weight(self.image_newline, (width, rows, 1), tape), picture.dtype)
        picture = ops.concatenate([picture, newlines], (width, rows, columns + 1))
        num_tokens = rows * (columns + 1)
        return ops.concatenate([base, picture.view(num_tokens, width)], (num_features + num_tokens, width))

    def picture(self, tiles: Tensor, image: ImageShape) -> Tensor:
        """The tiles as one picture (width, rows, columns) without the rows or columns that only cover padding."""
        width = tiles.shape[-1]
        rows = image.num_tile_rows * image.num_patch_rows
        columns = image.num_tile_columns * image.num_patch_columns
        unpadded = (image.num_unpadded_rows, image.num_unpadded_columns)
        shrunk = self.shrunk(*unpadded, image)
        # Written out as a picture. The gradient comes back in its layout and has to be copied into that of the tiles,
        # unless tiles stand above each other and the gradient is a tensor of its own.
        is_own = unpadded != (rows, columns) or shrunk != unpadded
        lay_out = ops.copy if image.num_tile_columns == 1 and is_own else ops.resample
        picture = lay_out(tiles, width, rows, columns)
        if unpadded != (rows, columns):
            picture = ops.part(picture, width, *unpadded)
        if shrunk != unpadded:
            picture = ops.interpolate(picture, 1, width, *shrunk)
            picture = ops.part(picture, width, *shrunk)
        return picture

    def shrunk(self, rows: int, columns: int, image: ImageShape) -> tuple[int, int]:
        """(rows, columns) of features that are left of an unpadded picture."""
        return rows, columns


class LlavaNextModel(TilePacking, LlavaModel):
    """``LlavaNextModel``: LLaVA's with a learned newline."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.image_newline = Parameter(self.language_model.shape.hidden_size)

    def image_features(
        self, pixels: Tensor, batch: Batch, backend: AttentionBackend
    ) -> tuple[VisionOutput, Sequence[Tensor]]:
        assert batch.image is not None
        if batch.image.is_clip:  # frames are in one tensor as they are
            return super().image_features(pixels, batch, backend)
        with pixels.tape.section("tiles"):
            # The tiles of the images, which the processor pads to the same number, are concatenated: a copy.
            tiles = ops.copy(pixels)
        return super().image_features(tiles, batch, backend)

    def selected(self, output: VisionOutput) -> Tensor:
        """What LLaVA selects, but the first feature is dropped after the hidden states are put side by side."""
        states = output.hidden_states
        features = states[0] if len(states) == 1 else side_by_side(states)
        return self.foldable(self.without_first(features), is_sliced=self.drops_first_feature)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        assert batch.image is not None
        features = self.multi_modal_projector(self.selected(output))
        _, num_features, width = features.shape
        tiles = (batch.image.num_vision_sequences, num_features, width)
        per_image = ops.split(features, *[tiles] * batch.num_images)
        return [self.packed(features, batch.image) for features in per_image]


def build(config: Config) -> Llava:
    """``LlavaNextForConditionalGeneration``: only the top level's key ties, false where it is missing."""
    return Llava(LlavaNextModel(config), ties_weights=config.boolean("tie_word_embeddings"))

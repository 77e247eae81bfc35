"""LLaVA-OneVision: LLaVA-NeXT's tiles, shrunk to the area of a number of them where they are more, and videos, whose
frames' features are shrunk to half their sides.

Source: transformers 5.23 ``models/llava_onevision/modeling_llava_onevision.py``.
"""

import math
import re
from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llava import Llava, put_features
from vlmplan.architecture.families.llava_next import LlavaNextModel
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed


class LlavaOnevisionModel(LlavaNextModel):
    """``LlavaOnevisionModel``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        limit = config.text("vision_aspect_ratio")
        if not re.fullmatch(r"(anyres_max_)?[1-9][0-9]{0,8}", limit):
            raise not_allowed(CONFIG, "vision_aspect_ratio", limit, "anyres_max_N")
        self.max_tiles = int(limit.removeprefix("anyres_max_"))

    def shrunk(self, rows: int, columns: int, image: ImageShape) -> tuple[int, int]:
        """Interpolated to the area of ``anyres_max_N`` tiles if it is more than a fifth above (1.1 on each side)."""
        ratio = math.sqrt(rows * columns / (self.max_tiles * image.num_patch_rows**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        assert batch.image is not None
        if not batch.image.is_clip:
            return super().pieces(output, batch)
        features = self.multi_modal_projector(self.selected(output))
        features = self.pooled(features, batch.image)
        width = features.shape[-1]
        newlines = ops.expand_weight(self.image_newline, (batch.num_images, 1, width), features.tape)
        return [ops.concatenate([features, newlines], (batch.num_images, batch.image.num_placeholder_tokens, width))]

    def pooled(self, features: Tensor, image: ImageShape) -> Tensor:
        """``apply_pooling`` of features (frames, positions, width), and the copy that ``reshape`` makes of it."""
        frames, _, width = features.shape
        rows, columns = image.num_patch_rows, image.num_patch_columns
        picture = ops.resample(features, frames, width, rows, columns)
        picture = ops.interpolate(picture, frames, width, -(-rows // 2), -(-columns // 2))
        return ops.resample(picture, frames, picture.shape[2] * picture.shape[3], width)

    def scattered(self, ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
        """Videos are in one tensor already, and come without a copy."""
        if len(pieces) > 1 or len(pieces[0].shape) == 2:
            return super().scattered(ids, embeddings, pieces)
        width = embeddings.shape[-1]
        with ids.tape.section("scatter"):
            return put_features(ids, embeddings, pieces[0].view(pieces[0].numel // width, width))


def build(config: Config) -> Llava:
    """``LlavaOnevisionForConditionalGeneration``."""
    return Llava(LlavaOnevisionModel(config), ties_weights=ties_either(config, config.section("text_config")))

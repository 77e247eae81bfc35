"""LLaVA-OneVision: LLaVA-NeXT's tiles, shrunk to the area of a number of them where they are more.

Source: transformers 5.23 ``models/llava_onevision/modeling_llava_onevision.py``.
"""

import math
import re

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llava import Llava
from vlmplan.architecture.families.llava_next import LlavaNextModel
from vlmplan.architecture.images import ImageShape
from vlmplan.json_reader import not_allowed


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


def build(config: Config) -> Llava:
    """``LlavaOnevisionForConditionalGeneration``: tied if the top level or the text configuration says so."""
    text = config.section("text_config")
    ties_weights = config.boolean("tie_word_embeddings") or text.boolean("tie_word_embeddings")
    return Llava(LlavaOnevisionModel(config), ties_weights=ties_weights)

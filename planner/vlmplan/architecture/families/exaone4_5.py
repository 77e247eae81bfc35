"""EXAONE 4.5: Qwen2.5-VL's vision encoder with grouped heads, and an EXAONE 4 whose tokens have one position each.

Source: transformers 5.23 ``models/exaone4_5/modeling_exaone4_5.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import qwen2_5_vl
from vlmplan.architecture.families.packed_patches import PatchAttention
from vlmplan.architecture.families.qwen2_vl import Qwen2VL, VisionLanguageModel
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionAttention(PatchAttention):
    """``Exaone4_5_VisionAttention``."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        self.num_kv_heads, self.key_width = num_kv_heads, num_kv_heads * (width // num_heads)
        super().__init__(width, num_heads)

    def make_projections(self, width: int, *, bias: bool) -> None:
        self.proj = Linear(width, width, bias=True)  # before the others
        self.qkv = Linear(width, width + 2 * self.key_width, bias=bias)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        key_head = (self.num_kv_heads, *head[1:])
        return ops.split(self.qkv(x), head, key_head, key_head)


class VisionBlock(qwen2_5_vl.VisionBlock):
    """``Exaone4_5_VisionBlock``."""

    def __init__(self, config: Config, *, sees_windows: bool) -> None:
        super().__init__(config, sees_windows=sees_windows)
        num_heads = config.integer("num_heads")
        self.attn = VisionAttention(config.integer("hidden_size"), num_heads, config.integer("num_key_value_heads"))


class VisionModel(qwen2_5_vl.VisionTransformer):
    """``Exaone4_5_VisionModel``."""

    BLOCK = VisionBlock


class Exaone45Model(VisionLanguageModel):
    """``Exaone4_5_Model``."""

    def positions(self, ids: Tensor) -> list[Tensor]:
        return []


class Exaone45(Qwen2VL):
    """``Exaone4_5_ForConditionalGeneration``."""

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``."""
        return (((batch.num_images, 3), DType.INT64),)


def text_config(config: Config) -> Config:
    """The first files have a model_type of their own for EXAONE 4 (``Exaone4_5_Config.__post_init__``)."""
    text = config.section("text_config")
    if text.model_type != "exaone4_5_text":
        return text
    values: Any = config.own("text_config")
    return Config(values, "exaone4", text.path)


def build(config: Config) -> Exaone45:
    """``Exaone4_5_ForConditionalGeneration``."""
    model = Exaone45Model(VisionModel(config.section("vision_config")), text_decoder(text_config(config)))
    return Exaone45(model, ties_weights=config.boolean("tie_word_embeddings"))

"""What the thinkers of Qwen2.5-Omni and Qwen3-Omni share: a tower for sound, one for images, and a decoder.

Source: transformers 5.23 ``models/{qwen2_5_omni,qwen3_omni_moe}/modeling_*.py``. The talker and what makes sound of its
codes are models of their own, which a thinker knows nothing of.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture.families.packed_patches import MultimodalDecoder
from vlmplan.architecture.families.qwen2_vl import Qwen2VL
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class ThinkerModel(Module):
    """``...ThinkerModel``: ``audio_tower``, idle without sound, ``visual`` and ``language_model``."""

    def __init__(self, audio_tower: Module, visual: Module, language_model: MultimodalDecoder) -> None:
        super().__init__()
        self.audio_tower = audio_tower
        self.visual: Any = visual
        self.language_model: Any = language_model

    def positions(self, ids: Tensor, *, has_images: bool) -> list[Tensor]:
        """``get_rope_index``: time, height and width of every token as float32; of text alone one number for all."""
        shape = (3, *ids.shape) if has_images else ids.shape
        return [ids.tape.tensor(shape, DType.FLOAT32)]


class OmniThinker(Qwen2VL):
    """``...ThinkerForConditionalGeneration``."""

    PARTS = {**Qwen2VL.PARTS, "model.audio_tower": Part.VISION}

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``: the processors make no ``mm_token_type_ids`` (``return_mm_token_type_ids`` is false)."""
        return (((batch.num_images, 3), DType.INT64),)

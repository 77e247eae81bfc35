"""LLaVA-NeXT-Video: LLaVA-NeXT, and videos, of whose frames squares of features are pooled to one before they are
projected.

Source: transformers 5.23 ``models/llava_next_video/modeling_llava_next_video.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llava import Llava, side_by_side
from vlmplan.architecture.families.llava_next import LlavaNextModel
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.images.anyres import POOLED_SIDE
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed


class VideoPooler(Module):
    """``LlavaNextVideoPooler`` that averages."""

    def __init__(self, config: Config) -> None:
        for key, value in (("spatial_pool_mode", "average"), ("spatial_pool_stride", POOLED_SIDE)):
            if (config.get(key) or value) != value:  # the processor makes room for no other
                raise not_allowed(CONFIG, key, config.get(key), str(value))

    def forward(self, features: Tensor) -> Tensor:
        frames, num_features, width = features.shape
        return ops.resample(features, frames, num_features // POOLED_SIDE**2, width, saves_input=True)


class LlavaNextVideoModel(LlavaNextModel):
    """``LlavaNextVideoModel``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.vision_resampler = VideoPooler(config)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        assert batch.image is not None
        if not batch.image.is_clip:
            return super().pieces(output, batch)
        states = output.hidden_states
        features = self.without_first(states[0] if len(states) == 1 else side_by_side(states))
        features = self.multi_modal_projector(self.vision_resampler(features))
        frames, num_features, width = features.shape
        video = (frames // batch.num_images * num_features, width)
        return ops.split(features, *[video] * batch.num_images)


def build(config: Config) -> Llava:
    """``LlavaNextVideoForConditionalGeneration``."""
    return Llava(LlavaNextVideoModel(config), ties_weights=ties_either(config, config.section("text_config")))

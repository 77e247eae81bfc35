"""FastVLM: a LLaVA whose tower is a FastViT, all features of which become tokens.

Source: transformers 5.23 ``models/fast_vlm/modeling_fast_vlm.py``.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.fastvit import FastVitTower
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llava import Llava, UndividedFeatures
from vlmplan.architecture.families.mobilenet_v5 import CHANNELS
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed

FIXED = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
"""What ``FastVlmConfig`` takes alone."""


class FastVlmModel(UndividedFeatures):
    """``FastVlmModel``."""

    def tower(self, config: Config) -> Module:
        return FastVitTower(config.section("vision_config"))

    def selected(self, output: VisionOutput) -> Tensor:
        return self.foldable(output.last_hidden_state, is_sliced=False)


class FastVlm(Llava):
    """``FastVlmForConditionalGeneration``."""

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images, batch.image.resized_height, batch.image.resized_width, CHANNELS)


def build(config: Config) -> FastVlm:
    """``FastVlmForConditionalGeneration``. Raises InputError for features that are not the tower's last."""
    for key, value in FIXED.items():
        if config.get(key) != value:
            raise not_allowed(CONFIG, key, config.get(key), repr(value))
    return FastVlm(FastVlmModel(config), ties_weights=ties_either(config, config.section("text_config")))

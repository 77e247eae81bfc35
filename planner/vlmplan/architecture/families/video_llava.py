"""Video-LLaVA: LLaVA with two towers of one shape, of which images take the second; and the first, videos.

Source: transformers 5.23 ``models/video_llava/modeling_video_llava.py``.
"""

from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llava import Llava, UndividedFeatures
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.model import Part


class VideoLlavaModel(UndividedFeatures):
    """``VideoLlavaModel``."""

    def __init__(self, config: Config) -> None:
        language_model = text_decoder(config.section("text_config"))
        vision, layers = config.section("vision_config"), self.feature_layers(config)
        self.video_tower: Any = vision_tower(vision, layers)
        self.video_tower.encoder.layers.label = "video"  # each stack has one of its own
        self.image_tower: Any = vision_tower(vision, layers)
        self.multi_modal_projector: Any = self.projector(config, language_model.shape.hidden_size)
        self.language_model: Any = language_model
        self.drops_first_feature = self.drops_first(config)

    @property
    def vision_tower(self) -> Any:
        return self.image_tower


class VideoLlava(Llava):
    """``VideoLlavaForConditionalGeneration``."""

    PARTS = {
        "model.video_tower": Part.VISION,
        "model.image_tower": Part.VISION,
        "model.multi_modal_projector": Part.PROJECTOR,
    }


def build(config: Config) -> VideoLlava:
    """The top level alone decides whether embedding and head are one weight."""
    return VideoLlava(VideoLlavaModel(config), ties_weights=config.boolean("tie_word_embeddings"))

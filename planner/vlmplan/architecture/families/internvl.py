"""InternVL: InternViT over tiles, pixel unshuffle, a projector, and a Qwen or Llama decoder.

Source: transformers 5.23 ``models/internvl/modeling_internvl.py``.
"""

import math
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import TiledImageTextModel
from vlmplan.architecture.families.intern_vision import InternVision
from vlmplan.architecture.families.llava import put_features
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed


class Projector(Module):
    """``InternVLMultiModalProjector``: a norm and a two-layer MLP over merged patches."""

    def __init__(self, config: Config, in_width: int, out_width: int) -> None:
        self.layer_norm = LayerNorm(in_width)
        self.linear_1 = Linear(in_width, out_width, bias=True)
        self.linear_2 = Linear(out_width, out_width, bias=True)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.layer_norm(features)
        hidden = self.linear_1(hidden)
        hidden = self.act(hidden)
        return self.linear_2(hidden)


class InternVLModel(Module):
    """``InternVLModel``: ``vision_tower``, ``multi_modal_projector``, ``language_model``."""

    TOWER: Any = InternVision

    def __init__(self, config: Config) -> None:
        vision, text = config.section("vision_config"), config.section("text_config")
        self.feature_layers = config.integers("vision_feature_layer")
        if len(self.feature_layers) != 1:
            raise not_allowed(CONFIG, "vision_feature_layer", self.feature_layers, "one layer")
        self.strategy = config.text("vision_feature_select_strategy")
        self.drops_first_feature = self.strategy == "default"
        self.merge_size = int(1 / config.positive_number("downsample_ratio"))
        merged_width = vision.integer("hidden_size") * self.merge_size**2
        self.vision_tower = self.TOWER(vision, self.feature_layers)
        self.multi_modal_projector = Projector(config, merged_width, text.integer("hidden_size"))
        self.language_model: Any = text_decoder(text)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        if pixels is not None:
            cast = ops.to(pixels, self.vision_tower.embeddings.cls_token.dtype)  # the model's, by its first weight
            output = self.vision_tower(cast, batch, backend)
            # -1 is the last hidden state behind the tower's last norm, which the list does not have.
            selected = output.last_hidden_state if self.feature_layers == (-1,) else output.hidden_states[0]
            with pixels.tape.section("projector"):
                features = self.multi_modal_projector(self.unshuffled(selected))
            del selected, cast
            encoded += [output, features]
            with ids.tape.section("scatter"):
                embeddings = put_features(ids, embeddings, features)
            del output, features
        return self.language_model(embeddings, backend)

    def unshuffled(self, features: Tensor) -> Tensor:
        """``pixel_shuffle``: squares of patches become one wider feature, in two copies, columns before rows."""
        num_tiles, num_features, width = features.shape
        if self.drops_first_feature:
            num_features -= 1
            features = ops.part(features, num_tiles, num_features, width)
        side = math.isqrt(num_features)
        if side**2 != num_features or side % self.merge_size:
            raise InputError(
                f"InternVL merges {self.merge_size}x{self.merge_size} features of a square tile; "
                f"{num_features} features are no such square (vision_feature_select_strategy is {self.strategy!r})"
            )
        features = ops.resample(features, num_tiles, num_features, width)
        num_merged = (side // self.merge_size) ** 2
        return ops.resample(features, num_tiles, num_merged, width * self.merge_size**2)


class InternVL(TiledImageTextModel):
    """``InternVLForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}


def build(config: Config) -> InternVL:
    """``InternVLForConditionalGeneration``; InternVL3-hf files do not say that they are untied."""
    return InternVL(InternVLModel(config), ties_weights=ties_word_embeddings(config, config.section("text_config")))

"""LLaVA: a vision tower, a two-layer projector, and any decoder; also Pixtral-12B, which is published as one.

Source: transformers 5.23 ``models/llava/modeling_llava.py``. LLaVA-NeXT, LLaVA-OneVision and Mistral 3 derive from it
and differ in how the features of an image become tokens.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import TiledImageTextModel, ties_either
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class Projector(Module):
    """``LlavaMultiModalProjector``: two Linears with an activation between them, to the decoder's ``width``."""

    def __init__(self, config: Config, width: int) -> None:
        in_width = config.section("vision_config").integer("hidden_size") * len(config.integers("vision_feature_layer"))
        bias = config.boolean("multimodal_projector_bias")
        self.linear_1 = Linear(in_width, width, bias=bias)
        self.linear_2 = Linear(width, width, bias=bias)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.linear_1(features)
        hidden = self.act(hidden)
        return self.linear_2(hidden)


class LlavaModel(Module):
    """``LlavaModel``: ``vision_tower``, ``multi_modal_projector``, ``language_model``."""

    def __init__(self, config: Config) -> None:
        language_model = text_decoder(config.section("text_config"))
        self.vision_tower: Any = self.tower(config)
        self.multi_modal_projector: Any = self.projector(config, language_model.shape.hidden_size)
        self.language_model: Any = language_model
        self.drops_first_feature = self.drops_first(config)

    def tower(self, config: Config) -> Module:
        return vision_tower(config.section("vision_config"), self.feature_layers(config))

    def feature_layers(self, config: Config) -> Sequence[int]:
        """The hidden states of the tower that the projector sees."""
        layers = config.integers("vision_feature_layer")
        if not layers:
            raise not_allowed(
                CONFIG, "vision_feature_layer", config.get("vision_feature_layer"), "an integer or a list of them"
            )
        return layers

    def drops_first(self, config: Config) -> bool:
        return config.text("vision_feature_select_strategy") == "default"

    def projector(self, config: Config, width: int) -> Module:
        return Projector(config, width)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        if pixels is not None:
            output, pieces = self.image_features(pixels, batch, backend)
            encoded += [output, *pieces]
            embeddings = self.scattered(ids, embeddings, pieces)
            del output, pieces
        return self.language_model(embeddings, backend)

    def image_features(
        self, pixels: Tensor, batch: Batch, backend: AttentionBackend
    ) -> tuple[VisionOutput, Sequence[Tensor]]:
        """``get_image_features``: what the tower returns, and features in the decoder's width, a tensor per image."""
        output = self.vision_tower(pixels, batch, backend)
        with pixels.tape.section("projector"):
            pieces = self.pieces(output, batch)
            output.pooled = None  # the features take its place
        return output, pieces

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        features = self.multi_modal_projector(self.selected(output))
        per_image = (features.numel // features.shape[-1] // batch.num_images, features.shape[-1])
        return ops.split(features, *[per_image] * batch.num_images)

    def scattered(self, ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
        return scatter_features(ids, embeddings, pieces)

    def selected(self, output: VisionOutput) -> Tensor:
        """The hidden states that the projector sees, side by side, without the first feature of each tile."""
        states = [self.without_first(state) for state in output.hidden_states]
        if len(states) > 1:
            return side_by_side(states)
        return self.foldable(states[0], is_sliced=self.drops_first_feature)

    def without_first(self, features: Tensor) -> Tensor:
        batch, num_features, width = features.shape
        return ops.part(features, batch, num_features - 1, width) if self.drops_first_feature else features

    def foldable(self, features: Tensor, *, is_sliced: bool) -> Tensor:
        """Features as ``F.linear`` takes them: it folds the rows of all tiles into one matrix, and copies them for
        that where they are a slice or where the tower keeps the channels first. DeepSpeed's keeps them as they are, and
        its copy is gone when it returns (``LinearFunctionForZeroStage3``)."""
        copies = features.shape[0] > 1 and (is_sliced or self.vision_tower.keeps_channels_first)
        copies = copies and not features.tape.keeps_linear_inputs
        return ops.copy(features) if copies else features


def side_by_side(states: Sequence[Tensor]) -> Tensor:
    batch, num_features, _ = states[0].shape
    return ops.concatenate(states, (batch, num_features, sum(state.shape[-1] for state in states)))


def scatter_features(ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Features of all images, concatenated, put in the place of their placeholder tokens."""
    width = embeddings.shape[-1]
    with ids.tape.section("scatter"):
        features = ops.concatenate(pieces, (sum(piece.numel for piece in pieces) // width, width))
        return put_features(ids, embeddings, features)


def put_features(ids: Tensor, embeddings: Tensor, features: Tensor) -> Tensor:
    """Features in the place of their placeholder tokens."""
    tape = ids.tape
    features = ops.to(features, embeddings.dtype)
    tape.outputs.keep_features(features)
    return ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)


class UndividedFeatures(LlavaModel):
    """A model whose features of all images stay in one tensor, and come without a copy."""

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        return [self.multi_modal_projector(self.selected(output))]

    def scattered(self, ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
        with ids.tape.section("scatter"):
            return put_features(ids, embeddings, pieces[0])


class Llava(TiledImageTextModel):
    """``LlavaForConditionalGeneration`` and the classes that derive from it."""

    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.multi_modal_projector": Part.PROJECTOR,
        "model.image_newline": Part.PROJECTOR,
    }


def build(config: Config) -> Llava:
    """``LlavaForConditionalGeneration``."""
    return Llava(LlavaModel(config), ties_weights=ties_either(config, config.section("text_config")))

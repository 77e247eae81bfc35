"""VideoLLaMA 3: SigLIP's layers over patches at native resolution, rotary positions, and a Qwen2 decoder.

Source: transformers 5.23 ``models/video_llama_3/modeling_video_llama_3.py``. Of videos its processor leaves out tokens
of what does not change, which no plan knows: images alone are described.
"""

import math
from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ImageTextModel, ties_either
from vlmplan.architecture.families.llava import put_features
from vlmplan.architecture.families.packed_patches import (
    PatchContext,
    Sequential,
    by_image,
    joined_features,
    num_patches,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.paddleocr_vl import VisionLayer
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionEmbeddings(Module):
    """``VideoLlama3VisionEmbeddings``."""

    def __init__(self, config: Config) -> None:
        self.patch_numel = config.integer("num_channels") * config.integer("patch_size") ** 2
        self.patch_embedding = PatchEmbedding(self.patch_numel, config.integer("hidden_size"), bias=True)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.patch_embedding(pixels)


class VisionModel(Module):
    """``VideoLlama3VisionModel``: patches to features (tokens, width), one of ``merge_side`` squared patches."""

    ROTARY_MODULES = ("rotary_pos_emb",)

    def __init__(self, config: Config) -> None:
        self.head_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
        self.embeddings = VisionEmbeddings(config)
        self.encoder = EqualLayers(VisionLayer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        with pixels.tape.section("vision.embedding"):
            embedded = self.embeddings(ops.to(pixels, self.post_layernorm.weight.dtype))
            pixels.tape.prefetch()  # for the module of the positions
            context = PatchContext(backend, patch_positions(embedded, self.head_dim), patch_lengths(batch))
        # The embeddings and what the layers made stay in local variables of the original until it returns.
        last = self.encoder.layers.run(embedded, lambda layer, x: layer(x, context))
        with pixels.tape.section("vision.norm"):
            normed = self.post_layernorm(last)
            features = unshuffled(normed, batch)
        del last
        return features


def unshuffled(x: Tensor, batch: Batch) -> Tensor:
    """``pixel_unshuffle``: each image put in order, a copy where squares of patches become one, and interpolated to its
    number of features, which makes a new one even where that is of the patches."""
    side = merge_side(batch)
    pieces: list[Tensor] = []
    for image in by_image(x, batch.num_images):
        patches, width = image.shape
        image = ops.resample(image, patches, width) if side > 1 else image
        image = ops.interpolate(image, patches // side**2, width)
        pieces.append(image)
    return ops.concatenate(pieces, (x.shape[0] // side**2, x.shape[1]))


def merge_side(batch: Batch) -> int:
    """Patches of a feature's side, by what the processor makes of an image."""
    assert batch.image is not None
    return math.isqrt(batch.image.num_patches // batch.image.num_placeholder_tokens)


class Projector(Module):
    """``VideoLlama3Projector``."""

    def __init__(self, width: int, out_width: int) -> None:
        first, second = Linear(width, out_width, bias=True), Linear(out_width, out_width, bias=True)
        self.readout = Sequential({"0": first, "2": second})
        self._activation = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.readout["0"](x)
        x = self._activation(x)
        return self.readout["2"](x)


class VideoLlamaModel(Module):
    """``VideoLlama3Model``."""

    def __init__(self, config: Config) -> None:
        vision, language_model = config.section("vision_config"), text_decoder(config.section("text_config"))
        self.vision_model: Any = VisionModel(vision)
        self.projector = Projector(vision.integer("hidden_size"), language_model.shape.hidden_size)
        self.language_model: Any = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        held = ids.tape.outputs.of_encoder()  # the tower's result and the features
        if pixels is not None:
            held.append(self.vision_model(pixels, batch, backend))
            with ids.tape.section("projector"):
                held.append(self.projector(held[0]))
            with ids.tape.section("scatter"):
                embeddings = put_features(ids, embeddings, joined_features(held[1], batch.num_images))
        return self.language_model(embeddings, backend)


class VideoLlama3(ImageTextModel):
    """``VideoLlama3ForConditionalGeneration``."""

    PARTS = {"model.vision_model": Part.VISION, "model.projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_model.embeddings.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw`` and ``image_merge_sizes``."""
        return (((batch.num_images, 3), DType.INT64), ((batch.num_images,), DType.INT64))


def build(config: Config) -> VideoLlama3:
    """``VideoLlama3ForConditionalGeneration``: tied if the top level or the text configuration says so."""
    return VideoLlama3(VideoLlamaModel(config), ties_weights=ties_either(config, config.section("text_config")))

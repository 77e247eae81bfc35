"""PaddleOCR-VL: SigLIP's layers over patches at native resolution, a projector, and an ERNIE 4.5 with three positions.

Source: transformers 5.23 ``models/paddleocr_vl/modeling_paddleocr_vl.py``.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llama import decoder_shape
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchContext,
    by_image,
    interpolated_positions,
    num_patches,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.qwen2_vl import Qwen2VL, VisionLanguageModel
from vlmplan.architecture.families.siglip_vision import SiglipLayer
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding
from vlmplan.architecture.tensor import Tensor


class VisionAttention(PatchAttention):
    """``PaddleOCRVisionAttention``."""

    OUTPUT = "out_proj"

    def make_projections(self, width: int, *, bias: bool) -> None:
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.q_proj = Linear(width, width, bias=bias)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        return self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)


class VisionLayer(SiglipLayer):
    """``PaddleOCRVisionEncoderLayer``."""

    attention = VisionAttention


class VisionEmbeddings(Module):
    """``PaddleOCRVisionEmbeddings``: learned positions of a square, interpolated for each image."""

    def __init__(self, config: Config) -> None:
        width, patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.patch_numel = config.integer("num_channels") * patch_size**2
        self.patch_embedding = PatchEmbedding(self.patch_numel, width, bias=True)
        self.position_embedding = Embedding((config.integer("image_size") // patch_size) ** 2, width)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embedding(ops.to(pixels, self.patch_embedding.weight.dtype))
        interpolated, taps = interpolated_positions(self.position_embedding, x)
        x = ops.add(x, ops.to(interpolated, x.dtype))
        del taps
        return x


class VisionTransformer(Module):
    """``PaddleOCRVisionTransformer``: patches to hidden states (patches, width)."""

    def __init__(self, config: Config) -> None:
        self.head_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
        self.embeddings = VisionEmbeddings(config)
        self.encoder = EqualLayers(VisionLayer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        with pixels.tape.section("vision.embedding"):
            embedded = self.embeddings(pixels)
            context = PatchContext(backend, patch_positions(embedded, self.head_dim), patch_lengths(batch))
        # The embeddings stay in a local variable of the original until the layers have run.
        last = self.encoder.layers.run(embedded, lambda layer, x: layer(x, context))
        with pixels.tape.section("vision.norm"):
            return self.post_layernorm(last)


class VisionModel(Module):
    """``PaddleOCRVisionModel``."""

    def __init__(self, config: Config) -> None:
        self.vision_model = VisionTransformer(config)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        return self.vision_model(pixels, batch, backend)


class Projector(Module):
    """``PaddleOCRProjector``: squares of patches become one wider feature, which two Linears map, image by image."""

    def __init__(self, config: Config, out_width: int) -> None:
        width = config.integer("hidden_size")
        self.merged_width = width * config.integer("spatial_merge_size") ** 2
        self.pre_norm = LayerNorm(width)
        self.linear_1 = Linear(self.merged_width, self.merged_width, bias=True)
        self.linear_2 = Linear(self.merged_width, out_width, bias=True)

    def forward(self, features: Tensor, num_images: int) -> Tensor:
        pieces: list[Tensor] = []
        for image in by_image(features, num_images):
            image = self.pre_norm(image)
            image = ops.resample(image, image.numel // self.merged_width, self.merged_width)
            hidden = self.linear_1(image)
            hidden = ops.called(ops.gelu, hidden)
            hidden = self.linear_2(hidden)
            pieces.append(hidden)
        num_tokens = sum(piece.shape[0] for piece in pieces)
        return ops.concatenate(pieces, (num_tokens, pieces[0].shape[1]))


class PaddleModel(VisionLanguageModel):
    """``PaddleOCRVLModel``."""

    def __init__(self, config: Config, language_model: MultimodalDecoder) -> None:
        vision = config.section("vision_config")
        super().__init__(VisionModel(vision), language_model)
        self.projector = Projector(vision, language_model.shape.hidden_size)

    def encoded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        hidden = self.visual(pixels, batch, backend)
        with pixels.tape.section("projector"):
            return hidden, self.projector(hidden, batch.num_images)


class PaddleOcrVl(Qwen2VL):
    """``PaddleOCRVLForConditionalGeneration``."""

    PARTS = {"model.visual": Part.VISION, "model.projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.visual.vision_model.embeddings.patch_numel)


def decoder(text: Config) -> MultimodalDecoder:
    """``PaddleOCRTextModel``."""
    bias = text.boolean("use_bias")
    return MultimodalDecoder(replace(decoder_shape(text), qkv_bias=bias, output_bias=bias, mlp_bias=bias))


def build(config: Config) -> PaddleOcrVl:
    """``PaddleOCRVLForConditionalGeneration``; published files keep the text configuration at the top level."""
    text = config.section("text_config", is_flat=True)
    return PaddleOcrVl(PaddleModel(config, decoder(text)), ties_weights=ties_either(config, text))

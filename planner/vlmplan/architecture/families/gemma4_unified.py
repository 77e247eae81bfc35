"""Gemma 4 without towers: merged patches and frames of sound go through norms and Linears into a Gemma 4 decoder.

Source: transformers 5.23 ``models/gemma4_unified/modeling_gemma4_unified.py``, which is derived from Gemma 4's.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4 import Gemma4Decoder, decoder
from vlmplan.architecture.families.gemma4_vl import Embedder, Gemma4, Gemma4Model
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

AXES = 2
"""A patch's column and its row, of each of which the table of positions has a vector."""


class VisionEmbedder(Module):
    """``Gemma4UnifiedVisionEmbedder``: a Linear between norms, and the sum of two rows of a learned table."""

    def __init__(self, config: Config, text_width: int) -> None:
        side = config.integer("patch_size") * config.integer("pooling_kernel_size")
        self.patch_numel, width = 3 * side**2, config.integer("mm_embed_dim")
        self.patch_ln1 = LayerNorm(self.patch_numel)
        self.patch_dense = Linear(self.patch_numel, width, bias=True)
        self.patch_ln2 = LayerNorm(width)
        self.pos_embedding = Parameter(config.integer("mm_posemb_size"), AXES, width)
        self.pos_norm = LayerNorm(width)
        self.multimodal_embedder = Embedder(config.integer("output_proj_dims"), text_width)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels (images, patches, values) to states and features (images, patches, width), padding included."""
        pixels = ops.to(pixels, self.patch_dense.weight.dtype)
        x = self.patch_ln1(pixels)
        x = self.patch_dense(x)
        x = self.patch_ln2(x)
        places = pixels.tape.tensor((*pixels.shape[:-1], AXES), DType.INT64)
        is_valid = pixels.tape.tensor((*places.shape, 1), self.pos_embedding.dtype)
        positions = self._positions(places, is_valid)
        x = ops.add(x, positions)
        x = self.pos_norm(x)
        return x, self.multimodal_embedder(x)

    def _positions(self, places: Tensor, is_valid: Tensor) -> Tensor:
        """(images, patches, width): what patches that only fill up get is zero."""
        width = self.pos_embedding.shape[-1]
        rows = take_rows(self.pos_embedding, places, (*places.shape, width))
        return ops.total(ops.mul(rows, is_valid), (*places.shape[:-1], width))


class Gemma4UnifiedModel(Gemma4Model):
    """``Gemma4UnifiedModel``."""

    def add_modules(self, language_model: Gemma4Decoder, vision: Config | None, audio: Config | None) -> None:
        text_width = language_model.shape.hidden_size
        self.language_model = language_model
        if vision is not None:
            self.embed_vision = VisionEmbedder(vision, text_width)
        if audio is not None:
            self.frame_width = audio.integer("audio_embed_dim")
            self.embed_audio = Embedder(audio.integer("audio_embed_dim"), text_width)

    @property
    def audio_width(self) -> int:
        return self.frame_width

    def encoded_sounds(self, spectrograms: Tensor) -> Tensor:
        """Frames of the waveform itself."""
        with spectrograms.tape.section("audio.frames"):
            return ops.to(spectrograms, self.embed_audio.embedding_projection.weight.dtype)

    def windows_of_blocks(self) -> tuple[int | None, ...]:
        return (None, self.language_model.shape.window)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        assert batch.image is not None
        with pixels.tape.section("projector"):
            states, features = self.embed_vision(pixels)
            is_filled = pixels.tape.tensor(pixels.shape[:-1], DType.BOOL)
            shape = (batch.num_images * batch.image.num_patches, features.shape[-1])
            return [states, take_rows(features, is_filled, shape)]


class Gemma4Unified(Gemma4):
    """``Gemma4UnifiedForConditionalGeneration``."""

    PARTS = {"model.embed_vision": Part.PROJECTOR, "model.embed_audio": Part.PROJECTOR}

    @property
    def patch_numel(self) -> int:
        return self.model.embed_vision.patch_numel


def build(config: Config) -> Gemma4Unified:
    """``Gemma4UnifiedForConditionalGeneration``."""
    return Gemma4Unified(Gemma4UnifiedModel(config, decoder(config.section("text_config"))), config)

"""Phi-4-multimodal: Phi-3 with a vision tower and an audio tower in front.

Source: transformers 5.23 ``models/phi4_multimodal/modeling_phi4_multimodal.py``. The towers lie inside the decoder.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import DecoderShape, decoder_shape
from vlmplan.architecture.families.phi3 import Phi3Decoder, Phi3ForCausalLM, Phi3Rules, phi3_rules
from vlmplan.architecture.families.phi4_audio import AudioEmbedding
from vlmplan.architecture.families.phi4_vision import ImageEmbedding
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class FeatureEmbedding(Module):
    """``Phi4MultimodalFeatureEmbedding``."""

    def __init__(self, config: Config, width: int) -> None:
        self.image_embed = ImageEmbedding(config, width)
        self.audio_embed = AudioEmbedding(config.section("audio_config"), width, config.number("embd_pdrop"))

    def forward(
        self, ids: Tensor, embeddings: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend
    ) -> Tensor:
        with ids.tape.section("image_masks"):
            masks = [ids.tape.tensor(ids.shape, DType.BOOL) for _ in range(2)]
        of_images = of_sounds = None
        if pixels is not None:
            of_images = self.image_embed(embeddings, ids, pixels, batch, backend)
        if ids.tape.spectrograms is not None:
            of_sounds = self.audio_embed(ids, embeddings, ids.tape.spectrograms, batch, backend)
        if of_images is not None and of_sounds is not None:
            with ids.tape.section("merge"):
                of_images, of_sounds = (
                    ops.mul(one, mask.view(*mask.shape, 1))
                    for one, mask in zip((of_images, of_sounds), masks, strict=True)
                )
                return ops.add(of_images, of_sounds)
        del masks
        return of_images or of_sounds or embeddings


class Phi4Decoder(Phi3Decoder):
    """``Phi4MultimodalModel``."""

    def __init__(self, config: Config, shape: DecoderShape, rules: Phi3Rules) -> None:
        super().__init__(shape, rules)
        self.embed_tokens_extend = FeatureEmbedding(config, shape.hidden_size)


class Phi4Multimodal(Phi3ForCausalLM):
    """``Phi4MultimodalForCausalLM``."""

    encodes_before_generating = False
    PARTS = {
        "model.embed_tokens_extend": Part.PROJECTOR,
        "model.embed_tokens_extend.image_embed.img_processor": Part.VISION,
        "model.embed_tokens_extend.audio_embed.encoder": Part.VISION,
    }

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images, batch.image.num_vision_sequences, *self._tile(batch.image))

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``image_sizes``, and ``image_attention_mask``, which is of ones and zeros in the type of pixels."""
        image = batch.image
        assert image is not None
        mask = (batch.num_images, image.num_vision_sequences, image.num_patch_rows, image.num_patch_columns)
        dtypes = batch.pixel_dtypes or (self.head.weight.dtype,)
        return [((batch.num_images, 2), DType.INT64), *((mask, dtype) for dtype in dtypes)]

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.audio is not None
        num_bins = self.decoder.embed_tokens_extend.audio_embed.encoder.num_bins
        return (batch.num_audios, batch.audio.num_padded_frames, num_bins)

    def more_audio_inputs(self, batch: Batch) -> Sequence[Input]:
        """``audio_embed_sizes``, and of several sounds ``audio_attention_mask``."""
        assert batch.audio is not None
        masks: list[Input] = [((batch.num_audios, batch.audio.num_padded_frames), DType.BOOL)]
        return [((batch.num_audios,), DType.INT64), *(masks if batch.num_audios > 1 else ())]

    def _tile(self, image: ImageShape) -> tuple[int, int, int]:
        """(channels, height, width)."""
        height, width = image.resized_height // image.num_tile_rows, image.resized_width // image.num_tile_columns
        return (self.decoder.embed_tokens_extend.image_embed.img_processor.embeddings.num_channels, height, width)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        embeddings = self.decoder.embed_tokens_extend(ids, self.decoder.embed(ids), pixels, batch, backend)
        return self.decoder.forward(embeddings, backend)


def decoder(config: Config) -> Phi4Decoder:
    """``Phi4MultimodalModel``: a window, where there is one, is that of all layers."""
    shape = decoder_shape(config)
    window = config.optional_integer("sliding_window")
    shape = replace(shape, windows=(window,) * shape.num_layers)
    return Phi4Decoder(config, shape, phi3_rules(config, shape.head_dim))


def build(config: Config) -> Phi4Multimodal:
    """``Phi4MultimodalForCausalLM``."""
    return Phi4Multimodal(decoder(config), config)

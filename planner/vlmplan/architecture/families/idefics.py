"""What Idefics2, Idefics3 and SmolVLM share: a SigLIP-like tower over tiles, and how tiles become tokens.

Source: transformers 5.23 ``models/idefics2/modeling_idefics2.py``; ``idefics3`` and ``smolvlm`` copy from it. The image
processors pad all pictures of a batch to one size and give a mask of pixels beside them, eight bytes a pixel.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import Attention, EncoderLayer
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.layer_calls import with_mask_by_position
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


class VisionContext:
    """What every layer of the tower is called with besides the hidden states.

    ``lengths``: the sequences that are packed into the patches, where they are (MiniCPM-V).
    """

    __slots__ = ("backend", "is_causal", "lengths", "mask")

    def __init__(
        self,
        backend: AttentionBackend,
        mask: Tensor | None,
        lengths: PackedLengths | None = None,
        *,
        is_causal: bool = False,
    ) -> None:
        self.backend, self.mask, self.lengths, self.is_causal = backend, mask, lengths, is_causal


class VisionAttention(Attention):
    """``Idefics2VisionAttention``: all patches of one picture that are not padding see each other."""

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        q, k, v = self.heads(x)
        return self.out_proj(
            attend(context.backend, q, k, v, is_causal=context.is_causal, mask=context.mask, scores=self.scores)
        )


class VisionLayer(EncoderLayer):
    """``Idefics2EncoderLayer``."""

    attention = VisionAttention


class VisionEmbeddings(Module):
    """``Idefics2VisionEmbeddings``: patches, and positions looked up by the share of the picture before them."""

    def __init__(self, config: Config) -> None:
        width, self.patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.num_channels = config.integer("num_channels")
        self.patch_embedding = PatchEmbedding(self.num_channels * self.patch_size**2, width, bias=True)
        self.position_embedding = Embedding((config.integer("image_size") // self.patch_size) ** 2, width)

    def forward(self, pixels: Tensor, image: ImageShape) -> Tensor:
        # The convolution leaves out what is less than a patch at the right and lower edge.
        return self.of_patches(pixels, pixels.shape[0], image.num_patches_per_sequence)

    def of_patches(self, pixels: Tensor, num_pictures: int, num_patches: int) -> Tensor:
        """(pictures, patches, width) of pictures of ``num_patches`` each."""
        pixels = pixels.view(num_pictures, num_patches, self.num_channels * self.patch_size**2)
        patches = self.patch_embedding(pixels)
        position_ids = pixels.tape.tensor((num_pictures, num_patches), DType.INT64)
        return ops.add(patches, self.position_embedding(position_ids))


class VisionTransformer(Module):
    """``Idefics2VisionTransformer``."""

    INPUT_EMBEDDING = "embeddings"

    def __init__(self, config: Config) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.encoder = EqualLayers(VisionLayer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels, image)
            num_patches = image.num_patches_per_sequence
            mask = padding_mask(embeddings, num_patches, num_patches, image, backend)
            call, beside = with_mask_by_position(VisionContext(backend, mask))
            del mask
        # The embeddings stay in a local variable of the original until it returns, as the mask does.
        last = self.encoder.layers.run(embeddings, call, beside=beside)
        with tape.section("vision.norm"):
            return self.post_layernorm(last)


def padding_mask(
    x: Tensor, num_queries: int, num_keys: int, image: ImageShape, backend: AttentionBackend
) -> Tensor | None:
    """``create_bidirectional_mask``: None unless some picture is padded; boolean, or in x's type for eager attention.

    flash_attention_2 gets no mask but leaves the padding out, which is not counted here: a slight overestimate.
    """
    if not image.has_padded_sequences or backend.implementation == "flash_attention_2":
        return None
    shape = (x.shape[0], 1, num_queries, num_keys)
    mask = x.tape.tensor(shape, DType.BOOL)
    return x.tape.tensor(shape, x.dtype) if backend.implementation == "eager" else mask


class IdeficsModel(Module):
    """``Idefics2Model`` and ``Idefics3Model``: ``vision_model``, ``connector``, ``text_model``."""

    def __init__(self, config: Config, connector: Module) -> None:
        self.vision_model: Any = VisionTransformer(config.section("vision_config"))
        self.connector: Any = connector
        self.text_model: Any = text_decoder(config.section("text_config"))

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.text_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        joined: list[Tensor] = []  # lives until this function returns, too
        if pixels is not None:
            encoded += self.image_features(pixels, batch, backend)
            embeddings = self.merge(ids, embeddings, encoded, joined, batch)
        return self.text_model(embeddings, backend)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state of the tower, features in the decoder's width)."""
        tape, image = pixels.tape, batch.image
        assert image is not None
        with tape.section("vision.input"):
            pixels = ops.to(pixels, self.vision_model.post_layernorm.weight.dtype)
            pixels = without_empty_pictures(pixels, backend)
            mask = masks_of_pictures(pixels)
        last = self.vision_model(pixels, image, backend)
        with tape.section("connector"):
            features = self.connector(last, image, backend)
        del mask
        return last, features

    def merge(
        self, ids: Tensor, embeddings: Tensor, encoded: Sequence[Tensor], joined: list[Tensor], batch: Batch
    ) -> Tensor:
        """``inputs_merger``: the features of all samples, concatenated, in the place of their placeholder tokens. They
        are cast to the type of the model's first weight (``self.dtype``), then to that of the embeddings."""
        tape = ids.tape
        with tape.section("scatter"):
            features = joined_by_sample(encoded[1], batch)
            features = ops.to(features, self.vision_model.post_layernorm.weight.dtype)
            joined.append(features)
            tape.outputs.keep_features(*self.kept_outputs(encoded, joined))
            features = ops.to(features, embeddings.dtype)
            return ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)

    def kept_outputs(self, encoded: Sequence[Tensor], joined: Sequence[Tensor]) -> Sequence[Tensor]:
        """What the output object holds on to before 5.24: ``image_hidden_states``, the concatenated features."""
        return joined


def without_empty_pictures(pixels: Tensor, backend: AttentionBackend) -> Tensor:
    """``get_image_features``: pictures that are not all zeros, copied out of the batch."""
    tape = pixels.tape
    is_zero = tape.tensor(pixels.shape, DType.BOOL)
    tape.move(pixels.num_bytes + is_zero.num_bytes)
    if backend.has_workspaces:
        # The sum of a boolean tensor casts it to int64 first (``make_reduction`` in ``ReduceOpsUtils.h``).
        with tape.charged_to(Kind.TEMPORARY):
            tape.tensor(pixels.shape, DType.INT64)
    del is_zero
    return ops.copy(pixels)


def masks_of_pictures(pixels: Tensor) -> Tensor:
    """``get_image_features``: their masks, copied when the pictures take the place of all."""
    num_pictures, _, height, width = pixels.shape
    mask = pixels.tape.tensor((num_pictures, height, width), DType.INT64)
    pixels.tape.move(2 * mask.num_bytes)
    return mask


def joined_by_sample(features: Tensor, batch: Batch) -> Tensor:
    """Features split into those of each sample, which the caller concatenates again: a copy."""
    width = features.shape[-1]
    num_tokens = features.numel // width
    pieces = ops.split(features, *[(num_tokens // batch.micro_batch, width)] * batch.micro_batch)
    return ops.concatenate(pieces, (num_tokens, width))


class Idefics(Model):
    """``Idefics2ForConditionalGeneration`` and the classes that copy it."""

    PARTS = {"model.vision_model": Part.VISION, "model.connector": Part.PROJECTOR}
    EMBEDDINGS = "model.text_model.embed_tokens"

    def __init__(self, config: Config, model: IdeficsModel) -> None:
        self.model = model
        shape = model.text_model.shape
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)
        # The top level decides, with a class default of false; the text configuration's value is not looked at.
        if config.boolean("tie_word_embeddings"):
            self.tie_weights()

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        num_channels = self.model.vision_model.embeddings.num_channels
        return (batch.num_vision_sequences, num_channels, *picture_size(batch))

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``pixel_attention_mask``."""
        return [((batch.num_vision_sequences, *picture_size(batch)), DType.INT64)]

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.model.forward(ids, pixels, batch, backend)


def picture_size(batch: Batch) -> tuple[int, int]:
    """(height, width) of one tile in pixels."""
    image = batch.image
    assert image is not None
    return (image.resized_height // image.num_tile_rows, image.resized_width // image.num_tile_columns)

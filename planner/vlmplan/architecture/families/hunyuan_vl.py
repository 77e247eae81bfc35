"""HunyuanOCR: SigLIP's layers over patches at native resolution, a merger that writes a token behind each row of an
image and one at either end, and a HunYuan whose tokens have several positions.

Source: transformers 5.23 ``models/hunyuan_vl/modeling_hunyuan_vl.py``. What ``image_sep`` is for is not computed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.clip_vision import Mlp
from vlmplan.architecture.families.gemma4_vl import compare_sizes
from vlmplan.architecture.families.hunyuan import HunYuanAttention, HunYuanLayer
from vlmplan.architecture.families.idefics import VisionContext
from vlmplan.architecture.families.image_text import ImageTextModel, ties_either
from vlmplan.architecture.families.llama import RotaryContext, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    attended_apart,
    joined_features,
    num_patches,
    patch_lengths,
    scattered,
)
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding, RMSNorm, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class TextAttention(HunYuanAttention):
    """``HunYuanVLDenseV1Attention``: rotated in float32, for which each layer casts the positions."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q, k = rotated(q, k, context)
        q = self.query_layernorm(q)
        k = self.key_layernorm(k)
        return q, k


def rotated(q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``."""
    dtype = q.dtype
    q, k = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    cos, sin = ops.to(context.cos, DType.FLOAT32), ops.to(context.sin, DType.FLOAT32)
    q_rotated = ops.rotate(q, cos, sin)
    k_rotated = ops.rotate(k, cos, sin)
    return ops.to(q_rotated, dtype), ops.to(k_rotated, dtype)


class TextLayer(HunYuanLayer):
    """``HunYuanVLDenseV1DecoderLayer``."""

    attention = TextAttention


class VisionAttention(Module):
    """``HunYuanVLVisionAttention``: x is (1, patches, width), of which each image sees itself alone."""

    def __init__(self, config: Config) -> None:
        width, self.num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        self.q_proj = Linear(width, width, bias=True)
        self.k_proj = Linear(width, width, bias=True)
        self.v_proj = Linear(width, width, bias=True)
        self.o_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        _, patches, width = x.shape
        assert context.lengths is not None
        head = (self.num_heads, patches, width // self.num_heads)
        q, k, v = self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)
        return attended_apart((q, k, v), context.backend, context.lengths, lambda out: self.o_proj(out.view(*x.shape)))


class VisionLayer(PreNormLayer):
    """``HunYuanVLVisionBlock``."""

    MODULES = ("layer_norm1", "self_attn", "layer_norm2", "mlp")

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.layer_norm1 = LayerNorm(width)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = LayerNorm(width)
        self.mlp = Mlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class VisionEmbeddings(ReadingModule):
    """``HunYuanVLVisionPatchEmbed``: patches, and for each image all learned positions in float32, interpolated."""

    def __init__(self, config: Config) -> None:
        self.width, side = config.integer("hidden_size"), config.integer("patch_size")
        self.patch_numel = config.integer("num_channels") * side**2
        self.patch_embedding = PatchEmbedding(self.patch_numel, self.width, bias=True)
        self.num_positions = (config.integer("max_image_size") // side) ** 2
        self.position_embedding = Embedding(self.num_positions + 1, self.width)

    def read_modules(self) -> Sequence[Any]:
        return (self.patch_embedding, self.position_embedding)

    def forward(self, pixels: Tensor, batch: Batch) -> Tensor:
        patches = self.patch_embedding(pixels)
        count = patches.shape[0] // batch.num_images
        positions = ops.concatenate([self.positions(patches, count) for _ in range(batch.num_images)], patches.shape)
        return ops.add(patches, positions).view(1, *patches.shape)

    def positions(self, patches: Tensor, count: int) -> Tensor:
        """``interpolate_pos_encoding``: of an image of so many patches, and a copy (``repeat``)."""
        table = ops.expand_weight(self.position_embedding.weight, (self.num_positions, self.width), patches.tape)
        resized = ops.interpolate(ops.to(table, DType.FLOAT32), count, self.width)
        return ops.copy(ops.to(resized, patches.dtype))


class PatchMerger(Module):
    """``HunYuanVLVisionPatchMerger``: squares of an image's patches become features, with learned ones between."""

    def __init__(self, config: Config, out_width: int) -> None:
        width, self.side = config.integer("hidden_size"), config.integer("spatial_merge_size")
        self.proj_conv = PatchEmbedding(width * self.side**2, 2 * width, bias=True)
        self.proj_out = PatchEmbedding(2 * width, 4 * width, bias=True)
        self.proj_act = ops.activation_module(config.text("hidden_act"))
        self.mlp = Linear(4 * width, out_width, bias=True)
        self.image_newline = Parameter(4 * width)
        self.image_begin = Parameter(out_width)
        self.image_end = Parameter(out_width)
        self.image_sep = Parameter(out_width)
        self.before_rms = RMSNorm(width)
        self.after_rms = RMSNorm(out_width)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """x (1, patches, width) of an image to (1, tokens, out_width)."""
        x = self.before_rms(x)
        dtype, width = x.dtype, x.shape[-1]
        rows, columns = rows // self.side, columns // self.side
        x = self.proj_conv(x.view(1, rows * columns, width * self.side**2))
        x = self.proj_act(x)
        x = self.proj_out(x)
        newlines = ops.to(ops.expand_weight(self.image_newline, (1, rows, 4 * width), x.tape), dtype)
        x = ops.concatenate([x, newlines], (1, rows * (columns + 1), 4 * width))
        x = self.mlp(x)
        out_width = x.shape[-1]
        begin = ops.to(ops.expand_weight(self.image_begin, (1, 1, out_width), x.tape), dtype)
        end = ops.to(ops.expand_weight(self.image_end, (1, 1, out_width), x.tape), dtype)
        x = ops.concatenate([begin, x, end], (1, x.shape[1] + 2, out_width))
        return self.after_rms(x)


class VisionTower(Module):
    """``HunYuanVLVisionTransformer``: patches to (last hidden state, features of all images)."""

    def __init__(self, config: Config, out_width: int) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.layers = Stack.of(VisionLayer(config), config.integer("num_hidden_layers"), label="vision")
        self.patch_merger = PatchMerger(config, out_width)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        context = VisionContext(backend, None, patch_lengths(batch))
        with pixels.tape.section("vision.embedding"):
            embedded = [self.embeddings(pixels, batch)]
        last = self.layers.run(embedded.pop(), lambda layer, x: layer(x, context))
        with pixels.tape.section("vision.merger"):
            return last, self.merged(last, batch)

    def merged(self, last: Tensor, batch: Batch) -> Tensor:
        image = batch.image
        assert image is not None
        _, patches, width = last.shape
        each = (1, patches // batch.num_images, width)
        pieces = [
            self.patch_merger(piece, image.num_patch_rows, image.num_patch_columns)
            for piece in ops.split(last, *[each] * batch.num_images)
        ]
        return ops.concatenate(pieces, (batch.num_images * pieces[0].shape[1], pieces[0].shape[2]))


class HunYuanVlModel(Module):
    """``HunYuanVLModel``."""

    def __init__(self, config: Config, text: Config) -> None:
        shape = replace(decoder_shape(text), mlp_bias=False)
        layers = stack_of_kinds(shape.windows, lambda window: TextLayer(shape, window))
        self.num_axes = num_axes(text)
        self.language_model = MultimodalDecoder(shape, layers)
        self.vision_tower: Any = VisionTower(config.section("vision_config"), shape.hidden_size)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        encoded = tape.outputs.of_encoder()
        held: list[Tensor] = []  # the positions, which live until this function returns, too
        if pixels is not None:
            encoded += self.image_features(pixels, batch, backend)
            with tape.section("scatter"):
                features = ops.to(joined_features(encoded[1], batch.num_images), embeddings.dtype)
                compare_sizes(features)
                embeddings = scattered(ids, embeddings, features)
                tape.locals.append(features.detached())  # of what the inner model returns, until the loss is made
                held.append(tape.tensor((self.num_axes, *ids.shape), DType.INT64))
                del features
        return self.language_model(embeddings, backend)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """``get_image_features``: pixels of the type of the tower's first weight."""
        cast = ops.to(pixels, self.vision_tower.embeddings.patch_embedding.weight.dtype)
        return self.vision_tower(cast, batch, backend)


def num_axes(text: Config) -> int:
    """Positions that a token has: parts of a head's rotated width (``mrope_section``, once ``xdrope_section``)."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.mapping(name)
        for key in ("mrope_section", "xdrope_section"):
            if rope.integers(key):
                return len(rope.integers(key))
    return 0


class HunYuanVl(ImageTextModel):
    """``HunYuanVLForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.vision_tower.patch_merger": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_tower.embeddings.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``mm_token_type_ids`` and ``image_grid_thw``."""
        return ((batch.token_shape, DType.INT64), ((batch.num_images, 3), DType.INT64))


def build(config: Config) -> HunYuanVl:
    """``HunYuanVLForConditionalGeneration``; published files keep the text configuration at the top level."""
    text = config.section("text_config", is_flat=True)
    return HunYuanVl(HunYuanVlModel(config, text), ties_weights=ties_either(config, text))

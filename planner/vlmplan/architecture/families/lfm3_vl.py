"""LFM3-VL: convolutions over each image's grid of patches and grouped attention in one encoder, an MLP, an LFM3.

Source: transformers 5.23 ``models/lfm3_vl/modeling_lfm3_vl.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.lfm2 import ATTENTION, CONVOLUTION, Lfm2Layer, Lfm2Mlp
from vlmplan.architecture.families.llama import stack_of_kinds
from vlmplan.architecture.families.packed_patches import (
    PatchAttention,
    PatchContext,
    by_image,
    joined_features,
    num_patches,
    patch_lengths,
    patch_positions,
    scattered,
)
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, RMSNorm
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class VisionAttention(PatchAttention):
    """``Lfm3VlVisionAttention``."""

    OUTPUT = "out_proj"
    window = None

    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        self.num_kv_heads, head_dim = num_kv_heads, width // num_heads
        self.key_width = num_kv_heads * head_dim
        super().__init__(width, num_heads, qkv_bias=False, output_bias=False)
        self.q_norm = RMSNorm(head_dim)
        self.k_norm = RMSNorm(head_dim)

    def make_projections(self, width: int, *, bias: bool) -> None:
        self.q_proj = Linear(width, width, bias=bias)
        self.k_proj = Linear(width, self.key_width, bias=bias)
        self.v_proj = Linear(width, self.key_width, bias=bias)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        key_head = (self.num_kv_heads, *head[1:])
        q = self.q_norm(self.q_proj(x).view(*head))
        k = self.k_norm(self.k_proj(x).view(*key_head))
        return q, k, self.v_proj(x).view(*key_head)


class GridContext(PatchContext):
    """The rows and columns of an image's patches as well."""

    __slots__ = ("grid", "num_images")

    def __init__(self, batch: Batch, backend: AttentionBackend, positions: tuple[Tensor, Tensor]) -> None:
        super().__init__(backend, positions, patch_lengths(batch))
        assert batch.image is not None
        self.grid, self.num_images = (batch.image.num_patch_rows, batch.image.num_patch_columns), batch.num_images


class SpatialConvolution(Module):
    """``nn.Conv2d`` with one group per channel."""

    def __init__(self, channels: int, side: int) -> None:
        self.weight = Parameter(channels, 1, side, side)

    def forward(self, x: Tensor) -> Tensor:
        return ops.convolution(x, self.weight, None, x.shape)


class VisionConvolution(Module):
    """``Lfm3VlVisionShortConv``: ``out(c * convolution(b * x))`` with b, c and x from one Linear, image by image."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.in_proj = Linear(width, 3 * width)
        self.spatial_conv = SpatialConvolution(width, config.integer("conv_kernel_size"))
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, context: GridContext) -> Tensor:
        width = x.shape[-1]
        b, c, inner = ops.split(self.in_proj(x), x.shape, x.shape, x.shape)
        gated = ops.mul(b, inner)
        pieces: list[Tensor] = []
        for image in by_image(gated, context.num_images):
            rows, columns = context.grid
            count = image.shape[0] // (rows * columns)
            frames = self.spatial_conv(ops.copy(image, count, width, rows, columns))
            pieces.append(ops.copy(frames, *image.shape))
        convolved = ops.concatenate(pieces, x.shape)
        return self.out_proj(ops.mul(c, convolved))


class VisionModel(Module):
    """``Lfm3VlVisionModel``."""

    ROTARY_MODULES = ("rotary_pos_emb",)
    INPUT_EMBEDDING = "patch_embed"

    def __init__(self, config: Config) -> None:
        width, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        self.head_dim = width // num_heads
        self.patch_numel = (
            config.integer("in_channels") * config.integer("temporal_patch_size") * config.integer("patch_size") ** 2
        )
        self.patch_embed = Linear(self.patch_numel, width)
        self.embedding_norm = RMSNorm(width)

        def layer(kind: str) -> Lfm2Layer:
            attends = kind == ATTENTION
            num_kv_heads = config.integer("num_key_value_heads")
            mixer = VisionAttention(width, num_heads, num_kv_heads) if attends else VisionConvolution(config)
            return Lfm2Layer(width, mixer, Lfm2Mlp(width, config.integer("intermediate_size")))

        self.layers = stack_of_kinds(vision_kinds(config), layer)
        self.layers.label = "vision"

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.embedding_norm(self.patch_embed(pixels))
            tape.prefetch()  # for the module of the positions
            context = GridContext(batch, backend, patch_positions(x, self.head_dim))
        embedded = [x]
        del x  # the first layer's input does not outlive the layer
        return self.layers.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))


def vision_kinds(config: Config) -> Sequence[str]:
    """``layer_types``, or those of ``Lfm3VlVisionConfig.__post_init__``."""
    kinds = config.layer_types()
    if kinds is None:
        layers = range(config.integer("num_hidden_layers"))
        return [CONVOLUTION if index < 2 or index % 2 else ATTENTION for index in layers]
    if not set(kinds) <= {ATTENTION, CONVOLUTION}:
        name = "vision_config.layer_types"
        raise not_allowed(CONFIG, name, sorted(set(kinds)), f"names out of {ATTENTION} and {CONVOLUTION}")
    return kinds


class Projector(Module):
    """``Lfm3VlMultiModalProjector``."""

    def __init__(self, config: Config) -> None:
        vision = config.section("vision_config")
        width, bias = vision.integer("hidden_size"), config.boolean("projector_bias")
        inner = config.integer("projector_hidden_size")
        self.merged_width = width * vision.integer("spatial_merge_size") ** 2
        self.layer_norm = LayerNorm(width)
        self.linear_1 = Linear(self.merged_width, inner, bias=bias)
        self.linear_2 = Linear(inner, config.section("text_config").integer("hidden_size"), bias=bias)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x).view(x.numel // self.merged_width, self.merged_width)
        x = self.linear_1(x)
        x = self.act(x)
        return self.linear_2(x)


class Lfm3VlModel(Module):
    """``Lfm3VlModel``."""

    def __init__(self, config: Config) -> None:
        self.language_model: Any = text_decoder(config.section("text_config"))
        self.vision_tower = VisionModel(config.section("vision_config"))
        self.multi_modal_projector = Projector(config)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        held = tape.outputs.of_encoder()  # what the tower returns
        if pixels is not None:
            held.append(self.vision_tower(pixels, batch, backend))
            with tape.section("projector"):
                held.append(self.multi_modal_projector(held[0]))
            with tape.section("scatter"):
                features = joined_features(held[1], batch.num_images)
                tape.outputs.keep_features(features)
                embeddings = scattered(ids, embeddings, features)
                del features
        return self.language_model(embeddings, backend)


class Lfm3Vl(ImageTextModel):
    """``Lfm3VlForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_tower.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``."""
        return (((batch.num_images, 3), DType.INT64),)


def build(config: Config) -> Lfm3Vl:
    """``Lfm3VlForConditionalGeneration``."""
    return Lfm3Vl(Lfm3VlModel(config), ties_weights=config.boolean("tie_word_embeddings"))

"""GLM-4.1V: a vision transformer with RMSNorm and interpolated positions, a strided convolution, and a GLM-4 decoder.

Source: transformers 5.23 ``models/glm4v/modeling_glm4v.py``. In its vision config ``out_hidden_size`` is the width of
the decoder and the inner width of the blocks' MLP; ``intermediate_size`` is the inner width of the merger.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llama import DecoderShape, GatedMlp, RotaryContext, decoder_shape
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    PatchEmbed,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.partial_rotary import PartlyRotatedAttention, parts_of_heads, rotary_fraction
from vlmplan.architecture.families.phi3 import Phi3Mlp
from vlmplan.architecture.families.qwen2_vl import Qwen2VL, VisionLanguageModel
from vlmplan.architecture.families.residual_layers import SandwichNormLayer
from vlmplan.architecture.indexing import sample_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, PatchEmbedding, RMSNorm, Stack
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionEmbeddings(ReadingModule):
    """Learned positions, read without a call, sampled in float32 from a square grid and added to the patches."""

    def __init__(self, config: Config, width: int) -> None:
        self.position_embedding = Embedding((config.integer("image_size") // config.integer("patch_size")) ** 2, width)

    def read_modules(self) -> Sequence[Module]:
        return (self.position_embedding,)

    def forward(self, x: Tensor) -> Tensor:
        tape, weight = x.tape, self.position_embedding.weight
        table = ops.cast_weight(weight, DType.FLOAT32, tape)
        # Where each patch looks into the grid; as in the original, all of it lives until this function returns.
        sizes = [tape.tensor((x.shape[0],), DType.FLOAT32) for _ in range(4)]
        positions = tape.tensor((x.shape[0], 2), DType.FLOAT32)
        interpolated = sample_rows(table, positions, x.shape)
        adapted = ops.to(interpolated, weight.dtype)
        x = ops.add(x, adapted)
        del sizes
        return x


class VisionBlock(PatchBlock):
    """Pre-norm attention and gated MLP."""

    def __init__(self, config: Config, width: int) -> None:
        self.norm1 = RMSNorm(width)
        self.norm2 = RMSNorm(width)
        self.attn = PatchAttention(
            width, config.integer("num_heads"), qkv_bias=config.boolean("attention_bias"), output_bias=False
        )
        self.attn.scores = Scores(dropout=config.number("attention_dropout"))
        self.mlp = GatedMlp(width, config.integer("out_hidden_size"), activation=config.text("hidden_act"))


class PatchMerger(Module):
    """A Linear, a norm, and a gated MLP over merged patches."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.proj = Linear(width, width)
        self.post_projection_norm = LayerNorm(width)
        self.gate_proj = Linear(width, inner)
        self.up_proj = Linear(width, inner)
        self.down_proj = Linear(inner, width)
        self.act_fn = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        x = ops.gelu(self.post_projection_norm(x))
        return self.down_proj(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class Downsampling(PatchEmbedding):
    """``downsample``: it has an input with a gradient, which a convolution saves whether or not its weight trains."""

    def forward(self, pixels: Tensor) -> Tensor:
        return ops.convolution(pixels, self.weight, self.bias, (pixels.shape[0], self.weight.shape[0]))


class MergingTower(Module):
    """Blocks over patches, whose results are downsampled and merged into tokens."""

    ROTARY_MODULES = ("rotary_pos_emb",)

    blocks: Stack
    post_layernorm: RMSNorm
    downsample: Downsampling
    merger: PatchMerger
    merged_width: int

    def embedded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, PatchContext]:
        """What the first block gets."""
        raise NotImplementedError

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(downsampled hidden states, merged features); both stay alive in the encoder's output object."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x, context = self.embedded(pixels, batch, backend)
        embedded = [x]
        del x  # the first block's input does not outlive the block
        x = self.blocks.run(embedded.pop(), lambda block, hidden: block(hidden, context))
        with tape.section("vision.merger"):
            x = self.post_layernorm(x)
            x = self.downsample(x.view(x.numel // self.merged_width, self.merged_width))
            return x, self.merger(x)


class VisionTransformer(MergingTower):
    """``Glm4vVisionModel``."""

    def __init__(self, config: Config) -> None:
        width, self.out_width = config.integer("hidden_size"), config.integer("out_hidden_size")
        self.head_dim = width // config.integer("num_heads")
        self.merged_width = width * config.integer("spatial_merge_size") ** 2
        self.embeddings = VisionEmbeddings(config, width)
        self.patch_embed = PatchEmbed(config, width, bias=True)
        self.blocks = Stack.of(VisionBlock(config, width), config.integer("depth"), label="vision")
        self.merger = PatchMerger(self.out_width, config.integer("intermediate_size"), config.text("hidden_act"))
        self.post_conv_layernorm = RMSNorm(width)
        self.downsample = Downsampling(self.merged_width, self.out_width, bias=True)
        self.post_layernorm = RMSNorm(width)

    def embedded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, PatchContext]:
        x = self.patch_embed(pixels)
        x = self.post_conv_layernorm(x)
        x.tape.prefetch()  # for the module of the positions
        context = PatchContext(backend, patch_positions(x, self.head_dim), patch_lengths(batch))
        return self.embeddings(x), context


class Attention(PartlyRotatedAttention):
    """``Glm4vTextAttention``: a slice of a whole head is the head itself, without an operation of its own."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        width = context.cos.shape[-1]
        q_part, q_rest = parts_of_heads(q, width)
        k_part, k_rest = parts_of_heads(k, width)
        q_rotated = ops.rotate(q_part, context.cos, context.sin)
        k_rotated = ops.rotate(k_part, context.cos, context.sin)
        q_rotated = ops.concatenate([q_rotated, q_rest], q.shape)
        k_rotated = ops.concatenate([k_rotated, k_rest], k.shape)
        return q_rotated, k_rotated


class DecoderLayer(SandwichNormLayer):
    """Attention and MLP with a norm before and behind each."""

    MODULES = (
        *("input_layernorm", "self_attn", "post_self_attn_layernorm"),
        *("post_attention_layernorm", "mlp", "post_mlp_layernorm"),
    )
    attention: Any = Attention

    def __init__(self, shape: DecoderShape) -> None:
        self.self_attn = self.attention(shape, None)
        self.mlp = Phi3Mlp(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.post_self_attn_layernorm = RMSNorm(shape.hidden_size)
        self.post_mlp_layernorm = RMSNorm(shape.hidden_size)


class Glm4v(Qwen2VL):
    """``Glm4vForConditionalGeneration``."""

    PARTS = {**Qwen2VL.PARTS, "model.visual.downsample": Part.PROJECTOR}


def decoder(text: Config) -> MultimodalDecoder:
    """``Glm4vTextModel``."""
    # Biases and the width of a head do not depend on the configuration.
    shape = replace(decoder_shape(text), qkv_bias=True, output_bias=False)
    shape = replace(shape, head_dim=shape.hidden_size // shape.num_heads)
    rotary_width = int(shape.head_dim * rotary_fraction(text))
    layers = Stack.of(DecoderLayer(shape), shape.num_layers, label="layers")
    return MultimodalDecoder(shape, layers, rotary_width=rotary_width)


def build(config: Config) -> Glm4v:
    """``Glm4vForConditionalGeneration``."""
    text = config.section("text_config")
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), decoder(text))
    return Glm4v(model, ties_weights=ties_either(config, text))

"""Kimi K2.5: a vision transformer over patches at native resolution with interpolated and rotary positions, and a
DeepSeek-V3 decoder.

Source: transformers 5.23 and 5.24 ``models/kimi_k25/modeling_kimi_k25.py``. Videos come to it in chunks, which no
plan knows: images alone are described. peft knows no names of experts in it: names mean Linears alone.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.latent_attention import latent_shape
from vlmplan.architecture.families.packed_patches import (
    PatchAttention,
    PatchBlock,
    PatchContext,
    joined_features,
    num_patches,
    patch_lengths,
    patch_positions,
    scattered,
)
from vlmplan.architecture.families.qwen2_vl import VisionMlp
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.indexing import add_rows, sum_rows, take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_TAPS = 16
"""Learned positions that one patch interpolates between (bicubic)."""
OLD_TEXT_TYPE = "kimi_k2"
"""What published files call DeepSeek-V3 (``Kimi_K25Config.__post_init__``)."""


class VisionPositions(Module):
    """``Kimi_K25VisionPositionEmbeddings``: a square of learned positions, interpolated for each image, and those of
    its frame, which are constants in float32."""

    def __init__(self, config: Config) -> None:
        sides = config.integer("pos_emb_height"), config.integer("pos_emb_width")
        self.position_embeddings = Parameter(*sides, config.integer("hidden_size"))

    def forward(self, x: Tensor) -> Tensor:
        tape, (num_rows, width), table = x.tape, x.shape, self.position_embeddings
        taps = (num_rows, NUM_TAPS)
        indices, fractions = tape.tensor(taps, DType.INT64), tape.tensor(taps, DType.FLOAT32)
        positions = sum_rows(table, indices, ops.to(fractions, table.dtype), num_rows)
        positions = ops.add(positions, tape.tensor((num_rows, width), DType.FLOAT32))
        x = ops.add(x, ops.to(positions, x.dtype))
        del fractions
        return x


class PatchEmbed(Module):
    """``Kimi_K25VisionPatchEmbed``."""

    def __init__(self, config: Config) -> None:
        self.patch_shape = (3, config.integer("patch_size"), config.integer("patch_size"))
        self.proj = PatchEmbedding(prod(self.patch_shape), config.integer("hidden_size"), bias=True)
        self.pos_emb = VisionPositions(config)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.proj(pixels.view(pixels.shape[0], prod(self.patch_shape)))
        return self.pos_emb(x)


class VisionAttention(PatchAttention):
    """``Kimi_K25VisionAttention``."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.proj = Linear(width, width, bias=True)
        self.q_proj, self.k_proj, self.v_proj = (Linear(width, width, bias=True) for _ in range(3))

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        return self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)


class VisionLayer(PatchBlock):
    """``Kimi_K25VisionEncoderLayer``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = VisionAttention(width, config.integer("num_attention_heads"))
        self.mlp = VisionMlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class VisionModel(Module):
    """``Kimi_K25VisionModel``."""

    ROTARY_MODULES = ("rotary_emb",)
    INPUT_EMBEDDING = "patch_embed"

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.head_dim = width // config.integer("num_attention_heads")
        self.patches_per_token = prod(merge_kernel(config))
        self.merged = added_up if config.release.adds_frames_up else averaged
        self.patch_embed = PatchEmbed(config)
        self.layers = Stack.of(VisionLayer(config), config.integer("num_hidden_layers"), label="vision")
        self.final_layernorm = LayerNorm(width)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(hidden states of the patches, those of each token side by side)."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            embedded = [self.patch_embed(pixels)]
            tape.prefetch()  # for the module of the positions
            context = PatchContext(backend, patch_positions(embedded[0], self.head_dim), patch_lengths(batch))
        # The first layer's input does not outlive the layer.
        hidden = self.layers.run(embedded.pop(), lambda layer, x: layer(x, context))
        with tape.section("vision.norm"):
            hidden = self.final_layernorm(hidden)
            tokens = (hidden.shape[0] // self.patches_per_token, self.patches_per_token)
            return hidden, self.merged(hidden, tokens)


def averaged(hidden: Tensor, tokens: tuple[int, int]) -> Tensor:
    """The patches of each token side by side, a mean of the frames: of an image there is one."""
    frames = (tokens[0], 1, tokens[1])
    picked = take_rows(hidden, hidden.tape.tensor(frames, DType.INT64), (*frames, hidden.shape[1]))
    return ops.mean(picked, (*tokens, hidden.shape[1]))


def added_up(hidden: Tensor, tokens: tuple[int, int]) -> Tensor:
    """``temporal_merge``: the same as a sum in float32 of frames with their shares."""
    tape, (num_rows, width) = hidden.tape, hidden.shape
    places, shares = tape.tensor((num_rows,), DType.INT64), tape.tensor((num_rows, 1), DType.FLOAT32)
    zeros = tape.tensor((prod(tokens), width), DType.FLOAT32)
    rows = ops.mul(ops.to(hidden, DType.FLOAT32), shares)
    sums = add_rows(zeros, places, rows, is_in_place=True)
    del rows, zeros
    merged = ops.to(sums.view(*tokens, width), hidden.dtype)
    del places, shares, sums
    return merged


class Projector(Module):
    """``Kimi_K25MultimodalProjection``."""

    def __init__(self, config: Config, vision: Config, out_width: int) -> None:
        self.merged_width = vision.integer("hidden_size") * prod(merge_kernel(vision))
        self.pre_norm = LayerNorm(config.integer("projection_hidden_size"))
        self.in_proj = Linear(self.merged_width, self.merged_width, bias=True)
        self.out_proj = Linear(self.merged_width, out_width, bias=True)
        self.act = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre_norm(x).view(x.shape[0], 1, self.merged_width)
        x = self.in_proj(x)
        x = self.act(x)
        return self.out_proj(x)


class KimiModel(Module):
    """``Kimi_K25Model``."""

    def __init__(self, config: Config) -> None:
        vision = config.section("vision_config")
        self.vision_tower = VisionModel(vision)
        self.language_model: Any = text_decoder(text_config(config))
        self.mm_projector = Projector(config, vision, self.language_model.shape.hidden_size)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        return joined_in(self.language_model, ids, pixels, batch, backend, self.encoded)

    def encoded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(hidden states of the patches, features as wide as the decoder)."""
        hidden, merged = self.vision_tower(pixels, batch, backend)
        with pixels.tape.section("projector"):
            features = self.mm_projector(merged)
            return hidden, features.view(features.shape[0], features.shape[2])


def joined_in(
    language_model: Any,
    ids: Tensor,
    pixels: Tensor | None,
    batch: Batch,
    backend: AttentionBackend,
    encoded: Callable[[Tensor, Batch, AttentionBackend], tuple[Tensor, Tensor]],
) -> Tensor:
    """``forward`` of the model around tower and decoder: what is ``encoded`` of the pixels, the tower's result and
    features of all images, goes in the place of the tokens of images, which are embedded without their numbers."""
    tape = ids.tape
    with tape.section("placeholders"):
        held = [tape.tensor(ids.shape, DType.BOOL)]  # local variables, until this function returns
        words = tape.tensor(ids.shape, ids.dtype)
    embeddings = language_model.embed(words)
    returned = tape.outputs.of_encoder()
    if pixels is not None:
        returned += encoded(pixels, batch, backend)
        with tape.section("scatter"):
            held.append(joined_features(returned[1], batch.num_images))
            embeddings = scattered(ids, embeddings, held[1])
    return language_model(embeddings, backend)


class Kimi(ImageTextModel):
    """``Kimi_K25ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.mm_projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), *self.model.vision_tower.patch_embed.patch_shape)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``."""
        return (((batch.num_images, 3), DType.INT64),)


def merge_kernel(vision: Config) -> tuple[int, ...]:
    """Rows and columns of patches that become one token."""
    sides = vision.integers("merge_kernel_size")
    if len(sides) != 2 or min(sides) < 1:
        raise not_allowed(CONFIG, "vision_config.merge_kernel_size", list(sides), "two positive integers")
    return sides


def text_config(config: Config) -> Config:
    """The configuration of the decoder."""
    text = config.section("text_config")
    if text.model_type != OLD_TEXT_TYPE:
        return text
    return Config(config.own("text_config"), "deepseek_v3", text.path, text.release)


def build(config: Config) -> Kimi:
    """``Kimi_K25ForConditionalGeneration``."""
    text = text_config(config)
    model = Kimi(KimiModel(config), ties_weights=ties_word_embeddings(config, text))
    if text.model_type == "deepseek_v3":
        model.attention_linears = latent_shape(text).linears
    return model

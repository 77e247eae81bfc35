"""Qwen2-VL: a vision transformer over patches at native resolution, a merger, and a Qwen2 decoder.

Source: transformers 5.23 ``models/qwen2_vl/modeling_qwen2_vl.py``. In its vision config ``embed_dim`` is the width and
``hidden_size`` the width of the decoder.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ImageTextModel, ties_either
from vlmplan.architecture.families.llama import decoder_shape
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    PatchEmbed,
    Sequential,
    joined_features,
    num_patches,
    patch_lengths,
    patch_positions,
    scattered,
    token_positions,
)
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionMlp(Module):
    """``fc2(act(fc1(x)))``."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)
        self.act = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VisionBlock(PatchBlock):
    """Pre-norm attention and MLP."""

    def __init__(self, config: Config) -> None:
        width = config.integer("embed_dim")
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = PatchAttention(width, config.integer("num_heads"))
        self.mlp = VisionMlp(width, int(width * config.positive_number("mlp_ratio")), config.text("hidden_act"))


class PatchMerger(Module):
    """Norm, then a two-layer MLP over the patches of one merged token."""

    def __init__(self, norm: Module, width: int, out_width: int, merge_size: int) -> None:
        self.merged_width = width * merge_size**2
        self.ln_q = norm
        self.mlp = Sequential(
            {
                "0": Linear(self.merged_width, self.merged_width, bias=True),
                "2": Linear(self.merged_width, out_width, bias=True),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_q(x)
        x = x.view(x.numel // self.merged_width, self.merged_width)
        return ops.called(lambda x: self.mlp["2"](ops.called(ops.gelu, self.mlp["0"](x))), x)


class VisionTransformer(Module):
    """``Qwen2VisionTransformerPretrainedModel``."""

    ROTARY_MODULES = ("rotary_pos_emb",)
    INPUT_EMBEDDING = "patch_embed"

    def __init__(self, config: Config) -> None:
        width = config.integer("embed_dim")
        self.head_dim = width // config.integer("num_heads")
        self.patch_embed = PatchEmbed(config, width)
        self.blocks = Stack.of(VisionBlock(config), config.integer("depth"), label="vision")
        self.merger = PatchMerger(
            LayerNorm(width), width, config.integer("hidden_size"), config.integer("spatial_merge_size")
        )

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state of the patches, merged features); both stay alive in the encoder's output object."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.patch_embed(pixels)
            tape.prefetch()  # for the module of the positions
            context = PatchContext(backend, patch_positions(x, self.head_dim), patch_lengths(batch))
        embedded = [x]
        del x  # the first block's input does not outlive the block
        x = self.blocks.run(embedded.pop(), lambda block, hidden: block(hidden, context))
        with tape.section("vision.merger"):
            return x, self.merger(x)


class VisionLanguageModel(Module):
    """``Qwen2VLModel``: ``visual`` and ``language_model``."""

    def __init__(self, visual: Module, language_model: MultimodalDecoder) -> None:
        self.visual: Any = visual
        self.language_model = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        held: list[Tensor] = []  # what lives until this function returns, too: the joined features, the positions
        if pixels is not None:
            encoded += self.encoded(pixels, batch, backend)
            with ids.tape.section("scatter"):
                held.append(joined_features(encoded[1], batch.num_images))
                embeddings = scattered(ids, embeddings, held[0])
                held += self.positions(ids)
        return self.decoded(embeddings, pixels, batch, backend)

    def decoded(self, embeddings: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        """The last hidden state of the tokens, those of images among them where there are pixels."""
        return self.language_model(embeddings, backend)

    def positions(self, ids: Tensor) -> list[Tensor]:
        """The tensors of positions that are made of tokens and images."""
        return [token_positions(ids)]

    def encoded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state of the patches, features as wide as the language model's)."""
        return self.visual(pixels, batch, backend)


class Qwen2VL(ImageTextModel):
    """``Qwen2VLForConditionalGeneration``."""

    PARTS = {"model.visual": Part.VISION, "model.visual.merger": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.visual.patch_embed.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``mm_token_type_ids`` and ``image_grid_thw``."""
        return (((batch.micro_batch, batch.num_tokens), DType.INT64), ((batch.num_images, 3), DType.INT64))


def build(config: Config) -> Qwen2VL:
    """``Qwen2VLForConditionalGeneration``; older files keep the text configuration at the top level."""
    text = config.section("text_config", is_flat=True)
    shape = decoder_shape(text)
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), MultimodalDecoder(shape))
    return Qwen2VL(model, ties_weights=ties_either(config, text))

"""Llama 4 with images: a vision transformer over tiles with rotated heads, a pixel shuffle with an MLP, one Linear.

Source: transformers 5.23 ``models/llama4/modeling_llama4.py``.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, writes_by_head
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama4 import rotated_as_complex
from vlmplan.architecture.families.text import text_model
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class VisionAttention(Module):
    """``Llama4VisionAttention``."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.q_proj = Linear(width, width, bias=True)
        self.k_proj = Linear(width, width, bias=True)
        self.v_proj = Linear(width, width, bias=True)
        self.o_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        batch, num_tokens, width = x.shape
        heads = (batch, self.num_heads, num_tokens, width // self.num_heads)
        q, k, v = self.q_proj(x).view(*heads), self.k_proj(x).view(*heads), self.v_proj(x).view(*heads)
        moves = writes_by_head(backend, q, k, v, has_mask=False)
        v = ops.in_rows(v, *v.shape) if moves[1] else v
        q, k = rotated_as_complex(q, k, positions, moves=moves)
        return self.o_proj(attend(backend, q, k, v, is_causal=False, scores=Scores(upcasts=False, casts_back=False)))


class VisionMlp(Module):
    """``Llama4VisionMLP``."""

    def __init__(self, width: int, inner: int) -> None:
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.gelu(x)
        return self.fc2(x)


class VisionLayer(Module):
    """``Llama4VisionEncoderLayer``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.self_attn = VisionAttention(width, config.integer("num_attention_heads"))
        self.mlp = VisionMlp(width, config.integer("intermediate_size"))
        self.input_layernorm = LayerNorm(width)
        self.post_attention_layernorm = LayerNorm(width)

    def forward(self, x: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, positions, backend)
        x = ops.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        return ops.add(residual, x)


class UnfoldedPatches(Module):
    """``Llama4UnfoldConvolution``: patches copied out of the tiles, then a Linear."""

    def __init__(self, patch_numel: int, width: int) -> None:
        self.linear: Any = Linear(patch_numel, width)

    def forward(self, pixels: Tensor, num_tiles: int, num_patches: int) -> Tensor:
        unfolded = ops.copy(pixels, num_tiles, num_patches, pixels.numel // (num_tiles * num_patches))
        # Channels come before patches: ``F.linear`` folds them into one matrix, a copy, where its weight is trained.
        if self.linear.weight.requires_grad:
            return self.linear(ops.copy(unfolded))
        return self.linear(unfolded)


class ShuffleMlp(Module):
    """``Llama4VisionMLP2``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("projector_output_dim")
        self.fc1 = Linear(config.integer("intermediate_size"), config.integer("projector_input_dim"))
        self.fc2 = Linear(width, width)
        self.dropout = config.number("projector_dropout")

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.gelu(x)
        x = ops.dropout(x, self.dropout, is_module=False)
        return ops.gelu(self.fc2(x))


class PixelShuffle(Module):
    """``Llama4VisionPixelShuffleMLP``: neighbouring patches side by side, in two copies."""

    def __init__(self, config: Config) -> None:
        ratio = config.positive_number("pixel_shuffle_ratio")
        self.num_merged = round(1 / ratio**2)
        self.merged_width = config.integer("intermediate_size")
        self.mlp = ShuffleMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        num_tiles, num_patches, width = x.shape
        if width * self.num_merged != self.merged_width:
            raise not_allowed(
                CONFIG,
                "vision_config.intermediate_size",
                self.merged_width,
                f"{width * self.num_merged}, as wide as merged patches are,",
            )
        shuffled = ops.copy(x)
        shuffled = ops.copy(shuffled, num_tiles, num_patches // self.num_merged, width * self.num_merged)
        return self.mlp(shuffled)


class VisionModel(Module):
    """``Llama4VisionModel``."""

    ROTARY_MODULES = ("rotary_embedding",)
    INPUT_EMBEDDING = "patch_embedding"

    def __init__(self, config: Config) -> None:
        width, side, patch = (config.integer(key) for key in ("hidden_size", "image_size", "patch_size"))
        self.head_dim = width // config.integer("num_attention_heads")
        self.num_patches = (side // patch) ** 2
        self.tile = (config.integer("num_channels"), side, side)
        self.class_embedding = Parameter(width)
        self.positional_embedding_vlm = Parameter(self.num_patches + 1, width)
        self.patch_embedding = UnfoldedPatches(self.tile[0] * patch**2, width)
        self.layernorm_pre = LayerNorm(width)
        self.layernorm_post = LayerNorm(width)
        self.model = EqualLayers(VisionLayer(config), config)
        self.model.layers.takes_keywords = True
        self.vision_adapter = PixelShuffle(config)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape, num_tiles = pixels.tape, batch.num_vision_sequences
        with tape.section("vision.embedding"):
            x = self.patch_embedding(pixels, num_tiles, self.num_patches)
            width = x.shape[-1]
            first = ops.expand_weight(self.class_embedding, (num_tiles, 1, width), tape)
            x = ops.concatenate([x, first], (num_tiles, self.num_patches + 1, width))
            x = ops.add(x, ops.cast_weight(self.positional_embedding_vlm, x.dtype, tape))
            x = self.layernorm_pre(x)
            # The buffer ``freqs_ci``: its bytes are the model's, not the micro batch's.
            empty = tape.tensor((0,), DType.FLOAT32)
            positions = Tensor(empty.storage, (1, 1, self.num_patches + 1, self.head_dim), DType.FLOAT32)
        del first
        last = self.model.layers.run(x, lambda layer, hidden: layer(hidden, positions, backend))
        del x  # which has its name until the layers' result takes that
        with tape.section("vision.merger"):
            x = self.layernorm_post(last)
            x = ops.part(x, num_tiles, self.num_patches, x.shape[-1])
            return self.vision_adapter(x)


class Projector(Module):
    """``Llama4MultiModalProjector``."""

    def __init__(self, in_width: int, width: int) -> None:
        self.linear_1 = Linear(in_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_1(x)


class Llama4(Model):
    """``Llama4ForConditionalGeneration``: its decoder has the head."""

    PARTS = {
        "vision_model": Part.VISION,
        "vision_model.vision_adapter": Part.PROJECTOR,
        "multi_modal_projector": Part.PROJECTOR,
    }
    EMBEDDINGS = "language_model.model.embed_tokens"
    HEAD = "language_model.lm_head"

    def __init__(self, config: Config) -> None:
        vision, text = config.section("vision_config"), config.section("text_config")
        self.vision_model: Any = VisionModel(vision)
        self.multi_modal_projector = Projector(vision.integer("vision_output_dim"), text.integer("hidden_size"))
        self.language_model: Any = text_model(text)
        self.language_model.model.takes_ids = False

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (batch.num_vision_sequences, *self.vision_model.tile)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        tape, decoder = ids.tape, self.language_model.model
        embeddings = decoder.embed(ids)
        if pixels is not None:
            features = self.vision_model(pixels, batch, backend)
            tape.outputs.keep(features)
            with tape.section("projector"):
                width = features.shape[-1]
                projected = self.multi_modal_projector(features.view(features.numel // width, width))
                projected = ops.to(projected, embeddings.dtype)
            with tape.section("scatter"):
                mask = tape.tensor(ids.shape, DType.BOOL)
                embeddings = ops.masked_scatter(embeddings, mask, projected)
            # The original computes the loss in the same function.
            tape.locals += [projected.detached(), mask, embeddings.detached()]
        return decoder(embeddings, backend)


def build(config: Config) -> Llama4:
    """``Llama4ForConditionalGeneration``."""
    return Llama4(config)

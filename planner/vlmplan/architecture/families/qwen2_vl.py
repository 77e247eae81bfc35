"""Qwen2-VL: a vision transformer over patches at native resolution, a merger, and a Qwen2 decoder.

Source: transformers 5.23 ``models/qwen2_vl/modeling_qwen2_vl.py``. In its vision config ``embed_dim`` is the width and
``hidden_size`` the width of the decoder.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import AttentionBackend, attend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, PatchEmbedding, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionContext(RotaryContext):
    """Rotary positions of the patches, and how many patches attend to each other."""

    __slots__ = ("num_images", "patches_per_image")

    def __init__(self, backend: AttentionBackend, cos: Tensor, sin: Tensor, num_images: int, patches: int) -> None:
        super().__init__(backend, cos, sin)
        self.num_images, self.patches_per_image = num_images, patches


class VisionAttention(Module):
    """Attention among the patches of each image, with fused q, k, v and rotary positions in float32."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(width, 3 * width, bias=True)
        self.proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        num_patches, width = x.shape
        head = (self.num_heads, num_patches, width // self.num_heads)
        q, k, v = ops.split(self.qkv(x), head, head, head)
        q, k = _rotated_in_float32(q, context), _rotated_in_float32(k, context)
        out = attend_per_image(context, q, k, v)
        return self.proj(out.view(num_patches, width))


def _rotated_in_float32(x: Tensor, context: RotaryContext) -> Tensor:
    """``apply_rotary_pos_emb_vision``: cast to float32, rotate, cast back."""
    return ops.to(ops.rotate(ops.to(x, DType.FLOAT32), context.cos, context.sin), x.dtype)


def attend_per_image(context: VisionContext, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Full attention inside each image: one kernel over variable lengths, or one call per image and a concatenation."""
    num_heads, _, head_dim = q.shape
    if context.backend.implementation == "flash_attention_2":
        shape = (context.num_images, num_heads, context.patches_per_image, head_dim)
        return attend(context.backend, q.view(*shape), k.view(*shape), v.view(*shape), is_causal=False)
    shape = (1, num_heads, context.patches_per_image, head_dim)
    parts = zip(*(ops.slices(x, shape, context.num_images) for x in (q, k, v)), strict=True)
    outs = [attend(context.backend, *part, is_causal=False) for part in parts]
    return ops.concatenate(outs, (1, q.shape[1], num_heads * head_dim))


class VisionMlp(Module):
    """``fc2(act(fc1(x)))``."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, width, bias=True)
        self.activation = ops.ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class VisionBlock(Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.integer("embed_dim")
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = VisionAttention(width, config.integer("num_heads"))
        self.mlp = VisionMlp(width, int(width * config.number("mlp_ratio")), config.text("hidden_act"))

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        x = ops.add(x, self.attn(self.norm1(x), context))
        return ops.add(x, self.mlp(self.norm2(x)))


class PatchEmbed(Module):
    def __init__(self, patch_numel: int, width: int) -> None:
        super().__init__()
        self.proj = PatchEmbedding(patch_numel, width, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels)


class PatchMerger(Module):
    """Norm, then a two-layer MLP over the patches of one merged token."""

    def __init__(self, width: int, out_width: int, merge_size: int) -> None:
        super().__init__()
        self.merged_width = width * merge_size**2
        self.ln_q = LayerNorm(width)
        self.mlp = Sequential(
            {
                "0": Linear(self.merged_width, self.merged_width, bias=True),
                "2": Linear(self.merged_width, out_width, bias=True),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_q(x)
        x = x.view(x.numel // self.merged_width, self.merged_width)
        return self.mlp["2"](ops.gelu(self.mlp["0"](x)))


class Sequential(Module):
    """``nn.Sequential``: children named by position; those without weights are left out."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        super().__init__()
        self.modules_by_name.update(modules)

    def __getitem__(self, name: str) -> Module:
        return self.modules_by_name[name]

    def replace(self, name: str, module: Module) -> None:
        self.modules_by_name[name] = module


class VisionTransformer(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.integer("embed_dim")
        self.head_dim = width // config.integer("num_heads")
        self.patch_numel = (
            config.integer("in_channels") * config.integer("temporal_patch_size") * config.integer("patch_size") ** 2
        )
        self.patch_embed = PatchEmbed(self.patch_numel, width)
        self.blocks = Stack.of(VisionBlock(config), config.integer("depth"), label="vision")
        self.merger = PatchMerger(width, config.integer("hidden_size"), config.integer("spatial_merge_size"))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(last hidden state of the patches, merged features); both stay alive in the encoder's output object."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.patch_embed(pixels)
            shape = (x.shape[0], self.head_dim)
            cos, sin = tape.tensor(shape, DType.FLOAT32), tape.tensor(shape, DType.FLOAT32)
            context = VisionContext(backend, cos, sin, batch.num_images, x.shape[0] // batch.num_images)
            del cos, sin
        x = self.blocks.run(x, lambda block, hidden: block(hidden, context))
        with tape.section("vision.merger"):
            return x, self.merger(x)


def scatter_images(ids: Tensor, embeddings: Tensor, features: Tensor) -> Tensor:
    """Image features put in the place of their placeholder tokens."""
    with ids.tape.section("scatter"):
        mask = ids.tape.tensor(ids.shape, DType.BOOL)
        return ops.masked_scatter(embeddings, mask, features)


class VisionLanguageModel(Module):
    """``Qwen2VLModel``: ``visual`` and ``language_model``."""

    def __init__(self, visual: Module, language_model: Decoder) -> None:
        super().__init__()
        self.visual: Any = visual
        self.language_model = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        # The encoder's output object lives until this function returns, as ``mm_encoder_outputs`` does.
        encoded: list[Tensor] = []
        if pixels is not None:
            encoded += self.visual(pixels, batch, backend)
            embeddings = scatter_images(ids, embeddings, encoded[1])
        return self.language_model(embeddings, backend)


class Qwen2VL(Model):
    """``Qwen2VLForConditionalGeneration``."""

    PARTS = {"model.visual": Part.VISION, "model.visual.merger": Part.PROJECTOR}
    EMBEDDINGS = "model.language_model.embed_tokens"

    def __init__(self, model: VisionLanguageModel, shape: DecoderShape, *, ties_weights: bool) -> None:
        super().__init__()
        self.model = model
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        num_patches = batch.num_images * batch.image.num_vision_sequences * batch.image.num_patches_per_sequence
        return (num_patches, self.model.visual.patch_numel)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.model(ids, pixels, batch, backend)


def build(config: Config) -> Qwen2VL:
    """``Qwen2VLForConditionalGeneration``; older files keep the text configuration at the top level."""
    text = config.section("text_config", is_flat=True)
    shape = decoder_shape(text)
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), Decoder(shape))
    return Qwen2VL(
        model,
        shape,
        ties_weights=config.boolean("tie_word_embeddings") or text.boolean("tie_word_embeddings"),
    )

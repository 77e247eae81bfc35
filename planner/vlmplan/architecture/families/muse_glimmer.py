"""Muse Glimmer: Kimi K2.5's vision layers, most within windows, and a Gemma 2 whose attention has gates.

Source: transformers 5.23 ``models/muse_glimmer/modeling_muse_glimmer.py`` and ``configuration_muse_glimmer.py``. Videos
come to it in chunks, which no plan knows: images alone are described.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.kimi_k25 import VisionAttention, joined_in
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.packed_patches import (
    PatchBlock,
    PatchContext,
    interpolated_positions,
    num_patches,
    patch_lengths,
)
from vlmplan.architecture.families.qwen2_5_vl import window_lengths
from vlmplan.architecture.families.qwen2_vl import VisionMlp
from vlmplan.architecture.families.residual_layers import SandwichNormLayer
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, GemmaRMSNorm, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

PERIOD = 4
"""Every how many layers, counted from the last, a layer of the decoder sees everything and has no positions, and
counted from the first a layer of the tower sees everything, as the last does (``__post_init__``)."""
FULL, WINDOW = "full_attention", "window_attention"
"""Kinds of layers of the tower."""


class GatedAttention(Attention):
    """``MuseGlimmerTextAttention``; ``rotates``: whether the layer has positions."""

    def __init__(self, shape: DecoderShape, window: int | None, *, rotates: bool) -> None:
        super().__init__(shape, window)
        self.gate_proj = Linear(shape.hidden_size, shape.num_heads * shape.head_dim)
        self.qk_norm = Gemma4Norm(None)
        self.has_positions = rotates

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        q = ops.scale(self.qk_norm(q))
        k = self.qk_norm(k)
        if self.has_positions:
            q, k = self.positioned(q, k, context)
        mask = context.masks.get(self.window)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=self.shape.scores)
        out = ops.mul(out, ops.sigmoid(self.gate_proj(x)))
        return self.o_proj(out)


class MuseLayer(SandwichNormLayer):
    """``MuseGlimmerTextDecoderLayer``."""

    def __init__(self, shape: DecoderShape, window: int | None, *, rotates: bool) -> None:
        width = shape.hidden_size
        self.self_attn = GatedAttention(shape, window, rotates=rotates)
        self.mlp = GatedMlp(width, shape.intermediate_size, activation=shape.activation)
        self.input_layernorm = GemmaRMSNorm(width)
        self.post_attention_layernorm = GemmaRMSNorm(width)
        self.pre_feedforward_layernorm = GemmaRMSNorm(width)
        self.post_feedforward_layernorm = GemmaRMSNorm(width)


class NormedEmbedding(Embedding):
    """``MuseGlimmerTextNormedEmbedding``."""

    def __init__(self, num_embeddings: int, width: int) -> None:
        super().__init__(num_embeddings, width)
        self.embed_norm = Gemma4Norm(None)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed_norm(super().forward(ids))


class MuseDecoder(Decoder):
    """``MuseGlimmerTextModel``."""

    def __init__(self, shape: DecoderShape, layers: Stack, *, window: int | None) -> None:
        super().__init__(shape, layers, norm=Gemma4Norm, masked_windows=(None, window))
        self.embed_tokens = NormedEmbedding(shape.vocab_size, shape.hidden_size)

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        """Layers without positions are given none."""
        context_of = super().contexts(x, backend)
        nothing = x.tape.tensor((0,), x.dtype)

        def context(layer: Any) -> RotaryContext:
            own = context_of(layer)
            return own if layer.self_attn.has_positions else RotaryContext(backend, nothing, nothing, own.masks)

        return context


class PatchEmbedder(Module):
    """``MuseGlimmerVisionPatchEmbedder``: a Linear over two frames, and learned positions, interpolated."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.patch_numel = config.integer("patch_temporal") * 3 * config.integer("patch_size") ** 2
        self.patch_embedding = Linear(self.patch_numel, width)
        sides = config.integer("pos_emb_height"), config.integer("pos_emb_width")
        self.position_embedding_table = Embedding(sides[0] * sides[1], width)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embedding(pixels)
        interpolated, taps = interpolated_positions(self.position_embedding_table, x)
        x = ops.add(x, ops.to(interpolated, x.dtype))
        del taps
        return x


class WideVisionAttention(VisionAttention):
    """``MuseGlimmerVisionAttention``: positions are in the model's type, and cast to float32 in each layer."""

    def rotated(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        cos, sin = ops.to(context.cos, DType.FLOAT32), ops.to(context.sin, DType.FLOAT32)
        return super().rotated(q, k, RotaryContext(context.backend, cos, sin))


class VisionLayer(PatchBlock):
    """``MuseGlimmerVisionEncoderLayer``; ``sees_windows``: whether it attends within windows."""

    def __init__(self, config: Config, *, sees_windows: bool) -> None:
        width = config.integer("hidden_size")
        self.sees_windows = sees_windows
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = WideVisionAttention(width, config.integer("num_attention_heads"))
        self.mlp = VisionMlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class VisionModel(Module):
    """``MuseGlimmerVisionModel``: the patches of each token side by side, (tokens, patches * width)."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, config: Config) -> None:
        width, num_layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
        self.head_dim = width // config.integer("num_attention_heads")
        self.merge_size, self.window_side = config.integer("merge_size"), config.integer("pos_emb_height")
        self.patch_embedder = PatchEmbedder(config)
        self.ln_pre = LayerNorm(width)
        kinds = [kind == WINDOW for kind in vision_layer_types(config, num_layers)]
        self.layers = stack_of_kinds(kinds, lambda kind: VisionLayer(config, sees_windows=kind), label="vision")
        self.ln_post = LayerNorm(width)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        assert batch.image is not None
        windows = window_lengths(batch.image, merge_size=1, merged_per_side=self.window_side)
        with tape.section("vision.embedding"):
            order = tape.tensor((pixels.shape[0],), DType.INT64)
            embedded = self.patch_embedder(pixels)
            hidden = self.ln_pre(embedded)
            ordered = [take_rows(hidden, order, hidden.shape)]
            del hidden
            tape.prefetch()  # for the module of the positions
            shape = (pixels.shape[0], self.head_dim)
            positions = tape.tensor(shape, embedded.dtype), tape.tensor(shape, embedded.dtype)
            context = PatchContext(backend, positions, patch_lengths(batch), PackedLengths(windows, batch.num_images))
        # The first layer's input does not outlive the layer; the embedded patches are there to the end.
        hidden = self.layers.run(ordered.pop(), lambda layer, x: layer(x, context))
        with tape.section("vision.norm"):
            back = tape.tensor(order.shape, DType.INT64)
            hidden = take_rows(hidden, back, hidden.shape)
            hidden = self.ln_post(hidden)
            hidden = take_rows(hidden, tape.tensor(order.shape, DType.INT64), hidden.shape)
            hidden = ops.resample(hidden, hidden.shape[0] // self.merge_size**2, hidden.shape[1] * self.merge_size**2)
        del embedded, order, back
        return hidden


class VisionAdapter(Module):
    """``MuseGlimmerVisionAdapter``."""

    def __init__(self, config: Config) -> None:
        inner = config.integer("projector_hidden_size")
        self.fc1 = Linear(config.integer("out_hidden_size"), inner)
        self.fc2 = Linear(inner, inner)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc2(self.act(self.fc1(x))))


class MuseModel(Module):
    """``MuseGlimmerModel``."""

    def __init__(self, config: Config) -> None:
        self.vision_tower = VisionModel(config.section("vision_config"))
        self.language_model: Any = decoder(config.section("text_config"))
        self.vision_adapter = VisionAdapter(config)
        width = self.language_model.shape.hidden_size
        self.vision_projection = Linear(config.integer("projector_hidden_size"), width)
        self.perception_emb_norm = Gemma4Norm(None)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        return joined_in(self.language_model, ids, pixels, batch, backend, self.encoded)

    def encoded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """(what the tower returns, features as wide as the decoder)."""
        hidden = self.vision_tower(pixels, batch, backend)
        with pixels.tape.section("projector"):
            features = self.vision_adapter(hidden)
            features = self.vision_projection(features)
            return hidden, self.perception_emb_norm(features)


class MuseGlimmer(ImageTextModel):
    """``MuseGlimmerForConditionalGeneration``."""

    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.vision_adapter": Part.PROJECTOR,
        "model.vision_projection": Part.PROJECTOR,
    }
    scales_logits = True
    caps_logits = True

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_tower.patch_embedder.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``."""
        return (((batch.num_images, 3), DType.INT64),)


def vision_layer_types(config: Config, num_layers: int) -> Sequence[str]:
    """Which layers of the tower attend within windows."""
    types = config.layer_types()
    if types is None:
        return [FULL if (at + 1) % PERIOD == 0 or at == num_layers - 1 else WINDOW for at in range(num_layers)]
    if not set(types) <= {FULL, WINDOW}:
        raise not_allowed(CONFIG, "vision_config.layer_types", sorted(set(types)), f"names out of {FULL} and {WINDOW}")
    return types


def rotated_layers(config: Config, num_layers: int) -> list[bool]:
    """Which layers of the decoder have positions: whose ``layer_rope_theta`` is not 0."""
    given: object = config.get("layer_rope_theta")
    if given is None:
        return [(num_layers - 1 - at) % PERIOD != 0 for at in range(num_layers)]
    values: list[object] = list(cast("list[object]", given)) if isinstance(given, list | tuple) else []
    if len(values) != num_layers:
        allowed = f"a number for each of {num_layers} layers"
        raise not_allowed(CONFIG, "text_config.layer_rope_theta", config.get("layer_rope_theta"), allowed)
    return [bool(value) for value in values]


def decoder(text: Config) -> MuseDecoder:
    """``MuseGlimmerTextModel``."""
    shape = decoder_shape(text)
    num_layers = shape.num_layers
    windows = windows_by_type(text, lambda index: (num_layers - 1 - index) % PERIOD != 0)
    shape = replace(shape, activation=text.text("hidden_activation"), windows=windows)
    kinds = list(zip(windows, rotated_layers(text, num_layers), strict=True))
    layers = stack_of_kinds(kinds, lambda kind: MuseLayer(shape, kind[0], rotates=kind[1]))
    return MuseDecoder(shape, layers, window=text.optional_integer("sliding_window"))


def build(config: Config) -> MuseGlimmer:
    """``MuseGlimmerForConditionalGeneration``."""
    return MuseGlimmer(MuseModel(config), ties_weights=config.boolean("tie_word_embeddings"))

"""ERNIE 4.5 VL with experts: a Qwen2-VL tower, a resampler, and a decoder with experts of text and others of images.

Source: transformers 5.23 ``models/ernie4_5_vl_moe/modeling_ernie4_5_vl_moe.py``. Every token of an image, and the one
before it and the one behind it, goes to the experts of images (``moe_mm_token_type_ids``). Videos are not described.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import tables_of_axes
from vlmplan.architecture.attention_backend import PLAIN_SCORES, AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.ernie4_5 import ErnieAttention, rotated
from vlmplan.architecture.families.ernie4_5_moe import ErnieRouter
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.llama import (
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.moe import Experts, sparse_by_name
from vlmplan.architecture.families.packed_patches import (
    MultimodalDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    num_patches,
    patch_lengths,
    patch_positions,
)
from vlmplan.architecture.families.qwen2_vl import Qwen2VL, VisionLanguageModel, VisionMlp
from vlmplan.architecture.indexing import put_elements, take_elements, take_rows
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_MARKERS = 2
"""Tokens around those of an image that its experts get too: where it starts and ends."""
DEFAULT_WIDTHS = (1536, 512)
"""``moe_intermediate_size`` where the file has none: of the experts of text and of those of images."""


class PatchProjection(ReadingModule):
    """``Ernie4_5_VLMoePatchEmbed``, a Linear, whose weight is read for the type that pixels are cast to."""

    def __init__(self, config: Config) -> None:
        self.patch_numel = config.integer("in_channels") * config.integer("patch_size") ** 2
        self.proj: Any = Linear(self.patch_numel, config.integer("hidden_size"))

    def read_modules(self) -> Sequence[Module]:
        return (self.proj,)

    def forward(self, pixels: Tensor) -> Tensor:
        weight = getattr(self.proj, "base_layer", self.proj).weight
        return self.proj(ops.to(pixels, weight.dtype))


class VisionBlock(PatchBlock):
    """``Ernie4_5_VLMoeVisionBlock``."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = PatchAttention(width, config.integer("num_heads"))
        self.mlp = VisionMlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class VisionTransformer(Module):
    """``Ernie4_5_VLMoeVisionTransformerPretrainedModel``: patches to hidden states (patches, width)."""

    ROTARY_MODULES = ("rotary_pos_emb",)
    INPUT_EMBEDDING = "patch_embed"

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.head_dim = width // config.integer("num_heads")
        self.patch_embed = PatchProjection(config)
        self.blocks = Stack.of(VisionBlock(config), config.integer("depth"), label="vision")
        self.ln = LayerNorm(width)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.patch_embed(pixels)
            tape.prefetch()  # for the module of the positions
            context = PatchContext(backend, patch_positions(x, self.head_dim), patch_lengths(batch))
        embedded = [x]
        del x  # the first block's input does not outlive the block
        x = self.blocks.run(embedded.pop(), lambda block, hidden: block(hidden, context))
        with tape.section("vision.norm"):
            return self.ln(x)


class ResamplerMlp(Module):
    """``Ernie4_5_VLMoeVisionMLP``."""

    def __init__(self, in_width: int, out_width: int) -> None:
        self.fc1 = Linear(in_width, out_width, bias=True)
        self.act_fn = ops.activation_module("gelu")
        self.fc2 = Linear(out_width, out_width, bias=True)
        self.ln = LayerNorm(out_width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act_fn(x)
        x = self.fc2(x)
        return self.ln(x)


class Resampler(Module):
    """``Ernie4_5_VLMoeVariableResolutionResamplerModel``: squares of patches become tokens; an image stands for two
    frames, each of which is a copy of it."""

    NUM_FRAMES = 2
    """``_temporal_slicing`` is written for two, whatever ``temporal_merge_size`` is."""

    def __init__(self, vision: Config, out_width: int) -> None:
        self.merged_width = vision.integer("hidden_size") * vision.integer("spatial_merge_size") ** 2
        num_frames = vision.integer("temporal_merge_size")
        if num_frames != self.NUM_FRAMES:
            raise not_allowed(CONFIG, "vision_config.temporal_merge_size", num_frames, str(self.NUM_FRAMES))
        self.spatial_linear = ResamplerMlp(self.merged_width, self.merged_width)
        self.temporal_linear = ResamplerMlp(self.merged_width * num_frames, self.merged_width)
        self.mlp = Linear(self.merged_width, out_width, bias=True)
        self.after_norm = RMSNorm(out_width)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.numel // self.merged_width, self.merged_width)
        x = self.spatial_linear(x)
        x = self.sliced(x)
        x = self.temporal_linear(x)
        x = self.mlp(x)
        return self.after_norm(x)

    def sliced(self, x: Tensor) -> Tensor:
        """``_temporal_slicing``."""
        offsets = [x.tape.tensor((x.shape[0],), DType.INT64) for _ in range(self.NUM_FRAMES)]
        frames = [take_rows(x, places, x.shape) for places in offsets]
        return ops.concatenate(frames, (x.shape[0], self.NUM_FRAMES * x.shape[1]))


class TextAttention(ErnieAttention):
    """``Ernie4_5_VLMoeTextAttention``, whose cos and sin are written out once for all layers."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q_rotated = rotated(q, context.cos, context.sin)
        k_rotated = rotated(k, context.cos, context.sin)
        return ops.to(q_rotated, q.dtype), ops.to(k_rotated, k.dtype)


class SparseBlock(Module):
    """``Ernie4_5_VLMoeSparseMoeBlock``: the experts of one kind of tokens."""

    def __init__(self, config: Config, shape: DecoderShape, inner: int) -> None:
        self.hidden_size, num_experts = shape.hidden_size, config.integer("moe_num_experts")
        self.gate = ErnieRouter(num_experts, shape.hidden_size, config.integer("moe_k"))
        self.experts: Any = Experts(num_experts, shape.hidden_size, inner, activation=shape.activation)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of the experts' results and the logits by which these were chosen, both flat."""
        flat = x.view(x.numel // self.hidden_size, self.hidden_size)
        logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        return routed.view(routed.numel), logits.view(logits.numel)


class MixedBlock(Module):
    """``Ernie4_5_VLMoeMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        self.num_experts = config.integer("moe_num_experts")
        widths = config.integers("moe_intermediate_size") or DEFAULT_WIDTHS
        if len(widths) < len(DEFAULT_WIDTHS):
            allowed = "two numbers, of experts of text and of images"
            raise not_allowed(CONFIG, "text_config.moe_intermediate_size", list(widths), allowed)
        self.text_moe = SparseBlock(config, shape, widths[0])
        self.vision_moe = SparseBlock(config, shape, widths[1])
        inner = widths[0] * config.count("moe_num_shared_experts")
        self.has_shared = inner > 0
        if self.has_shared:
            mlp = GatedMlp(shape.hidden_size, inner, activation=shape.activation, bias=shape.mlp_bias)
            self.shared_experts: Any = mlp

    def forward(self, x: Tensor, num_seen: int) -> tuple[Tensor, Tensor]:
        """x (samples, tokens, width), ``num_seen`` tokens of which are for the experts of images; and the logits."""
        x.tape.enter_block()
        shared = self.shared_experts(x) if self.has_shared else None
        if num_seen:
            out, logits = self.apart(x, num_seen)
        else:
            out, logits = self.text_moe(x)
            out = out.view(*x.shape)
        x.tape.leave_block()
        return out if shared is None else ops.add(out, shared), logits

    def apart(self, x: Tensor, num_seen: int) -> tuple[Tensor, Tensor]:
        """Each kind of tokens is picked out, element by element, and what becomes of it is put back."""
        tape, (num_samples, num_tokens, width) = x.tape, x.shape
        num_tokens *= num_samples
        out = tape.tensor(x.shape, x.dtype)
        logits = tape.tensor((num_tokens, self.num_experts), DType.FLOAT32)
        tape.move(out.num_bytes + logits.num_bytes)
        kinds = tape.tensor((num_samples, x.shape[1]), DType.BOOL)
        for block, count, negates in (
            (self.text_moe, num_tokens - num_seen, True),
            (self.vision_moe, num_seen, False),
        ):
            mask = tape.tensor(x.shape, DType.BOOL) if negates else kinds
            picked = take_elements(x, mask, count * width)
            del mask
            made, made_logits = block(picked)
            del picked
            mask = tape.tensor(x.shape, DType.BOOL) if negates else kinds
            out = put_elements(out, mask, made)
            del made
            mask = tape.tensor(logits.shape, DType.BOOL) if negates else kinds
            logits = put_elements(logits, mask, made_logits)
            del mask, made_logits
        return out, logits


class TextContext(RotaryContext):
    """Also how many of all tokens are for the experts of images."""

    __slots__ = ("num_seen",)

    num_seen: int


class TextLayer(DecoderLayer):
    """``Ernie4_5_VLMoeDecoderLayer``."""

    attention = TextAttention

    def __init__(self, config: Config, shape: DecoderShape, *, is_sparse: bool) -> None:
        super().__init__(shape)
        self.is_sparse = is_sparse
        if is_sparse:
            self.mlp: Any = MixedBlock(config, shape)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.add(x, residual)
        residual = x
        x = self.post_attention_layernorm(x)
        if not self.is_sparse:
            return ops.add(self.mlp(x), residual)
        x, _logits = self.mlp(x, context.num_seen)
        return ops.add(x, residual)


class TextModel(MultimodalDecoder):
    """``Ernie4_5_VLMoeTextModel``."""

    num_seen = 0

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin in float32: the shares of height and width take turns, and that of time is joined to them."""
        shape = (x.shape[0], 1, x.shape[1], self.rotary_width)
        half = (*shape[:-1], self.rotary_width // 2)
        return tables_of_axes(x.tape, (3, *half), shape, DType.FLOAT32, joined=half)

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        masks = causal_masks(x, backend, self.windows)  # before the positions
        context = TextContext(backend, *self.positions(x), masks)
        context.num_seen = self.num_seen
        return lambda _layer: context


class ErnieModel(VisionLanguageModel):
    """``Ernie4_5_VLMoeModel``."""

    def __init__(self, config: Config, language_model: TextModel) -> None:
        vision = config.section("vision_config")
        self.language_model: Any = language_model
        self.vision_tower = VisionTransformer(vision)
        self.resampler_model = Resampler(vision, language_model.shape.hidden_size)

    def encoded(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        hidden = self.vision_tower(pixels, batch, backend)
        with pixels.tape.section("projector"):
            return hidden, self.resampler_model(hidden)

    def decoded(self, embeddings: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        self.language_model.num_seen = 0 if pixels is None else num_seen(batch)
        return self.language_model(embeddings, backend)


def num_seen(batch: Batch) -> int:
    """Tokens for the experts of images, out of all of the batch."""
    assert batch.image is not None
    num_tokens = batch.num_images * (batch.image.num_placeholder_tokens + NUM_MARKERS)
    return min(num_tokens, batch.micro_batch * batch.num_tokens)


class ErnieVLMoe(Qwen2VL):
    """``Ernie4_5_VLMoeForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.resampler_model": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_tower.patch_embed.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``mm_token_type_ids``, ``moe_mm_token_type_ids`` and ``image_grid_thw``."""
        return ((batch.token_shape, DType.INT64), *super().more_inputs(batch))


def decoder(text: Config) -> TextModel:
    """``Ernie4_5_VLMoeTextModel``."""
    bias = text.boolean("use_bias")
    shape = decoder_shape(text.changed({"moe_intermediate_size": None}))  # two numbers, none of which is the layers'
    shape = replace(shape, qkv_bias=bias, output_bias=bias, mlp_bias=bias, scores=PLAIN_SCORES)
    layers = stack_of_kinds(sparse_by_name(text), lambda is_sparse: TextLayer(text, shape, is_sparse=is_sparse))
    return TextModel(shape, layers)


def build(config: Config) -> ErnieVLMoe:
    """``Ernie4_5_VLMoeForConditionalGeneration``."""
    text = config.section("text_config")
    return ErnieVLMoe(ErnieModel(config, decoder(text)), ties_weights=ties_either(config, text))

"""Qwen3-VL: LayerNorm vision blocks with interpolated position embeddings, and features of several depths (DeepStack).

Source: transformers 5.23 ``models/qwen3_vl/modeling_qwen3_vl.py``. The features that three mergers take from inside the
vision encoder are added to the image tokens behind the first three layers of a Qwen3 decoder.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import DecoderLayer, DecoderShape, RotaryContext, causal_masks, decoder_shape
from vlmplan.architecture.families.packed_patches import (
    InterleavedDecoder,
    PatchAttention,
    PatchBlock,
    PatchContext,
    PatchEmbed,
    Sequential,
    interpolated_positions,
    joined_features,
    patch_lengths,
    patch_positions,
    token_positions,
)
from vlmplan.architecture.families.qwen2_vl import Qwen2VL
from vlmplan.architecture.indexing import put_rows, take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionMlp(Module):
    """``linear_fc2(act(linear_fc1(x)))``."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.linear_fc1 = Linear(width, inner, bias=True)
        self.linear_fc2 = Linear(inner, width, bias=True)
        self.act_fn = ops.activation_module(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(self.act_fn(self.linear_fc1(x)))


class VisionBlock(PatchBlock):
    """Pre-norm attention and MLP."""

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.norm1 = LayerNorm(width)
        self.norm2 = LayerNorm(width)
        self.attn = PatchAttention(width, config.integer("num_heads"))
        self.mlp = VisionMlp(width, config.integer("intermediate_size"), config.text("hidden_act"))


class MergedPatches(Module):
    """What makes one token of several patches: a norm, of one patch or (``norms_merged``) of the patches of one token,
    and an MLP, as those that are based on this one name them."""

    def __init__(self, config: Config, *, norms_merged: bool) -> None:
        width = config.integer("hidden_size")
        self.merged_width = width * config.integer("spatial_merge_size") ** 2
        self.norms_merged = norms_merged
        self.normed_width = self.merged_width if norms_merged else width

    def normed(self, x: Tensor, norm: LayerNorm) -> Tensor:
        """The patches of each token in one row."""
        merged = (x.numel // self.merged_width, self.merged_width)
        return norm(x.view(*merged) if self.norms_merged else x).view(*merged)


class PatchMerger(MergedPatches):
    """Its MLP has two layers."""

    def __init__(self, config: Config, *, norms_merged: bool) -> None:
        super().__init__(config, norms_merged=norms_merged)
        self.norm = LayerNorm(self.normed_width)
        self.linear_fc1 = Linear(self.merged_width, self.merged_width, bias=True)
        self.linear_fc2 = Linear(self.merged_width, config.integer("out_hidden_size"), bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(x, self.norm)
        return self.linear_fc2(ops.called(ops.gelu, self.linear_fc1(x)))


class VisionTransformer(Module):
    """``Qwen3VLVisionModel``. The blocks up to each depth that a merger looks at are a kind of their own.

    Not ``has_deepstack``: nothing does, whatever the file says (Qwen3.5).
    """

    ROTARY_MODULES = ("rotary_pos_emb",)
    FEATURE_MERGERS = "deepstack_merger_list"
    """The name of the mergers of inner features."""
    registers_feature_mergers_first = False

    def __init__(self, config: Config, *, has_deepstack: bool = True) -> None:
        self.width = config.integer("hidden_size")
        self.head_dim = self.width // config.integer("num_heads")
        num_blocks = config.integer("depth")
        depths = config.integers("deepstack_visual_indexes") if has_deepstack else ()
        self.depths = sorted(depth for depth in set(depths) if 0 <= depth < num_blocks)
        self.merger_names = [str(depths.index(depth)) for depth in self.depths]
        bounds = sorted({0, num_blocks, *(depth + 1 for depth in self.depths)})
        self.stretches = list(pairwise(bounds))
        feature_mergers = Sequential(
            {str(index): self.make_merger(config, norms_merged=True) for index in range(len(depths))}
        )
        if self.registers_feature_mergers_first:
            setattr(self, self.FEATURE_MERGERS, feature_mergers)
        self.patch_embed = PatchEmbed(config, self.width, bias=True)
        self.pos_embed = Embedding(config.integer("num_position_embeddings"), self.width)
        self.blocks = Stack(
            [VisionBlock(config) for _ in self.stretches],
            [kind for kind, (start, stop) in enumerate(self.stretches) for _ in range(start, stop)],
            label="vision",
        )
        self.merger = self.make_merger(config, norms_merged=False)
        if not self.registers_feature_mergers_first:
            setattr(self, self.FEATURE_MERGERS, feature_mergers)

    def make_merger(self, config: Config, *, norms_merged: bool) -> Any:
        """A merger of the last features, or (``norms_merged``) of inner ones."""
        return PatchMerger(config, norms_merged=norms_merged)

    @property
    def num_features(self) -> int:
        """Depths whose features reach the decoder."""
        return len(self.depths)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        """The patches' last hidden state, the merged features, and those of the deepstack mergers."""
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.patch_embed(pixels)
            # What the interpolation needs stays in local variables, its float32 result too.
            interpolated, taps = interpolated_positions(self.pos_embed, x)
            x = ops.add(x, ops.to(interpolated, x.dtype))
            tape.prefetch()  # for the module of the positions
            context = PatchContext(backend, patch_positions(x, self.head_dim), patch_lengths(batch))
        features: list[Tensor] = []
        hidden = [x]
        del x  # a block's input does not outlive the block
        for start, stop in self.stretches:
            is_used = start - 1 in self.depths
            x = self.blocks.run(
                hidden.pop(), lambda block, x: block(x, context), start=start, stop=stop, shares_input=is_used
            )
            if stop - 1 in self.depths:
                features.append(self.deep_features(x, self.depths.index(stop - 1)))
            hidden.append(x)
            del x
        with tape.section("vision.merger"):
            outputs = [hidden[0], self.merger(hidden[0]), *features]
        del interpolated, taps
        return outputs

    def deep_features(self, x: Tensor, index: int) -> Tensor:
        with x.tape.section(f"vision.deepstack.{index}"):
            return getattr(self, self.FEATURE_MERGERS)[self.merger_names[index]](x)


class DeepstackDecoder(InterleavedDecoder):
    """``Qwen3VLTextModel``: behind each of the first layers, features are added to the image tokens."""

    def __init__(self, shape: DecoderShape, num_features: int, layers: Stack | None = None, **options: Any) -> None:
        layers = layers or Stack.of(DecoderLayer(shape), shape.num_layers, label="layers")
        self.num_features = min(num_features, shape.num_layers)
        super().__init__(shape, with_first_kinds_apart(layers, self.num_features), **options)

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        masks = causal_masks(x, backend, self.windows)  # before the positions
        context = RotaryContext(backend, *self.positions(x), masks)
        return lambda layer: context

    def forward(
        self, x: Tensor, backend: AttentionBackend, mask: Tensor | None = None, features: Sequence[Tensor] = ()
    ) -> Tensor:
        """``mask`` marks the image tokens that ``features`` belong to."""
        tape = x.tape
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            unused_masks = self.unused_masks(x, backend)
            context_of = self.contexts(x, backend)
        # A layer's result lives, beside its sum with the features, until the next layer is done.
        behind: list[Tensor] = []

        def call(layer: Module, x: Tensor) -> Tensor:
            out = layer(x, context_of(layer))
            behind.clear()
            return out

        hidden = [x]
        for index, feature in enumerate(features[: self.num_features]):
            x = self.layers.run(hidden.pop(), call, start=index, stop=index + 1)
            with tape.section(f"deepstack.{index}"):
                assert mask is not None
                hidden.append(added_to_rows(x, mask, feature))
            behind.append(x)
            del x
        x = self.layers.run(hidden.pop(), call, start=min(len(features), self.num_features))
        with tape.section("norm"):
            x = self.final_norm(x)
        behind.clear()  # checkpoints hold ``call`` until backward
        del unused_masks
        return x


def with_first_kinds_apart(layers: Stack, count: int) -> Stack:
    """``layers`` with a kind of its own for each of the first ``count``, as stretches that start there must have."""
    first = [deepcopy(layers.kinds[kind]) for kind in layers.pattern[:count]]
    pattern = [*range(count), *(count + kind for kind in layers.pattern[count:])]
    return Stack([*first, *layers.kinds], pattern, label=layers.label)


def added_to_rows(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """``_deepstack_process``: x with ``rows`` added where ``mask`` is true, in a clone."""
    out = ops.copy(x)
    rows = ops.add(take_rows(out, mask, rows.shape), rows)
    return put_rows(out, mask, rows, rows.shape)


class VisionLanguageModel(Module):
    """``Qwen3VLModel``: ``visual`` and ``language_model``."""

    def __init__(self, visual: Module, language_model: DeepstackDecoder) -> None:
        self.visual: Any = visual
        self.language_model = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        if pixels is None:
            return self.language_model(embeddings, backend)
        encoded = ids.tape.outputs.of_encoder()
        encoded += self.visual(pixels, batch, backend)
        held: list[Tensor] = []  # what lives until this function returns, too: the joined features, the positions
        with ids.tape.section("scatter"):
            mask = ids.tape.tensor(ids.shape, DType.BOOL)
            held.append(joined_features(encoded[1], batch.num_images))
            embeddings = ops.masked_scatter(embeddings, mask, held[0])
            features = [joined_features(deep, batch.num_images) for deep in encoded[2:]]
            held.append(token_positions(ids))
        return self.language_model(embeddings, backend, mask, features)


class Qwen3VL(Qwen2VL):
    """``Qwen3VLForConditionalGeneration``."""

    PARTS = {**Qwen2VL.PARTS, "model.visual.deepstack_merger_list": Part.PROJECTOR}


def build(config: Config) -> Qwen3VL:
    """``Qwen3VLForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    shape = decoder_shape(config.section("text_config"))
    visual = VisionTransformer(config.section("vision_config"))
    model = VisionLanguageModel(visual, DeepstackDecoder(shape, visual.num_features))
    return Qwen3VL(model, ties_weights=config.boolean("tie_word_embeddings"))

"""MiniCPM-V 4.6 and 4.7 and MiniCPM-OCR: SigLIP's layers over packed patches, of which four become one in their midst,
and a Qwen3.5 decoder, whose tokens have in 4.7 a position in time, height and width.

Source: transformers 5.23 ``models/{minicpmv4_6,minicpmv4_7,minicpm_ocr}/modeling_*.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families import idefics
from vlmplan.architecture.families.gemma4_vl import compare_sizes
from vlmplan.architecture.families.idefics import VisionContext
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.packed_patches import Sequential, attended_apart, token_positions
from vlmplan.architecture.families.siglip2_vision import Siglip2Layer
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.images.minicpmv import DOWNSAMPLE_MODES
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

MERGED_SIDE = 2
"""Patches a side that become one, in the tower (``window_kernel_size``) and behind it (``merge_kernel_size``)."""
MERGED = MERGED_SIDE**2


class VisionAttention(idefics.VisionAttention):
    """``MiniCPMV4_6VisionAttention``: x is (1, patches, width), of which each sequence sees itself alone."""

    def forward(self, x: Tensor, context: VisionContext) -> Tensor:
        _, num_patches, width = x.shape
        assert context.lengths is not None
        head = (self.num_heads, num_patches, width // self.num_heads)
        q, k, v = self.q_proj(x).view(*head), self.k_proj(x).view(*head), self.v_proj(x).view(*head)
        return attended_apart(
            (q, k, v),
            context.backend,
            context.lengths,
            lambda out: self.out_proj(out.view(*x.shape)),
            scores=self.scores,
        )


class VisionLayer(Siglip2Layer):
    """``MiniCPMV4_6VisionEncoderLayer``."""

    attention = VisionAttention


class VisionEmbeddings(idefics.VisionEmbeddings):
    """``MiniCPMV4_6VisionEmbeddings``: a call looks up the positions of all sequences at once."""

    INPUT_EMBEDDING = "patch_embedding"


class WindowMerger(Module):
    """``MiniCPMV4_6ViTWindowAttentionMerger``: attention in windows of four patches, which become one."""

    def __init__(self, config: Config) -> None:
        width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        self.self_attn = VisionAttention(width, config.integer("num_attention_heads"))
        self.layer_norm1 = LayerNorm(width)
        self.pre_norm = LayerNorm(MERGED * width)
        self.linear_1 = Linear(MERGED * width, MERGED * inner, bias=True)
        self.linear_2 = Linear(MERGED * inner, width, bias=True)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x (1, patches, width) to (1, patches / 4, width)."""
        residual = x
        _, num_patches, width = x.shape
        x = self.layer_norm1(x)
        indices = x.tape.tensor((num_patches,), DType.INT64)
        x = take_rows(x, indices, x.shape)
        x = self.self_attn(x, VisionContext(backend, None, PackedLengths(((MERGED, num_patches // MERGED),))))
        x = ops.add(take_rows(residual, indices, x.shape), x)
        merged = (num_patches // MERGED, width)
        average = ops.mean(x.view(merged[0], MERGED, width), merged)
        out = self.pre_norm(x.view(merged[0], MERGED * width))
        out = self.linear_1(out)
        out = ops.gelu(out)
        out = self.linear_2(out)
        return ops.add(out, average).view(1, *merged)


class VisionEncoder(Module):
    """``MiniCPMV4_6VisionEncoder``: the layers before the merger and those behind it are two kinds."""

    def __init__(self, config: Config, num_before: int) -> None:
        num_layers = config.integer("num_hidden_layers")
        kinds = [VisionLayer(config) for _ in range(1 if num_before == num_layers else 2)]
        self.layers = Stack(kinds, [int(at >= num_before) for at in range(num_layers)], label="vision")


class VisionTower(Module):
    """``MiniCPMV4_6VisionModel``; without ``merges`` its merger is not called."""

    def __init__(self, config: Config, num_before: int, *, merges: bool) -> None:
        self.num_before, self.merges = num_before, merges
        self.embeddings = VisionEmbeddings(config)
        self.encoder = VisionEncoder(config, num_before if merges else config.integer("num_hidden_layers"))
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))
        self.vit_merger = WindowMerger(config)

    def forward(self, pixels: Tensor, lengths: PackedLengths, backend: AttentionBackend) -> Tensor:
        """(1, patches, width), a fourth of them with ``merges``."""
        tape, layers = pixels.tape, self.encoder.layers
        with tape.section("vision.embedding"):
            embedded = [self.embeddings.of_patches(pixels, 1, lengths.num_tokens)]
        context = VisionContext(backend, None, lengths)
        if not self.merges:
            # The embeddings stay in a local variable of the original until it returns.
            x = layers.run(embedded[0], lambda layer, x: layer(x, context))
            return self._normed(x)
        # Behind the merger nothing holds what was before it.
        x = layers.run(embedded.pop(), lambda layer, x: layer(x, context), stop=self.num_before)
        with tape.section("vision.vit_merger"):
            merged = [self.vit_merger(x, backend)]
        del x
        later = VisionContext(backend, None, lengths.divided(MERGED))
        x = layers.run(merged.pop(), lambda layer, x: layer(x, later), start=self.num_before)
        return self._normed(x)

    def _normed(self, x: Tensor) -> Tensor:
        with x.tape.section("vision.norm"):
            return self.post_layernorm(x)


class DownsampleMlp(Module):
    """``MiniCPMV4_6DownsampleMLP``."""

    def __init__(self, width: int, out_width: int) -> None:
        self.pre_norm = LayerNorm(MERGED * width)
        self.linear_1 = Linear(MERGED * width, MERGED * width, bias=True)
        self.linear_2 = Linear(MERGED * width, out_width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre_norm(x)
        x = self.linear_1(x)
        x = ops.gelu(x)
        return self.linear_2(x)


class Merger(Module):
    """``MiniCPMV4_6Merger``: the features of each sequence alone."""

    def __init__(self, width: int, text_width: int) -> None:
        self.mlp = Sequential({"0": DownsampleMlp(width, text_width)})

    def forward(self, x: Tensor, lengths: PackedLengths) -> list[Tensor]:
        """x (1, patches, width) of sequences of ``lengths`` to (tokens, text width) of each."""
        _, num_patches, width = x.shape
        features: list[Tensor] = []
        for length, count in lengths.calls():
            part = ops.part(x, num_patches, width)
            if length * count < num_patches:
                part = ops.part(part, length * count, width)
            merged = ops.copy(part, length * count // MERGED, MERGED * width)
            features.append(self.mlp["0"](merged))
        return features


class MiniCpmVModel(Module):
    """``MiniCPMV4_6Model`` and ``MiniCPMV4_7Model``."""

    def __init__(self, config: Config) -> None:
        self.has_canvas = config.text("model_type") == "minicpmv4_7"
        vision = config.section("vision_config")
        self.merges = _merges(config)
        self.vision_tower = VisionTower(vision, _layers_before(config, vision), merges=self.merges)
        self.language_model: Any = text_decoder(config.section("text_config"))
        self.merger = Merger(vision.integer("hidden_size"), self.language_model.shape.hidden_size)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        encoded = tape.outputs.of_encoder()
        held: list[Tensor] = []  # what lives until this function returns, too: joined features, mask and positions
        if pixels is not None:
            encoded += self.image_features(pixels, batch, backend)
            with tape.section("scatter"):
                width, pieces = embeddings.shape[-1], encoded[1:]
                features = ops.concatenate(pieces, (sum(part.shape[0] for part in pieces), width))
                del pieces
                mask = tape.tensor(ids.shape, DType.BOOL)
                held += [features, mask]
                compare_sizes(features)
                embeddings = ops.masked_scatter(embeddings, mask, features)
                if self.has_canvas:
                    held.append(token_positions(ids))
                del features, mask
        return self.language_model(embeddings, backend)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        """``get_image_features``: the tower's last hidden state and the features of each sequence."""
        pixels = ops.to(pixels, self.vision_tower.post_layernorm.weight.dtype)
        lengths = sequence_lengths(batch)
        last = self.vision_tower(pixels, lengths, backend)
        with pixels.tape.section("merger"):
            return [last, *self.merger(last, lengths.divided(MERGED) if self.merges else lengths)]


def sequence_lengths(batch: Batch) -> PackedLengths:
    """Patches of the whole image and of its slices, for each image and each frame of the batch."""
    assert batch.image is not None
    image = batch.image
    overview = ((image.num_overview_patches, 1),) if image.num_overview_patches else ()
    slices = (image.num_patches_per_sequence, image.num_vision_sequences // image.num_frames - len(overview))
    return PackedLengths((*overview, slices), batch.num_images * image.num_frames)


def _merges(config: Config) -> bool:
    """Whether the tower's merger is called. Raises InputError for a ``downsample_mode`` that there is not."""
    mode = config.text("downsample_mode")
    if mode not in DOWNSAMPLE_MODES:
        raise not_allowed(CONFIG, "downsample_mode", mode, f"one of {', '.join(DOWNSAMPLE_MODES)}")
    return mode != "4x"


def _layers_before(config: Config, vision: Config) -> int:
    """Layers of the tower before its merger: the top level's ``insert_layer_id`` is that of the last of them."""
    last, num_layers = config.count("insert_layer_id"), vision.integer("num_hidden_layers")
    if last >= num_layers:
        raise InputError(
            f"config.json: insert_layer_id is {last}, but the last of the vision tower's {num_layers} layers is "
            f"{num_layers - 1}; one of them is needed"
        )
    return last + 1


class MiniCpmV(ImageTextModel):
    """``MiniCPMV4_6ForConditionalGeneration`` and ``MiniCPMV4_7ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.merger": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        """(1, channels, side, patches * side): all patches of all images side by side."""
        embeddings = self.model.vision_tower.embeddings
        side = embeddings.patch_size
        return (1, embeddings.num_channels, side, side * sequence_lengths(batch).num_tokens)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``target_sizes``, and where tokens have positions on a canvas, which of them are images'."""
        sizes = ((sequence_lengths(batch).count, 2), DType.INT32)
        return [sizes, (batch.token_shape, DType.INT64)] if self.model.has_canvas else [sizes]


def build(config: Config) -> MiniCpmV:
    """``MiniCPMV4_6ForConditionalGeneration`` and ``MiniCPMV4_7ForConditionalGeneration``."""
    if config.integer("merger_times") != 1:  # the processor makes room for one round
        raise not_allowed(CONFIG, "merger_times", config.get("merger_times"), "1")
    for section, key in ((config, "merge_kernel_size"), (config.section("vision_config"), "window_kernel_size")):
        if section.integers(key) != (MERGED_SIDE, MERGED_SIDE):
            raise not_allowed(CONFIG, key, section.get(key), f"[{MERGED_SIDE}, {MERGED_SIDE}]")
    return MiniCpmV(MiniCpmVModel(config), ties_weights=config.boolean("tie_word_embeddings"))

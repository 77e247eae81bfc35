"""DeepSeek-OCR 2: SAM's tower and an encoder like Qwen2's behind it, whose learned queries see all patches; and a
decoder with DeepSeek-V2's mixture of experts and Llama's attention.

Source: transformers 5.23 ``models/deepseek_ocr2/modeling_deepseek_ocr2.py``. The whole of an image goes through both
towers, then its tiles, where it has some: their weights have two gradients, of which the tiles' comes first.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.group_router import shared_experts_block
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, RotaryContext, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.moe import DENSE, SPARSE, sparse_by_name
from vlmplan.architecture.families.sam_vision import Convolution, SamTower
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import GradientPart
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

WHOLE, TILES = "whole", "tiles"
"""The passes through the towers, by which their sections are named."""
SMALL_QUERIES, LARGE_QUERIES = 144, 256
"""Queries of ``query_768_resolution``, for at most as many patches, and of ``query_1024_resolution``."""


def in_pass(stack: Stack, name: str) -> Stack:
    """``stack`` with sections of its own for one of the passes."""
    made = copy.copy(stack)
    made.label = f"{name}_{stack.label}"
    return made


class Downsampling(Module):
    """``DeepseekOcr2SamVisionProj``."""

    def __init__(self, config: Config) -> None:
        first, second = config.integers("downsample_channels") or (512, 896)
        self.conv1 = Convolution(config.integer("output_channels"), first, 3, stride=2)
        self.conv2 = Convolution(first, second, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.conv2(x)


class SamEncoder(SamTower):
    """``DeepseekOcr2SamVisionEncoder``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.proj = Downsampling(config)

    def forward(self, pixels: Tensor, backend: AttentionBackend, name: str) -> Tensor:
        with pixels.tape.section(f"{name}_vision.embedding"):
            embedded = [self.embedded(pixels)]
        layers = in_pass(self.layers, name)
        x = layers.run(embedded.pop(), lambda layer, x: layer(x, backend))
        with pixels.tape.section(f"{name}_vision.neck"):
            x = self.neck(x)
            return self.proj(x)

    def embedded(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed(pixels)
        if self.pos_embed is None or x.shape[1:] == self.pos_embed.shape[1:]:
            return x if self.pos_embed is None else ops.add(x, self.pos_embed)
        # ``interpolate_pos_encoding``: in float32, and back.
        dtype = self.pos_embed.dtype
        table = ops.expand_weight(self.pos_embed, self.pos_embed.shape, x.tape)
        return ops.add(x, ops.to(ops.resample(ops.to(table, DType.FLOAT32), 1, *x.shape[1:]), dtype))


class QueryEncoder(Module):
    """``DeepseekOcr2VisionEncoder``: a Qwen2 whose first tokens, the patches, see each other."""

    ROTARY_MODULES = ("rotary_emb",)

    def __init__(self, config: Config) -> None:
        if config.boolean("use_sliding_window"):
            raise not_allowed(CONFIG, "vision_config.encoder_config.use_sliding_window", True, "false")
        self.shape = replace(decoder_shape(config), qkv_bias=True, output_bias=False, windows=())
        self.layers = Stack.of(DecoderLayer(self.shape), self.shape.num_layers, label="encoder")
        self.norm = RMSNorm(self.shape.hidden_size)

    def forward(self, x: Tensor, backend: AttentionBackend, name: str) -> Tensor:
        tape = x.tape
        batch, num_tokens, _ = x.shape
        with tape.section(f"{name}_encoder.positions"):
            blocks = tape.tensor((batch, num_tokens), DType.INT64)
            dtype = x.dtype if backend.implementation == "eager" else DType.BOOL
            mask = tape.tensor((batch, 1, num_tokens, num_tokens), dtype)
            cos, sin = (tape.tensor((1, 1, num_tokens, self.shape.head_dim), x.dtype) for _ in range(2))
        context = RotaryContext(backend, cos, sin, {None: mask})
        x = in_pass(self.layers, name).run(x, lambda layer, x: layer(x, context))
        with tape.section(f"{name}_encoder.norm"):
            x = self.norm(x)
        del blocks
        return x


class VisionModel(ReadingModule):
    """``DeepseekOcr2VisionModel``. It reads the weights of its queries, which are no more than a table of them."""

    def __init__(self, config: Config) -> None:
        encoder = config.section("encoder_config")
        width = encoder.integer("hidden_size")
        self.sam_encoder = SamEncoder(config.section("sam_config"))
        self.vision_encoder = QueryEncoder(encoder)
        self.query_768_resolution = Embedding(SMALL_QUERIES, width)
        self.query_1024_resolution = Embedding(LARGE_QUERIES, width)

    def read_modules(self) -> Sequence[Module]:
        """Those for tiles are gathered of images without some too here, 0.3 MB."""
        return (self.query_768_resolution, self.query_1024_resolution)

    def forward(self, pixels: Tensor, backend: AttentionBackend, name: str) -> Tensor:
        """(pictures, queries, width): a part of what the encoder returns."""
        encoded = self.sam_encoder(pixels, backend, name)
        num_pictures, rows, columns, width = encoded.shape
        patches = encoded.view(num_pictures, rows * columns, width)
        with pixels.tape.section(f"{name}_queries"):
            table = self.query_768_resolution if rows * columns <= SMALL_QUERIES else self.query_1024_resolution
            num_queries = table.weight.shape[0]
            queries = ops.expand_weight(table.weight, (num_pictures, num_queries, width), pixels.tape)
            combined = ops.concatenate([patches, queries], (num_pictures, rows * columns + num_queries, width))
        last = self.vision_encoder(combined, backend, name)
        del encoded
        return ops.part(last, num_pictures, num_queries, width)


class DeepseekOcr2Model(Module):
    """``DeepseekOcr2Model``."""

    def __init__(self, config: Config) -> None:
        vision, language_model = config.section("vision_config"), text_decoder(config.section("text_config"))
        width = language_model.shape.hidden_size
        self.vision_tower = VisionModel(vision)
        in_width = vision.section("encoder_config").integer("hidden_size")
        self.multi_modal_projector = Linear(in_width, width, bias=True)
        self.language_model: Any = language_model
        self.view_separator = Parameter(width)

    def shapes_of_pixels(self, batch: Batch) -> list[tuple[int, ...]]:
        """Of whole images, and of their tiles where they have some."""
        image = batch.image
        assert image is not None
        embeddings = self.vision_tower.sam_encoder.patch_embed
        columns, rows = image.num_patch_columns, image.num_patch_rows
        shapes: list[tuple[int, ...]] = []
        if image.num_overview_patches:
            columns, rows = image.num_overview_columns, image.num_overview_rows
            side = image.num_patch_columns * embeddings.side
            num_tiles = batch.num_images * (image.num_vision_sequences - 1)
            shapes.append((num_tiles, embeddings.num_channels, side, side))
        whole = (batch.num_images, embeddings.num_channels, rows * embeddings.side, columns * embeddings.side)
        return [whole, *shapes]

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        held = ids.tape.outputs.of_encoder()
        if pixels is not None:
            pieces, states = self.image_features(pixels, batch, backend)
            held += [*pieces, *states]
            ids.tape.outputs.keep_features(*pieces)
            with ids.tape.section("scatter"):
                embeddings = self.scattered(ids, embeddings, pieces)
            del pieces, states
        return self.language_model(embeddings, backend)

    def scattered(self, ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
        """The features of all images in the place of their tokens; the output object has none of them as one."""
        width = embeddings.shape[-1]
        features = ops.concatenate(pieces, (sum(piece.numel for piece in pieces) // width, width))
        features = ops.to(features, embeddings.dtype)
        return ops.masked_scatter(embeddings, ids.tape.tensor(ids.shape, DType.BOOL), features)

    def image_features(
        self, pixels: Tensor, batch: Batch, backend: AttentionBackend
    ) -> tuple[list[Tensor], list[Tensor]]:
        """``get_image_features``: the features of each image, tiles first, and what the encoder returned."""
        shapes = self.shapes_of_pixels(batch)
        tape, views = pixels.tape, ops.split(pixels, *shapes)
        names = (WHOLE, TILES)[: len(views)]
        if len(views) > 1:
            tape.parts_of_passes = {WHOLE: GradientPart(is_first=False), TILES: GradientPart(is_last=False)}
        states: list[Tensor] = []
        features: list[Tensor] = []
        for name, view in zip(names, views, strict=True):
            states.append(self.vision_tower(view, backend, name))
            with tape.section(f"{name}_projector"):
                features.append(self.multi_modal_projector(self.foldable(states[-1])))
        with tape.section("packing"):
            return self.packed(features, batch), states

    def foldable(self, states: Tensor) -> Tensor:
        """A part of what each picture has: ``F.linear`` copies it to fold the rows of several into one matrix."""
        copies = states.shape[0] > 1 and not states.tape.keeps_linear_inputs
        return ops.copy(states) if copies else states

    def packed(self, features: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """For each image its tiles' features, those of the whole, and a separator."""
        width = self.view_separator.shape[0]
        counts = [one.numel // width // batch.num_images for one in features]
        parts = [
            ops.split(one, *[(count, width)] * batch.num_images) for one, count in zip(features, counts, strict=True)
        ]
        separator = ops.expand_weight(self.view_separator, (1, width), features[0].tape)
        shape = (sum(counts) + 1, width)
        return [ops.concatenate([*of_image[::-1], separator], shape) for of_image in zip(*parts, strict=True)]


class DeepseekOcr2(ImageTextModel):
    """``DeepseekOcr2ForConditionalGeneration``."""

    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.multi_modal_projector": Part.PROJECTOR,
        "model.view_separator": Part.PROJECTOR,
    }

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        """Whole images and tiles together: they come and go at once."""
        return (sum(prod(shape) for shape in self.model.shapes_of_pixels(batch)),)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``num_local_patches``."""
        return [((batch.num_images,), DType.INT64)]


def text_decoder(config: Config) -> Decoder:
    """``DeepseekOcr2TextModel``, whose class has no kinds of layers where the file has none."""
    shape, block = decoder_shape(config), shared_experts_block
    if config.get("mlp_layer_types") is None:
        raise not_allowed(CONFIG, "text_config.mlp_layer_types", None, f"a list of {DENSE} and {SPARSE}, one a layer")
    return Decoder(
        shape,
        stack_of_kinds(
            sparse_by_name(config),
            lambda is_sparse: DecoderLayer(shape, mlp=block(config, shape) if is_sparse else None),
        ),
    )


def build(config: Config) -> DeepseekOcr2:
    """``DeepseekOcr2ForConditionalGeneration``; the top level alone decides whether embedding and head are one
    weight."""
    return DeepseekOcr2(DeepseekOcr2Model(config), ties_weights=config.boolean("tie_word_embeddings"))

"""Granite 4 Vision: LLaVA-NeXT's tiles, hidden states of several depths of the tower, each through a Q-Former within
windows, and a Granite decoder before some of whose layers they are added to the image tokens, which begin as zeros.

Source: transformers 5.23 ``models/granite4_vision/modeling_granite4_vision.py``.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.granite import GraniteDecoder, GraniteLayer
from vlmplan.architecture.families.image_text import TiledImageTextModel
from vlmplan.architecture.families.llama import DecoderShape, decoder_shape
from vlmplan.architecture.families.llava_next import TilePacking
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.families.qformer import QFormer
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.images.granite4_vision import downsample_rate
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_OFFSETS = 4
"""Corners of two by two patches, for each of which there is a projector."""
TARGET_LAYERS = (12, 15, 18, 21)
"""The decoder's layers of these, where the file has none (``Granite4VisionConfig.__post_init__``)."""
DEEP, CORNER = "deepstack", "corner"
"""The two kinds of projectors, by which their sections are named."""
HEAD_WIDTH = 64
"""Of the Q-Former, whatever the file says (the same)."""


class WindowQFormer(Module):
    """``Granite4VisionWindowQFormerDownsampler``: with ``samples_corner`` queries are one of each four patches, else
    means of patches."""

    def __init__(self, config: Config, *, samples_corner: bool, label: str) -> None:
        """``label``: of its sections."""
        vision = config.section("vision_config")
        width = vision.integer("hidden_size")
        self.samples_corner, self.label = samples_corner, label
        self.side = vision.integer("image_size") // vision.integer("patch_size")
        self.query_side, self.window_side = downsample_rate(config.get("downsample_rate"))
        self.dropout = config.number("projector_dropout")
        self.qformer = QFormer(_qformer_config(config, width), width, label=f"{label}.qformer")
        self.norm = LayerNorm(width)
        self.query = Parameter(1, self.query_side**2, width)
        self.image_positions = Parameter(1, self.window_side**2, width)
        self.out_linear = Linear(width, config.section("text_config").integer("hidden_size"), bias=True)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        num_tiles, _, width = x.shape
        tape, num_windows = x.tape, self.side // self.window_side
        side = num_windows * self.query_side
        with tape.section(f"{self.label}.windows"):
            x = self.norm(x)
            windowed = in_windows(x, num_windows, self.window_side)
            downsampled = self.corner(x) if self.samples_corner else area_means(x, side)
            rows = in_windows(downsampled, num_windows, self.query_side)
            queries = ops.add(rows, self.query)
            states = ops.dropout(ops.add(windowed, self.image_positions), self.dropout)
        found = self.qformer(queries, states, backend)
        with tape.section(f"{self.label}.projection"):
            shape = (num_tiles, side**2, width)
            out = ops.resample(found, *shape) if num_windows > 1 else found.view(*shape)
            out = ops.dropout(out, self.dropout)
            return self.out_linear(out)

    def corner(self, x: Tensor) -> Tensor:
        """``spatial_offset_downsample``."""
        num_tiles, _, width = x.shape
        side = self.side // 2
        rows = chunks.select(x, num_tiles, side, side, 2, width)
        return ops.copy(chunks.select(rows, num_tiles, side, side, width), num_tiles, side**2, width)


def in_windows(x: Tensor, num_windows: int, side: int) -> Tensor:
    """``_windowed_raster``: windows of ``side`` squared features, as many a row and column."""
    num_tiles, _, width = x.shape
    shape = (num_tiles * num_windows**2, side**2, width)
    return ops.resample(x, *shape) if num_windows > 1 else x.view(*shape)


def area_means(x: Tensor, side: int) -> Tensor:
    """``interpolate_downsample``: ``adaptive_avg_pool2d``, which saves its input."""
    num_tiles, _, width = x.shape
    return ops.resample(x, num_tiles, side**2, width, saves_input=True)


def _qformer_config(config: Config, width: int) -> Config:
    """As ``Granite4VisionConfig.__post_init__`` changes it."""
    own = {"hidden_size": width, "encoder_hidden_size": width, "num_attention_heads": width // HEAD_WIDTH}
    return config.section("qformer_config").changed(own)


class InjectedGranite(GraniteDecoder):
    """``Granite4VisionTextModel``: features are added to the image tokens before some of the layers."""

    def __init__(self, shape: DecoderShape, layers: Sequence[int]) -> None:
        """``layers``: those that features may be added before."""
        bounds = sorted({0, shape.num_layers, *(layer for layer in layers if 0 <= layer < shape.num_layers)})
        self.stretches = list(pairwise(bounds))
        pattern = [kind for kind, (start, stop) in enumerate(self.stretches) for _ in range(start, stop)]
        kinds = [GraniteLayer(shape) for _ in self.stretches]
        super().__init__(shape, Stack(kinds, pattern, label="layers"))

    def embed(self, ids: Tensor) -> Tensor:
        """They are scaled when those of images are among them."""
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(
        self,
        x: Tensor,
        backend: AttentionBackend,
        mask: Tensor | None = None,
        features: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """``mask`` marks the image tokens that ``features``, by layer, belong to."""
        tape = x.tape
        with tape.section("scaled embeddings"):
            x = self.scaled(x)
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            calls = Calls(self.contexts(x, backend))
        hidden = [x]
        for start, stop in self.stretches:
            of_layer = None if features is None else features.get(start)
            if of_layer is not None:
                assert mask is not None
                with tape.section(f"injection.{start}"):
                    hidden.append(injected(hidden.pop(), mask, of_layer))
            hidden.append(self.layers.run(hidden.pop(), calls, start=start, stop=stop))
        last = hidden.pop()
        with tape.section("norm"):
            return self.final_norm(last)


def injected(x: Tensor, mask: Tensor, features: Tensor) -> Tensor:
    """x with ``features`` added where ``mask`` is true: ``masked_scatter`` of the sums."""
    return ops.masked_scatter(x, mask, ops.add(take_rows(x, mask, features.shape), features))


class Granite4VisionModel(TilePacking):
    """``Granite4VisionModel``."""

    def __init__(self, config: Config) -> None:
        text = config.section("text_config")
        deep = _pairs(config)
        targets = config.get("spatial_target_layers")
        spatial = TARGET_LAYERS if targets is None else config.integers("spatial_target_layers")
        if len(spatial) > NUM_OFFSETS:
            raise not_allowed(CONFIG, "spatial_target_layers", list(spatial), f"a list of at most {NUM_OFFSETS} layers")
        if spatial:
            require_corners(config)
        self.targets = [layer for _, layer in deep] + list(spatial)
        self.num_deep = len(deep)
        self.vision_tower: Any = vision_tower(config.section("vision_config"), tower_layers(config, deep))
        self.image_newline = Parameter(text.integer("hidden_size"))
        self.language_model = InjectedGranite(decoder_shape(text), self.targets)
        self.layerwise_projectors = _projectors(config, len(deep), DEEP)
        self.spatial_projectors = _projectors(config, NUM_OFFSETS, CORNER)
        self.drops_first_feature = config.text("vision_feature_select_strategy") == "default"

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        if pixels is None:
            return self.language_model(embeddings, backend)
        tape = ids.tape
        encoded = tape.outputs.of_encoder()
        encoded += self.image_features(pixels, batch, backend)
        pieces: list[list[Tensor]] = encoded[1]
        tape.outputs.keep_features(*(piece for of_layer in pieces for piece in of_layer))
        features: dict[int, Tensor] = {}
        with tape.section("scatter"):
            mask = tape.tensor(ids.shape, DType.BOOL)
            for layer, of_layer in zip(self.targets, pieces, strict=True):
                width = of_layer[0].shape[-1]
                shape = (sum(piece.numel for piece in of_layer) // width, width)
                features[layer] = ops.to(ops.concatenate(of_layer, shape), embeddings.dtype)
            if features:
                embeddings = chunks.masked_fill(embeddings, mask)
        hidden = self.language_model(embeddings, backend, mask, features)
        del encoded, pieces
        return hidden

    def image_features(
        self, pixels: Tensor, batch: Batch, backend: AttentionBackend
    ) -> tuple[Sequence[Tensor], list[list[Tensor]]]:
        """``get_image_features``: the tower's hidden states, and for each target the features of each image."""
        tape = pixels.tape
        with tape.section("tiles"):
            # The tiles of the images, which the processor pads to the same number, are concatenated: a copy.
            tiles = ops.copy(pixels)
        output = self.vision_tower(tiles, batch, backend)
        *deep, corner = output.hidden_states
        projectors = [*self.layerwise_projectors.modules_by_name.values()]
        projectors += [*self.spatial_projectors.modules_by_name.values()][: len(self.targets) - self.num_deep]
        states = [*deep, *[corner] * (len(projectors) - len(deep))]
        pieces: list[list[Tensor]] = []
        for index, (projector, state) in enumerate(zip(projectors, states, strict=True)):
            projected = projector(self.selected(state), backend)
            with tape.section(f"packing.{index}"):
                pieces.append(self.pieces(projected, batch))
        return output.hidden_states, pieces

    def selected(self, state: Tensor) -> Tensor:
        num_tiles, num_features, width = state.shape
        return ops.part(state, num_tiles, num_features - 1, width) if self.drops_first_feature else state

    def pieces(self, features: Tensor, batch: Batch) -> list[Tensor]:
        """``pack_image_features`` of all images."""
        image = batch.image
        assert image is not None
        num_tiles, num_features, width = features.shape
        side = round(num_features**0.5)
        shape: ImageShape = replace(image, num_patch_columns=side, num_patch_rows=side)
        of_image = (num_tiles // batch.num_images, num_features, width)
        per_image = ops.split(features, *[of_image] * batch.num_images)
        return [self.packed(one, shape) for one in per_image]


def tower_layers(config: Config, deep: Sequence[tuple[int, int]]) -> list[int]:
    """Whose hidden states the projectors take, the last for the corners."""
    corner = config.integers("spatial_vision_layer")
    if len(corner) != 1:
        raise not_allowed(CONFIG, "spatial_vision_layer", config.get("spatial_vision_layer"), "an integer")
    num_layers = config.section("vision_config").integer("num_hidden_layers")
    named = [*(("deepstack_layer_map", layer) for layer, _ in deep), ("spatial_vision_layer", corner[0])]
    for key, layer in named:
        if not -num_layers - 1 <= layer <= num_layers:
            raise InputError(f"{CONFIG}: {key} names layer {layer}; the vision tower has {num_layers} layers")
    return [layer for _, layer in named]


def require_corners(config: Config) -> None:
    """Raise InputError where one of each four patches is not as many features as the windows' queries."""
    vision = config.section("vision_config")
    patches = vision.integer("image_size") // vision.integer("patch_size")
    queries, window = downsample_rate(config.get("downsample_rate"))
    if patches % 2 or patches // window * queries != patches // 2:
        raise InputError(
            f"{CONFIG}: downsample_rate is {queries}/{window}; projectors for spatial_target_layers take every second "
            f"of {patches} patches a side, so that one half is needed, such as 4/8"
        )


def _pairs(config: Config) -> list[tuple[int, int]]:
    """``deepstack_layer_map``: layers of the tower with those of the decoder."""
    key = "deepstack_layer_map"
    value = config.get(key)
    pairs = [_pair(one) for one in cast(list[Any], value)] if isinstance(value, list | tuple) else [None]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        allowed = "a list of pairs of layers, [of the tower, of the language model]"
        raise not_allowed(CONFIG, key, config.get(key), allowed)
    return known


def _pair(value: Any) -> tuple[int, int] | None:
    layers = list(cast(list[Any], value)) if isinstance(value, list | tuple) else []
    if len(layers) != 2 or not all(isinstance(layer, int) for layer in layers):
        return None
    return layers[0], layers[1]


def _projectors(config: Config, number: int, label: str) -> Sequential:
    of_corners = label == CORNER
    return Sequential(
        {
            str(index): WindowQFormer(config, samples_corner=of_corners, label=f"{label}.{index}")
            for index in range(number)
        }
    )


class Granite4Vision(TiledImageTextModel):
    """``Granite4VisionForConditionalGeneration``."""

    scales_logits = True
    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.image_newline": Part.PROJECTOR,
        "model.layerwise_projectors": Part.PROJECTOR,
        "model.spatial_projectors": Part.PROJECTOR,
    }


def build(config: Config) -> Granite4Vision:
    """``Granite4VisionForConditionalGeneration``; the top level alone decides whether embedding and head are one
    weight."""
    return Granite4Vision(Granite4VisionModel(config), ties_weights=config.boolean("tie_word_embeddings"))

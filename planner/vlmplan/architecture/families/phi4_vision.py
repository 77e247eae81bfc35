"""The vision tower of Phi-4-multimodal and how it becomes tokens: SigLIP's layers over tiles, features pooled by fours.

Source: transformers 5.23 ``models/phi4_multimodal/modeling_phi4_multimodal.py``, ``Phi4MultimodalVisionModel`` and
``Phi4MultimodalImageEmbedding``. The latter lays out the tiles of each image as one picture with a learned column
behind it, and the whole image behind both.
"""

import math
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.idefics import VisionAttention, VisionContext, VisionEmbeddings, padding_mask
from vlmplan.architecture.families.siglip_vision import PoolingHead, SiglipLayer
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.layer_calls import with_mask_by_position
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import LayerCall, LayerNorm, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule, unwrapped
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class VisionLayer(SiglipLayer):
    """``Phi4MultimodalVisionEncoderLayer``."""

    attention = VisionAttention

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Gradients come from the pooling with positions innermost, and keep that order through all residuals.
        self.self_attn.out_proj.copies_gradient = self.mlp.fc2.copies_gradient = True


class Phi4Vision(Module):
    """``Phi4MultimodalVisionModel``."""

    def __init__(self, config: Config) -> None:
        self.embeddings = VisionEmbeddings(config)
        num_layers = config.integer("num_hidden_layers")
        self.encoder = Encoder(lambda: VisionLayer(config), num_layers, [_feature_layer(config, num_layers)])
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))
        self.head = PoolingHead(config)

    def forward(self, pixels: Tensor, image: ImageShape, backend: AttentionBackend) -> VisionOutput:
        """Attention says that it is causal, which sdpa and flash kernels take it for where there is no mask."""
        with pixels.tape.section("vision.embedding"):
            hidden = self.embeddings(pixels, image)
            num_patches = image.num_patches_per_sequence
            mask = padding_mask(hidden, num_patches, num_patches, image, backend)
            context = VisionContext(backend, mask, is_causal=mask is None and backend.implementation != "eager")
            call, beside = with_mask_by_position(context)
            del mask, context
        last, held = self.encoder.run(hidden, partial(self._layer_result, call), beside=beside)
        with pixels.tape.section("vision.pooling"):
            last = self.post_layernorm(last)
            pooled = self.head(last)
            return VisionOutput(last, held, pooled)

    def _layer_result(self, call: LayerCall, layer: VisionLayer, x: Tensor, *mask: Tensor) -> Tensor:
        """What is behind the layer whose result is used goes before forward ends."""
        layers, (last_used,) = self.encoder.layers, self.encoder.feature_layers
        if layers.checkpoints or layer not in [layers.kinds[kind] for kind in layers.pattern[last_used:]]:
            return call(layer, x, *mask)
        with x.tape.caching_casts():
            return call(layer, x, *mask)


def _feature_layer(config: Config, num_layers: int) -> int:
    """The layer whose result is used: an index into the embeddings and the results of all layers; 0 would ask for
    none."""
    value: object = config.get("feature_layer")
    if isinstance(value, int) and not isinstance(value, bool) and value and abs(value) <= num_layers:
        return value
    allowed = f"a layer from 1 to {num_layers}, or from -{num_layers} to -1"
    raise not_allowed(CONFIG, "vision_config.feature_layer", value, allowed)


class ImageEmbedding(ReadingModule):
    """``Phi4MultimodalImageEmbedding``, which reads the types of its tower's first weight and of a bias."""

    def __init__(self, config: Config, width: int) -> None:
        vision = config.section("vision_config")
        self.features_width = vision.integer("hidden_size")
        self.fills_up = vision.integer("image_size") // vision.integer("patch_size") % 2
        self.dropout = config.number("embd_pdrop")
        self.img_processor: Any = Phi4Vision(vision)
        self.img_projection_up = Linear(self.features_width, width, bias=True)
        self.img_projection_down = Linear(width, width, bias=True)
        self.global_img_feature_extensor = Parameter(1, 1, self.features_width)
        self.sub_img_feature_extensor = Parameter(1, 1, 1, self.features_width)

    def used_parameters(self) -> dict[str, Parameter]:
        """Its own, those of ``patch_embedding`` and of the projection, which adapters may wrap."""
        patches = unwrapped(self.img_processor.embeddings.patch_embedding).parameters_by_name
        up = unwrapped(self.img_projection_up).parameters_by_name
        return {**self.parameters_by_name, "patches": patches["weight"], "up": up["bias"]}

    def forward(
        self, embeddings: Tensor, ids: Tensor, pixels: Tensor, batch: Batch, backend: AttentionBackend
    ) -> Tensor:
        """``embeddings`` with features in the place of placeholders; ``pixels`` (images, tiles, 3, side, side)."""
        tape, image = ids.tape, batch.image
        assert image is not None
        with tape.section("vision.input"):
            pixels = ops.to(pixels, self.img_projection_up.weight.dtype)
        features = self.features(pixels, image, backend)
        with tape.section("projector"):
            # Everything that the original names stays until it returns.
            pictures = [self.picture(features, image) for _ in range(batch.num_images)]
            projected = [self.projected(picture) for picture in pictures]
        with tape.section("scatter"):
            num_tokens = batch.num_images * image.num_placeholder_tokens
            merged = ops.concatenate(projected, (num_tokens, embeddings.shape[-1]))
            merged = ops.to(merged, embeddings.dtype)
            positions = tape.tensor((num_tokens, len(ids.shape)), DType.INT64)
            return ops.dropout(ops.index_put(embeddings, positions, merged), self.dropout)

    def features(self, pixels: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        """``get_img_features``: (images, tiles, features, width), of patches averaged two by two, channels first."""
        output = self.img_processor(pixels.view(math.prod(pixels.shape[:2]), *pixels.shape[2:]), image, backend)
        with pixels.tape.section("vision.tokens"):
            (hidden,) = output.hidden_states
            num_tiles, _, width = hidden.shape
            side = image.num_patch_rows + self.fills_up
            if self.fills_up:  # nn.ReflectionPad2d
                hidden = ops.resample(hidden, num_tiles, width, side, side, saves_input=True)
            pooled = ops.resample(hidden, num_tiles, width, side // 2, side // 2, saves_input=True)
            return pooled.view(pixels.shape[0], pixels.shape[1], (side // 2) ** 2, width)

    def picture(self, features: Tensor, image: ImageShape) -> Tensor:
        """One image: its tiles without those rows or columns that only cover padding, a vector, and all of it again."""
        width, tape = self.features_width, features.tape
        _, num_tiles, num_features, _ = features.shape
        side = math.isqrt(num_features)
        of_image = (num_tiles, num_features, width)
        whole = ops.copy(ops.part(chunks.select(features, *of_image), 1, side, side, width))
        whole = self._with_column(whole)
        tiles = ops.part(chunks.select(features, *of_image), num_tiles - 1, num_features, width)
        tiles = self._without_padding(tiles, image, side)
        between = ops.expand_weight(self.global_img_feature_extensor, (1, 1, width), tape)
        parts = [tiles, between, whole]
        return _joined(parts, (1, sum(part.shape[1] for part in parts), width))

    def _without_padding(self, tiles: Tensor, image: ImageShape, side: int) -> Tensor:
        rows, columns = image.num_tile_rows * side, image.num_tile_columns * side
        useful = (1, image.num_unpadded_rows, image.num_unpadded_columns, self.features_width)
        is_cut = useful[1:3] != (rows, columns)
        # The gradient has to be copied into the layout of tiles, unless they stand above each other and it is whole.
        lay_out = ops.copy if image.num_tile_columns == 1 and is_cut else ops.resample
        picture = lay_out(tiles, 1, rows, columns, self.features_width)
        if is_cut:
            picture = ops.part(picture, *useful)
        return self._with_column(picture)

    def _with_column(self, picture: Tensor) -> Tensor:
        """A learned vector behind each row; all rows in a row."""
        _, rows, columns, width = picture.shape
        column = ops.copy(ops.expand_weight(self.sub_img_feature_extensor, (1, rows, 1, width), picture.tape))
        return _joined([picture, column], (1, rows, columns + 1, width)).view(1, rows * (columns + 1), width)

    def projected(self, picture: Tensor) -> Tensor:
        hidden = ops.gelu(self.img_projection_up(ops.to(picture, self.img_projection_up.weight.dtype)))
        return self.img_projection_down(hidden)


def _joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat``; autocast casts to the widest type first."""
    dtype = parts[0].dtype
    for part in parts:
        dtype = ops.promoted(dtype, part.dtype)
    return ops.concatenate([ops.to(part, dtype) for part in parts], shape)

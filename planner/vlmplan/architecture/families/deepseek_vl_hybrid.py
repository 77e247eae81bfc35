"""DeepSeek-VL with two towers: SigLIP's on a small picture, SAM's on a large one, whose last features and those of its
first layer over the whole picture are brought to as many as SigLIP has patches.

Source: transformers 5.23 ``models/deepseek_vl_hybrid/modeling_deepseek_vl_hybrid.py``.
"""

from math import prod
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llava import put_features
from vlmplan.architecture.families.sam_vision import Convolution, Layer, Neck, SamTower
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor


class VisionEncoder(SamTower):
    """``SamVisionEncoder``, asked for the result of its first layer over the whole picture too.

    Layers behind it are kinds of their own: its result is held, and not theirs alone.
    """

    def stack(self, config: Config) -> Stack:
        num_layers, whole = config.integer("num_hidden_layers"), config.integers("global_attn_indexes")
        self.num_before = whole[0] + 1
        pattern = [int(index in whole) + 2 * int(index > whole[0]) for index in range(num_layers)]
        window = config.count("window_size")
        return Stack([Layer(config, side) for side in (window, 0) * 2], pattern, label="high_vision")

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """Features, and the result of that layer, both (pictures, rows, columns, channels)."""
        with pixels.tape.section("high_vision.embedding"):
            embedded = [self.embedded(pixels)]
        held = self.layers.run(embedded.pop(), lambda layer, x: layer(x, backend), stop=self.num_before)
        x = held
        if self.num_before < len(self.layers.pattern):
            run = self.layers.run
            x = run(held, lambda layer, x: layer(x, backend), start=self.num_before, shares_input=True)
        with pixels.tape.section("high_vision.neck"):
            return self.neck(x), held


class HighResolutionVision(Module):
    """``SamVisionModel``."""

    def __init__(self, config: Config) -> None:
        self.vision_encoder = VisionEncoder(config)

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        return self.vision_encoder(pixels, backend)


class Downsampling(Module):
    """``DeepseekVLSamVisionProj``: features stretched to four times ``side``, of which two convolutions leave a
    sixteenth."""

    def __init__(self, config: Config, side: int) -> None:
        channels, self.stretched = config.integer("output_channels"), 4 * side
        self.conv1 = Convolution(channels, 2 * channels, 3, stride=2)
        self.conv2 = Convolution(2 * channels, 4 * channels, 3, stride=2)

    def forward(self, features: Tensor) -> Tensor:
        num_pictures, _, _, channels = features.shape
        features = ops.interpolate(features, num_pictures, self.stretched, self.stretched, channels)
        features = self.conv1(features)
        return self.conv2(features)


class Aligner(Module):
    """``DeepseekVLHybridAligner``."""

    def __init__(self, width: int, high_width: int, out_width: int) -> None:
        self.vision_proj = Linear(width, out_width // 2, bias=True)
        self.high_res_vision_proj = Linear(high_width, out_width // 2, bias=True)
        self.act = ops.activation_module("gelu")
        self.proj = Linear(out_width, out_width, bias=True)

    def forward(self, features: Tensor, high_features: Tensor) -> Tensor:
        features = self.vision_proj(features)
        high_features = self.high_res_vision_proj(high_features)
        x = ops.concatenate([high_features, features], (*features.shape[:-1], 2 * features.shape[-1]))
        x = self.act(x)
        return self.proj(x)


class DeepseekVlHybridModel(Module):
    """``DeepseekVLHybridModel``."""

    def __init__(self, config: Config) -> None:
        vision, high = config.section("vision_config"), config.section("high_res_vision_config")
        language_model = text_decoder(config.section("text_config"))
        self.high_res_vision_model = HighResolutionVision(high)
        self.high_res_vision_neck = Neck(high)
        self.high_res_vision_proj = Downsampling(high, vision.integer("image_size") // vision.integer("patch_size"))
        self.high_res_vision_alpha = Parameter(1)
        self.vision_model: Any = vision_tower(vision)
        widths = vision.integer("hidden_size"), 4 * high.integer("output_channels")
        self.aligner = Aligner(*widths, language_model.shape.hidden_size)
        self.language_model: Any = language_model
        self.high_side, self.num_channels = high.integer("image_size"), high.integer("num_channels")

    def shapes_of_pixels(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the small pictures and of the large ones."""
        assert batch.image is not None
        small = (batch.num_images * batch.image.num_patches, self.vision_model.patch_numel)
        return small, (batch.num_images, self.num_channels, self.high_side, self.high_side)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        held = ids.tape.outputs.of_encoder()  # what the towers made and the features
        if pixels is not None:
            held += self.image_features(pixels, batch, backend)
            with ids.tape.section("scatter"):
                embeddings = put_features(ids, embeddings, held[0])
        return self.language_model(embeddings, backend)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        """``get_image_features``: the features, and what the output object has of the towers besides."""
        small, large = ops.split(pixels, *self.shapes_of_pixels(batch))
        output = self.vision_model(small, batch, backend)
        high, held = self.high_features(large, backend)
        with pixels.tape.section("projector"):
            features = self.aligner(output.last_hidden_state, high)
        return [features, output.last_hidden_state, high, held]

    def high_features(self, pixels: Tensor, backend: AttentionBackend) -> tuple[Tensor, Tensor]:
        """``get_high_res_image_features``: (pictures, patches, channels), and the layer's result that they are of."""
        encoded, held = self.high_res_vision_model(pixels, backend)
        with pixels.tape.section("high_projector"):
            last = self.high_res_vision_proj(encoded)
            early = self.high_res_vision_neck(held)
            early = self.high_res_vision_proj(early)
            out = ops.add(last, ops.mul(early, self.high_res_vision_alpha))
            num_pictures, rows, columns, width = out.shape
            del encoded
            return out.view(num_pictures, rows * columns, width), held


class DeepseekVlHybrid(ImageTextModel):
    """``DeepseekVLHybridForConditionalGeneration``."""

    PARTS = {
        "model.vision_model": Part.VISION,
        "model.high_res_vision_model": Part.VISION,
        "model.high_res_vision_neck": Part.PROJECTOR,
        "model.high_res_vision_proj": Part.PROJECTOR,
        "model.high_res_vision_alpha": Part.PROJECTOR,
        "model.aligner": Part.PROJECTOR,
    }

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        """The small pictures and the large ones together: they come and go at once."""
        return (sum(prod(shape) for shape in self.model.shapes_of_pixels(batch)),)


def build(config: Config) -> DeepseekVlHybrid:
    """``DeepseekVLHybridForConditionalGeneration``."""
    ties_weights = ties_word_embeddings(config, config.section("text_config"))
    return DeepseekVlHybrid(DeepseekVlHybridModel(config), ties_weights=ties_weights)

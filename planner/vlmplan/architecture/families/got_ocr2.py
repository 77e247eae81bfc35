"""GOT-OCR 2 and PP-Chart2Table: SAM's vision tower, two convolutions and a Linear, and a Qwen2 decoder.

Source: transformers 5.23 ``models/got_ocr2/modeling_got_ocr2.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llava import put_features
from vlmplan.architecture.families.sam_vision import Convolution, SamVision
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor


class Projector(Module):
    """``GotOcr2MultiModalProjector``: a sixteenth of the features, in the decoder's ``width``."""

    def __init__(self, vision: Config, width: int) -> None:
        channels = vision.integer("output_channels")
        self.conv_upsampler1 = Convolution(channels, 2 * channels, 3, stride=2)
        self.conv_upsampler2 = Convolution(2 * channels, width, 3, stride=2)
        self.multimodal_projector = Linear(width, width, bias=True)

    def forward(self, features: Tensor) -> Tensor:
        x = self.conv_upsampler1(features)
        x = self.conv_upsampler2(x)
        num_pictures, rows, columns, width = x.shape
        return self.multimodal_projector(x.view(num_pictures, rows * columns, width))


class GotOcr2Model(Module):
    """``GotOcr2Model``."""

    def __init__(self, config: Config) -> None:
        language_model = text_decoder(config.section("text_config"))
        vision = config.section("vision_config")
        self.vision_tower = SamVision(vision)
        self.multi_modal_projector = Projector(vision, language_model.shape.hidden_size)
        self.language_model: Any = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()  # what the tower returned and the features
        if pixels is not None:
            encoded += self.image_features(ops.to(pixels, embeddings.dtype))
            with ids.tape.section("scatter"):
                embeddings = put_features(ids, embeddings, encoded[-1])
        hidden = self.language_model(embeddings, backend)
        del encoded
        return hidden

    def image_features(self, pixels: Tensor) -> Sequence[Tensor]:
        """``get_image_features``: the tower's last hidden state, and features in the decoder's width."""
        last = self.vision_tower(pixels)
        with pixels.tape.section("projector"):
            return last, self.multi_modal_projector(last)


class GotOcr2(ImageTextModel):
    """``GotOcr2ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        image = batch.image
        channels = self.model.vision_tower.patch_embed.num_channels
        return (batch.num_images, channels, image.resized_height, image.resized_width)


def build(config: Config) -> GotOcr2:
    """``GotOcr2ForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    return GotOcr2(GotOcr2Model(config), ties_weights=config.boolean("tie_word_embeddings"))

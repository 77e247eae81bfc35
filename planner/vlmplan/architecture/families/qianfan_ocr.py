"""Qianfan-OCR: InternVL whose vision tower leaves out blocks of its layers at random, and a Qwen3 decoder.

Source: transformers 5.23 ``models/qianfan_ocr/modeling_qianfan_ocr.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import intern_vision
from vlmplan.architecture.families.internvl import InternVL, InternVLModel
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import LayerNorm
from vlmplan.architecture.tensor import Tensor


class VisionLayer(intern_vision.VisionLayer):
    """``QianfanOCRVisionLayer``: where it ``drops``, a tile's block is left out now and then."""

    drops = False

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        residual = x
        x = self.layernorm_before(x)
        x = self.attention(x, backend)
        x = ops.mul(x, self.lambda_1)
        x = self.dropped(x)
        x = ops.add(x, residual)
        residual = x
        x = self.layernorm_after(x)
        x = self.mlp(x)
        x = ops.dropout(x, self.dropout)
        x = ops.mul(x, self.lambda_2)
        x = self.dropped(x)
        return ops.add(x, residual)

    def dropped(self, out: Tensor) -> Tensor:
        return ops.called(of_kept_samples if self.drops and out.tape.is_in_training_mode else _as_it_is, out)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def of_kept_samples(x: Tensor) -> Tensor:
    """``QianfanOCRDropPath``: x over the share that is kept, times zero or one for each tile or picture."""
    kept = x.tape.tensor((x.shape[0], *[1] * (len(x.shape) - 1)), x.dtype)
    return ops.mul(ops.scale(x), kept)


class QianfanVision(Encoder):
    """``QianfanOCRVisionModel``, which has the layers itself: all but the first may leave blocks out."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        self.embeddings = intern_vision.VisionEmbeddings(config)
        self.layernorm = None if config.boolean("use_mean_pooling") else LayerNorm(config.integer("hidden_size"))
        num_layers = config.integer("num_hidden_layers")
        super().__init__(lambda: VisionLayer(config), num_layers, feature_layers, ends=(1,))
        for layer in self.layers.kinds[1:]:
            assert isinstance(layer, VisionLayer)
            layer.drops = config.number("drop_path_rate") > 0

    @property
    def patch_numel(self) -> int:
        return self.embeddings.patch_numel

    def forward(self, *inputs: Any, **_: Any) -> Any:
        pixels, batch, backend = inputs
        return self.of_pixels(pixels, batch, backend)

    def of_pixels(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        with pixels.tape.section("vision.embedding"):
            embedded = [self.embeddings(pixels, batch)]
        # Behind the first layer nothing holds the embeddings.
        last, held = super().forward(embedded.pop(), lambda layer, x: layer(x, backend))
        if self.layernorm is not None:
            with pixels.tape.section("vision.norm"):
                last = self.layernorm(last)
        return VisionOutput(last, held)


class QianfanModel(InternVLModel):
    """``QianfanOCRModel``."""

    TOWER = QianfanVision


def build(config: Config) -> InternVL:
    """``QianfanOCRForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    return InternVL(QianfanModel(config), ties_weights=config.boolean("tie_word_embeddings"))

"""Qwen3.5 with its vision encoder: Qwen3-VL's without DeepStack, in front of a decoder with or without experts.

Source: transformers 5.23 ``models/{qwen3_5,qwen3_5_moe,qwen4_exp}/modeling_*.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import qwen2_vl
from vlmplan.architecture.families.packed_patches import joined_features, token_positions
from vlmplan.architecture.families.qwen2_vl import Qwen2VL
from vlmplan.architecture.families.qwen3_vl import VisionTransformer
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionLanguageModel(qwen2_vl.VisionLanguageModel):
    """``Qwen3_5Model``: as Qwen2-VL's, but for the mask of images, which lives as long as their features."""

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        held: list[Tensor] = []  # what lives until this function returns, too: joined features, mask and positions
        if pixels is not None:
            encoded += self.visual(pixels, batch, backend)
            with ids.tape.section("scatter"):
                features = joined_features(encoded[1], batch.num_images)
                mask = ids.tape.tensor(ids.shape, DType.BOOL)
                embeddings = ops.masked_scatter(embeddings, mask, features)
                held += [features, mask, token_positions(ids)]
                del features, mask
        return self.language_model(embeddings, backend)


def build(config: Config) -> Qwen2VL:
    """``Qwen3_5ForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    language_model = text_decoder(config.section("text_config"))
    visual = VisionTransformer(config.section("vision_config"), has_deepstack=False)
    model = VisionLanguageModel(visual, language_model)
    return Qwen2VL(model, ties_weights=config.boolean("tie_word_embeddings"))

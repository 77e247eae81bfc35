"""PaliGemma and PaliGemma 2: a SigLIP tower, one Linear, and a Gemma or Gemma 2 decoder that sees its whole prefix.

Source: transformers 5.23 ``models/paligemma/modeling_paligemma.py``. The processor's ``token_type_ids`` tell the prefix
(image and prompt) from the answer; with them the model builds its masks itself, whatever the length.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma import GemmaDecoder, decoder
from vlmplan.architecture.families.image_text import TiledImageTextModel
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Projector(Module):
    """``PaliGemmaMultiModalProjector``."""

    def __init__(self, config: Config) -> None:
        width = config.section("vision_config").integer("hidden_size")
        self.linear = Linear(width, config.integer("projection_dim"), bias=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features)


class PaliGemmaModel(Module):
    """``PaliGemmaModel``, and ``Gemma3Model`` with another projector."""

    def __init__(self, config: Config, projector: Module, language_model: GemmaDecoder) -> None:
        self.vision_tower: Any = vision_tower(config.section("vision_config"))
        self.multi_modal_projector = projector
        self.language_model = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        encoded = tape.outputs.of_encoder()
        if pixels is not None:
            encoded.append(self.vision_tower(pixels, batch, backend))
            with tape.section("projector"):
                encoded.append(self.multi_modal_projector(encoded[0].last_hidden_state))
                encoded[0].pooled = None  # the features take its place
            with tape.section("scatter"):
                features = ops.to(encoded[1], embeddings.dtype)
                tape.outputs.keep_features(features)
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
                del features
        masks = None
        if pixels is not None:  # without images no processor says what tokens are of
            with tape.section("masks"):
                masks = self.masks(embeddings, backend)
        return self.language_model(embeddings, backend, masks)

    def masks(self, x: Tensor, backend: AttentionBackend) -> dict[int | None, Tensor]:
        """Of the embeddings of a batch with images, by window."""
        return prefix_masks(x, self.language_model, backend)


def prefix_masks(x: Tensor, language_model: GemmaDecoder, backend: AttentionBackend) -> dict[int | None, Tensor]:
    """A mask (batch, 1, t, t) for layers with full attention and one for those with a window, where there are any.

    Boolean for sdpa, in x's type for eager; flash_attention_2 gets none and sees no prefix.
    """
    implementation = language_model.backend(backend).implementation
    if implementation == "flash_attention_2":
        return {}
    batch, num_tokens, _ = x.shape
    dtype = x.dtype if implementation == "eager" else DType.BOOL
    return {window: x.tape.tensor((batch, 1, num_tokens, num_tokens), dtype) for window in language_model.mask_windows}


class PaliGemma(TiledImageTextModel):
    """``PaliGemmaForConditionalGeneration`` and ``Gemma3ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``token_type_ids``."""
        return [((batch.micro_batch, batch.num_tokens), DType.INT64)]


def build(config: Config) -> PaliGemma:
    """``PaliGemmaForConditionalGeneration``; Gemma 2's cap on logits goes with its text configuration."""
    text = config.section("text_config")
    # PaliGemmaConfig turns ``use_bidirectional_attention`` on where the file does not turn it off.
    language_model = decoder(text, is_causal=text.get("use_bidirectional_attention") is False)
    model = PaliGemma(
        PaliGemmaModel(config, Projector(config), language_model), ties_weights=ties_word_embeddings(config, text)
    )
    model.caps_logits = text.get("final_logit_softcapping") is not None
    return model

"""What the ``...ForConditionalGeneration`` classes share: ``model``, a tower in front of a decoder, and ``lm_head``."""

from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor


class ImageTextModel(Model):
    """``model`` takes (ids, pixels, batch, backend) and has a ``language_model``, whose shape the head has too."""

    EMBEDDINGS = "model.language_model.embed_tokens"

    def __init__(self, model: Module, *, ties_weights: bool, vocab_size: int | None = None) -> None:
        """``vocab_size``: of a head of its own; None: as many words as there are embeddings."""
        self.model: Any = model
        shape = self.model.language_model.shape
        self.lm_head = Linear(shape.hidden_size, vocab_size or shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.model.forward(ids, pixels, batch, backend)


class TiledImageTextModel(ImageTextModel):
    """One whose processor cuts images into patches or tiles that lie in one tensor, those of all images in a row."""

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images * batch.image.num_patches, self.model.vision_tower.patch_numel)


def ties_either(config: Config, text: Config) -> bool:
    """Whether embedding and head are one weight: either level says so (``__post_init__`` of
    ``LlavaConfig`` and ``Qwen2VLConfig``)."""
    return config.boolean("tie_word_embeddings") or text.boolean("tie_word_embeddings")

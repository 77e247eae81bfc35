"""Text models: a decoder and the head behind it, as ``...ForCausalLM`` classes have them."""

from typing import Any, ClassVar

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor


class CausalLM(Model):
    """A text model: ``model``, a decoder with ``embed`` and ``forward``, and ``lm_head``."""

    DECODER: ClassVar[str] = "model"
    """The attribute that holds the decoder."""

    def __init__(
        self, decoder: Module, config: Config, *, has_bias: bool = False, ties_weights: bool | None = None
    ) -> None:
        """``ties_weights``: whether head and embedding share a weight; None: as ``tie_word_embeddings`` says."""
        setattr(self, self.DECODER, decoder)
        self.lm_head = Linear(config.integer("hidden_size"), config.integer("vocab_size"), bias=has_bias)
        if ties_weights is None:
            ties_weights = config.boolean("tie_word_embeddings")
        if ties_weights:
            self.tie_weights()

    @property
    def decoder(self) -> Any:
        return self.module(self.DECODER)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.decoder.forward(self.decoder.embed(ids), backend)


class ScaledCausalLM(CausalLM):
    """A text model whose logits are multiplied or divided by a number."""

    scales_logits = True


class CappedCausalLM(CausalLM):
    """A text model whose logits pass through ``tanh`` where the file says so."""

    def __init__(self, decoder: Module, config: Config) -> None:
        super().__init__(decoder, config)
        self.caps_logits = config.get("final_logit_softcapping") is not None

"""BLIP-2: a ViT-g, a Q-Former that turns its patches into a few tokens, a Linear, and a whole language model (OPT).

Source: transformers 5.23 ``models/blip_2/modeling_blip_2.py``, ``Blip2ForConditionalGeneration``. Its decoder-only
variants are described; the ones with T5 are not.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.blip_vision import NUM_CHANNELS, BlipVision
from vlmplan.architecture.families.qformer import QFormer
from vlmplan.architecture.families.text import text_model
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class Blip2(Model):
    """``Blip2ForConditionalGeneration`` with a language model built like Llama's."""

    PARTS = {
        "vision_model": Part.VISION,
        "qformer": Part.PROJECTOR,
        "query_tokens": Part.PROJECTOR,
        "language_projection": Part.PROJECTOR,
    }
    EMBEDDINGS = "language_model.model.embed_tokens"
    HEAD = "language_model.lm_head"
    supports_flash_attention = False
    calls_head_inside = True  # ``self.language_model`` has the head
    tells_tied_head = False  # it has no ``_tied_weights_keys``

    def __init__(self, config: Config) -> None:
        vision, text = config.section("vision_config"), config.section("text_config")
        qformer, decoder = config.section("qformer_config"), text_model(text)
        width = qformer.integer("hidden_size")
        self.query_tokens = Parameter(1, config.integer("num_query_tokens"), width)
        self.vision_model: Any = BlipVision(vision)
        # Blip2Config.__post_init__ sets the Q-Former's encoder_hidden_size to the tower's width.
        self.qformer: Any = self.make_qformer(qformer, vision.integer("hidden_size"))
        self.language_projection: Any = Linear(width, text.integer("hidden_size"), bias=True)
        self.language_model: Any = decoder

    def make_qformer(self, config: Config, image_width: int) -> Any:
        return QFormer(config, image_width)

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        image = batch.image
        assert image is not None
        return (batch.num_images, NUM_CHANNELS, image.resized_height, image.resized_width)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        if backend.implementation == "flash_attention_2" and not self.supports_flash_attention:
            raise InputError("blip-2 has no flash_attention_2 in transformers 5.23, because of its Q-Former")
        tape, decoder = ids.tape, self.module(self.EMBEDDINGS.rpartition(".")[0])
        features = None if pixels is None else self.image_features(batch, pixels, backend)
        embeddings = decoder.embed(ids)
        if features is not None:
            with tape.section("scatter"):
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
            # The original computes the loss in the same function.
            tape.locals += [features.detached(), embeddings.detached()]
        return decoder(embeddings, backend)

    def image_features(self, batch: Batch, pixels: Tensor, backend: AttentionBackend) -> Tensor:
        """Queries in the decoder's width. The outputs of tower and Q-Former stay in the model's output object."""
        tape = pixels.tape
        last, pooled = self.vision_model(pixels, backend)
        _, num_queries, width = self.query_tokens.shape
        queries = ops.expand_weight(self.query_tokens, (last.shape[0], num_queries, width), tape)
        states = self.query_states(batch, queries, last, backend)
        tape.outputs.keep(last, pooled, states)
        return self.projected(states, last.dtype)

    def query_states(self, batch: Batch, queries: Tensor, image: Tensor, backend: AttentionBackend) -> Tensor:
        """All hidden states of the Q-Former."""
        return self.qformer(queries, image, backend)

    def projected(self, states: Tensor, dtype: DType) -> Tensor:
        with states.tape.section("projector"):
            return self.language_projection(ops.to(states, dtype))


class Blip2WithOpt(Blip2):
    """``Blip2ForConditionalGeneration`` with ``OPTForCausalLM``."""

    EMBEDDINGS = "language_model.model.decoder.embed_tokens"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")


def build(config: Config) -> Blip2:
    """``Blip2ForConditionalGeneration``."""
    return (Blip2WithOpt if config.section("text_config").model_type == "opt" else Blip2)(config)

"""InstructBLIP: BLIP-2 whose Q-Former also reads the instruction, in front of Vicuna.

Source: transformers 5.23 ``models/instructblip/modeling_instructblip.py``, ``InstructBlipForConditionalGeneration``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.blip_2 import Blip2, Blip2WithOpt
from vlmplan.architecture.families.qformer import InstructQFormer, head_of
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class InstructBlip(Blip2):
    """``InstructBlipForConditionalGeneration``; one image per sample."""

    supports_flash_attention = True

    def make_qformer(self, config: Config, image_width: int) -> Any:
        return InstructQFormer(config, image_width)

    def num_text_tokens(self, batch: Batch) -> int:
        """Tokens of the instruction for the Q-Former.

        ``InstructBlipProcessor`` gives its BERT tokenizer the whole text; about as many tokens as the language model
        has beside the image, and no more than the Q-Former has positions, is an assumption.
        """
        assert batch.image is not None
        num_text_tokens = batch.num_tokens - batch.images_per_sample * batch.image.num_tokens
        return max(1, min(num_text_tokens, self.qformer.embeddings.num_positions))

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``qformer_input_ids`` and ``qformer_attention_mask``."""
        return [((batch.num_images, self.num_text_tokens(batch)), DType.INT64)] * 2

    def query_states(self, batch: Batch, queries: Tensor, image: Tensor, backend: AttentionBackend) -> Tensor:
        # The ids are the batch's and stay for the step; here stands a view without bytes of its own.
        empty = image.tape.tensor((0,), DType.INT64)
        ids = Tensor(empty.storage, (batch.num_images, self.num_text_tokens(batch)), empty.dtype)
        return self.qformer(ids, queries, image, backend)

    def projected(self, states: Tensor, dtype: DType) -> Tensor:
        with states.tape.section("projector"):
            return self.language_projection(head_of(states, self.query_tokens.shape[1]))


class InstructBlipWithOpt(InstructBlip):
    """An InstructBLIP whose text configuration is OPT's, the class default."""

    EMBEDDINGS = Blip2WithOpt.EMBEDDINGS
    attention_linears = Blip2WithOpt.attention_linears


def build(config: Config) -> InstructBlip:
    """``InstructBlipForConditionalGeneration``."""
    return (InstructBlipWithOpt if config.section("text_config").model_type == "opt" else InstructBlip)(config)

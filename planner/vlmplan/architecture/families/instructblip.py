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
from vlmplan.errors import InputError
from vlmplan.units import DType


class InstructBlip(Blip2):
    """``InstructBlipForConditionalGeneration``; one image per sample."""

    supports_flash_attention = True

    def make_qformer(self, config: Config, image_width: int) -> Any:
        return InstructQFormer(config, image_width)

    def num_text_tokens(self, batch: Batch) -> int:
        """Tokens of the instruction for the Q-Former.

        ``InstructBlipProcessor`` gives its BERT tokenizer the whole text and cuts nothing (``truncation`` is not set);
        as many tokens as the language model has beside the image is an assumption. Raises InputError for more than the
        Q-Former has learned positions, where torch would fail (``InstructBlipQFormerEmbeddings.forward``).
        """
        assert batch.image is not None
        num_image_tokens = batch.images_per_sample * batch.image.num_tokens
        num_positions = self.qformer.embeddings.num_positions
        if batch.num_tokens - num_image_tokens > num_positions:
            raise InputError(
                f"--seq-len is {batch.num_tokens}, but the Q-Former, which reads the text too, has learned positions "
                f"for {num_positions} tokens (qformer_config.max_position_embeddings); with {num_image_tokens} tokens "
                f"of images give at most {num_positions + num_image_tokens}"
            )
        return max(1, batch.num_tokens - num_image_tokens)

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

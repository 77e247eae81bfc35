"""What the thinkers of Qwen2.5-Omni and Qwen3-Omni share: a tower for sound, one for images, and a decoder.

Source: transformers 5.23 ``models/{qwen2_5_omni,qwen3_omni_moe}/modeling_*.py``. The talker and what makes sound of its
codes are models of their own, which a thinker knows nothing of.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families.omni_audio import OmniAudio
from vlmplan.architecture.families.packed_patches import MultimodalDecoder
from vlmplan.architecture.families.qwen2_vl import Qwen2VL
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class ThinkerModel(Module):
    """``...ThinkerModel``: ``audio_tower``, idle without sound, ``visual`` and ``language_model``."""

    def __init__(self, audio_tower: OmniAudio, visual: Module, language_model: MultimodalDecoder) -> None:
        self.audio_tower: Any = audio_tower
        self.visual: Any = visual
        self.language_model: Any = language_model

    def with_sounds(
        self, ids: Tensor, embeddings: Tensor, batch: Batch, backend: AttentionBackend, held: list[Tensor]
    ) -> Tensor:
        """``embeddings`` with the features of sounds, where there are any, in the place of their tokens; ``held`` gets
        what lives in local variables from here on."""
        tape = ids.tape
        if tape.spectrograms is None:
            return embeddings
        features = self.audio_tower(tape.spectrograms, batch, backend)
        with tape.section("scatter_audio"):
            held += [features, *(tape.tensor(ids.shape, DType.BOOL) for _ in range(2))]
            return ops.masked_scatter(embeddings, held[-1], features)

    def positions(self, ids: Tensor, *, has_images: bool) -> list[Tensor]:
        """``get_rope_index``: time, height and width of every token as float32; of text alone one number for all."""
        shape = (3, *ids.shape) if has_images else ids.shape
        return [ids.tape.tensor(shape, DType.FLOAT32)]


class OmniThinker(Qwen2VL):
    """``...ThinkerForConditionalGeneration``."""

    PARTS = {**Qwen2VL.PARTS, "model.audio_tower": Part.VISION}

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``image_grid_thw``: the processors make no ``mm_token_type_ids`` (``return_mm_token_type_ids`` is false)."""
        return (((batch.num_images, 3), DType.INT64),)

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.audio is not None
        return (batch.num_audios, self.model.audio_tower.num_bins, batch.audio.num_padded_frames)

    def more_audio_inputs(self, batch: Batch) -> Sequence[Input]:
        """``feature_attention_mask``, in the type that numpy makes it in."""
        assert batch.audio is not None
        return (((batch.num_audios, batch.audio.num_padded_frames), DType.INT32),)

"""Sounds of a sample as the model hears them: tokens in the language model."""

from functools import lru_cache

from vlmplan.sample_audio import sound_shape
from vlmplan.workload import ModelFiles

KEPT_LENGTHS = 2**14


class SoundAmounts:
    """What sounds become, by their seconds."""

    def __init__(self, model: ModelFiles) -> None:
        self._model = model
        self.num_tokens = lru_cache(KEPT_LENGTHS)(self._num_tokens)

    def _num_tokens(self, seconds: float) -> int:
        """Raises InputError for a sound that the model's feature extractor refuses."""
        return sound_shape(self._model, seconds).num_tokens

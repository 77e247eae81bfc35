"""What a model's output object holds besides the logits.

Before transformers 5.24 most objects have the features of images alone (``image_hidden_states``), and what an encoder
returned lives until the model's ``forward`` returns (``mm_encoder_outputs``). From 5.24 on they have all of it
(``image_outputs``, ``video_outputs`` and ``audio_outputs`` of ``MultimodalModelOutput`` in ``modeling_outputs.py``).
"""

from collections.abc import Iterable, Iterator
from typing import Any


class ModelOutputs:
    """Of one forward. ``has_encoded``: whether the object has what its encoders returned, as from 5.24 on."""

    def __init__(self) -> None:
        self.has_encoded = False
        self.tensors: list[Any] = []
        self._encoded: list[list[Any]] = []
        self._joined: list[Any] = []
        self.of_last_layer: list[Any] = []
        """What a layer has returned beside its result, until the next one has, or the model without its head."""

    def keep(self, *tensors: Any) -> None:
        """The object has these."""
        self.tensors += [tensor.detached() for tensor in tensors]

    def keep_features(self, *features: Any) -> None:
        """The object has these where it has nothing else of encoders; else they are local variables until the model
        without its head returns."""
        if self.has_encoded:
            self._joined += [feature.detached() for feature in features]
        else:
            self.keep(*features)

    def leave_locals(self) -> None:
        """The model without its head returns."""
        self._joined.clear()
        self.of_last_layer.clear()

    def of_encoder(self) -> list[Any]:
        """A list for what encoders return: it lives as long as the caller has it, or the object does."""
        returned: list[Any] = []
        if self.has_encoded:
            self._encoded.append(returned)
        return returned

    def returned(self) -> list[Any]:
        """Every tensor of the object, which an evaluation takes apart for its metrics."""
        return [*self.tensors, *self.encoded()]

    def encoded(self) -> list[Any]:
        """Every tensor that encoders have returned, where the object has them."""
        return list(_tensors(self._encoded))

    def clear(self) -> None:
        """Nobody has the object any more."""
        for held in (self.tensors, self._encoded, self._joined, self.of_last_layer):
            held.clear()


def _tensors(items: Iterable[Any]) -> Iterator[Any]:
    """The tensors of what encoders return: tensors, lists of them, and objects that have some."""
    for item in items:
        if isinstance(item, list | tuple):
            yield from _tensors(item)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield from getattr(item, "tensors", (item,))

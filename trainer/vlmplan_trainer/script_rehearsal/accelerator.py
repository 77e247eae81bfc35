"""DeepSpeed's accelerator for a script's simulated card: CUDA's own name, as the script knows it."""

import torch

from vlmplan_trainer.rehearse.accelerator import RehearsalAccelerator, give_tensor_types
from vlmplan_trainer.rehearse.device import DeviceModule
from vlmplan_trainer.rehearse.ledger import Ledger
from vlmplan_trainer.script_rehearsal.queries import Card

NAME = "cuda"


class CardAccelerator(RehearsalAccelerator):
    """The accelerator of a rehearsal on torch's device type ``cuda``."""

    def __init__(self, card: Card, ledger: Ledger) -> None:
        super().__init__(DeviceModule(ledger), compute_capability=card.compute_capability, total_bytes=card.total_bytes)
        self._name, self._card = NAME, card

    def device_name(self, device_index: int | None = None) -> str:
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def device(self, device_index: int | None = None) -> torch.device:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.device(NAME, self._card.index if device_index is None else device_index)

    def current_device(self) -> int:
        return self._card.index

    def current_device_name(self) -> str:
        return f"{NAME}:{self._card.index}"

    def device_count(self) -> int:
        return self._card.count

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == NAME


give_tensor_types(CardAccelerator, NAME)

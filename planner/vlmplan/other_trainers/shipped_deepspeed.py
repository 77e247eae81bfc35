"""What the DeepSpeed files that trainers ship have in common."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

OPEN_SIZES: Final[Mapping[str, Any]] = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
"""What each leaves to the trainer's own arguments."""
ON_CPU: Final[Mapping[str, Any]] = {"device": "cpu", "pin_memory": True}
"""``offload_optimizer`` or ``offload_param``."""


class ShippedFiles(NamedTuple):
    """Files of a trainer's checkout by their names, and the folder that they lie in, from its root."""

    folder: tuple[str, ...] = ()
    files: Mapping[str, Mapping[str, Any]] = {}

    def named(self, path: str) -> Mapping[str, Any] | None:
        """The file that a path from the root names; None for any other.

        >>> shipped = ShippedFiles(("examples", "deepspeed"), {"zero2.json": {"steps_per_print": 1}})
        >>> shipped.named("./examples/deepspeed/zero2.json")
        {'steps_per_print': 1}
        >>> shipped.named("zero2.json")
        """
        parts = PurePath(path).parts
        return self.files.get(parts[-1]) if parts[-1 - len(self.folder) : -1] == self.folder else None

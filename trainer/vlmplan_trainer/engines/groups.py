"""What groups of parameters are told apart by."""

from typing import Any

LR_FACTOR = "lr_factor"
"""The key of a group of parameters that says what its learning rate is of the step's."""


def num_dimensions(parameter: Any) -> int:
    """Dimensions of a whole parameter: ZeRO-3 leaves an empty vector of one that it has sharded."""
    return len(getattr(parameter, "ds_shape", parameter.shape))

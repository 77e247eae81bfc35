"""What a frozen vision encoder saves: peft's all-linear and full fine-tuning train it, and few jobs need that."""

from typing import NamedTuple

from vlmplan.architecture.model import Part
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator

NOTICEABLE_FRACTION = 0.1
"""Of device bytes or seconds: less is not worth a line. A choice."""


class Freezing(NamedTuple):
    """One setup with its vision encoder trained, and frozen."""

    trained: Estimate
    frozen: Estimate

    @property
    def bytes_change(self) -> float:
        """Device bytes, as a fraction: -0.3 is 30 % less."""
        return self.frozen.device.device_bytes / self.trained.device.device_bytes - 1

    @property
    def seconds_change(self) -> float | None:
        """The same of a step's seconds; None where a speed is not known."""
        before, after = self.trained.step_seconds, self.frozen.step_seconds
        return None if before is None or after is None else after / before - 1

    @property
    def is_noticeable(self) -> bool:
        return min(self.bytes_change, self.seconds_change or 0) <= -NOTICEABLE_FRACTION


def freezing(found: Estimate) -> Freezing | None:
    """The setup of ``found`` with its vision encoder frozen, where it is trained and that would change much."""
    if not found.recipe.train_vision or not found.trained_by_part.get(Part.VISION):
        return None
    recipe = found.recipe.with_changes(train_vision=False)
    try:
        frozen = Estimator(found.workload, recipe).estimate(recipe, found.cluster)
    except InputError:  # nothing else is trained
        return None
    compared = Freezing(trained=found, frozen=frozen)
    return compared if compared.is_noticeable else None

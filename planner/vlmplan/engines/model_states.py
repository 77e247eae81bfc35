"""What one GPU holds through the run, in closed form."""

from typing import NamedTuple

from vlmplan.engines.components import NOTHING, Components


class ModelStates(NamedTuple):
    """Bytes that one GPU holds through the run, apart from the micro batch.

    ``at_start`` before the first step, ``resident`` after it; ``init_peak`` while the engine is built; ``step_peak``
    inside the optimizer step, with the gradients that backward leaves. In none of them are ``secondary``, the trained
    weights of hpZ's secondary partition, which are there from loading to the end of a step and not after it, and
    ``other_models``, which stay to the end of the run: DPO's reference and reward models.
    """

    at_start: Components
    resident: Components
    init_peak: Components
    step_peak: Components
    secondary: Components = NOTHING
    other_models: Components = NOTHING

    @property
    def beside(self) -> Components:
        """What is on the GPU besides from loading to the end of a step."""
        return self.secondary + self.other_models

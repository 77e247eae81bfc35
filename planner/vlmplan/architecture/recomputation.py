"""A checkpointed layer that backward runs again, as ZeRO-3 sees it.

Source: deepspeed 0.19.8 ``zero/partitioned_param_coordinator.py``. What asks for the first saved tensor sets the
recomputation off: by then the backward of the modules around that operation has begun, and their weights are there
(``fetch_sub_module``). Frozen weights that are gathered to run the layer again stay until the backward of the innermost
of these modules is over (``update_recompute_parameters``, ``release_sub_module``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from vlmplan.architecture.parameter import WeightUser


class Recomputation(NamedTuple):
    """``users``: the modules with weights around that operation, from outside in. ``modules``: those with frozen
    weights that ran again. ``block_start``: where the operation lies in a module that has no weights of its own, but
    whose backward goes on beyond it, the last graph node before that module; else None."""

    users: Sequence[WeightUser] = ()
    modules: Sequence[WeightUser] = ()
    block_start: int | None = None

    def is_over_with(self, module: WeightUser | None) -> bool:
        """Whether its frozen weights go when the backward of ``module`` is over."""
        return self.block_start is None and (not self.users or module is self.users[-1])

    def is_over_before(self, sequence: int) -> bool:
        """Whether they have gone when backward has come to the node with this number."""
        return self.block_start is not None and sequence <= self.block_start

    def holds(self, module: WeightUser) -> bool:
        """Whether the weights of ``module`` outlast its own backward."""
        return self.block_start is not None and any(one is module for one in self.modules)

"""The replay of the caching allocator for references that are precomputed.

Source: TRL 1.16 ``dpo_trainer.py`` and ``kto_trainer.py`` (``_precompute_ref_logps``): before the run the model, whose
weights are on the device by then, runs over all samples. Under ZeRO-3 that is an engine of its own, which has no
optimizer. What is left is given back when training begins. The bundled trainer takes such an engine apart behind each
file of samples (``trl_training/planned.py``).
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.memory.blocks import BlockLog
from vlmplan.memory.gathered_blocks import forward_changes, weights_before_steps
from vlmplan.memory.replayed_steps import MicroBatch
from vlmplan.memory.reservation import Reservation


class PrecomputedReservation(Reservation):
    """``precomputed``: forwards over a batch of the samples that are trained on, and of those that are evaluated."""

    def __init__(self, *args: Any, precomputed: Sequence[MicroBatch], **options: Any) -> None:
        """The others are as ``Reservation`` has them."""
        super().__init__(*args, **options)
        self._precomputed = precomputed

    def begin_training(self) -> None:
        """As ``Reservation`` has it, behind the reference: of each kind of batch a second one finds what the first has
        left. Each kind has an engine of its own, on whose stream no other one gathers until all is given back."""
        self._engine.end_load()
        self._engine.place()
        for place, (trace, operations) in enumerate(self._precomputed):
            log = BlockLog()
            self._engine.runs_second_model = self._evaluates_copy = place == 0
            weights = weights_before_steps(self._engine, trace, log)
            for _ in range(2):
                self._replay_alone(operations, forward_changes(next(weights), operations, log, begins=True))
            log.free_all()
            self._change(log.taken())
        self._engine.runs_second_model = self._evaluates_copy = False
        super().begin_training()

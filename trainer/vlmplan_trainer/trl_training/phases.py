"""Where the phases of DPO, reward models, KTO and GRPO begin and end in TRL's trainers.

GRPO generates answers, computes log-probabilities of them without gradients, scores them, and then trains on them;
``generate``, ``reference`` and ``score`` last from the call that begins each until the next one begins. DPO's reference
runs in the middle of the loss, behind the trained model's forward: it is told by gradients being off. So are they in
KTO's forward over answers to other prompts, which comes before that and belongs to ``forward``.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from vlmplan.phase_names import BACKWARD, EVALUATION, GENERATE, GENERATION, INIT, REFERENCE
from vlmplan_trainer.integrations.trainer_phases import TrainerPhases


class TaskPhases(TrainerPhases):
    """Follows one run of a trainer of TRL's on this rank."""

    _is_held = False
    """Whether calls of the model do not tell phases."""
    _awaits_own = False
    """Whether the trained model's forward with gradients comes next."""

    def begin_loss(self) -> None:
        """A loss begins with forwards of the trained model."""
        self._awaits_own = True

    def rollout(self) -> AbstractContextManager[None]:
        """Within, answers are generated and scored; ``switch`` alone says where a phase ends."""
        return self._holding(GENERATE)

    def evaluating(self) -> AbstractContextManager[None]:
        """Within, pairs are evaluated, by both models, or answers."""
        return self._holding(EVALUATION)

    @contextmanager
    def generating(self) -> Generator[None]:
        """Within an evaluation: answers are generated, and then looked at as the rest of it does."""
        self.switch(GENERATION)
        yield
        self.switch(EVALUATION)

    @contextmanager
    def _holding(self, phase: str) -> Generator[None]:
        """Within, ``phase`` has begun, and calls of the model tell no other."""
        self.switch(phase)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.switch(None)

    def count_reference(self, model: torch.nn.Module) -> None:
        """``model``, a second one, has been loaded since ``load`` was switched to; the engine is made next."""
        self.meter.count(model)
        self.switch(INIT)

    @contextmanager
    def precomputing(self) -> Generator[None]:
        """Within, the reference's log-probabilities are computed before training."""
        self.switch(REFERENCE)
        yield
        self.switch(INIT)

    def follow_reference(self, model: torch.nn.Module) -> None:
        """``model`` is a second one, whose calls within the loss are the reference's."""
        self._hooks += [model.register_forward_pre_hook(self._before_reference, prepend=True)]
        self._hooks += [model.register_forward_hook(self._after_reference, always_call=True)]

    def _before_reference(self, model: torch.nn.Module, inputs: Any) -> None:
        if not self._is_held:
            self.switch(REFERENCE)

    def _after_reference(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        if not self._is_held:
            self.switch(BACKWARD)

    def _before_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if self._is_held:
            return
        if self._awaits_own or torch.is_grad_enabled():
            super()._before_forward(model, inputs)
        else:
            self._before_reference(model, inputs)

    def _after_forward(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._is_held or (self._awaits_own and not torch.is_grad_enabled()):
            return
        self._awaits_own = False
        super()._after_forward(model, inputs, output)

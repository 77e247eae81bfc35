"""Where the phases of a plan begin and end in Hugging Face's Trainer, and their memory.

Trainer 5.23 has no events around forward and backward, so hooks of the model stand for them: forward runs from the
model's own call, with what DeepSpeed's hooks gather for it, until it returns, backward from there until the update
begins (gradient clipping is in it), and the update until the Trainer has set the gradients free. Under DeepSpeed
accelerate calls ``engine.step`` right behind ``backward``, before ``on_pre_optimizer_step``, so there the optimizer's
own ``step`` tells (``accelerate/utils/deepspeed.py``). Evaluation runs from its first forward to ``on_evaluate``: what
it keeps for metrics is joined between its forwards.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, INIT, LOAD, STEP
from vlmplan_trainer.measure import Meter

OF_DEEPSPEED = "DeepSpeedOptimizerWrapper"
"""accelerate's class of optimizers that DeepSpeed steps."""


class TrainerPhases:
    """Follows one training run of a Trainer on this rank with ``meter``.

    On a CPU only what is made within phases is followed; ``model`` has to be given whole before ``init`` begins.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._open = ExitStack()
        self._hooks: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def switch(self, name: str | None) -> None:
        """End the phase that runs, and begin ``name`` unless that is None."""
        self._open.close()
        if name is not None:
            self._open.enter_context(self.meter.phase(name))

    def begin_init(self, model: torch.nn.Module) -> None:
        """The model is there; what the Trainer makes around it comes next. A GPU has counted all along."""
        self.meter.count_earlier(LOAD)
        self.meter.count(model)
        self.switch(INIT)

    def begin_training(self, model: torch.nn.Module, optimizer: Any) -> None:
        """Everything is there; steps come next."""
        self.switch(None)
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward, prepend=True),
            model.register_forward_hook(self._after_forward, always_call=True),
        ]
        inner = getattr(optimizer, "optimizer", optimizer)
        # DeepSpeed's step runs within accelerate's backward; stage 0 in float32 has torch's own optimizer for it.
        if type(optimizer).__name__ == OF_DEEPSPEED or not isinstance(inner, torch.optim.Optimizer):
            self._tell_step_of(inner)

    def begin_update(self) -> None:
        """The optimizer's update comes next, unless DeepSpeed has done it already."""
        if self.meter.in_progress == BACKWARD:
            self.switch(STEP)

    def end_evaluation(self) -> None:
        """All batches are done, and what was kept of them has moved to the host."""
        if self.meter.in_progress == EVALUATION:
            self.switch(None)

    def end_step(self) -> None:
        self.switch(None)
        self.meter.end_step()

    def end(self) -> None:
        """Take the hooks away."""
        self.switch(None)
        for hook in self._hooks:
            hook.remove()
        for undo in self._undo:
            undo()
        self._hooks, self._undo = [], []

    def _tell_step_of(self, optimizer: Any) -> None:
        def told_step(*args: Any, **kwargs: Any) -> Any:
            self.begin_update()
            return step(*args, **kwargs)

        had_own = "step" in vars(optimizer)  # schedulers count the steps of torch's
        step, optimizer.step = optimizer.step, told_step
        self._undo.append(lambda: setattr(optimizer, "step", step) if had_own else delattr(optimizer, "step"))

    def _before_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        del inputs
        if model.training:
            self.switch(FORWARD)
        elif self.meter.in_progress != EVALUATION:
            self.meter.count(model)  # steps that nobody has followed may have made weights anew
            self.switch(EVALUATION)

    def _after_forward(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs, output
        if model.training:
            self.switch(BACKWARD)

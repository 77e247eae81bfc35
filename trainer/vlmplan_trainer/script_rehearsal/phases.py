"""Where the phases of a script begin and end, found from the calls that every training loop makes.

``load`` lasts until an optimizer or an engine is made, ``init`` until the first forward pass that trains, ``forward``
until backward, ``backward`` until the next micro batch or until gradients are clipped or the optimizer runs, ``step``
until the next pass. A pass without gradients of the trained model in ``eval`` mode is ``evaluation``; ``generate`` is
what transformers generates, and other passes between steps that train nothing, as those of a reference, a reward model
or a frozen encoder, are ``inference``. Calls that save are ``save``. Nothing lies between phases: what a script does
there counts with the phase before.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATE, INIT, LOAD, SAVE, STEP
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.meter import INFERENCE

BETWEEN_STEPS = (LOAD, INIT, GENERATE, INFERENCE, BACKWARD, STEP)
"""A pass that trains nothing is a phase of its own where one of these is running."""


class EndOfRehearsal(SystemExit):
    """All steps are done, and the script begins another."""


class ScriptPhases:
    """Follows a script with ``meter`` for ``num_steps`` optimizer steps.

    ``on_training`` is called with the model of the first pass that trains; ``on_update`` with an optimizer.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        num_steps: int,
        on_training: Callable[[Any], None] = lambda model: None,
        on_update: Callable[[Any], None] = lambda optimizer: None,
    ) -> None:
        self.meter, self.num_steps = meter, num_steps
        self.steps_done = self.num_evaluated = self.num_empty_epochs = 0
        self._on_training, self._on_update = on_training, on_update
        self._open = ExitStack()
        self._depth = self._backward_depth = 0
        self._trained: Any = None
        self._optimized: set[int] = set()
        """Weights that an optimizer was made for."""
        self.on_pass: Callable[[bool], None] = lambda trains: None
        """Called when a pass begins: whether it trains."""

    @property
    def is_done(self) -> bool:
        return self.steps_done >= self.num_steps

    @property
    def moment(self) -> tuple[int, int]:
        """Steps that are done, and epochs that have begun since the last."""
        return self.steps_done, self.num_empty_epochs

    def switch(self, name: str) -> None:
        """End the phase that runs, and begin ``name``."""
        if self.meter.in_progress != name:
            self.end()
            self._open.enter_context(self.meter.phase(name))

    def end(self) -> None:
        self._open.close()

    def begin_init(self) -> None:
        """An optimizer or an engine is made, and nothing has been trained yet."""
        if self._trained is None:
            self.switch(INIT)

    def begin_step(self) -> None:
        if self.meter.in_progress == BACKWARD:
            self.switch(STEP)
            self.steps_done += 1

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """The phase ``name`` while this lasts, and then the one before again."""
        before = self.meter.in_progress
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before or LOAD)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Within, a model generates: a phase of its own where no other pass is going on. What is done with the answers
        counts with it."""
        if self._depth or self.meter.in_progress not in BETWEEN_STEPS:
            yield
            return
        self.switch(GENERATE)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within, calls of models, backward, clipping and optimizers tell the phases."""
        clips = torch.nn.utils.clip_grad_norm_
        step_hook = register_optimizer_step_pre_hook(self._before_step)
        with ExitStack() as stack:
            stack.callback(step_hook.remove)
            for owner, name, value in (
                (torch.nn.Module, "__call__", self._told_call(torch.nn.Module.__call__)),
                (torch.optim.Optimizer, "__init__", self._told_optimizer(torch.optim.Optimizer.__init__)),
                (torch.autograd, "backward", self._told_backward(torch.autograd.backward)),
                (torch.autograd, "grad", self._told_gradients(torch.autograd.grad)),
                (torch.nn.utils, "clip_grad_norm_", self._told_clip(clips)),
            ):
                stack.enter_context(replaced(owner, name, value))
            self._follow_deepspeed(stack)
            yield
            self.end()

    def _follow_deepspeed(self, stack: ExitStack) -> None:
        import importlib.util

        if importlib.util.find_spec("deepspeed") is None:
            return
        from deepspeed.runtime.engine import DeepSpeedEngine

        make, step = DeepSpeedEngine.__init__, DeepSpeedEngine._take_model_step

        def told_make(engine: Any, *args: Any, **kwargs: Any) -> None:
            self.begin_init()
            make(engine, *args, **kwargs)

        def told_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self._on_update(engine.optimizer)
            self.begin_step()
            return step(engine, *args, **kwargs)

        stack.enter_context(replaced(DeepSpeedEngine, "__init__", told_make))
        stack.enter_context(replaced(DeepSpeedEngine, "_take_model_step", told_step))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.meter.in_progress in (BACKWARD, STEP):
            self._on_update(optimizer)
            self.begin_step()

    def _told_optimizer(self, make: Any) -> Any:
        def told(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.begin_init()
            make(optimizer, *args, **kwargs)
            self._optimized |= {id(weight) for group in optimizer.param_groups for weight in group["params"]}

        return told

    def _told_clip(self, clip: Any) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            self.begin_step()
            return clip(*args, **kwargs)

        return told

    def _told_backward(self, backward: Any) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self.switch(BACKWARD)
            return within(*args, **kwargs)

        within = self._told_gradients(backward)
        return told

    def _told_gradients(self, compute: Any) -> Any:
        """What runs again of a checkpointed layer is no pass of its own."""

        def told(*args: Any, **kwargs: Any) -> Any:
            self._backward_depth += 1
            try:
                return compute(*args, **kwargs)
            finally:
                self._backward_depth -= 1

        return told

    def _told_call(self, call: Any) -> Any:
        def told(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or self._backward_depth or self.meter.in_progress == SAVE:
                return call(module, *args, **kwargs)
            self._begin_pass(module)
            self._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        return told

    def _begin_pass(self, module: Any) -> None:
        trains = any(parameter.requires_grad for parameter in module.parameters())
        if trains and torch.is_grad_enabled():
            self._begin_training_pass(module)
        elif trains and self._is_evaluated(module):
            self.num_evaluated += 1
            self.on_pass(False)
            self.switch(EVALUATION)
        elif self.meter.in_progress in BETWEEN_STEPS and any(True for _ in module.parameters()):
            self.switch(INFERENCE)  # not of a loss, which has no weights

    def _begin_training_pass(self, module: Any) -> None:
        if self.meter.in_progress != FORWARD:
            if self.is_done:
                raise EndOfRehearsal(0)
            self.meter.step = self.steps_done + 1
            self.switch(FORWARD)
        self.on_pass(True)
        if self._trained is None:
            self._trained = module
            self._on_training(module)

    def _is_evaluated(self, module: Any) -> bool:
        """Whether a pass without gradients is the trained model's own, in ``eval`` mode."""
        if inner_model(module).training or self.meter.in_progress == FORWARD:
            return False
        if self._trained is not None:
            known = {id(parameter) for parameter in self._trained.parameters()}
        else:
            known = self._optimized
        return not known or any(id(parameter) in known for parameter in module.parameters())


def inner_model(module: Any) -> Any:
    """The model in the wrappers of engines, which ``model.eval()`` does not reach."""
    while isinstance(getattr(module, "module", None), torch.nn.Module):
        module = module.module
    return module

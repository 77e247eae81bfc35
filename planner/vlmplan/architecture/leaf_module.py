"""Modules that ZeRO-3 takes for one, with all that they hold: its leaf modules.

Sources, deepspeed 0.19.8: ``DEFAULT_LEAF_MODULE_CLASSES`` in ``zero/leaf_module_config.py``, which names the sparse
blocks of Mixtral, Qwen2-MoE and Qwen3-MoE and is applied to every model (``apply_zero_leaf_module_config`` in
``runtime/engine.py``); ``_register_deepspeed_module`` in ``zero/parameter_offload.py``, which hooks nothing inside;
``create_reduce_and_remove_grad_hooks`` in ``zero/stage3.py``, which reduces all gradients of a leaf when its backward
is over. Without leaf modules ranks that run different experts wait for each other for ever, where each expert is a
module of its own. In transformers 5 all experts of a layer are two parameters of one module, which is gathered whole
whatever a rank's tokens choose, so that no family needs them; those three have them nevertheless.
"""

from typing import Any

from vlmplan.architecture.modules import Module
from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.tensor import Tensor


class WeightsOfLeaf(WeightUser):
    """All weights inside a leaf module, as ZeRO-3 sees them."""

    is_leaf = True

    def __init__(self, module: Module) -> None:
        self.parameters_by_name = dict(module.named_parameters())


class LeafModule(Module):
    """A module whose weights, and those of the modules inside, are gathered and released together."""

    _gathered: WeightsOfLeaf | None = None

    def __call__(self, x: Tensor, *args: Any) -> Any:
        tape = x.tape
        if not tape.fetches_weights:
            return self.forward(x, *args)
        if self._gathered is None:  # adapters and types are in place by the first use
            self._gathered = WeightsOfLeaf(self)
        tape.modules.append(self._gathered)
        tape.begin_call(self._gathered)
        tape.fetches_weights = False
        try:
            out = self.forward(x, *args)
        finally:
            tape.fetches_weights = True
        tape.release(self._gathered)
        tape.modules.pop()
        return out

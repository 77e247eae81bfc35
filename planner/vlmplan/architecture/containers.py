"""Modules with weights that call others, as ZeRO-3 sees them: their weights stay while those inside come and go.

DeepSpeed hooks what a module returns and what it takes (``PreBackwardFunctionForModule``,
``PostBackwardFunctionModule`` in deepspeed 0.19.8 ``zero/parameter_offload.py``): its backward begins with the gradient
of its result, before that of any module inside, and is over when its input has a gradient, once, however often backward
comes by operations of its own in between.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from vlmplan.architecture.tensor import GraphNode, Tensor


@runtime_checkable
class Outputs(Protocol):
    """A module's result of several tensors."""

    def through(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The container's result with what ``change`` makes of the tensors that others compute with."""


def call_container(tape: Any, module: Any, run: Callable[[], Any], *, has_input_grad: bool) -> Any:
    """``run()``, the forward of ``module``. One that is called between sections has sections inside of it."""
    tape.modules.append(module)
    tape.begin_call(module)
    tape.enter_container(module, has_input_grad=has_input_grad)
    result = run()
    if tape.is_between_sections:
        with tape.section(f"{tape.running_section}.end"):
            result = _released(tape, module, result)
    else:
        result = _released(tape, module, result)
    tape.modules.pop()
    return result


def _released(tape: Any, module: Any, result: Any) -> Any:
    tape.release(module)
    if isinstance(result, Tensor):
        return passing(module, result)
    if isinstance(result, tuple):
        several = cast("tuple[Any, ...]", result)
        return tuple([passing(module, one) if isinstance(one, Tensor) else one for one in several])
    return result.through(lambda one: passing(module, one)) if isinstance(result, Outputs) else result


def passing(module: Any, result: Tensor) -> Tensor:
    """``result``, whose gradient comes to the backward of ``module`` first."""
    node = result.tape.node((result,), _passed)
    if node is None:
        return result
    node.module = module
    return Tensor(result.storage, result.shape, result.dtype, node)


def _passed(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    return (grads.pop(),)

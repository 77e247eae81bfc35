"""Calls of modules without weights of their own, such as layers, attentions and activation functions.

ZeRO-3 has nothing to gather for them, but prefetches before each, forward and backward: DeepSpeed hooks every module
(``_register_deepspeed_module`` in ``zero/parameter_offload.py``, 0.19.8), and its hooks fetch and prefetch
(``fetch_sub_module`` in ``zero/partitioned_param_coordinator.py``).
"""


class EmptyCall:
    """One call, inside of the call ``outer``. Its backward begins with the gradient of its result, which comes once
    (``PreBackwardFunctionForModule``)."""

    __slots__ = ("_outer", "has_begun")

    def __init__(self, outer: "EmptyCall | None") -> None:
        self._outer = outer
        self.has_begun = False
        """Whether its backward has, and so that of those around it."""

    def begin_backward(self) -> int:
        """How many have their backward begun by this: this call, and those around it."""
        number, call = 0, self
        while call is not None and not call.has_begun:
            call.has_begun = True
            number, call = number + 1, call._outer
        return number

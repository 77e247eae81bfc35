"""Which module with weights backward is in: when its weights are fetched, and when they and their gradients go."""

from collections.abc import Callable, Sequence

from vlmplan.architecture.checkpoint_recorder import OpenContainer
from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.recomputation import Recomputation
from vlmplan.architecture.tensor import ForwardTape, GraphNode

ParameterUse = tuple[Parameter, str]
"""A parameter, and the section that uses it: equal layers of a stack share one parameter object."""

NOTHING_RECOMPUTED = Recomputation()


class Visit:
    """The place of a backward among modules with weights, which ZeRO-3 gathers for as long as it stays there.

    ``has_input_grad``: the input of ``module`` has a gradient. ``hand_over`` gives whole gradients of weights to the
    engine.
    """

    __slots__ = (
        "_begun",
        "_hand_over",
        "_num_around",
        "_of_leaf",
        "_recomputation",
        "_tape",
        "has_input_grad",
        "is_in_block",
        "module",
    )

    def __init__(
        self, tape: ForwardTape, recomputation: Recomputation, hand_over: Callable[[Sequence[ParameterUse]], None]
    ) -> None:
        self.module: WeightUser | None = None
        self._num_around = len(tape.open_containers)  # when a checkpointed layer has run again
        self.has_input_grad = False
        self.is_in_block = recomputation.block_start is not None
        self._tape, self._recomputation, self._hand_over = tape, recomputation, hand_over
        self._begun = list(recomputation.users)
        self._of_leaf: list[ParameterUse] = []

    def come_to(self, node: GraphNode) -> None:
        """Backward goes on at ``node``: what ends before it ends, and its module, if it has one, begins."""
        tape = self._tape
        if self.module is not None and (node.module is not self.module or node.section != tape.running_section):
            self._leave()
        while self._containers and self._containers[-1].is_over_before(node.sequence):
            self._leave_container()
        if self._recomputation.is_over_before(node.sequence):
            self._end_recomputation()
        if node.section != tape.running_section:
            tape.enter(node.section)
        if node.empty_call is not None:
            tape.prefetch(node.empty_call.begin_backward())
        if self.module is None and node.module is not None:
            self.module, self.has_input_grad = node.module, False
            self._begin(node.module, node.section)

    def _begin(self, module: WeightUser, section: str) -> None:
        """The backward of a module begins, or that of a container goes on."""
        if self._is_open(module):
            return
        self._fetch(module)
        container = self._tape.container(module, section)
        if container is not None:
            self._tape.open_containers.append(container)

    @property
    def _containers(self) -> list[OpenContainer]:
        """The containers that have begun here."""
        return self._tape.open_containers[self._num_around :]

    def _is_open(self, module: WeightUser | None) -> bool:
        return any(container.module is module for container in self._tape.open_containers)

    def _fetch(self, module: WeightUser) -> None:
        if module in self._begun:
            self._begun.remove(module)
        else:
            self._tape.fetch(module)

    def take_gradient(self, use: ParameterUse) -> None:
        """A weight's whole gradient is there. In a leaf module it waits for the end of the module's backward."""
        if self.module is not None and self.module.is_leaf:
            self._of_leaf.append(use)
        else:
            self._hand_over([use])

    def end(self) -> None:
        """Leave the last module and the containers around it: nothing is left to run."""
        self._leave()
        while self._containers:
            self._leave_container()
        self._end_recomputation()

    def _leave(self) -> None:
        """The module's backward is over: its weights go if its input has a gradient, and those that waited for it."""
        module, self.module = self.module, None
        if self._is_open(module):
            return
        if module is not None and self._of_leaf:  # in the order of its weights
            places = {id(weight): place for place, weight in enumerate(module.parameters_by_name.values())}
            self._hand_over(sorted(self._of_leaf, key=lambda use: places[id(use[0])]))
            self._of_leaf.clear()
        self._let_go(module, is_done=self.has_input_grad and (module is None or not module.reads_head))

    def _leave_container(self) -> None:
        """The backward of all that the innermost container calls is over, and with it the container's own."""
        container = self._tape.open_containers.pop()
        self._let_go(container.module, is_done=container.has_input_grad)

    def _let_go(self, module: WeightUser | None, *, is_done: bool) -> None:
        """``is_done``: the module's input has its gradient, which is what releases its weights."""
        if module is not None and not self._recomputation.holds(module):
            is_last = self._tape.ends_last_call(module)
            self._tape.release(module) if is_done and is_last else self._tape.keep(module)
        if self._recomputation.is_over_with(module):
            self._end_recomputation()

    def _end_recomputation(self) -> None:
        self._tape.end_recomputation(self._recomputation.modules)
        self._recomputation, self.is_in_block = NOTHING_RECOMPUTED, False

"""When two traces use weights in the same way, whatever objects their modules and weights are."""

from collections.abc import Hashable, Sequence
from typing import Any

from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.reference import is_of_copy, is_of_kl, is_own
from vlmplan.architecture.trace import Drop, Fetch, Prefetch, Release, Trace, WeightUse
from vlmplan.engines.coordinator.repeated_layers import section_uses


def shape_of_uses(traces: Sequence[Trace]) -> Hashable:
    """Equal for traces that use weights of the same sizes in the same order, however sections are called, those of
    several traces as they are the same."""
    shape = _Shape()
    return tuple([shape.key_of(trace) for trace in traces]), shape.members


class _Shape:
    """Modules, weights and views by the order of their first use."""

    def __init__(self) -> None:
        self._modules: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._views: dict[int, int] = {}
        self._members: list[tuple[tuple[int, int, int, bool, bool], ...]] = []

    @property
    def members(self) -> Hashable:
        return tuple(self._members)

    def key_of(self, trace: Trace) -> Hashable:
        """Its uses, as they are numbered."""
        numbers: dict[str, int] = {}
        sections: list[Any] = []
        for run in trace.schedule:
            if run.key not in numbers:
                numbers[run.key] = len(numbers)
                uses = section_uses(trace.sections[run.key])
                sections.append((self._numbered(uses.forward), self._numbered(uses.backward)))
        runs = [(numbers[run.key], run.layer, is_of_copy(run), is_own(run), is_of_kl(run)) for run in trace.schedule]
        return tuple(sections), tuple(runs)

    def _numbered(self, events: list[WeightUse]) -> tuple[tuple[Any, ...], ...]:
        return tuple([self._event(event) for event in events])

    def _event(self, event: WeightUse) -> tuple[Any, ...]:
        if isinstance(event, Fetch):
            return None, event.before, self._module(event.module)
        if isinstance(event, Release):
            return self._module(event.module), event.ends_recomputation
        if isinstance(event, Prefetch):
            return None, event.times, None
        view = self._views.setdefault(event.handle, len(self._views))
        if isinstance(event, Drop):
            return view, None
        return view, None, self._weights.setdefault(id(event.parameter), len(self._weights))

    def _module(self, module: WeightUser) -> int:
        number = self._modules.setdefault(id(module), len(self._modules))
        if number == len(self._members):
            own = module.parameters_by_name.values()
            places = [self._weights.setdefault(id(weight), len(self._weights)) for weight in own]
            self._members.append(
                tuple(
                    (place, weight.numel, weight.dtype.num_bytes, weight.requires_grad, module.is_leaf)
                    for place, weight in zip(places, own, strict=True)
                )
            )
        return number

"""The steps of a micro batch under ZeRO-3: which module is used after which, and the weights that each gathers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.reference import is_of_copy, is_of_kl, is_own
from vlmplan.architecture.trace import Event, Fetch, Prefetch, Release, Run, Trace, fetched_modules
from vlmplan.engines.coordinator.module_order import Lost, SmallWeights
from vlmplan.engines.coordinator.records import NOT_ASKED, GatheredModule, GatheredWeight, Key, Passed, passed_by
from vlmplan.engines.coordinator.wait_order import FIRST_STAYS
from vlmplan.recipe.zero import ZeroSettings


class GatherSteps:
    """Every use of a module in forward and backward is a step.

    ``modules`` are those of the steps, of which backward has those from ``first_of_backward`` on, with the head first:
    the step ``inside_head`` follows it. Those of a second model, whose forward comes between both and whose engine goes
    by an order of its own, stand behind all others, from ``first_of_copy`` on, and where that runs twice once more from
    ``second_of_copy`` on. ``order`` and ``order_of_copy`` are the uses of weights, each with its step; ``traversed``
    are the elements up to each step, as a module that is no leaf counts and as a leaf does, where the reuse distance
    asks for them. ``comes_later`` are steps that modules without weights come just before. Small weights
    that are whole are in no module here. ``again`` are the steps of later forwards on the same modules which are those
    that forward began with: a reference's, or the one behind another over answers to other prompts. Where there are
    both, that other begins by the order of the reference and backward, until the first adapter. ``first_adapter`` is
    the step of the first module that is trained whole.
    """

    def __init__(
        self,
        trace: Trace,
        zero: ZeroSettings,
        *,
        num_ranks: int,
        omitted: Mapping[int, Passed],
        small: SmallWeights = SmallWeights.WHOLE,
    ) -> None:
        """``omitted``: elements that the modules have which the schedule leaves out before a step."""
        self._persistence_threshold, self._num_ranks = zero.stage3_param_persistence_threshold, num_ranks
        self._gathers_small = small is not SmallWeights.WHOLE
        self._num_large = 0
        self.weight_by_key: dict[Key, GatheredWeight] = {}
        self.module_by_key: dict[Key, GatheredModule] = {}
        self._templates: dict[int, tuple[list[Any], int, Any]] = {}
        used = {
            key: (fetched_modules(section.forward), fetched_modules(section.backward))
            for key, section in trace.sections.items()
        }
        own, copies = ([run for run in trace.schedule if is_of_copy(run) is is_copys] for is_copys in (False, True))
        forward = [self._module(module, run.layer) for run in own for module in used[run.key][0]]
        backward = [self._module(module, run.layer) for run in reversed(own) for module in used[run.key][1]]
        of_copy = [self._module(module, run.layer) for run in copies for module in used[run.key][0]]
        has_two = len(of_copy) > 1 and of_copy[: len(of_copy) // 2] == of_copy[len(of_copy) // 2 :]
        self.modules = forward + backward + of_copy
        self.first_of_backward, self.first_of_copy = len(forward), len(forward) + len(backward)
        sections = trace.sections
        runs = [sections[run.key].forward for run in own] + [sections[run.key].backward for run in reversed(own)]
        runs += [sections[run.key].forward for run in copies]
        self.comes_later = _after_others(chain.from_iterable(runs))
        self.again = self._again(own, used)
        first = (module for run in own for module in used[run.key][0])
        self._adapter_steps = {step for step, one in enumerate(first) if _is_adapter(one)}
        self.first_adapter = min(self._adapter_steps, default=self.first_of_backward)
        order = [(weight, step) for step, module in enumerate(self.modules) for weight in module.weights]
        self.order = [use for use in order if use[1] < self.first_of_copy]
        self.order_of_copy = order[len(self.order) :]
        self.second_of_copy = self.first_of_copy + len(of_copy) // 2 if has_two else None
        large = ((weight, step) for weight, step in self.order if not weight.is_small)
        weighted = (step for _, step in large if step >= self.first_of_backward)
        head = next(weighted, self.first_of_copy)
        self.inside_head = head + (2 if head < self.first_of_copy and self.modules[head].calls_head else 1)
        self.traversed = self._passed_by_step(omitted) if zero.stage3_max_reuse_distance else NOT_ASKED

    def order_at_first(self, lost: Lost) -> list[tuple[GatheredWeight, int]]:
        """The order that a forward begins with: ``order``, or that of forwards alone, which ends where backward begins,
        until when a head that is read stays whole, as GRPO with old log-probabilities was rehearsed. Or, until the
        first adapter runs, that of a reference with adapters off, which was the last to be recorded."""
        if lost is Lost.AT_BACKWARD:
            return [use for use in self.order if use[1] <= self.first_of_backward]
        if lost is not Lost.AT_ADAPTERS and len(self.again) < 2:
            return self.order
        return [use for use in self.order if use[1] not in self._adapter_steps]

    def _again(self, schedule: Sequence[Run], used: Mapping[str, tuple[list[Any], list[Any]]]) -> list[range]:
        own = [is_own(run) for run in schedule for _ in used[run.key][0]]
        of_kl = [is_of_kl(run) for run in schedule for _ in used[run.key][0]]
        if True not in own:
            found = [self._alike_from(of_kl.index(not of_kl[0]))] if True in of_kl else []
        else:
            again = self._alike_from(own.index(True))
            found = [range(len(again)), again] if True in of_kl else [again]
        return [again for again in found if again]

    def _alike_from(self, start: int) -> range:
        """The steps from ``start`` on that are those of forward from its beginning on."""
        stop = start
        while stop < self.first_of_backward and self.modules[stop] is self.modules[stop - start]:
            stop += 1
        return range(start, stop)

    def _passed_by_step(self, omitted: Mapping[int, Passed]) -> tuple[list[int], list[int]]:
        numels = [passed_by(module.numel, is_leaf=module.is_leaf) for module in self.modules]
        for step, more in omitted.items():
            if step:
                numels[step - 1] = numels[step - 1][0] + more[0], numels[step - 1][1] + more[1]
        outside, inside = ([numel[is_leaf] for numel in numels] for is_leaf in (False, True))
        return list(accumulate(outside, initial=0)), list(accumulate(inside, initial=0))

    def _module(self, module: WeightUser, layer: int | None) -> GatheredModule:
        key = (id(module), layer)
        known = self.module_by_key.get(key)
        if known is None:
            template = self._templates.get(id(module))
            if template is None:
                template = self._templates[id(module)] = self._template(module)
            gathered, numel, first = template
            weights = [self._weight(one, layer) for one in gathered]
            known = GatheredModule(key, weights, numel, module.is_leaf, module.reads_head, calls_head=module.calls_head)
            known.reads = module.reads
            if first is not None:
                known.waited_first = self._weight(first, layer)
            self.module_by_key[key] = known
        return known

    def _template(self, module: WeightUser) -> tuple[list[Any], int, Any]:
        """The weights of a module that are gathered and released, the same in every layer, the elements of all, and
        ``waited_first``. Weights of adapters are younger than others, which DeepSpeed goes by (``ds_id``)."""
        parameters = list(module.parameters_by_name.values())
        limit = self._persistence_threshold
        coming = parameters if self._gathers_small else [one for one in parameters if one.numel > limit]
        gathered = sorted(coming, key=lambda one: one.requires_grad)
        is_fixed = 0 < len(parameters) <= FIRST_STAYS and parameters[0].numel > limit
        return gathered, sum([one.numel for one in parameters]), parameters[0] if is_fixed else None

    def _weight(self, parameter: Parameter, layer: int | None) -> GatheredWeight:
        key = (id(parameter), parameter.layer_of(layer))
        known = self.weight_by_key.get(key)
        if known is None:
            numel, num_bytes, n = parameter.numel, parameter.numel * parameter.dtype.num_bytes, self._num_ranks
            aligned = -(-num_bytes // n) * n
            known = self.weight_by_key[key] = GatheredWeight(key, numel, num_bytes, aligned, parameter.requires_grad)
            known.number, known.is_small = self._num_large, numel <= self._persistence_threshold
            self._num_large += not known.is_small
        return known


def used_weights(trace: Trace) -> frozenset[Key]:
    """Those of the modules that a micro batch runs, small ones among them."""
    if used_weights not in trace.memo:
        modules = {key: fetched_modules(section.forward) for key, section in trace.sections.items()}
        trace.memo[used_weights] = frozenset(
            (id(weight), weight.layer_of(run.layer))
            for run in trace.schedule
            for module in modules[run.key]
            for weight in module.parameters_by_name.values()
        )
    return trace.memo[used_weights]


def _is_adapter(module: WeightUser) -> bool:
    """Whether it does not run where adapters are off; those around base layers do."""
    is_trained = not module.is_container and all(one.requires_grad for one in module.parameters_by_name.values())
    return module.is_of_adapter or is_trained


def _after_others(events: Iterable[Event]) -> set[int]:
    """Steps between which and the release before them modules without weights run."""
    steps: set[int] = set()
    step, others = 0, 0
    for event in events:
        if isinstance(event, Prefetch):
            others += event.times
        elif isinstance(event, Release):
            others = 0
        elif isinstance(event, Fetch):
            if event.before or others:
                steps.add(step)
            step, others = step + 1, 0
    return steps

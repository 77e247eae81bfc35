"""After a run whose memory ran out: the smallest change of its plan that the planner says would fit.

What a rank measured corrects the plan: every planned peak is raised by actual / planned of the phase that failed, where
that is above 1, and compared with what the allocator could have had there (``Shortage.obtainable_bytes``), so that
contexts, message buffers and other processes are counted as they are. Changes are tried one by one, then one on top of
the other, in the order of ``changes``, those that change the results only where the others do not do; of a combination
only what it needs is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.deepspeed_config import DEFAULT_GRADIENT_CLIPPING, deepspeed_config, settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.estimate import Estimate, Estimator, estimate, estimate_with_sizes
from vlmplan.hardware import Cluster
from vlmplan.launch.changes import CHANGES, Change, Situation
from vlmplan.launch.plan_options import differences, gpu_of, model_of, options_of
from vlmplan.launch.preflight import missing_packages
from vlmplan.memory.device import Verdict
from vlmplan.memory.overhead import RESERVE_FRACTION
from vlmplan.plan import Plan
from vlmplan.request import recipe_fields, requested_cluster, resolved_recipe, workload_of
from vlmplan.shortage import Shortage
from vlmplan.sizes import zero_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Options, and what the command line makes of them. ``ds_config`` is the content of ``--ds-config``, if any."""

    options: Mapping[str, Any] = field(hash=False)
    estimate: Estimate
    ds_config: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def situation(self) -> Situation:
        found = self.estimate
        return Situation(workload=found.workload, recipe=found.recipe, cluster=found.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a shortage teaches about estimates of the same hardware.

    ``ratio`` is actual / planned of tensors, ``fragmented_ratio`` that of what the native allocator held for them;
    1 where the plan asked for as much or more. ``host_ram_bytes`` is what each node has, where that is known.
    """

    ratio: float = 1.0
    fragmented_ratio: float = 1.0
    obtainable_bytes: int | None = None
    host_ram_bytes: int | None = None

    def ratio_for(self, found: Estimate) -> float:
        """By how much the estimate is raised: segments that grow leave no fragments."""
        return self.ratio if found.recipe.expandable_segments else max(self.ratio, self.fragmented_ratio)

    def needed_bytes(self, found: Estimate) -> int:
        """What the allocator would have to hold."""
        return round(found.device.reserved_bytes * self.ratio_for(found))

    def overfills_host(self, found: Estimate) -> bool:
        ram = self.host_ram_bytes
        return found.host_is_short or (ram is not None and found.host.peak_bytes > ram)

    @property
    def limit_bytes(self) -> int | None:
        """What a setup that fits may hold: the usual reserve stays free."""
        return None if self.obtainable_bytes is None else round(self.obtainable_bytes * (1 - RESERVE_FRACTION))

    def fits(self, found: Estimate) -> bool:
        """Whether it fits the card as planned, and as it was measured."""
        if found.verdict is not Verdict.FITS or self.overfills_host(found):
            return False
        return self.limit_bytes is None or self.needed_bytes(found) <= self.limit_bytes


def correction_of(shortage: Shortage, plan: Plan, *, host_ram_bytes: int | None = None) -> Correction:
    """The correction of the plan that ran out."""
    needed, held = shortage.needed_bytes, shortage.reserved_bytes
    ratio = fragmented = 1.0
    if needed is not None and shortage.planned_bytes:
        ratio = max(1.0, needed / shortage.planned_bytes)
    if held is not None and not plan.recipe.expandable_segments:
        fragmented = max(1.0, (held + (shortage.requested_bytes or 0)) / plan.expected.peak_reserved_bytes)
    return Correction(
        ratio=ratio,
        fragmented_ratio=fragmented,
        obtainable_bytes=shortage.obtainable_bytes,
        host_ram_bytes=host_ram_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What was found: ``changed`` options and the setup with them; where nothing fits, the leanest that was tried."""

    setup: Setup
    changed: Mapping[str, Any] = field(hash=False)
    fits: bool
    keeps_results: bool


class Planner:
    """Makes setups of a plan's options with changes, as ``vlmplan launch`` would plan them."""

    def __init__(self, plan: Plan, catalog: Catalog, *, packages: Mapping[str, str | None] | None = None) -> None:
        """``packages`` are installed versions, None: nobody asked; a setup that needs one that is missing is none.

        Raises UnavailableError where model or hardware of the plan cannot be named on a command line here.
        """
        name, self._model = model_of(plan)
        self._catalog, self._plan, self._packages = catalog, plan, packages
        self.options = options_of(plan, model=name, gpu=gpu_of(plan, catalog))
        cluster, _ = requested_cluster(self.options, catalog)
        estimator = Estimator(replace(plan.workload, model=self._model), plan.recipe)
        self._has_own_config = has_own_ds_config(plan, estimator, cluster)
        self._made: dict[tuple[tuple[str, Any], ...], Setup | None] = {}

    def setup(self, options: Mapping[str, Any]) -> Setup | None:
        """The setup of these options; None if it cannot be trained."""
        key = tuple(sorted(options.items(), key=lambda item: item[0]))
        if key not in self._made:
            try:
                self._made[key] = self._setup(options)
            except InputError:
                self._made[key] = None
        return self._made[key]

    def _setup(self, options: Mapping[str, Any]) -> Setup:
        fields = recipe_fields(options)
        cluster, _ = requested_cluster(options, self._catalog)
        workload = workload_of(self._model, options)
        content = None
        if self._has_own_config:
            assert self._plan.ds_config is not None
            changed = self._plan.recipe.with_changes(**fields)
            base = settings_from_ds_config(self._plan.ds_config)
            content = deepspeed_config(changed, num_gpus=cluster.num_gpus, base=base)
        ds_config = None if content is None else settings_from_ds_config(content)
        recipe, _ = resolved_recipe(
            fields, cluster, self._model, global_batch=workload.global_batch, ds_config=ds_config
        )
        run = estimate_with_sizes if ds_config is None else estimate
        found = run(workload, recipe, cluster)
        missing = [] if self._packages is None else missing_packages(found, self._packages)
        if missing:
            raise InputError(f"{missing[0]} is not installed")
        return Setup(options=options, estimate=found, ds_config=content)


def has_own_ds_config(plan: Plan, estimator: Estimator, cluster: Cluster) -> bool:
    """Whether the plan's ds_config says what the planner's own would not: it is the user's."""
    recipe = plan.recipe
    if plan.ds_config is None:
        return False
    own = (zero_settings(estimator.sizes, estimator.table, recipe, cluster, is_lean=lean) for lean in (False, True))
    is_own = recipe.zero in own and recipe.gradient_clipping == DEFAULT_GRADIENT_CLIPPING
    return not is_own or dict(plan.ds_config) != deepspeed_config(recipe, num_gpus=cluster.num_gpus)


def smallest_remedy(
    planner: Planner,
    correction: Correction,
    *,
    changes: Sequence[Change] = CHANGES,
) -> Remedy:
    """The first change that fits, else the first changes on top of each other, without those that need not be.

    Both are tried first with changes that keep the results. Raises InputError if the plan cannot be planned again.
    """
    search = _Search(planner, correction)
    keeping = [change for change in changes if change.keeps_results]
    others = [change for change in changes if not change.keeps_results]
    remedy = search.single(keeping) or search.combined(keeping)
    return remedy if remedy.fits else search.single(others) or search.combined(changes)


Chosen = list[tuple[Change, int]]


class _Search:
    """Setups that come from the plan's own by changes: which (kind, level), in which order."""

    def __init__(self, planner: Planner, correction: Correction) -> None:
        self._planner, self._correction = planner, correction
        start = planner.setup(planner.options)
        if start is None:
            raise InputError("the plan that ran cannot be planned again from its options")
        self.start = start

    def after(self, chosen: Chosen) -> Setup | None:
        """The setup with all these changes, in their order; None if they do not go together."""
        setup: Setup | None = self.start
        for change, level in chosen:
            if setup is None:
                return None
            levels = change.levels(setup.situation)
            if level >= len(levels):
                return None
            setup = self._planner.setup({**setup.options, **levels[level]})
        return setup

    def fits(self, chosen: Chosen) -> bool:
        setup = self.after(chosen)
        return setup is not None and self._correction.fits(setup.estimate)

    def single(self, changes: Sequence[Change]) -> Remedy | None:
        """The first change that fits."""
        for change in changes:
            for level in range(len(change.levels(self.start.situation))):
                if self.fits([(change, level)]):
                    return self.remedy([(change, level)])
        return None

    def combined(self, changes: Sequence[Change]) -> Remedy:
        """Each change as far as it goes on top of those before it, where it saves anything, until it fits."""
        chosen: Chosen = []
        for change in changes:
            setup = self.after(chosen)
            assert setup is not None
            for level in reversed(range(len(change.levels(setup.situation)))):
                more = self.after([*chosen, (change, level)])
                if more is not None and self._saves(more, setup):
                    chosen.append((change, level))
                    break
            if self.fits(chosen):
                return self.remedy(self._needed(chosen))
        return self.remedy(chosen)

    def _saves(self, more: Setup, less: Setup) -> bool:
        """Whether a change takes less of the GPU and does not overfill the host."""
        needed = self._correction.needed_bytes
        return needed(more.estimate) < needed(less.estimate) and not self._correction.overfills_host(more.estimate)

    def _needed(self, chosen: Chosen) -> Chosen:
        """Of changes that fit those that have to be, the last left out first, and each as small as it may be."""
        for entry in reversed(chosen):
            without = [other for other in chosen if other != entry]
            if self.fits(without):
                chosen = without
        for place, (change, most) in enumerate(chosen):
            smaller = ([*chosen[:place], (change, level), *chosen[place + 1 :]] for level in range(most))
            chosen = next((option for option in smaller if self.fits(option)), chosen)
        return chosen

    def remedy(self, chosen: Chosen) -> Remedy:
        setup = self.after(chosen)
        assert setup is not None
        return Remedy(
            setup=setup,
            changed=differences(setup.options, self.start.options),
            fits=self._correction.fits(setup.estimate),
            keeps_results=all(change.keeps_results for change, _ in chosen),
        )

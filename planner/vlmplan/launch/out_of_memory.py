"""After a run whose memory ran out: the smallest change of its plan that the planner says would fit.

What a rank measured corrects the plan: every planned peak is raised by actual / planned of the phase that failed, where
that is above 1, and compared with what the allocator could have had there (``Shortage.obtainable_bytes``), so that
contexts, message buffers and other processes are counted as they are. Which changes are least is for ``changes.least``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.changes.kinds import all_changes
from vlmplan.changes.least import leanest_combination, least_combination
from vlmplan.changes.trials import Trials
from vlmplan.deepspeed_config import deepspeed_config, settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster
from vlmplan.launch.plan_options import gpu_of, model_of, request_of
from vlmplan.launch.preflight import missing_packages
from vlmplan.memory.device import Verdict
from vlmplan.memory.overhead import RESERVE_FRACTION
from vlmplan.plan import Plan
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request import Options, Request, requested_cluster
from vlmplan.request.setup import RequestedSetup, requested_setup
from vlmplan.run.shortage import Shortage
from vlmplan.sizes import zero_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedRequest:
    """A request, and what the command line makes of it. ``ds_config`` is the content of ``--ds-config``, if any."""

    request: Request
    estimate: Estimate
    ds_config: Mapping[str, Any] | None = field(default=None, hash=False)


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
        """The factor by which the estimate is raised: segments that grow leave no fragments."""
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
    return correction_by(
        shortage,
        expands_segments=plan.recipe.expandable_segments,
        planned_reserved_bytes=plan.expected.peak_reserved_bytes,
        host_ram_bytes=host_ram_bytes,
    )


def correction_by(
    shortage: Shortage, *, expands_segments: bool, planned_reserved_bytes: int, host_ram_bytes: int | None = None
) -> Correction:
    """The correction of a setup that is planned to reserve so much, with segments that grow or not."""
    needed, held = shortage.needed_bytes, shortage.reserved_bytes
    ratio = fragmented = 1.0
    if needed is not None and shortage.planned_bytes:
        ratio = max(1.0, needed / shortage.planned_bytes)
    if held is not None and not expands_segments:
        fragmented = max(1.0, (held + (shortage.requested_bytes or 0)) / planned_reserved_bytes)
    return Correction(
        ratio=ratio,
        fragmented_ratio=fragmented,
        obtainable_bytes=shortage.obtainable_bytes,
        host_ram_bytes=host_ram_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What was found: ``changed`` options and the setup with them; where nothing fits, the leanest that was tried."""

    setup: EstimatedRequest
    changed: Options = field(hash=False)
    fits: bool
    keeps_results: bool


class Planner:
    """Makes setups of a plan's request with changes, as ``vlmplan launch`` would plan them."""

    def __init__(self, plan: Plan, catalog: Catalog, *, packages: Mapping[str, str | None] | None = None) -> None:
        """``packages`` are the installed versions, None: not checked; setups that need a missing one are left out.

        Raises UnavailableError where model or hardware of the plan cannot be named on a command line here.
        """
        name, self._model = model_of(plan)
        self._catalog, self._plan, self._packages = catalog, plan, packages
        self.request = request_of(plan, model=name, gpu=gpu_of(plan, catalog))
        cluster, _ = requested_cluster(self.request.hardware, catalog)
        estimator = Estimator(replace(plan.workload, model=self._model), plan.recipe)
        self._has_own_config = has_own_ds_config(plan, estimator, cluster)
        self._plain = self.trials()

    def trials(self, accepts: Callable[[Estimate], bool] | None = None) -> Trials:
        """What is known of requests; those fit whose estimate is accepted as well."""
        return Trials(self._catalog, self._model, accepts=accepts, own_setup=self._requested)

    def setup(self, request: Request) -> EstimatedRequest | None:
        """The setup of this request; None if it cannot be trained."""
        if not self._plain.is_possible(request):
            return None
        cluster = self._plain.known_setup(request).cluster
        content = self._ds_config(request, cluster)
        return EstimatedRequest(request=request, estimate=self._plain.estimate(request), ds_config=content)

    def _ds_config(self, request: Request, cluster: Cluster) -> JsonDict | None:
        """The plan's own file, changed as the request says; None where the planner writes one by itself."""
        if not self._has_own_config:
            return None
        assert self._plan.ds_config is not None
        changed = request.recipe.applied_to(self._plan.recipe)
        base = settings_from_ds_config(self._plan.ds_config)
        return deepspeed_config(changed, num_gpus=cluster.num_gpus, base=base)

    def _requested(self, request: Request, cluster: Cluster) -> RequestedSetup:
        content = self._ds_config(request, cluster)
        ds_config = None if content is None else settings_from_ds_config(content)
        found = requested_setup(replace(request, ds_config=ds_config), (cluster, ()), self._model)
        missing = [] if self._packages is None else missing_packages(found, self._packages)
        if missing:
            raise InputError(f"{missing[0]} is not installed")
        return found


def has_own_ds_config(plan: Plan, estimator: Estimator, cluster: Cluster) -> bool:
    """Whether the plan's ds_config says what the planner's own would not: it is the user's."""
    recipe = plan.recipe
    if plan.ds_config is None:
        return False
    by_default = DecidedRecipe(optimizer=recipe.optimizer).recipe().gradient_clipping
    own = (zero_settings(estimator.sizes, estimator.table, recipe, cluster, low_memory=lean) for lean in (False, True))
    is_own = recipe.zero in own and recipe.gradient_clipping == by_default
    return not is_own or dict(plan.ds_config) != deepspeed_config(recipe, num_gpus=cluster.num_gpus)


def smallest_remedy(planner: Planner, correction: Correction) -> Remedy:
    """The least changes that fit, by ``changes.least``; where none do, everything that can be changed.

    Raises InputError if the plan cannot be planned again.
    """
    ran = planner.setup(planner.request)
    if ran is None:
        raise InputError("the plan that ran cannot be planned again from its options")
    held = ran.estimate.device.reserved_bytes

    def accepts(found: Estimate) -> bool:
        """Whatever was measured, less is needed than by what ran out."""
        return found.device.reserved_bytes < held and correction.fits(found)

    trials = planner.trials(accepts)
    space = all_changes(trials.known_setup(planner.request)._replace(ds_config=None))
    found = least_combination(space, planner.request, trials)
    combination = found or leanest_combination(space, planner.request, trials)
    setup = planner.setup(combination.request)
    assert setup is not None
    return Remedy(
        setup=setup,
        changed=combination.changed,
        fits=found is not None,
        keeps_results=combination.keeps_results,
    )

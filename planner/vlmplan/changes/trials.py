"""Setups of requests, each computed once and only as far as a question needs: ``least`` asks for many.

The answers are those of ``estimate`` of the same request; a test holds them to it.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass

from vlmplan.catalog import Catalog
from vlmplan.engines import engine_of
from vlmplan.engines.bounds import peak_bound
from vlmplan.engines.profile import MicroBatchProfile, micro_batch_profile
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator, has_upper_bound, sized_estimate, sized_recipes, with_other_models
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict, budget_bytes, fitting_bytes
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.evaluation import with_evaluation
from vlmplan.memory.overhead import process_group
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.request import HardwareRequest, Request, requested_cluster
from vlmplan.request.setup import RequestedSetup, requested_setup
from vlmplan.timing import timed_step
from vlmplan.units import SECONDS_PER_HOUR
from vlmplan.workload import ModelFiles


@dataclass(slots=True)
class _Trial:
    """A setup with what is known of it so far. ``sized``: with the sizes of which the answers are."""

    setup: RequestedSetup
    estimator: Estimator
    sized: Recipe | None = None
    fits: bool | None = None
    estimate: Estimate | None = None


class Trials:
    """What ``vlmplan estimate`` says of requests for one model."""

    def __init__(
        self,
        catalog: Catalog,
        model: ModelFiles,
        *,
        accepts: Callable[[Estimate], bool] | None = None,
        least_host_bytes: int = 0,
        own_setup: Callable[[Request, Cluster], RequestedSetup] | None = None,
        corrected: Callable[[Estimate], Estimate] | None = None,
    ) -> None:
        """``accepts``: what else an estimate has to be beside fitting. ``least_host_bytes``: the least memory that a
        host of unknown size is assumed to have. ``own_setup`` makes setups otherwise than ``estimate`` does, and raises
        InputError for what is none. ``corrected``: an estimate with what samples of different lengths take."""
        self._catalog, self._model, self._accepts = catalog, model, accepts
        self._corrected = corrected
        self._least_host_bytes, self._own_setup = least_host_bytes, own_setup
        self._machines: dict[HardwareRequest, tuple[Cluster, Sequence[str]]] = {}
        self._setups: dict[Request, RequestedSetup | None] = {}
        self._estimators: dict[Hashable, Estimator] = {}
        self._trials: dict[Hashable, _Trial] = {}
        self._profiles: dict[int, MicroBatchProfile] = {}

    def unheld(self) -> "Trials":
        """The same where no host of unknown size is held to anything: of models that are traced already."""
        trials = copy(self)
        trials._least_host_bytes, trials._trials = 0, {}
        return trials

    def setup(self, request: Request) -> RequestedSetup | None:
        """What the request means; None if it cannot be trained."""
        if request not in self._setups:
            try:
                self._setups[request] = self._setup(request)
            except InputError:
                self._setups[request] = None
        return self._setups[request]

    def _setup(self, request: Request) -> RequestedSetup:
        machine = self.machine(request.hardware)
        if self._own_setup is not None:
            return self._own_setup(request, machine[0])
        return requested_setup(request, machine, self._model)

    def machine(self, hardware: HardwareRequest) -> tuple[Cluster, Sequence[str]]:
        """The cluster that is asked for, and notes on it."""
        if hardware not in self._machines:
            self._machines[hardware] = requested_cluster(hardware, self._catalog)
        return self._machines[hardware]

    def known_setup(self, request: Request) -> RequestedSetup:
        """What the request means; raises InputError for what cannot be trained."""
        setup = self.setup(request)
        return self._setup(request) if setup is None else setup

    # -- answers ---------------------------------------------------------------------------------------------------

    def is_possible(self, request: Request) -> bool:
        return self.setup(request) is not None

    def are_same(self, request: Request, other: Request) -> bool:
        setup, another = self.setup(request), self.setup(other)
        if setup is None or another is None:
            return False
        return (setup.workload, setup.recipe, setup.cluster) == (another.workload, another.recipe, another.cluster)

    def fits(self, request: Request) -> bool:
        """Whether it fits, leaving the reserve free, and the host can hold what is offloaded."""
        if self.setup(request) is None:
            return False
        trial = self._trial(request)
        if trial.fits is None:
            trial.fits = self._fits(trial)
        return trial.fits

    def seconds(self, request: Request) -> float | None:
        """Seconds of one sample, in micro batches that fit or not; None if a speed is not known."""
        trial = self._trial(request)
        setup, estimator = trial.setup, trial.estimator
        recipe, cluster = trial.sized or self._sized(trial)[-1], setup.cluster
        trace = estimator.trace(recipe, cluster.node.gpu.kernel_capability)
        timed = timed_step(estimator.table, trace, recipe, cluster, setup.workload)
        if timed is None:
            return None
        return timed.expected.total / recipe.samples_per_step(cluster.num_gpus)

    def run_hours(self, request: Request) -> float | None:
        """Hours of the whole training with its evaluations; None if a speed is not known."""
        seconds, trial = self.seconds(request), self._trial(request)
        if seconds is None:
            return None
        workload, cluster = trial.setup.workload, trial.setup.cluster
        recipe = trial.sized or self._sized(trial)[-1]
        evaluating = 0.0
        time = trial.estimator.evaluation_time(recipe, cluster)
        if recipe.evaluation is not None and time is not None:
            num_steps = workload.num_steps(recipe.samples_per_step(cluster.num_gpus))
            evaluating = time.seconds * recipe.evaluation.num_in(num_steps, workload.epochs)
        return (workload.total_samples * seconds + evaluating) / SECONDS_PER_HOUR

    def disk(self, request: Request) -> DiskSpace:
        trial = self._trial(request)
        return trial.estimator.disk(trial.setup.recipe)

    def estimate(self, request: Request) -> Estimate:
        """The whole estimate. Raises InputError for what cannot be trained."""
        trial = self._trial(request)
        if trial.estimate is None:
            setup, estimator = trial.setup, trial.estimator
            if setup.ds_config is None:
                found = sized_estimate(estimator, setup.recipe, setup.cluster)
            else:
                found = estimator.estimate(setup.recipe, setup.cluster)
            trial.estimate = found if self._corrected is None else self._corrected(found)
        return trial.estimate

    def _trial(self, request: Request) -> _Trial:
        setup = self.known_setup(request)
        key = (setup.workload, setup.recipe, setup.cluster)
        if key not in self._trials:
            self._trials[key] = _Trial(setup, self._estimator(setup))
        return self._trials[key]

    def _estimator(self, setup: RequestedSetup) -> Estimator:
        key = (setup.workload, setup.recipe.model_key)
        if key not in self._estimators:
            self._estimators[key] = Estimator(setup.workload, setup.recipe)
        return self._estimators[key]

    def _sized(self, trial: _Trial) -> list[Recipe]:
        setup = trial.setup
        return [setup.recipe] if setup.ds_config is not None else self._sizes(trial)

    def _sizes(self, trial: _Trial) -> list[Recipe]:
        return sized_recipes(trial.estimator, trial.setup.recipe, trial.setup.cluster)

    def _fits(self, trial: _Trial) -> bool:
        recipe, cluster, estimator = trial.setup.recipe, trial.setup.cluster, trial.estimator
        is_on_cpu = cluster.node.gpu.is_cpu
        if not is_on_cpu and self._overfills_host(trial):
            return False
        for sized in self._sized(trial):
            if not is_on_cpu:
                least, most = self._bounds(estimator, sized, cluster)
                budget = budget_bytes(cluster, process_group(recipe, cluster.num_gpus))
                if least > budget:
                    continue
                is_held = recipe.expandable_segments and has_upper_bound(recipe)
                if most <= budget and is_held and self._accepts is None:
                    trial.sized = sized
                    return True
            timeline = estimator.timeline(sized, cluster)
            if not estimator.shows_at_most(fitting_bytes(cluster), sized, cluster, timeline):
                continue
            found = estimator.estimate(sized, cluster, timeline)
            if found.verdict is Verdict.FITS:  # so that these are the sizes
                whole = found if self._corrected is None else self._corrected(found)
                trial.sized, trial.estimate = sized, whole
                return whole.verdict is Verdict.FITS and (self._accepts is None or self._accepts(whole))
        return False

    def _bounds(self, estimator: Estimator, recipe: Recipe, cluster: Cluster) -> tuple[int, int]:
        """Bytes of tensors on a GPU, at the least and at the most; the first alone where that is beyond the budget.

        At the least: states, and of the micro batch what neither gathered weights nor gradients are.
        """
        room = estimator.room_bytes(recipe, cluster)
        engine = engine_of(estimator.table, recipe, num_ranks=cluster.num_gpus, room_bytes=room)
        states = with_other_models(engine.states(), estimator.table, recipe, cluster.num_gpus)
        least = max(states.resident.total + states.beside.total, states.step_peak.total)
        budget = budget_bytes(cluster, process_group(recipe, cluster.num_gpus))
        if least > budget:
            return least, least
        profile = self._profile(estimator, recipe, cluster)
        least = max(least, states.resident.total + max(profile.forward_peak, profile.dropped_peak))
        if least > budget:
            return least, least
        bounds = least, peak_bound(engine, states, profile, accumulates=recipe.grad_accum > 1)
        gpu = cluster.node.gpu
        evaluated = estimator.evaluated(
            recipe, num_ranks=cluster.num_gpus, capability=gpu.kernel_capability, is_on_cpu=gpu.is_cpu
        )
        return with_evaluation(bounds, engine, states, evaluated)

    def _profile(self, estimator: Estimator, recipe: Recipe, cluster: Cluster) -> MicroBatchProfile:
        trace = estimator.trace(recipe, cluster.node.gpu.kernel_capability)
        if id(trace) not in self._profiles:
            self._profiles[id(trace)] = micro_batch_profile(trace)  # estimators keep their traces
        return self._profiles[id(trace)]

    def _overfills_host(self, trial: _Trial) -> bool:
        """Whether the host is known to be too small, or what moves there takes more than it is taken to have."""
        recipe, cluster = trial.setup.recipe, trial.setup.cluster
        host, ram = trial.estimator.host(recipe, cluster), cluster.node.host_ram_bytes
        needed = host.peak_bytes
        if ram is not None:
            return needed > ram
        offloads = Offload.CPU in (recipe.offload_optimizer, recipe.offload_params) or host.evaluation_bytes > 0
        return offloads and self._least_host_bytes > 0 and needed > self._least_host_bytes

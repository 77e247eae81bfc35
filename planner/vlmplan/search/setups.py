"""The setups of one workload: which recipes are tried on a cluster, and the micro batches of each that fit.

A setup is scored with bounds and secants between two micro batches, so that thousands take a fraction of a second;
``SetupSpace.estimate`` computes one exactly.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from vlmplan.communication import Messages, traffic
from vlmplan.estimate import Estimate, Estimator, sized_estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.bounds import peak_bound, peak_floor
from vlmplan.memory.device import budget_bytes
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.engines import ModelStates
from vlmplan.memory.overhead import RESERVE_FRACTION, workspace_bytes
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Method, Offload, Recipe, ZeroSettings
from vlmplan.search.choices import Engine, RecipeChoices
from vlmplan.search.combined_traces import Switches
from vlmplan.search.micro_batches import Capability, MicroBatches, States, TracedBatches
from vlmplan.sizes import zero_settings
from vlmplan.timing import BesidesComputing, PhaseSeconds, besides_computing, micro_batch_seconds
from vlmplan.units import divisors, gib_text
from vlmplan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A resolved recipe on a cluster, with the bytes that tensors take on one GPU at the most and at the least.

    ``fits``: it does by its bound. Otherwise it may, and the timeline has to say.
    """

    recipe: Recipe
    most_bytes: int
    least_bytes: int
    fits: bool = True


class Bounds(NamedTuple):
    """Bytes that tensors take on one GPU."""

    least: int
    most: int


BatchSize = tuple[int, int]
"""(micro batch, accumulation)."""


class Way(NamedTuple):
    """A recipe without sizes and batch, the engine that it belongs to, and seconds of a run that it cannot undercut."""

    least_seconds: float
    recipe: Recipe
    engine: Engine


@dataclass(frozen=True, slots=True)
class Prepared:
    """Models as prepared and traced: what searches share that differ in hardware, method, engine or checkpointing.

    They may differ in nothing else: neither in the workload, nor in what is fixed of adapters, loss and batch sizes.
    """

    estimators: dict[Any, tuple[Estimator, States]] = field(default_factory=dict[Any, tuple[Estimator, States]])
    traced: dict[Any, TracedBatches] = field(default_factory=dict[Any, TracedBatches])
    batches: dict[Any, MicroBatches] = field(default_factory=dict[Any, MicroBatches])


class _OfRecipes:
    """What was made for a recipe, by the object: its fields are many to compare. The object is kept beside."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Callable[..., Any], Any], tuple[Recipe, Any]] = {}

    def get(self, recipe: Recipe, make: Callable[..., Any], *given: Any) -> Any:
        """``make(recipe, *given)``, made once."""
        key = (id(recipe), make, given)
        if key not in self._made:
            self._made[key] = recipe, make(recipe, *given)
        return self._made[key][1]


class SetupSpace:
    """All setups of a workload; ``fixed`` recipe fields are the user's, the rest is tried."""

    def __init__(
        self, workload: Workload, fixed: dict[str, Any], global_batch: int, *, prepared: Prepared | None = None
    ) -> None:
        self.workload, self.fixed, self.global_batch = workload, fixed, global_batch
        self._has_other_layers = workload.images_per_sample > 0
        self.choices = RecipeChoices(workload, fixed, has_other_layers=self._has_other_layers)
        self.num_considered = 0
        prepared = prepared or Prepared()
        self._estimators, self._traced, self._batches = prepared.estimators, prepared.traced, prepared.batches
        self._sizes: dict[Any, ZeroSettings] = {}
        self._of = _OfRecipes()
        self._timelines: dict[Any, tuple[Recipe, Timeline]] = {}  # recipes and clusters stay, as keys go by the object
        self._besides: dict[Any, tuple[Cluster, BesidesComputing | None]] = {}
        self._disks: dict[Any, DiskSpace] = {}
        self._others: dict[Method, SetupSpace] = {}

    # -- recipes -------------------------------------------------------------------------------------------------

    def recipes(self, cluster: Cluster, method: Method) -> Iterator[Recipe]:
        """Every recipe of one method with sizes and without a batch."""
        for engine in self.choices.engines(cluster, method):
            yield from self._sized_ways(engine, cluster)

    def _sized_ways(self, engine: Engine, cluster: Cluster) -> list[Recipe]:
        """An engine's recipes with sizes for speed, then with those of the low-memory profile."""
        profiles = (False, True) if self._has_profiles(engine[0]) else (False,)
        ways = [self._sized(recipe, cluster, is_lean=is_lean) for is_lean in profiles for recipe in engine]
        return list({id(recipe): recipe for recipe in ways}.values())

    def _has_profiles(self, recipe: Recipe) -> bool:
        """Whether its sizes can be chosen."""
        return recipe.uses_deepspeed and "zero" not in self.fixed

    def _sized(self, recipe: Recipe, cluster: Cluster, *, is_lean: bool) -> Recipe:
        if not self._has_profiles(recipe):
            return recipe
        estimator, _ = self._estimator(recipe)
        key = (id(estimator), recipe.zero_stage, is_lean, id(cluster))
        if key not in self._sizes:
            self._sizes[key] = zero_settings(estimator.sizes, estimator.table, recipe, cluster, is_lean=is_lean)
        return self._of.get(recipe, _with_sizes, self._sizes[key])

    def _batched(self, recipe: Recipe, size: BatchSize) -> Recipe:
        return self._of.get(recipe, _with_batch, *size)

    # -- fitting -------------------------------------------------------------------------------------------------

    def ways(self, cluster: Cluster, method: Method) -> list[Way]:
        """Every recipe of the method whose floor fits, with a floor of its seconds, the fastest first.

        The floor takes the largest micro batch whose own tensors fit beside the model states, and sends nothing. Where
        a speed is not known it is 0, and the simplest recipe comes first.
        """
        budget = budget_bytes(cluster)
        found: list[Way] = []
        for engine in self.choices.engines(cluster, method):
            states = self._states(self._sized(engine[0], cluster, is_lean=True), cluster.num_gpus)
            copies = states.copies.total
            if copies + max(states.step_peak.total, states.init_peak.total) <= budget:
                found += self._ways(engine, cluster, budget - copies - states.resident.total)
        found.sort(key=itemgetter(0))
        return found

    def _ways(self, engine: Engine, cluster: Cluster, room: int) -> Iterator[Way]:
        """Those of one engine, whose micro batch may take ``room`` bytes."""
        gpu, sizes = cluster.node.gpu, self.batch_sizes(cluster.num_gpus)
        rest = self._besides_computing(engine[0], cluster, sizes[-1], sends=False)
        num_steps = self._num_steps(cluster, sizes[-1])
        places = range(len(sizes) - 1, -1, -1)
        sized = self._sized(engine[0], cluster, is_lean=False)
        for recipe in engine:
            self.num_considered += 1
            batches = self._micro_batches(recipe, gpu.compute_capability)
            place = next((at for at in places if batches.floor_bytes(sizes[at][0]) <= room), None)
            if place is None:
                continue
            micro_batch, grad_accum = sizes[place]
            phases = None if rest is None else batches.seconds(micro_batch, gpu, sized)
            if rest is None or phases is None:
                yield Way(0.0, recipe, engine)
            else:
                yield Way(num_steps * (grad_accum * sum(phases) + rest.rest_seconds), recipe, engine)

    def fastest(self, ways: Iterable[Way], cluster: Cluster, limit: Callable[[Way], float]) -> Iterator[Setup]:
        """Setups of ``ways`` that fit by their bounds, each faster than ``limit`` says for its way just then; and those
        that may fit.

        A larger micro batch is never slower, so each recipe is looked at with the largest that fits, and with the
        low-memory sizes only beyond that.
        """
        for way in ways:
            below = limit(way)
            if way.least_seconds < below:
                yield from self._largest(way.recipe, cluster, below)

    def fitting(self, cluster: Cluster) -> list[Setup]:
        """Of every recipe the setups that fit by their bounds, or may, whatever they take."""
        ways = (way for method in self.choices.methods for way in self.ways(cluster, method))
        return list(self.fastest(ways, cluster, lambda _: inf))

    def _largest(self, recipe: Recipe, cluster: Cluster, below: float) -> Iterator[Setup]:
        """The largest micro batch that fits, and larger ones that may; then those of the low-memory sizes, where they
        let a still larger one fit."""
        sizes = self.batch_sizes(cluster.num_gpus)
        place = -1
        for is_lean in (False, True) if self._has_profiles(recipe) else (False,):
            sized = self._sized(recipe, cluster, is_lean=is_lean)
            largest = self._largest_fitting(sized, cluster, sizes)
            if largest > place:
                place = largest
                seconds = self._seconds(sized, cluster, sizes[place])
                if seconds is None or seconds < below:
                    yield self._setup(sized, cluster, sizes[place], fits=True)
            yield from self._unsure(sized, cluster, sizes[place + 1 :], below)
            if place == len(sizes) - 1:
                return

    def _unsure(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[BatchSize], below: float) -> Iterator[Setup]:
        """Setups that do not fit by their bound, and may, the smallest micro batch first."""
        budget = budget_bytes(cluster)
        for size in sizes:
            if self.bounds(recipe, cluster, size).least > budget:
                return
            seconds = self._seconds(recipe, cluster, size)
            if seconds is not None and seconds < below:
                yield self._setup(recipe, cluster, size, fits=False)

    def _setup(self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, fits: bool) -> Setup:
        bounds = self.bounds(recipe, cluster, size)
        batched = self._batched(recipe, size)
        return Setup(recipe=batched, most_bytes=bounds.most, least_bytes=bounds.least, fits=fits)

    def _largest_fitting(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[BatchSize]) -> int:
        """The place of the largest micro batch that fits by its bound, found by bisection: its peak grows with the
        batch. -1 if none does."""
        budget = budget_bytes(cluster)
        if self._states(recipe, cluster.num_gpus).resident.total > budget:
            self.num_considered += 1
            return -1  # whatever a micro batch takes
        low, high = 0, len(sizes) - 1
        middle = high
        while low <= high:
            if self.bounds(recipe, cluster, sizes[middle]).most <= budget:
                low = middle + 1
            else:
                high = middle - 1
            middle = (low + high) // 2
        return high

    def smallest(self, cluster: Cluster, method: Method) -> list[Setup]:
        """What of ``lightest`` may fit; with sizes for speed where they may, since those are taken then."""
        found: list[Setup] = []
        for engine, size in self._ends(cluster, method):
            for recipe in _heaviest(engine):
                for is_lean in (False, True) if self._has_profiles(recipe) else (False,):
                    setup = self._attempt(recipe, cluster, size, is_lean=is_lean)
                    if setup.least_bytes <= budget_bytes(cluster):
                        found.append(setup)
                    if setup.fits:
                        break
        return found

    def lightest(self, cluster: Cluster, method: Method) -> list[Setup]:
        """Of every engine the setups that take least memory: all activations checkpointed, the low-memory sizes, and
        the smallest micro batch or the whole batch at once, which keeps no gradients of earlier micro batches."""
        return [
            self._attempt(recipe, cluster, size, is_lean=True)
            for engine, size in self._ends(cluster, method)
            for recipe in _heaviest(engine)
        ]

    def _ends(self, cluster: Cluster, method: Method) -> Iterator[tuple[Engine, BatchSize]]:
        sizes = self.batch_sizes(cluster.num_gpus)
        yield from product(self.choices.engines(cluster, method), dict.fromkeys((sizes[0], sizes[-1])))

    def _attempt(self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, is_lean: bool) -> Setup:
        sized = self._sized(recipe, cluster, is_lean=is_lean)
        return self._setup(sized, cluster, size, fits=self.bounds(sized, cluster, size).most <= budget_bytes(cluster))

    def fitting_lightest(self, cluster: Cluster, method: Method) -> Setup | None:
        """One of ``lightest`` that fits by its timeline. If there is none, nothing of the method does."""
        budget = budget_bytes(cluster)
        attempts = [setup for setup in self.lightest(cluster, method) if setup.least_bytes <= budget]
        for setup in sorted(attempts, key=lambda setup: setup.most_bytes):
            if self.needed_bytes(setup, cluster) <= budget:
                return replace(setup, fits=True)
        return None

    def needed_bytes(self, setup: Setup, cluster: Cluster) -> int:
        """What its tensors take: the highest moment of its timeline, or a floor of that which does not fit already."""
        if setup.least_bytes > budget_bytes(cluster):
            return setup.least_bytes
        return self._timeline(setup.recipe, cluster).peak.total - workspace_bytes(cluster.node.gpu)

    def smaller(self, setup: Setup, cluster: Cluster) -> Setup | None:
        """The setup with the next smaller micro batch; None where there is none."""
        sizes = self.batch_sizes(cluster.num_gpus)
        place = sizes.index((setup.recipe.micro_batch, setup.recipe.grad_accum))
        if place == 0:
            return None
        return self._setup(setup.recipe, cluster, sizes[place - 1], fits=setup.fits)

    def batch_sizes(self, num_gpus: int) -> list[BatchSize]:
        """(micro batch, accumulation), smallest micro batch first, that hold the global batch.

        Exactly where it divides by the GPUs; else with the least samples above it.
        """
        if "micro_batch" in self.fixed:
            micro_batch = self.fixed["micro_batch"]
            return [(micro_batch, self.fixed.get("grad_accum") or -(-self.global_batch // (micro_batch * num_gpus)))]
        per_gpu = -(-self.global_batch // num_gpus)
        if "grad_accum" in self.fixed:
            return [(-(-per_gpu // self.fixed["grad_accum"]), self.fixed["grad_accum"])]
        return [(size, per_gpu // size) for size in divisors(per_gpu)]

    # -- prepared models -----------------------------------------------------------------------------------------

    def _estimator(self, recipe: Recipe) -> tuple[Estimator, States]:
        return self._of.get(recipe, self._new_estimator)

    def _new_estimator(self, recipe: Recipe) -> tuple[Estimator, States]:
        key = (recipe.method, recipe.trained_dtype, recipe.autocast, recipe.precision)
        if key not in self._estimators:
            known = next((other.widest_head for other, _ in self._estimators.values()), None)
            estimator = Estimator(self.workload, recipe, widest_head=known)
            self._estimators[key] = (estimator, States(estimator))
        return self._estimators[key]

    def _micro_batches(self, recipe: Recipe, capability: Capability) -> MicroBatches:
        """What micro batches of the recipe take at most."""
        return self._of.get(recipe, self._new_micro_batches, capability)

    def _new_micro_batches(self, recipe: Recipe, capability: Capability) -> MicroBatches:
        estimator, _ = self._estimator(recipe)
        backend = estimator.backend(recipe, capability)
        tried = self.choices.switches
        ends = tried[0], tried[-1]
        key = (id(estimator), backend, ends, recipe.keeps_linear_inputs, recipe.zero_stage == 3)
        if key not in self._traced:
            largest = self.batch_sizes(1)[-1][0]
            self._traced[key] = TracedBatches(estimator, recipe, capability, largest, ends)
        switches = Switches.of(recipe, has_others=self._has_other_layers)
        if (key, switches) not in self._batches:
            self._batches[key, switches] = MicroBatches(self._traced[key], switches)
        return self._batches[key, switches]

    def _states(self, recipe: Recipe, num_ranks: int) -> ModelStates:
        """What a GPU holds throughout the step."""
        return self._of.get(recipe, self._estimator(recipe)[1].states, num_ranks)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def bounds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> Bounds:
        """What tensors take on a GPU of the cluster for the recipe with another micro batch."""
        self.num_considered += 1
        gpu = cluster.node.gpu
        kind = (cluster.num_gpus, gpu.compute_capability, workspace_bytes(gpu))
        return self._of.get(recipe, self._new_bounds, kind, size[0], size[1] > 1)

    def _new_bounds(
        self, recipe: Recipe, kind: tuple[int, Capability, int], micro_batch: int, accumulates: bool
    ) -> Bounds:
        num_ranks, capability, workspaces = kind
        estimator, states = self._estimator(recipe)
        own = self._states(recipe, num_ranks)
        profile, above_bytes, below_bytes = self._micro_batches(recipe, capability).profile(micro_batch)
        most = peak_bound(
            estimator.table,
            recipe,
            own,
            profile,
            num_ranks=num_ranks,
            owned_bytes=states.owned_bytes(num_ranks) if recipe.zero_stage in (1, 2) else 0,
            accumulates=accumulates,
        )
        return Bounds(least=peak_floor(own, profile, workspaces) - below_bytes, most=most + above_bytes)

    def _timeline(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """That of the setup, on any cluster of as many GPUs that meet the same kernels."""
        gpu = cluster.node.gpu
        estimator, _ = self._estimator(recipe)
        backend = estimator.backend(recipe, gpu.compute_capability)
        key = (id(recipe), cluster.num_gpus, backend, gpu.vendor, workspace_bytes(gpu))
        if key not in self._timelines:
            self._timelines[key] = recipe, estimator.timeline(recipe, cluster)
        return self._timelines[key][1]

    def host_bytes(self, setup: Setup, cluster: Cluster) -> int:
        """Host memory that each node needs."""
        _, states = self._estimator(setup.recipe)
        return states.host_bytes(setup.recipe, cluster)

    def disk(self, recipe: Recipe) -> DiskSpace:
        """Disk space of the run, on any cluster."""
        estimator, _ = self._estimator(recipe)
        offload = (recipe.offload_optimizer, recipe.offload_params)
        key = (id(estimator), recipe.zero_stage, recipe.optimizer, *offload)
        if key not in self._disks:
            self._disks[key] = estimator.disk(recipe)
        return self._disks[key]

    # -- seconds -------------------------------------------------------------------------------------------------

    def run_seconds(self, setup: Setup, cluster: Cluster) -> float | None:
        """Seconds of the whole run; None if a speed is not known."""
        size = (setup.recipe.micro_batch, setup.recipe.grad_accum)
        return self._seconds(setup.recipe, cluster, size)

    def exact_run_seconds(self, setup: Setup, cluster: Cluster) -> float | None:
        """The same from the setup's own micro batch, as its estimate has them."""
        recipe, gpu = setup.recipe, cluster.node.gpu
        size = (recipe.micro_batch, recipe.grad_accum)
        trace = self._estimator(recipe)[0].trace(recipe, gpu.compute_capability)
        micro_batch = micro_batch_seconds(trace, gpu, recipe)
        besides = self._besides_computing(recipe, cluster, size)
        if micro_batch is None or besides is None:
            return None
        return self._num_steps(cluster, size) * besides.step_seconds(micro_batch.phases)

    def _seconds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> float | None:
        """Of the whole run with another batch."""
        micro_batch = self._micro_batch_seconds(recipe, cluster, size[0])
        besides = None if micro_batch is None else self._besides_computing(recipe, cluster, size)
        if micro_batch is None or besides is None:
            return None
        return self._num_steps(cluster, size) * besides.step_seconds(micro_batch)

    def _num_steps(self, cluster: Cluster, size: BatchSize) -> int:
        return self.workload.num_steps(size[0] * size[1] * cluster.num_gpus)

    def _micro_batch_seconds(self, recipe: Recipe, cluster: Cluster, micro_batch: int) -> PhaseSeconds | None:
        gpu = cluster.node.gpu
        return self._micro_batches(recipe, gpu.compute_capability).seconds(micro_batch, gpu, recipe)

    def _besides_computing(
        self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, sends: bool = True
    ) -> BesidesComputing | None:
        """The same for all ways to compute a micro batch that use weights in the same order."""
        key = (self._of.get(recipe, self._order_of_weights), id(cluster), size, sends)
        if key not in self._besides:
            batched = self._batched(recipe, size)
            table = self._estimator(recipe)[0].table
            capability = cluster.node.gpu.compute_capability
            messages = self._of.get(batched, self._new_messages, cluster.num_gpus, capability) if sends else ()
            self._besides[key] = cluster, besides_computing(table, messages, batched, cluster, self.workload)
        return self._besides[key][1]

    def _order_of_weights(self, recipe: Recipe) -> Any:
        """What tells apart recipes that send different messages or update different states.

        Stage 3 gathers weights again for layers that run again.
        """
        estimator, _ = self._estimator(recipe)
        engine = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params, recipe.hpz, recipe.zero)
        return id(estimator), engine, _checkpoints(recipe) if recipe.zero_stage == 3 else None

    def _new_messages(self, recipe: Recipe, num_ranks: int, capability: Capability) -> tuple[Messages, ...]:
        """What a step sends: weights and gradients, whatever the micro batch and the loss."""
        alike = recipe.with_changes(loss=self.choices.switches[0].loss)
        trace = self._micro_batches(alike, capability).trace
        return traffic(self._estimator(recipe)[0].table, recipe, num_ranks=num_ranks, trace=trace)

    # -- exact numbers and refusals ------------------------------------------------------------------------------

    def least_disk(self, cluster: Cluster, method: Method) -> DiskSpace:
        """The least that a run of the method writes, whatever the engine."""
        spaces = [self.disk(engine[0]) for engine in self.choices.engines(cluster, method)]
        return min(spaces, key=lambda space: space.checkpoint_bytes + space.export_bytes)

    def floor_bytes(self, cluster: Cluster, method: Method) -> int:
        """Bytes of tensors that no setup of the method undercuts."""
        return min(setup.least_bytes for setup in self.lightest(cluster, method))

    def estimate(self, setup: Setup, cluster: Cluster) -> Estimate:
        """The setup computed exactly; with sizes for speed where they turn out to fit, as every estimate takes them."""
        recipe = setup.recipe
        estimator, _ = self._estimator(recipe)
        if self._has_profiles(recipe):
            return sized_estimate(estimator, recipe, cluster, self._timeline)
        return estimator.estimate(recipe, cluster, self._timeline(recipe, cluster))

    def refusal(self, cluster: Cluster) -> tuple[str, str | None]:
        """Why nothing fits on ``cluster``, and the smallest change that would help, if one is known."""
        attempts = [setup for method in self.choices.methods for setup in self.lightest(cluster, method)]
        if not attempts:
            methods = sorted(self.choices.methods, key=lambda method: method is Method.FULL)
            # full fine-tuning objects to what the user said of adapters
            return next(self.choices.objections(cluster, methods)), None
        needed, setup = min(((self.needed_bytes(setup, cluster), setup) for setup in attempts), key=itemgetter(0))
        recipe = setup.recipe
        budget = budget_bytes(cluster)
        engine = "plain PyTorch" if recipe.zero_stage is None else f"ZeRO-{recipe.zero_stage}"
        offload = " with CPU offload" if recipe.offload_optimizer is not Offload.NONE else ""
        reason = (
            f"needs {gib_text(needed)} a GPU at the least ({recipe.method.value}, {engine}{offload}, "
            f"micro batch {recipe.micro_batch}), {gib_text(budget)} are free for it"
        )
        return reason, self._fitting_method(cluster) or _larger_hardware(recipe, needed - budget)

    def _fitting_method(self, cluster: Cluster) -> str | None:
        """The option that fits where the method of the user does not."""
        methods = tuple(Method)
        for method in methods[methods.index(self.fixed["method"]) + 1 :] if "method" in self.fixed else ():
            if method not in self._others:
                self._others[method] = SetupSpace(self.workload, self.fixed | {"method": method}, self.global_batch)
            if self._others[method].fitting_lightest(cluster, method) is not None:
                return f"--method {method.value}"
        return None


def _checkpoints(recipe: Recipe) -> tuple[bool, bool]:
    return recipe.activation_checkpointing, recipe.vision_activation_checkpointing


def _heaviest(engine: Engine) -> list[Recipe]:
    """Those that checkpoint all that may be, with each loss."""
    return [recipe for recipe in engine if _checkpoints(recipe) == _checkpoints(engine[-1])]


def _with_sizes(recipe: Recipe, sizes: ZeroSettings) -> Recipe:
    return recipe.with_changes(zero=sizes)


def _with_batch(recipe: Recipe, micro_batch: int, grad_accum: int) -> Recipe:
    return recipe.with_changes(micro_batch=micro_batch, grad_accum=grad_accum)


def _larger_hardware(recipe: Recipe, missing_bytes: int) -> str:
    """What else helps a recipe that lacks ``missing_bytes``; part of a larger GPU's memory is kept in reserve."""
    if recipe.zero_stage is None or recipe.zero_stage < 3:
        return f"a GPU with {gib_text(missing_bytes / (1 - RESERVE_FRACTION))} more, or a shorter --seq-len"
    return "more GPUs, or a shorter --seq-len"

"""The setups of one workload: which recipes are tried on a cluster, and the largest micro batch that fits each.

A setup is scored with bounds and secants between two micro batches, so that thousands take a fraction of a second;
``SetupSpace.estimate`` computes one exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

from vlmplan.communication import Messages, traffic
from vlmplan.estimate import Estimate, Estimator
from vlmplan.hardware import Cluster
from vlmplan.memory.bounds import peak_bound
from vlmplan.memory.device import budget_bytes
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.engines import ModelStates
from vlmplan.memory.overhead import RESERVE_FRACTION
from vlmplan.recipe import Method, Offload, Recipe, ZeroSettings
from vlmplan.search.choices import RecipeChoices
from vlmplan.search.micro_batches import MicroBatches, States
from vlmplan.sizes import zero_settings
from vlmplan.timing import PhaseSeconds, micro_batch_seconds, step_of
from vlmplan.units import gib_text
from vlmplan.workload import Workload

Capability = tuple[int, int] | None
"""Of a GPU, as its maker counts it; None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A resolved recipe that fits a cluster by its bound, in bytes of one GPU."""

    recipe: Recipe
    peak_bound: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Models as prepared and traced: what searches share that differ in hardware, method, engine or checkpointing.

    They may differ in nothing else: neither in the workload, nor in what is fixed of adapters, loss and batch sizes.
    """

    estimators: dict[Any, tuple[Estimator, States]] = field(default_factory=dict[Any, tuple[Estimator, States]])
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
        self,
        workload: Workload,
        fixed: dict[str, Any],
        global_batch: int,
        *,
        is_exhaustive: bool,
        prepared: Prepared | None = None,
    ) -> None:
        self.workload, self.fixed, self.global_batch = workload, fixed, global_batch
        self.choices = RecipeChoices(workload, fixed)
        self.is_exhaustive = is_exhaustive
        self.num_considered = 0
        prepared = prepared or Prepared()
        self._estimators, self._batches = prepared.estimators, prepared.batches
        self._sizes: dict[Any, ZeroSettings] = {}
        self._of = _OfRecipes()
        self._disks: dict[Any, DiskSpace] = {}
        self._others: dict[Method, SetupSpace] = {}

    # -- recipes -------------------------------------------------------------------------------------------------

    def recipes(self, cluster: Cluster, method: Method, *, is_lean: bool) -> Iterator[Recipe]:
        """Recipes of one method with sizes and without a batch; ``is_lean``: those that give speed for memory.

        Those without activation checkpointing come first, and each engine's before the next.
        """
        for recipe in self.choices.allowed(cluster, method, is_lean=is_lean):
            yield self._sized(recipe, cluster, is_lean=is_lean)

    def _sized(self, recipe: Recipe, cluster: Cluster, *, is_lean: bool) -> Recipe:
        if not recipe.uses_deepspeed or "zero" in self.fixed:
            return recipe
        estimator, _ = self._estimator(recipe)
        key = (id(estimator), recipe.zero_stage, is_lean, id(cluster))
        if key not in self._sizes:
            self._sizes[key] = zero_settings(estimator.sizes, estimator.table, recipe, cluster, is_lean=is_lean)
        return self._of.get(recipe, _with_sizes, self._sizes[key])

    def _batched(self, recipe: Recipe, micro_batch: int, grad_accum: int) -> Recipe:
        return self._of.get(recipe, _with_batch, micro_batch, grad_accum)

    # -- fitting -------------------------------------------------------------------------------------------------

    def fitting(self, cluster: Cluster) -> list[Setup]:
        """Setups that leave the reserve free, every one where the search is exhaustive.

        Else the lean ones of a method only where nothing else of it fits, and with activation checkpointing only
        where it does not take the whole batch at once without: what costs time and saves memory that is not needed.
        """
        found: list[Setup] = []
        for method in self.choices.methods:
            for is_lean in (False, True):
                own = self._fitting(cluster, method, is_lean)
                found += own
                if own and not self.is_exhaustive:
                    break
        return found

    def _fitting(self, cluster: Cluster, method: Method, is_lean: bool) -> list[Setup]:
        found: list[Setup] = []
        sizes = self.batch_sizes(cluster.num_gpus)
        has_all = False
        for recipe in self.recipes(cluster, method, is_lean=is_lean):
            if has_all and recipe.activation_checkpointing:
                break
            setup = (self.smallest if self.is_exhaustive else self.largest_fitting)(recipe, cluster, sizes)
            if setup is not None:
                found.append(setup)
                is_fast = not (is_lean or self.is_exhaustive or recipe.activation_checkpointing)
                has_all = has_all or (is_fast and setup.recipe.micro_batch == sizes[-1][0])
        return found

    def smallest(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[tuple[int, int]]) -> Setup | None:
        """The recipe with the micro batch that takes the least memory: the smallest, or the whole batch at once, which
        keeps no gradients of earlier micro batches."""
        ends = (sizes[0], sizes[-1])
        bounds = [self.bound(recipe, cluster, size, accumulates=steps > 1) for size, steps in ends]
        bound = min(bounds)
        if bound > budget_bytes(cluster):
            return None
        micro_batch, grad_accum = ends[bounds.index(bound)]
        return Setup(recipe=self._batched(recipe, micro_batch, grad_accum), peak_bound=bound)

    def largest_fitting(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[tuple[int, int]]) -> Setup | None:
        """The recipe with the largest micro batch that fits, found by bisection: its peak grows with the batch."""
        budget = budget_bytes(cluster)
        if self._states(recipe, cluster.num_gpus).resident.total > budget:
            self.num_considered += 1
            return None  # whatever a micro batch takes
        best: tuple[int, int, int] | None = None
        low, high = 0, len(sizes) - 1
        middle = high
        while low <= high:
            micro_batch, grad_accum = sizes[middle]
            bound = self.bound(recipe, cluster, micro_batch, accumulates=grad_accum > 1)
            if bound <= budget:
                best = (micro_batch, grad_accum, bound)
                low = middle + 1
            else:
                high = middle - 1
            middle = (low + high) // 2
        if best is None:
            return None
        micro_batch, grad_accum, bound = best
        return Setup(recipe=self._batched(recipe, micro_batch, grad_accum), peak_bound=bound)

    def smaller(self, setup: Setup, cluster: Cluster) -> Setup | None:
        """The setup with the next smaller micro batch; None where there is none."""
        sizes = self.batch_sizes(cluster.num_gpus)
        place = sizes.index((setup.recipe.micro_batch, setup.recipe.grad_accum))
        if place == 0:
            return None
        micro_batch, grad_accum = sizes[place - 1]
        recipe = self._batched(setup.recipe, micro_batch, grad_accum)
        bound = self.bound(recipe, cluster, micro_batch, accumulates=grad_accum > 1)
        return Setup(recipe=recipe, peak_bound=bound)

    def batch_sizes(self, num_gpus: int) -> list[tuple[int, int]]:
        """(micro batch, accumulation), smallest micro batch first, that hold the global batch.

        Exactly where it divides by the GPUs; else with the least samples above it.
        """
        if "micro_batch" in self.fixed:
            micro_batch = self.fixed["micro_batch"]
            return [(micro_batch, self.fixed.get("grad_accum") or -(-self.global_batch // (micro_batch * num_gpus)))]
        per_gpu = -(-self.global_batch // num_gpus)
        if "grad_accum" in self.fixed:
            return [(-(-per_gpu // self.fixed["grad_accum"]), self.fixed["grad_accum"])]
        lower = [size for size in range(1, isqrt(per_gpu) + 1) if per_gpu % size == 0]
        sizes = sorted({*lower, *(per_gpu // size for size in lower)})
        return [(size, per_gpu // size) for size in sizes]

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
        checkpoints = (recipe.activation_checkpointing, recipe.vision_activation_checkpointing)
        key = (id(estimator), backend, checkpoints, recipe.keeps_linear_inputs, recipe.zero_stage == 3)
        if key not in self._batches:
            largest = self.batch_sizes(1)[-1][0]
            self._batches[key] = MicroBatches(estimator, recipe, capability, largest)
        return self._batches[key]

    def bound(self, recipe: Recipe, cluster: Cluster, micro_batch: int, *, accumulates: bool) -> int:
        """At least the bytes that tensors take on a GPU of the cluster for the recipe with another micro batch."""
        self.num_considered += 1
        capability = cluster.node.gpu.compute_capability
        return self._of.get(recipe, self._new_bound, cluster.num_gpus, capability, micro_batch, accumulates)

    def _new_bound(
        self, recipe: Recipe, num_ranks: int, capability: Capability, micro_batch: int, accumulates: bool
    ) -> int:
        estimator, states = self._estimator(recipe)
        return peak_bound(
            estimator.table,
            recipe,
            self._states(recipe, num_ranks),
            self._micro_batches(recipe, capability).profile(micro_batch),
            num_ranks=num_ranks,
            owned_bytes=states.owned_bytes(num_ranks) if recipe.zero_stage in (1, 2) else 0,
            accumulates=accumulates,
        )

    def _states(self, recipe: Recipe, num_ranks: int) -> ModelStates:
        """What a GPU holds throughout the step."""
        return self._of.get(recipe, self._estimator(recipe)[1].states, num_ranks)

    # -- numbers -------------------------------------------------------------------------------------------------

    def run_seconds(self, setup: Setup, cluster: Cluster) -> float | None:
        """Seconds of the whole run by secants; None if a speed is not known."""
        recipe, gpu = setup.recipe, cluster.node.gpu
        seconds = self._micro_batches(recipe, gpu.compute_capability).seconds(recipe.micro_batch, gpu, recipe)
        return None if seconds is None else self._seconds_of_run(recipe, cluster, seconds)

    def exact_run_seconds(self, setup: Setup, cluster: Cluster) -> float | None:
        """The same from the setup's own micro batch, as its estimate has them."""
        recipe, gpu = setup.recipe, cluster.node.gpu
        estimator, _ = self._estimator(recipe)
        trace = estimator.trace(recipe, gpu.compute_capability)
        seconds = micro_batch_seconds(trace, gpu, recipe)
        return None if seconds is None else self._seconds_of_run(recipe, cluster, seconds.phases)

    def _seconds_of_run(self, recipe: Recipe, cluster: Cluster, micro_batch: PhaseSeconds) -> float | None:
        estimator, _ = self._estimator(recipe)
        capability = cluster.node.gpu.compute_capability
        messages = self._of.get(recipe, self._new_messages, cluster.num_gpus, capability)
        step = step_of(estimator.table, micro_batch, messages, recipe, cluster, self.workload)
        if step is None:
            return None
        samples = recipe.micro_batch * recipe.grad_accum * cluster.num_gpus
        return self.workload.num_steps(samples) * step.total

    def _new_messages(self, recipe: Recipe, num_ranks: int, capability: Capability) -> tuple[Messages, ...]:
        """What a step sends: weights and gradients, whatever the micro batch."""
        trace = self._micro_batches(recipe, capability).trace
        return traffic(self._estimator(recipe)[0].table, recipe, num_ranks=num_ranks, trace=trace)

    def host_bytes(self, setup: Setup, cluster: Cluster) -> int:
        """Host memory that each node needs."""
        _, states = self._estimator(setup.recipe)
        return states.host_bytes(setup.recipe, cluster)

    def disk(self, setup: Setup) -> DiskSpace:
        """Disk space of the run, on any cluster."""
        recipe = setup.recipe
        estimator, _ = self._estimator(recipe)
        offload = (recipe.offload_optimizer, recipe.offload_params)
        key = (id(estimator), recipe.zero_stage, recipe.optimizer, *offload)
        if key not in self._disks:
            self._disks[key] = estimator.disk(recipe)
        return self._disks[key]

    def estimate(self, setup: Setup, cluster: Cluster) -> Estimate:
        """The setup computed exactly."""
        return self._estimator(setup.recipe)[0].estimate(setup.recipe, cluster)

    def refusal(self, cluster: Cluster) -> tuple[str, str | None]:
        """Why nothing fits on ``cluster``, and the smallest change that would help, if one is known."""
        micro_batch, grad_accum = self.batch_sizes(cluster.num_gpus)[0]
        kinds = [(method, is_lean) for is_lean in (True, False) for method in self.choices.methods]
        attempts = [recipe for method, is_lean in kinds for recipe in self.recipes(cluster, method, is_lean=is_lean)]
        if not attempts:
            kinds.sort(key=lambda kind: kind[0] is Method.FULL)  # which objects to what the user said of adapters
            return next(self.choices.objections(cluster, kinds)), None
        bounds = [self.bound(recipe, cluster, micro_batch, accumulates=grad_accum > 1) for recipe in attempts]
        bound = min(bounds)
        recipe = attempts[bounds.index(bound)]
        budget = budget_bytes(cluster)
        engine = "plain PyTorch" if recipe.zero_stage is None else f"ZeRO-{recipe.zero_stage}"
        offload = " with CPU offload" if recipe.offload_optimizer is not Offload.NONE else ""
        reason = (
            f"needs {gib_text(bound)} a GPU at the least ({recipe.method.value}, {engine}{offload}, "
            f"micro batch {micro_batch}), {gib_text(budget)} are free for it"
        )
        return reason, self._fitting_method(cluster) or _larger_hardware(recipe, bound - budget)

    def _fitting_method(self, cluster: Cluster) -> str | None:
        """The option that fits where the method of the user does not."""
        methods = tuple(Method)
        for method in methods[methods.index(self.fixed["method"]) + 1 :] if "method" in self.fixed else ():
            if method not in self._others:
                fixed = self.fixed | {"method": method}
                self._others[method] = SetupSpace(self.workload, fixed, self.global_batch, is_exhaustive=False)
            if self._others[method].fitting(cluster):
                return f"--method {method.value}"
        return None


def _with_sizes(recipe: Recipe, sizes: ZeroSettings) -> Recipe:
    return recipe.with_changes(zero=sizes)


def _with_batch(recipe: Recipe, micro_batch: int, grad_accum: int) -> Recipe:
    return recipe.with_changes(micro_batch=micro_batch, grad_accum=grad_accum)


def _larger_hardware(recipe: Recipe, missing_bytes: int) -> str:
    """What else helps a recipe that lacks ``missing_bytes``; part of a larger GPU's memory is kept in reserve."""
    if recipe.zero_stage is None or recipe.zero_stage < 3:
        return f"a GPU with {gib_text(missing_bytes / (1 - RESERVE_FRACTION))} more, or a shorter --seq-len"
    return "more GPUs, or a shorter --seq-len"

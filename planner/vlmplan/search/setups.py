"""The setups of one workload: which recipes are tried on a cluster, and the largest micro batch that fits each.

A setup is scored with bounds and secants between two micro batches, so that thousands take a fraction of a second;
``SetupSpace.estimate`` computes one exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.estimate import Estimate, Estimator
from vlmplan.hardware import Cluster, Gpu, Vendor
from vlmplan.memory.bounds import MicroBatchProfile, between, micro_batch_profile, peak_bound
from vlmplan.memory.engines import ModelStates
from vlmplan.memory.host import host_memory
from vlmplan.memory.overhead import CUDA_CONTEXT_BYTES, nccl_bytes, reserve_bytes, workspace_bytes
from vlmplan.memory.parameters import fullest_rank, owned_elements, partition_of
from vlmplan.memory.timeline import model_states
from vlmplan.recipe import Method, Offload, Precision, Recipe, ZeroSettings
from vlmplan.rules import Severity, default_attention, model_facts, problems
from vlmplan.sizes import zero_settings
from vlmplan.throughput import micro_batch_seconds, step_of
from vlmplan.units import gib_text
from vlmplan.workload import Workload

Seconds = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A resolved recipe that fits a cluster by its bound, in bytes of one GPU."""

    recipe: Recipe
    peak_bound: int


class MicroBatches:
    """One kind of micro batch seen with one sample and with the most that can be asked for, by secants in between."""

    def __init__(self, estimator: Estimator, recipe: Recipe, capability: tuple[int, int] | None, largest: int) -> None:
        self.largest = largest
        self._traces = [
            estimator.trace(recipe.with_changes(micro_batch=size), capability) for size in sorted({1, largest})
        ]
        self._profiles = [micro_batch_profile(trace) for trace in self._traces]
        self._seconds: dict[tuple[int, str, Precision], Seconds | None] = {}
        self.num_modules = len(self._traces[0].schedule)

    def _fraction(self, micro_batch: int) -> float:
        return 0.0 if self.largest == 1 else (micro_batch - 1) / (self.largest - 1)

    def profile(self, micro_batch: int) -> MicroBatchProfile:
        return between(self._profiles[0], self._profiles[-1], self._fraction(micro_batch))

    def seconds(self, micro_batch: int, gpu: Gpu, recipe: Recipe) -> Seconds | None:
        """(forward, recompute, backward) of one micro batch; None if the GPU's speed is not known."""
        fraction = self._fraction(micro_batch)
        low = self._end_seconds(0, gpu, recipe) if fraction < 1 else None
        high = self._end_seconds(-1, gpu, recipe) if fraction > 0 else None
        if low is None or high is None:
            return low if high is None else high
        forward, recompute, backward = (a + (b - a) * fraction for a, b in zip(low, high, strict=True))
        return forward, recompute, backward

    def _end_seconds(self, end: int, gpu: Gpu, recipe: Recipe) -> Seconds | None:
        key = (end, gpu.id, recipe.precision)
        if key not in self._seconds:
            self._seconds[key] = micro_batch_seconds(self._traces[end], gpu, recipe)
        return self._seconds[key]


class States:
    """Model states of one estimator by engine, sizes and ranks."""

    def __init__(self, estimator: Estimator) -> None:
        self._table = estimator.table
        self._states: dict[Any, ModelStates] = {}
        self._owned: dict[int, tuple[int, int]] = {}
        self._host_bytes: dict[Any, int] = {}

    def states(self, recipe: Recipe, num_ranks: int) -> ModelStates:
        key = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params, recipe.zero, num_ranks)
        if key not in self._states:
            rank = self._fullest(num_ranks)[0] if recipe.zero_stage in (1, 2) else 0
            self._states[key] = model_states(self._table, recipe, num_ranks, rank)
        return self._states[key]

    def owned_bytes(self, num_ranks: int) -> int:
        """Gradients that the fullest rank keeps under stages 1 and 2."""
        return self._fullest(num_ranks)[1]

    def host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """The most that a node's host holds."""
        num_gpus, per_node = cluster.num_gpus, cluster.node.num_gpus
        key = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params, recipe.optimizer, num_gpus, per_node)
        if key not in self._host_bytes:
            host = host_memory(self._table, recipe, num_ranks=num_gpus, ranks_per_node=per_node)
            self._host_bytes[key] = host.peak_bytes
        return self._host_bytes[key]

    def _fullest(self, num_ranks: int) -> tuple[int, int]:
        if num_ranks not in self._owned:
            rank = fullest_rank(self._table, num_ranks)
            owned = owned_elements(self._table, partition_of(self._table.num_trained, num_ranks, rank))
            self._owned[num_ranks] = (rank, owned * self._table.trained_dtype.num_bytes)
        return self._owned[num_ranks]


class SetupSpace:
    """All setups of a workload; ``fixed`` recipe fields are the user's, the rest is tried."""

    def __init__(self, workload: Workload, fixed: dict[str, Any], global_batch: int, *, is_exhaustive: bool) -> None:
        self.workload, self.fixed, self.global_batch = workload, fixed, global_batch
        self.is_exhaustive = is_exhaustive
        self.num_considered = 0
        self._estimators: dict[Any, tuple[Estimator, States]] = {}
        self._batches: dict[Any, MicroBatches] = {}
        self._sizes: dict[Any, ZeroSettings] = {}
        self._facts = model_facts(workload.model)
        self._given = frozenset(fixed)

    # -- recipes -------------------------------------------------------------------------------------------------

    def recipes(self, cluster: Cluster, method: Method, *, is_lean: bool) -> Iterator[Recipe]:
        """Recipes of one method without batch sizes; ``is_lean``: those that give speed for memory.

        Those without activation checkpointing come first, and each engine's before the next.
        """
        for recipe in self._recipes(cluster, method, is_lean):
            if self.objection(recipe, cluster) is None:
                yield self._sized(recipe, cluster, is_lean=is_lean)

    def _recipes(self, cluster: Cluster, method: Method, is_lean: bool) -> Iterator[Recipe]:
        gpu = cluster.node.gpu
        for checkpoints in self._options("activation_checkpointing", (True,) if is_lean else (False, True)):
            for stage, optimizer, params in self._engines(cluster, is_lean):
                fields: dict[str, Any] = {
                    "method": method,
                    "attention": default_attention(self._facts),
                    "precision": Precision.BF16 if gpu.supports_bf16 else Precision.FP16,
                    "expandable_segments": gpu.vendor is not Vendor.AMD,
                    "zero_stage": stage,
                    "offload_optimizer": optimizer,
                    "offload_params": params,
                    "activation_checkpointing": checkpoints,
                    "vision_activation_checkpointing": checkpoints,
                }
                yield Recipe(**(fields | self.fixed))

    def objection(self, recipe: Recipe, cluster: Cluster) -> str | None:
        """Why the recipe cannot run there, whatever its size."""
        found = problems(recipe, cluster=cluster, model=self._facts, given=self._given)
        return found[0].sentence if found and found[0].severity is Severity.ERROR else None

    @property
    def methods(self) -> tuple[Method, ...]:
        return self._options("method", tuple(Method))

    def _options(self, name: str, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.fixed[name],) if name in self.fixed else choices

    def _engines(self, cluster: Cluster, is_lean: bool) -> Iterator[tuple[int | None, Offload, Offload]]:
        """(stage, optimizer offload, parameter offload), fastest first."""
        stages: tuple[int | None, ...] = (None,) if cluster.num_gpus == 1 else (0, 1, 2, 3)
        offloads = [(Offload.NONE, Offload.NONE)]
        if is_lean:
            stages = (2, 3)
            offloads += [(Offload.CPU, Offload.NONE), (Offload.CPU, Offload.CPU)]
        for optimizer, params in offloads:
            for stage in self._options("zero_stage", stages):
                if params is Offload.NONE or stage == 3:
                    own = self.fixed.get("offload_optimizer", optimizer), self.fixed.get("offload_params", params)
                    yield (stage, *own)

    # -- fitting -------------------------------------------------------------------------------------------------

    def fitting(self, cluster: Cluster) -> list[Setup]:
        """Setups that leave the reserve free; the lean ones of a method only where nothing else of it fits.

        Unless exhaustive, a method is not tried with activation checkpointing where it takes the whole batch at once
        without: recomputing costs time and saves memory that is not needed.
        """
        found: list[Setup] = []
        for method in self.methods:
            for is_lean in (False, True):
                own = self._fitting(cluster, method, is_lean)
                if own:
                    found += own
                    break
        return found

    def _fitting(self, cluster: Cluster, method: Method, is_lean: bool) -> list[Setup]:
        found: list[Setup] = []
        sizes = self.batch_sizes(cluster.num_gpus)
        has_all = False
        for recipe in self.recipes(cluster, method, is_lean=is_lean):
            if has_all and recipe.activation_checkpointing and not self.is_exhaustive:
                break
            setup = self.largest_fitting(recipe, cluster, sizes)
            if setup is not None:
                found.append(setup)
                has_all = has_all or setup.recipe.micro_batch == sizes[-1][0]
        return found

    def largest_fitting(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[tuple[int, int]]) -> Setup | None:
        """The recipe with the largest micro batch that fits, found by bisection: its peak grows with the batch."""
        budget = budget_bytes(cluster)
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
        return Setup(recipe=recipe.with_changes(micro_batch=micro_batch, grad_accum=grad_accum), peak_bound=bound)

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
        return [(size, per_gpu // size) for size in range(1, per_gpu + 1) if per_gpu % size == 0]

    def _estimator(self, recipe: Recipe) -> tuple[Estimator, States]:
        key = (recipe.method, recipe.trained_dtype, recipe.precision)
        if key not in self._estimators:
            known = next((other.widest_head for other, _ in self._estimators.values()), None)
            estimator = Estimator(self.workload, recipe, widest_head=known)
            self._estimators[key] = (estimator, States(estimator))
        return self._estimators[key]

    def micro_batches(self, recipe: Recipe, cluster: Cluster) -> MicroBatches:
        capability = cluster.node.gpu.compute_capability
        estimator, _ = self._estimator(recipe)
        backend = estimator.backend(recipe, capability)
        key = (id(estimator), backend, recipe.activation_checkpointing, recipe.vision_activation_checkpointing)
        if key not in self._batches:
            largest = self.batch_sizes(1)[-1][0]
            self._batches[key] = MicroBatches(estimator, recipe, capability, largest)
        return self._batches[key]

    def _sized(self, recipe: Recipe, cluster: Cluster, *, is_lean: bool) -> Recipe:
        if not recipe.uses_deepspeed or "zero" in self.fixed:
            return recipe
        estimator, _ = self._estimator(recipe)
        key = (id(estimator), recipe.zero_stage, is_lean, id(cluster))
        if key not in self._sizes:
            self._sizes[key] = zero_settings(estimator.sizes, estimator.table, recipe, cluster, is_lean=is_lean)
        return recipe.with_changes(zero=self._sizes[key])

    def bound(self, recipe: Recipe, cluster: Cluster, micro_batch: int, *, accumulates: bool) -> int:
        """At least the bytes that tensors take on a GPU of the cluster for the recipe with another micro batch."""
        self.num_considered += 1
        estimator, states = self._estimator(recipe)
        num_ranks = cluster.num_gpus
        owned = states.owned_bytes(num_ranks) if recipe.zero_stage in (1, 2) else 0
        profile = self.micro_batches(recipe, cluster).profile(micro_batch)
        resident = states.states(recipe, num_ranks)
        return peak_bound(estimator.table, recipe, resident, profile, owned_bytes=owned, accumulates=accumulates)

    # -- numbers -------------------------------------------------------------------------------------------------

    def run_seconds(self, setup: Setup, cluster: Cluster) -> float | None:
        """Seconds of the whole run by secants; None if a speed is not known."""
        recipe = setup.recipe
        batches = self.micro_batches(recipe, cluster)
        seconds = batches.seconds(recipe.micro_batch, cluster.node.gpu, recipe)
        if seconds is None:
            return None
        estimator, _ = self._estimator(recipe)
        step = step_of(estimator.table, seconds, batches.num_modules, recipe, cluster)
        if step is None:
            return None
        samples = recipe.micro_batch * recipe.grad_accum * cluster.num_gpus
        return max(1, -(-round(self.workload.total_samples) // samples)) * step.total

    def host_bytes(self, setup: Setup, cluster: Cluster) -> int:
        """Host memory that each node needs."""
        _, states = self._estimator(setup.recipe)
        return states.host_bytes(setup.recipe, cluster)

    def estimate(self, setup: Setup, cluster: Cluster) -> Estimate:
        """The setup computed exactly."""
        return self._estimator(setup.recipe)[0].estimate(setup.recipe, cluster)

    def refusal(self, cluster: Cluster) -> tuple[str, str | None]:
        """Why nothing fits on ``cluster``, and the smallest change that would help, if one is known."""
        micro_batch, grad_accum = self.batch_sizes(cluster.num_gpus)[0]
        attempts = [recipe for method in self.methods for recipe in self.recipes(cluster, method, is_lean=True)]
        if not attempts:
            tried = (recipe for method in self.methods for recipe in self._recipes(cluster, method, True))
            return next(reason for recipe in tried if (reason := self.objection(recipe, cluster)) is not None), None
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
        return reason, self._smallest_change(recipe, bound, budget)

    def _smallest_change(self, recipe: Recipe, bound: int, budget: int) -> str | None:
        if "method" in self.fixed and recipe.method is not Method.QLORA:
            return f"--method {'lora' if recipe.method is Method.FULL else 'qlora'}"
        if recipe.zero_stage is None or recipe.zero_stage < 3:
            return f"a GPU with {gib_text(bound - budget)} more, or a shorter --seq-len"
        return "more GPUs, or a shorter --seq-len"


def budget_bytes(cluster: Cluster) -> int:
    """What tensors may take on each GPU: usable memory less the reserve, CUDA context, NCCL and workspaces."""
    node = cluster.node
    usable = node.gpu.usable_bytes
    return (
        usable
        - reserve_bytes(usable)
        - CUDA_CONTEXT_BYTES
        - nccl_bytes(cluster.num_gpus, uses_nvlink=node.uses_nvlink)
        - workspace_bytes(node.gpu.compute_capability)
    )

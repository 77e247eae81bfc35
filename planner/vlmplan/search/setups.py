"""The setups of one workload: the micro batches of every recipe that fit on a cluster, and what takes least memory.

A setup is scored with bounds and secants between two micro batches, so that thousands take a fraction of a second;
``SetupSpace.estimate`` computes one exactly.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from vlmplan.estimation import (
    Estimate,
    fewer_at_once,
    fitting_estimate,
    is_too_large_by_answers,
    sized_recipes,
    with_answers_of,
)
from vlmplan.hardware import Cluster
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, lighter_methods
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.search.choices import Engine
from vlmplan.search.identity_cache import IdentityCache
from vlmplan.search.micro_batches import MicroBatches, Speed
from vlmplan.search.recipe_bounds import BatchSize, Bounds
from vlmplan.search.recipe_space import RecipeSpace
from vlmplan.search.setup_records import BoundedSetup, RecipeCandidate
from vlmplan.search.shared_traces import SharedTraces
from vlmplan.workload import Workload

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool


class SetupSpace(RecipeSpace):
    """All setups of a workload: its recipes, each with the batch sizes that fit."""

    def __init__(
        self,
        workload: Workload,
        fixed: DecidedRecipe,
        global_batch: int,
        *,
        shared: SharedTraces | None = None,
        made_for: "Tool | None" = None,
        grows_on_several: bool = False,
        gpu_counts: Collection[int] = (1,),
    ) -> None:
        """The arguments are those of ``RecipeSpace``."""
        super().__init__(
            workload,
            fixed,
            global_batch,
            shared=shared,
            made_for=made_for,
            grows_on_several=grows_on_several,
            gpu_counts=gpu_counts,
        )
        self.num_considered = 0
        self._with_fewer = IdentityCache[Recipe, Recipe](with_answers_of)
        self._others: dict[Method, SetupSpace] = {}

    # -- fitting -------------------------------------------------------------------------------------------------

    def least_seconds(self, cluster: Cluster, method: Method) -> float:
        """Seconds of a run that no way of the method undercuts, whatever fits: the whole batch is computed at once,
        nothing is sent and nothing updated. 0 where a speed is not known.

        Stage 3 computes what the other stages do.
        """
        gpu, sizes = cluster.node.gpu, self.batch_sizes(cluster.num_gpus)
        engines = {engine[0].uses_deepspeed: engine for engine in reversed(self.choices.engines(cluster, method))}
        least = inf
        for engine in engines.values():
            speed = self.models.speeds.of(engine[0], gpu)
            if speed is None:
                return 0.0
            for _, batches in self.models.engine_micro_batches(engine, gpu.kernel_capability):
                least = min(least, _computing_seconds(batches, speed, sizes))
        return self.models.num_steps(cluster, sizes[-1]) * least

    def ways(self, cluster: Cluster, method: Method) -> list[RecipeCandidate]:
        """Every recipe of the method whose floor fits, with a floor of its seconds, the fastest first.

        The floor takes the largest micro batch whose own tensors fit beside the model states, and sends nothing. Where
        a speed is not known it is 0, and the simplest recipe comes first.
        """
        return sorted(self._ways_of_method(cluster, method), key=itemgetter(0))

    def has_ways(self, cluster: Cluster, method: Method) -> bool:
        return any(True for _ in self._ways_of_method(cluster, method))

    def has_room(self, cluster: Cluster, method: Method) -> bool:
        """Whether the smallest micro batch with all its checkpoints has room beside the model states of an engine: if
        not, there are no ``ways``."""
        capability = cluster.node.gpu.kernel_capability
        for engine in self.choices.engines(cluster, method):
            room, size = self.room_beside_states(engine, cluster), self.sizes_of(engine[0], cluster.num_gpus)[0]
            if room is not None:
                batches = [self.models.micro_batches(recipe, capability) for recipe in self._heaviest(engine)]
                if any(one.floor_bytes(size[0]) <= room for one in batches):
                    return True
        return False

    def _ways_of_method(self, cluster: Cluster, method: Method) -> Iterator[RecipeCandidate]:
        for engine in self.choices.engines(cluster, method):
            room = self.room_beside_states(engine, cluster)
            if room is not None:
                yield from self._ways(engine, cluster, room)

    def room_beside_states(self, engine: Engine, cluster: Cluster) -> int | None:
        """``room_bytes`` with the sizes that take least."""
        return self.room_bytes(self._sized(engine[0], cluster, low_memory=True), cluster)

    def room_bytes(self, recipe: Recipe, cluster: Cluster) -> int | None:
        """Bytes that a micro batch may take beside what is there throughout the step; None where that is too much by
        itself, however short the samples are."""
        budget = self.models.budget_bytes(cluster, recipe)
        states = self.models.states(recipe, cluster)
        built = states.init_peak.total - workspace_bytes(cluster.node.gpu)  # there are none yet
        if states.beside.total + max(states.step_peak.total, built) > budget:
            return None
        return budget - states.resident.total - states.other_models.total

    def _ways(self, engine: Engine, cluster: Cluster, room: int) -> Iterator[RecipeCandidate]:
        """The recipes of one engine, whose micro batch may take ``room`` bytes."""
        gpu, sizes = cluster.node.gpu, self.sizes_of(engine[0], cluster.num_gpus)
        rest = self.models.besides_computing(engine[0], cluster, sizes[-1], sends=False)
        num_steps = self.models.num_steps(cluster, sizes[-1])
        places = range(len(sizes) - 1, -1, -1)
        speed = None if rest is None else self.models.speeds.of(self._sized(engine[0], cluster, low_memory=False), gpu)
        for recipe, batches in self.models.engine_micro_batches(engine, gpu.kernel_capability):
            self.num_considered += 1
            place = next((at for at in places if batches.floor_bytes(sizes[at][0]) <= room), None)
            if place is None:
                continue
            if rest is None or speed is None:
                yield RecipeCandidate(0.0, recipe, engine)
            else:
                computing = _computing_seconds(batches, speed, sizes[: place + 1])
                yield RecipeCandidate(num_steps * (computing + rest.rest_seconds), recipe, engine)

    def fastest(
        self, ways: Iterable[RecipeCandidate], cluster: Cluster, limit: Callable[[RecipeCandidate], float]
    ) -> Iterator[BoundedSetup]:
        """Setups of ``ways`` that fit by their bounds, each faster than ``limit`` says for its way just then; and those
        that may fit.

        A larger micro batch is never slower, so each recipe is looked at with the largest that fits, and with the
        low-memory sizes only beyond that; but where its samples or images are one row under a mask, smaller ones may be
        faster.
        """
        for way in ways:
            below = limit(way)
            if way.least_seconds < below:
                yield from self._largest(way.recipe, cluster, below)

    def _largest(self, recipe: Recipe, cluster: Cluster, below: float) -> Iterator[BoundedSetup]:
        """The largest micro batch that fits, and larger ones that may; then those of the low-memory sizes, where they
        let a still larger one fit."""
        sizes = self.sizes_of(recipe, cluster.num_gpus)
        place = -1
        for low_memory in (False, True) if self._has_profiles(recipe) else (False,):
            sized = self._sized(recipe, cluster, low_memory=low_memory)
            largest = self._largest_fitting(sized, cluster, sizes)
            if largest > place:
                place = largest
                size = self._fastest_size(sized, cluster, sizes[: place + 1])
                if self._is_faster(sized, cluster, size, below, if_unknown=True):
                    yield self._setup(sized, cluster, size, fits=True)
            yield from self._unsure(sized, cluster, sizes[place + 1 :], below)
            if place == len(sizes) - 1:
                return

    def _is_faster(self, recipe: Recipe, cluster: Cluster, size: BatchSize, below: float, *, if_unknown: bool) -> bool:
        """Whether it takes less than ``below`` seconds; ``if_unknown`` where nobody knows. That is not computed where
        there is nothing to beat: the host may have no room for it."""
        if below == inf and (if_unknown or self.models.knows_seconds(recipe, cluster, size)):
            return True
        seconds = self.models.seconds(recipe, cluster, size)
        return if_unknown if seconds is None else seconds < below

    def _fastest_size(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[BatchSize]) -> BatchSize:
        """The fastest of batches that all fit; the largest where a speed is not known."""
        if not self.models.micro_batches(recipe, cluster.node.gpu.kernel_capability).masks_a_row:
            return sizes[-1]
        return min(reversed(sizes), key=lambda size: self.models.seconds(recipe, cluster, size) or 0.0)

    def _unsure(
        self, recipe: Recipe, cluster: Cluster, sizes: Sequence[BatchSize], below: float
    ) -> Iterator[BoundedSetup]:
        """Setups that do not fit by their bound, and may, the smallest micro batch first."""
        budget, bounds = self.models.budget_bytes(cluster, recipe), self.models.bounds(recipe, cluster)
        for size in sizes:
            self.num_considered += 1
            if bounds.at(size).least > budget:
                return
            if self._is_faster(recipe, cluster, size, below, if_unknown=False):
                yield self._setup(recipe, cluster, size, fits=False)

    def _setup(self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, fits: bool) -> BoundedSetup:
        bounds = self._bounds(recipe, cluster, size)
        batched = self.models.with_batch(recipe, size)
        return BoundedSetup(recipe=batched, most_bytes=bounds.most, least_bytes=bounds.least, fits=fits)

    def _largest_fitting(self, recipe: Recipe, cluster: Cluster, sizes: Sequence[BatchSize]) -> int:
        """The place of the largest micro batch that fits by its bound, found by bisection: its peak grows with the
        batch. -1 if none does."""
        budget = self.models.budget_bytes(cluster, recipe)
        if self.models.states(recipe, cluster).resident.total > budget:
            self.num_considered += 1
            return -1  # whatever a micro batch takes
        bounds = self.models.bounds(recipe, cluster)
        low, high = 0, len(sizes) - 1
        middle = high
        while low <= high:
            self.num_considered += 1
            if bounds.at(sizes[middle]).most <= budget:
                low = middle + 1
            else:
                high = middle - 1
            middle = (low + high) // 2
        return high

    def _bounds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> Bounds:
        self.num_considered += 1
        return self.models.bounds(recipe, cluster).at(size)

    def smallest(self, cluster: Cluster, method: Method) -> list[BoundedSetup]:
        """What of ``lightest`` may fit; with sizes for speed where they may, since those are taken then.

        With the native allocator every micro batch, as it may keep less for a larger one; and the low-memory sizes
        too, as its own segments may be too much where the tensors of those for speed fit.
        """
        found: list[BoundedSetup] = []
        for engine, size in self._sized_engines(cluster, method):
            for recipe in self._heaviest(engine):
                for low_memory in (False, True) if self._has_profiles(recipe) else (False,):
                    setup = self._attempt(recipe, cluster, size, low_memory=low_memory)
                    if setup.least_bytes <= self.models.budget_bytes(cluster, recipe):
                        found.append(setup)
                    if setup.fits and recipe.expandable_segments:
                        break
        return found

    def lightest(self, cluster: Cluster, method: Method) -> list[BoundedSetup]:
        """The setups of every engine that take least memory: all activations checkpointed, the low-memory sizes, and
        the smallest micro batch or the whole batch at once, which keeps no gradients of earlier micro batches."""
        return [
            self._attempt(recipe, cluster, size, low_memory=True)
            for engine, size in self._ends(cluster, method)
            for recipe in self._heaviest(engine)
        ]

    def _ends(self, cluster: Cluster, method: Method) -> Iterator[tuple[Engine, BatchSize]]:
        for engine in self.choices.engines(cluster, method):
            sizes = self.sizes_of(engine[0], cluster.num_gpus)
            yield from product((engine,), dict.fromkeys((sizes[0], sizes[-1])))

    def _sized_engines(self, cluster: Cluster, method: Method) -> Iterator[tuple[Engine, BatchSize]]:
        for engine in self.choices.engines(cluster, method):
            sizes = self.sizes_of(engine[0], cluster.num_gpus)
            ends = engine[0].expandable_segments
            yield from product((engine,), dict.fromkeys((sizes[0], sizes[-1])) if ends else sizes)

    def _attempt(self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, low_memory: bool) -> BoundedSetup:
        sized = self._sized(recipe, cluster, low_memory=low_memory)
        fits = self._bounds(sized, cluster, size).most <= self.models.budget_bytes(cluster, sized)
        return self._setup(sized, cluster, size, fits=fits)

    def fitting_lightest(self, cluster: Cluster, method: Method) -> BoundedSetup | None:
        """One of ``lightest`` that fits by its timeline. If there is none, nothing of the method fits."""
        return self.first_fitting(self.possible_lightest(cluster, method), cluster)

    def possible_lightest(self, cluster: Cluster, method: Method) -> list[BoundedSetup]:
        """The setups of ``lightest`` that may fit: those of engines whose model states alone are too much are not
        traced."""
        attempts = [
            self._attempt(recipe, cluster, size, low_memory=True)
            for engine, size in self._ends(cluster, method)
            if self.room_beside_states(engine, cluster) is not None
            for recipe in self._heaviest(engine)
        ]
        return [setup for setup in attempts if setup.least_bytes <= self.models.budget_bytes(cluster, setup.recipe)]

    def first_fitting(self, attempts: Iterable[BoundedSetup], cluster: Cluster) -> BoundedSetup | None:
        """The first that fits by its timeline of those that may, what takes least by its bound first."""
        for setup in sorted(attempts, key=lambda setup: setup.most_bytes):
            budget = self.models.budget_bytes(cluster, setup.recipe)
            closer: BoundedSetup | None = setup if setup.fits else self.closer(setup, cluster)
            while closer is not None:
                if closer.fits or self.needed_bytes(closer, cluster) <= budget:
                    return closer._replace(fits=True)
                closer = self.with_fewer_answers(closer, cluster)
        return None

    def closer(self, setup: BoundedSetup, cluster: Cluster) -> BoundedSetup:
        """The setup with closer bounds, by which more of those that may fit do, or do not."""
        recipe = setup.recipe
        bounds = self.models.bounds(recipe, cluster).close_at((recipe.micro_batch, recipe.grad_accum))
        least, most = max(setup.least_bytes, bounds.least), min(setup.most_bytes, bounds.most)
        fits = most <= self.models.budget_bytes(cluster, recipe)
        return setup._replace(least_bytes=least, most_bytes=most, fits=fits)

    def needed_bytes(self, setup: BoundedSetup, cluster: Cluster) -> int:
        """What its tensors take: the highest moment of its timeline, or a floor of that which does not fit already."""
        if setup.least_bytes > self.models.budget_bytes(cluster, setup.recipe):
            return setup.least_bytes
        return self.models.timeline(setup.recipe, cluster).peak.total - workspace_bytes(cluster.node.gpu)

    def with_fewer_answers(self, setup: BoundedSetup, cluster: Cluster) -> BoundedSetup | None:
        """A setup of GRPO that does not fit, with fewer answers generated at once; None where that helps nothing."""
        recipe, budget = setup.recipe, self.models.budget_bytes(cluster, setup.recipe)
        steps = fewer_at_once(recipe, cluster.num_gpus)
        size = recipe.micro_batch, recipe.grad_accum
        if steps is None or self.models.bounds(recipe, cluster).close_at(size).least > budget:
            return None
        if not is_too_large_by_answers(recipe, self.models.timeline(recipe, cluster)):
            return None
        return self._setup(self._with_fewer.get(self.models.any_batch(recipe), steps), cluster, size, fits=False)

    def smaller(self, setup: BoundedSetup, cluster: Cluster) -> BoundedSetup | None:
        """The setup with the next smaller micro batch; None where there is none."""
        sizes = self.sizes_of(setup.recipe, cluster.num_gpus)
        place = sizes.index((setup.recipe.micro_batch, setup.recipe.grad_accum))
        if place == 0:
            return None
        return self._setup(setup.recipe, cluster, sizes[place - 1], fits=setup.fits)

    # -- seconds -------------------------------------------------------------------------------------------------

    def run_seconds(self, setup: BoundedSetup, cluster: Cluster) -> float | None:
        """Seconds of the whole run; None if a speed is not known."""
        size = (setup.recipe.micro_batch, setup.recipe.grad_accum)
        return self.models.seconds(setup.recipe, cluster, size)

    # -- exact numbers and refusals ------------------------------------------------------------------------------

    def least_disk(self, cluster: Cluster, method: Method) -> DiskSpace:
        """The least that a run of the method writes of each kind, whatever the engine."""
        spaces = [self.models.disk(engine[0]) for engine in self.choices.engines(cluster, method)]
        return DiskSpace(
            checkpoint_bytes=min([space.checkpoint_bytes for space in spaces]),
            export_bytes=min([space.export_bytes for space in spaces]),
            nvme_swap_bytes=min([space.nvme_swap_bytes for space in spaces]),
            download_bytes=min([space.download_bytes for space in spaces]),
        )

    def floor_bytes(self, cluster: Cluster, method: Method) -> int:
        """Bytes of tensors that no setup of the method undercuts: the least of ``lightest``."""
        return min(
            [
                self._bounds(self._sized(recipe, cluster, low_memory=True), cluster, size).least
                for engine, size in self._ends(cluster, method)
                for recipe in self._heaviest(engine)
            ]
        )

    def estimate(self, setup: BoundedSetup, cluster: Cluster) -> Estimate | None:
        """The setup computed exactly; with sizes for speed where they turn out to fit, as every estimate takes them.
        None where it does not fit."""
        recipe = setup.recipe
        estimator, _ = self.models.estimator(recipe)
        recipes = sized_recipes(estimator, recipe, cluster) if self._has_profiles(recipe) else [recipe]
        return fitting_estimate(estimator, recipes, cluster, self.models.timeline)

    def fitting_method(self, cluster: Cluster) -> str | None:
        """The option that fits where the method of the user does not."""
        decided = self.fixed.method
        for method in () if decided is None else lighter_methods(decided):
            if method not in self._others:
                fixed = replace(self.fixed, method=method)
                self._others[method] = SetupSpace(
                    self.workload,
                    fixed,
                    self.global_batch,
                    made_for=self._made_for,
                    grows_on_several=self._grows_on_several,
                    gpu_counts=(cluster.num_gpus,),
                )
            if self._others[method].fitting_lightest(cluster, method) is not None:
                return f"--method {method.value}"
        return None


def _computing_seconds(batches: MicroBatches, speed: Speed, sizes: Sequence[BatchSize]) -> float:
    """Seconds of a step's micro batches of the size that takes least."""
    tried = sizes if batches.masks_a_row else sizes[-1:]
    return min(grad_accum * sum(batches.seconds(micro_batch, speed)) for micro_batch, grad_accum in tried)

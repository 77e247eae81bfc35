"""The recipes that are tried of one workload: on every engine with its sizes, and with every size of a micro batch."""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.search.choices import Engine, RecipeChoices
from vlmplan.search.identity_cache import IdentityCache
from vlmplan.search.memoized_estimates import MemoizedEstimates, checkpoints
from vlmplan.search.recipe_bounds import BatchSize
from vlmplan.search.shared_traces import SharedTraces
from vlmplan.search.step_samples import step_sizes
from vlmplan.sizes import zero_settings
from vlmplan.workload import Workload

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool

SizedRecipes: TypeAlias = IdentityCache[Recipe, Recipe]
"""Recipes with sizes for one cluster, by the recipe without them and whether they take the least memory."""


class RecipeSpace:
    """All recipes of a workload; what is ``fixed`` of them is the user's, the rest is tried, within the limits of the
    trainer that they are ``made_for``, None the bundled one. ``grows_on_several``: unless the user says otherwise the
    allocator's segments grow where several GPUs train, and not on one. ``gpu_counts`` are those of all clusters that
    are asked about: no micro batch is larger than the largest of theirs."""

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
        self._made_for, self._grows_on_several = made_for, grows_on_several
        self.workload, self.fixed, self.global_batch = workload, fixed, global_batch
        self._batch_sizes: dict[int, Sequence[BatchSize]] = {}
        self.choices = RecipeChoices(
            workload,
            fixed,
            has_other_layers=workload.has_encoded_inputs,
            made_for=made_for,
            grows_on_several=grows_on_several,
        )
        largest = max(self.batch_sizes(num_gpus)[-1][0] for num_gpus in gpu_counts)
        ranks = fixed.sequence_parallel or 1
        self.models = MemoizedEstimates(
            workload, self.choices.switches, largest, shared or SharedTraces(), sequence_parallel=ranks
        )
        self._sized_on = IdentityCache[Cluster, SizedRecipes](self._new_sized_on)
        self._with_sizes = IdentityCache[Recipe, Recipe](_with_sizes)
        self._heaviest_of = IdentityCache[Engine, list[Recipe]](_heaviest)

    def recipes(self, cluster: Cluster, method: Method) -> Iterator[Recipe]:
        """Every recipe of one method without a batch, an engine's with sizes for speed, then with low-memory sizes."""
        for engine in self.choices.engines(cluster, method):
            profiles = (False, True) if self._has_profiles(engine[0]) else (False,)
            ways = [self._sized(recipe, cluster, low_memory=low_memory) for low_memory in profiles for recipe in engine]
            yield from {id(recipe): recipe for recipe in ways}.values()

    def _has_profiles(self, recipe: Recipe) -> bool:
        """Whether its sizes can be chosen."""
        return recipe.uses_deepspeed and self.fixed.zero is None

    def _sized(self, recipe: Recipe, cluster: Cluster, *, low_memory: bool) -> Recipe:
        if not self._has_profiles(recipe):
            return recipe
        return self._sized_on.get(cluster).get(recipe, low_memory)

    def _new_sized_on(self, cluster: Cluster) -> "SizedRecipes":
        sizes: dict[tuple[int, int | None, bool], ZeroSettings] = {}

        def sized(recipe: Recipe, low_memory: bool) -> Recipe:
            """One object for all clusters for which the sizes are the same."""
            estimator, _ = self.models.estimator(recipe)  # which keeps it
            key = (id(estimator), recipe.zero_stage, low_memory)
            if key not in sizes:
                sizes[key] = zero_settings(estimator.sizes, estimator.table, recipe, cluster, low_memory=low_memory)
            return self._with_sizes.get(recipe, sizes[key])

        return IdentityCache(sized)

    def of_any_host(self, recipe: Recipe, cluster: Cluster) -> list[Recipe]:
        """The recipe with all that decides how much host memory it takes: sizes, and whether gradients accumulate."""
        tried = self.sizes_of(recipe, cluster.num_gpus)
        sizes = {grad_accum > 1: (micro_batch, grad_accum) for micro_batch, grad_accum in tried}
        profiles = (False, True) if self._has_profiles(recipe) else (False,)
        sized = {id(one): one for one in (self._sized(recipe, cluster, low_memory=low) for low in profiles)}
        return [self.models.with_batch(one, size) for one in sized.values() for size in sizes.values()]

    def _heaviest(self, engine: Engine) -> list[Recipe]:
        return self._heaviest_of.get(engine)

    def batch_sizes(self, num_gpus: int) -> Sequence[BatchSize]:
        """``step_sizes`` of the workload."""
        if num_gpus not in self._batch_sizes:
            self._batch_sizes[num_gpus] = step_sizes(self.fixed, self.global_batch, num_gpus)
        return self._batch_sizes[num_gpus]

    def sizes_of(self, recipe: Recipe, num_gpus: int) -> Sequence[BatchSize]:
        """Those that the recipe can have: there is one (``RecipeChoices``)."""
        sizes = self.batch_sizes(num_gpus)
        return sizes if recipe.can_accumulate else [size for size in sizes if size[1] == 1]


def _heaviest(engine: Engine) -> list[Recipe]:
    """The recipes that checkpoint all that may be, with each loss."""
    language, others = checkpoints(engine[-1])
    return [
        recipe
        for recipe in engine
        if recipe.activation_checkpointing is language and recipe.vision_activation_checkpointing is others
    ]


def _with_sizes(recipe: Recipe, sizes: ZeroSettings) -> Recipe:
    return recipe.with_changes(zero=sizes)

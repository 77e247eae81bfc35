"""Which recipes a search tries on a cluster: methods, engines, offload, checkpointing and loss that the rules allow."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from vlmplan.engines import STAGES
from vlmplan.hardware import Cluster
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import SEARCHED_METHODS, LossKind, Method, Offload, Precision
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS
from vlmplan.recipe.switches import option_text
from vlmplan.rules import default_attention, default_lora_exclude, losses, model_facts, objection
from vlmplan.rules.base import Rule
from vlmplan.rules.check import COUNTING_RULES, OTHER_RULES, SEARCH_RULES
from vlmplan.search.combined_traces import Switches
from vlmplan.search.step_samples import least_accumulation, step_objection
from vlmplan.units import divisors
from vlmplan.workload import Workload

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool

Value = TypeVar("Value")
OPTION = re.compile(r"--[a-z0-9-]+")
Engine = tuple[Recipe, ...]
"""The recipes of one method on one engine, without sizes and batches: its switches in every way that rules allow, those
that save least memory and most time first."""


class RecipeChoices:
    """The recipes of a workload; what is ``fixed`` is the user's, the rest is tried.

    What is the same on many clusters is one object.
    """

    def __init__(
        self,
        workload: Workload,
        fixed: DecidedRecipe,
        *,
        has_other_layers: bool,
        made_for: "Tool | None" = None,
        grows_on_several: bool = False,
    ) -> None:
        """``has_other_layers``: besides the language model's, which then have a checkpointing switch of their own.
        ``made_for``: within the limits of this trainer. ``grows_on_several``: of ``RecipeSpace``."""
        self._workload, self._fixed, self._made_for = workload, fixed, made_for
        self._facts = model_facts(workload.model)
        self._attention = default_attention(self._facts, fixed.transformers_version or PLANNED_TRANSFORMERS)
        self._given = fixed.names
        self._has_other_layers = has_other_layers
        self._grows_on_several = grows_on_several
        self._bare: dict[tuple[Method, Precision, bool], Recipe] = {}
        self._made: dict[tuple[Any, ...], Engine] = {}
        self._allowed: dict[Hashable, list[Engine]] = {}
        self._refused: dict[tuple[int, Hashable], bool] = {}
        self.switches = self._switches()
        """Every way to checkpoint activations and to compute the loss, from the least saving to the most."""

    @property
    def methods(self) -> tuple[Method, ...]:
        return _open(self._fixed.method, SEARCHED_METHODS)

    def _switches(self) -> list[Switches]:
        checkpoints = (False, True) if self._facts.can_checkpoint else (False,)
        languages = _open(self._fixed.activation_checkpointing, checkpoints)
        computed = _open(self._fixed.loss, losses(self._facts))
        found: dict[Switches, None] = {}
        for language, loss in product(languages, computed):
            tied = (False, True) if self._has_other_layers else (language,)
            for others in _open(self._fixed.vision_activation_checkpointing, tied):
                found[Switches(checkpoints_language=language, checkpoints_others=others, loss=loss)] = None
        return list(found)

    def engines(self, cluster: Cluster, method: Method) -> list[Engine]:
        """The engines of one method that can run there.

        Rules ask a card for its maker and what it can compute, and for nothing else; of checkpointing they ask whether
        the model has it.
        """
        gpu = cluster.node.gpu
        kind = (gpu.vendor, gpu.compute_capability, gpu.supports_bf16)
        key = (kind, cluster.num_gpus, cluster.num_nodes, method)
        if key not in self._allowed:
            is_whole = step_objection(self._workload, self._fixed, cluster.num_gpus) is None
            tried = self._engines(cluster, method) if is_whole else ()
            engines = (self._allowed_ways(engine, cluster, kind) for engine in tried)
            self._allowed[key] = [engine for engine in engines if engine]
        return self._allowed[key]

    def _allowed_ways(self, engine: Engine, cluster: Cluster, kind: Any) -> Engine:
        engine = tuple(recipe for recipe in engine if self._trainer_objection(recipe) is None)
        is_refused: dict[LossKind, bool] = {}
        for recipe in engine:
            if recipe.loss not in is_refused:
                is_refused[recipe.loss] = self._is_refused(recipe, cluster, kind)
        if not any(is_refused.values()):
            return engine
        return tuple(recipe for recipe in engine if not is_refused[recipe.loss])

    def _is_refused(self, recipe: Recipe, cluster: Cluster, kind: Any) -> bool:
        """Whether a rule objects; those that do not count GPUs are asked once for each ``kind`` of card. The recipe is
        one of ``_made``, which stays."""
        key = (id(recipe), kind)
        if key not in self._refused:
            self._refused[key] = self._objection(recipe, cluster, OTHER_RULES) is not None
        return self._refused[key] or self._objection(recipe, cluster, COUNTING_RULES) is not None

    def main_objection(self, cluster: Cluster, methods: Iterable[Method]) -> str:
        """What stands in the way of all recipes of these methods there: of their objections the one that names fewest
        options that are tried and not the user's, and then that of most recipes."""
        found = Counter(self.objections(cluster, methods))
        own = {option_text(name, getattr(self._fixed, name)).split()[0] for name in self._given}
        return min(found, key=lambda sentence: (len(set(OPTION.findall(sentence)) - own), -found[sentence]))

    def objections(self, cluster: Cluster, methods: Iterable[Method]) -> Iterator[str]:
        """Why recipes of these methods cannot run there, whatever their size; once for all partitions that are tried
        of one engine, as their number says nothing of what was asked."""
        of_step = step_objection(self._workload, self._fixed, cluster.num_gpus)
        if of_step is not None:
            yield of_step
        for method in methods:
            found: dict[tuple[Any, ...], str] = {}
            for recipe in (engine[-1] for engine in self._engines(cluster, method)):
                reason = self._trainer_objection(recipe) or self._objection(recipe, cluster)
                if reason is not None:
                    found[recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params, reason] = reason
            yield from found.values()

    def _engines(self, cluster: Cluster, method: Method) -> Iterator[Engine]:
        gpu = cluster.node.gpu
        precision = Precision.BF16 if gpu.supports_bf16 else Precision.FP16
        bare = self._simplest(method, precision, grows=not self._grows_on_several or cluster.num_gpus > 1)
        least = least_accumulation(self._workload, self._fixed, cluster.num_gpus)
        for stage, optimizer, params in self._stages(cluster):
            for hpz, sharing in self._partition_sizes(cluster, stage, params):
                engine = self._engine(bare, stage, optimizer, params, hpz, sharing)
                yield engine if least == 1 or engine[0].can_accumulate else self._accumulating(engine, least)

    def _engine(self, bare: Recipe, *engine: Any) -> Engine:
        key = (id(bare), *engine)
        if key not in self._made:
            stage, optimizer, params, hpz, sharing = engine
            recipe = bare.with_changes(
                zero_stage=stage, offload_optimizer=optimizer, offload_params=params, hpz=hpz, dp_shard_size=sharing
            )
            if not recipe.can_accumulate and self._fixed.sync_each_batch is None:
                recipe = recipe.with_changes(sync_each_batch=False)
            self._made[key] = tuple([self._as_the_trainer_does(switches.apply(recipe)) for switches in self.switches])
        return self._made[key]

    def _accumulating(self, engine: Engine, grad_accum: int) -> Engine:
        """With what the user's batch needs, and a rule refuses."""
        key = (id(engine), grad_accum)
        if key not in self._made:
            self._made[key] = tuple([recipe.with_changes(grad_accum=grad_accum) for recipe in engine])
        return self._made[key]

    def _simplest(self, method: Method, precision: Precision, *, grows: bool) -> Recipe:
        """What is fixed, with this method and precision, on any engine; ``grows``: the allocator's segments do."""
        key = (method, precision, grows)
        if key not in self._bare:
            adapts_all = method is not Method.FULL and self._fixed.lora_targets is None
            tried = DecidedRecipe(
                method=method,
                attention=self._attention,
                precision=precision,
                expandable_segments=grows,
                lora_exclude=default_lora_exclude(self._facts) if adapts_all else None,
            )
            self._bare[key] = self._fixed.completed(tried).recipe()
        return self._bare[key]

    def _as_the_trainer_does(self, recipe: Recipe) -> Recipe:
        """The recipe with the behaviour of the trainer that it is made for, where the user says nothing."""
        if self._made_for is None:
            return recipe
        from vlmplan.other_trainers.writing import behaviour

        return self._fixed.completed(behaviour(self._made_for, recipe, self._workload.model)).applied_to(recipe)

    def _trainer_objection(self, recipe: Recipe) -> str | None:
        """Why the trainer that it is made for cannot do it."""
        if self._made_for is None:
            return None
        from vlmplan.other_trainers.writing import objection

        return objection(self._made_for, recipe, self._workload.model)

    def _partition_sizes(
        self, cluster: Cluster, stage: int | None, params: Offload
    ) -> Iterator[tuple[int, int | None]]:
        """Sizes of hpZ's secondary partition, the ranks of a node where weights would come from others; and of FSDP's
        copies of the model, all ranks or equal parts of a node's: the fewer they are, the less they gather of one
        another and the more the copies sum."""
        per_node, fixed = cluster.node.num_gpus, self._fixed
        has_second = cluster.num_nodes > 1 and per_node > 1 and stage == 3 and params is Offload.NONE
        sharing: tuple[int | None, ...] = (fixed.dp_shard_size,)
        if fixed.fsdp and fixed.dp_shard_size is None:
            sharing += tuple(size for size in reversed(divisors(per_node)[1:]) if size < cluster.num_gpus)
        yield from product(_open(fixed.hpz, (per_node, 1) if has_second else (1,)), sharing)

    def _objection(self, recipe: Recipe, cluster: Cluster, rules: Sequence[Rule] = SEARCH_RULES) -> str | None:
        """Why the recipe cannot run there, whatever its size."""
        return objection(recipe, cluster=cluster, model=self._facts, given=self._given, global_batch=None, rules=rules)

    def _stages(self, cluster: Cluster) -> Iterator[tuple[int | None, Offload, Offload]]:
        """(stage, optimizer offload, parameter offload), the simplest first."""
        decided = self._fixed.zero_stage
        if self._fixed.fsdp:  # which offloads all or nothing
            own = self._fixed.offload_optimizer, self._fixed.offload_params
            places = [place for place in (Offload.NONE, Offload.CPU) if all(one in (None, place) for one in own)]
            stage = None if decided == PLAIN else decided  # a rule refuses one, and places that differ
            yield from ((stage, place, place) for place in places)
            if not places:
                yield stage, own[0] or Offload.NONE, own[1] or Offload.NONE
            return
        stages = STAGES if decided is None else (None if decided == PLAIN else decided,)
        on_gpu, on_host = Offload.NONE, Offload.CPU
        seen: dict[tuple[int | None, Offload, Offload], None] = {}
        for optimizer, params in ((on_gpu, on_gpu), (on_host, on_gpu), (on_gpu, on_host), (on_host, on_host)):
            own = self._fixed.offload_optimizer or optimizer, self._fixed.offload_params or params
            for stage in stages:
                has_effect = (optimizer is on_gpu or stage in (1, 2, 3)) and (params is on_gpu or stage == 3)
                if has_effect:
                    seen[(stage, *own)] = None
        yield from seen


def _open(decided: Value | None, choices: tuple[Value, ...]) -> tuple[Value, ...]:
    """What to try: what is decided, else every choice."""
    return choices if decided is None else (decided,)

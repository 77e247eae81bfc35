"""Which recipes a search tries on a cluster: methods, engines, offload and checkpointing that the rules allow."""

from collections.abc import Iterable, Iterator
from typing import Any

from vlmplan.hardware import Cluster
from vlmplan.recipe import Method, Offload, Precision, Recipe
from vlmplan.rules import Severity, default_attention, model_facts, problems
from vlmplan.workload import Workload


class RecipeChoices:
    """The recipes of a workload, without sizes and batches; ``fixed`` fields are the user's, the rest is tried.

    What is the same on many clusters is one object.
    """

    def __init__(self, workload: Workload, fixed: dict[str, Any]) -> None:
        self._workload, self._fixed = workload, fixed
        self._facts = model_facts(workload.model)
        self._attention = default_attention(self._facts)
        self._given = frozenset(fixed)
        self._made: dict[tuple[Any, ...], Recipe] = {}
        self._allowed: dict[Any, list[Recipe]] = {}

    @property
    def methods(self) -> tuple[Method, ...]:
        return self._options("method", tuple(Method))

    def allowed(self, cluster: Cluster, method: Method, *, is_lean: bool) -> list[Recipe]:
        """Recipes of one method; ``is_lean``: those that give speed for memory.

        Rules ask a card for its maker and what it can compute, and for nothing else.
        """
        gpu = cluster.node.gpu
        kind = (gpu.vendor, gpu.compute_capability, gpu.supports_bf16)
        key = (kind, cluster.num_gpus, cluster.num_nodes, method, is_lean)
        if key not in self._allowed:
            made = self._recipes(cluster, method, is_lean)
            self._allowed[key] = [recipe for recipe in made if self._objection(recipe, cluster) is None]
        return self._allowed[key]

    def objections(self, cluster: Cluster, kinds: Iterable[tuple[Method, bool]]) -> Iterator[str]:
        """Why recipes of these methods, lean or not, cannot run there, whatever their size."""
        for method, is_lean in kinds:
            for recipe in self._recipes(cluster, method, is_lean):
                reason = self._objection(recipe, cluster)
                if reason is not None:
                    yield reason

    def _recipes(self, cluster: Cluster, method: Method, is_lean: bool) -> Iterator[Recipe]:
        gpu = cluster.node.gpu
        for checkpoints in self._options("activation_checkpointing", (True,) if is_lean else (False, True)):
            for stage, optimizer, params in self._engines(cluster, is_lean):
                fields: dict[str, Any] = {
                    "method": method,
                    "attention": self._attention,
                    "precision": Precision.BF16 if gpu.supports_bf16 else Precision.FP16,
                    "expandable_segments": True,
                    "zero_stage": stage,
                    "offload_optimizer": optimizer,
                    "offload_params": params,
                    "activation_checkpointing": checkpoints,
                    "vision_activation_checkpointing": checkpoints,
                }
                for hpz in self._copies(cluster, stage, params):
                    yield self._recipe(fields | {"hpz": hpz})

    def _recipe(self, fields: dict[str, Any]) -> Recipe:
        key = tuple(fields.values())
        if key not in self._made:
            self._made[key] = Recipe(**(fields | self._fixed))
        return self._made[key]

    def _copies(self, cluster: Cluster, stage: int | None, params: Offload) -> tuple[int, ...]:
        """Ranks that keep second copies of weights between them: those of a node, where weights would come from
        others, or none."""
        per_node = cluster.node.num_gpus
        has_use = stage == 3 and cluster.num_nodes > 1 and per_node > 1 and params is Offload.NONE
        return self._options("hpz", (per_node, 1) if has_use else (1,))

    def _objection(self, recipe: Recipe, cluster: Cluster) -> str | None:
        """Why the recipe cannot run there, whatever its size."""
        is_decided = {"micro_batch", "grad_accum"} <= self._given
        total = self._workload.global_batch if is_decided else None
        found = problems(recipe, cluster=cluster, model=self._facts, given=self._given, global_batch=total)
        return found[0].sentence if found and found[0].severity is Severity.ERROR else None

    def _options(self, name: str, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._fixed[name],) if name in self._fixed else choices

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
                    own = self._fixed.get("offload_optimizer", optimizer), self._fixed.get("offload_params", params)
                    yield (stage, *own)

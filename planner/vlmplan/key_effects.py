"""What a key of ds_config.json does to a plan: the plan estimated again with other values of that key alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from vlmplan.deepspeed_config import Key, deepspeed_config
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, estimate
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, OptimizerKind, Precision
from vlmplan.recipe.zero import DEFAULT_ZERO_SETTINGS, ZeroSettings
from vlmplan.rules import check, model_facts
from vlmplan.sizes import even

ZERO_PREFIX = "zero_optimization."
OPTIMIZER_TYPE = "optimizer.type"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherValue:
    """The plan with another value of the key."""

    value: Any
    planned: Estimate
    found: Estimate

    @property
    def peak_difference_bytes(self) -> int:
        """Bytes by which the peak of allocated memory changes on the fullest GPU, over the whole run."""
        return self.found.peak_allocated_bytes - self.planned.peak_allocated_bytes

    @property
    def largest_phase_difference(self) -> tuple[str, int]:
        """The phase whose peak changes most, and by how many bytes."""
        pairs = zip(self.planned.timeline.phases, self.found.timeline.phases, strict=True)
        changes = [(now.name, then.peak.total - now.peak.total) for now, then in pairs]
        return max(changes, key=lambda change: abs(change[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInPlan:
    """A key's value in a plan and what other values change. ``is_written``: the plan's ds_config has the key."""

    key: Key
    planned: Estimate
    value: Any
    is_written: bool
    others: tuple[OtherValue, ...]


def key_in_plan(key: Key, found: Estimate, ds_config: Mapping[str, Any] | None) -> KeyInPlan | None:
    """What ``key`` is in the plan of ``found`` with this ds_config, and what other values would change.

    None where the plan is one of plain PyTorch, which has no ds_config. Everything else stays as it is, the sizes
    included; values that cannot be trained are left out.
    """
    if ds_config is None:
        return None
    planned = estimate(found.workload, found.recipe, found.cluster)
    value, is_written = value_at(ds_config, key, found.recipe)
    others: list[OtherValue] = []
    for changed in _other_recipes(key.path, found.recipe, found.cluster):
        other = _estimated(changed, planned)
        if other is not None:
            content = deepspeed_config(changed, num_gpus=found.cluster.num_gpus) or {}
            others.append(OtherValue(value=value_at(content, key, changed)[0], planned=planned, found=other))
    return KeyInPlan(key=key, planned=found, value=value, is_written=is_written, others=tuple(others))


def value_at(ds_config: Mapping[str, Any], key: Key, recipe: Recipe) -> tuple[Any, bool]:
    """The value of ``key`` and whether it is written; where it is not, DeepSpeed's default, and the optimizer that the
    trainer builds itself."""
    if key.path == OPTIMIZER_TYPE:
        return recipe.optimizer.value, False
    place: object = ds_config
    for name in key.path.split("."):
        if not isinstance(place, Mapping) or name not in place:
            return key.default, False
        place = cast(Mapping[str, object], place)[name]
    return place, True


def _estimated(recipe: Recipe, planned: Estimate) -> Estimate | None:
    """The plan with ``recipe``; None where a rule or the model refuses it."""
    workload = replace(planned.workload, global_batch=None)
    try:
        check(recipe, cluster=planned.cluster, model=model_facts(workload.model))
        return estimate(workload, recipe, planned.cluster)
    except InputError:
        return None


def _other_recipes(path: str, recipe: Recipe, cluster: Cluster) -> Iterator[Recipe]:
    """Recipes that differ in what ``path`` says alone: other sizes, or each other choice."""
    name = path.removeprefix(ZERO_PREFIX)
    if path.startswith(ZERO_PREFIX) and name in {item.name for item in fields(ZeroSettings)}:
        for value in _other_sizes(name, getattr(recipe.zero, name)):
            yield recipe.with_changes(zero=replace(recipe.zero, **{name: value}))
        return
    for field, values in _other_choices(path, recipe, cluster):
        for value in values:
            if value != getattr(recipe, field):
                yield recipe.with_changes(**{field: value})


def _other_sizes(name: str, value: Any) -> list[Any]:
    """The other of two; of a size half, double and DeepSpeed's default. Buckets stay even, as DeepSpeed wants them."""
    if isinstance(value, bool):
        return [not value]
    is_bucket = name in ("reduce_bucket_size", "allgather_bucket_size")
    sizes = [even(value // 2) if is_bucket else value // 2, 2 * value, getattr(DEFAULT_ZERO_SETTINGS, name)]
    return [size for size in dict.fromkeys(sizes) if size != value]


def _other_choices(path: str, recipe: Recipe, cluster: Cluster) -> Iterator[tuple[str, list[Any]]]:
    """Fields of the recipe that ``path`` decides, with the values to compare."""
    halves = {
        "train_micro_batch_size_per_gpu": "micro_batch",
        "gradient_accumulation_steps": "grad_accum",
        "train_batch_size": "grad_accum",
    }
    if path in halves:
        value = getattr(recipe, halves[path])
        yield halves[path], [max(1, value // 2), 2 * value]
    elif path == "gradient_clipping":
        yield "gradient_clipping", [0.0, 1.0]
    elif path == "zero_optimization.stage":
        yield "zero_stage", [0, 1, 2, 3]
    elif path == "sequence_parallel_size":
        yield "sequence_parallel", [1, cluster.num_gpus]
    elif path == "zero_optimization.zero_hpz_partition_size":
        yield "hpz", [1, cluster.node.num_gpus]
    elif path == "zero_optimization.offload_optimizer.device":
        yield "offload_optimizer", [Offload.NONE, Offload.CPU]
    elif path == "zero_optimization.offload_param.device":
        yield "offload_params", [Offload.NONE, Offload.CPU]
    elif path == OPTIMIZER_TYPE:
        yield "optimizer", [OptimizerKind.ADAMW, OptimizerKind.SGD, OptimizerKind.ADAFACTOR]
    else:
        yield from _other_precisions(path, recipe)


def _other_precisions(path: str, recipe: Recipe) -> Iterator[tuple[str, list[Any]]]:
    is_pure = recipe.precision is Precision.BF16_PURE
    if path in ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"):
        yield "precision", [Precision.BF16 if is_pure else Precision.BF16_PURE]
    elif path == "bf16.enabled":
        uses_bf16 = is_pure or recipe.precision is Precision.BF16
        yield "precision", [Precision.FP32] if uses_bf16 else [Precision.BF16]
    elif path == "fp16.enabled":
        yield "precision", [Precision.FP32] if recipe.precision is Precision.FP16 else [Precision.FP16]

"""The settings of a recipe that are decided, by a user's options or a ds_config.json; the others are open."""

from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from vlmplan.recipe.choices import (
    AdapterDtype,
    AttentionImplementation,
    BatchesOnGpu,
    Batching,
    CheckpointKind,
    FlatParameters,
    InputGradients,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.libraries import TorchVersion, TransformersVersion
from vlmplan.recipe.muon import GRADIENT_CLIPPING as MUON_GRADIENT_CLIPPING
from vlmplan.recipe.recipe import PLAIN, Recipe
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.zero import ZeroSettings

Stage = int | Literal["none"]
"""A ZeRO stage, or PLAIN for plain PyTorch."""


WITHOUT_OPTION = frozenset(("gradient_clipping", "zero", "evaluation", "task"))
"""Settings that no option of the command line has by their name: a ds_config.json decides ``zero`` and
``gradient_clipping``, options of their own ``evaluation`` and ``task``."""


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Partial = TypeVar("Partial", bound=_Dataclass)


def completed(decided: Partial, defaults: Partial) -> Partial:
    """``decided``, a dataclass, with those of ``defaults`` in place of what is open: None or empty."""
    names = [item.name for item in fields(decided)]
    return replace(decided, **{name: getattr(defaults, name) for name in names if getattr(decided, name) in (None, ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRecipe:
    """The fields of ``Recipe``; None is open. A search holds fixed what is decided and tries the rest.

    The order of fields is that of the options in command lines that are written. Those of ``WITHOUT_OPTION`` have none.
    """

    zero_stage: Stage | None = None
    lora_rank: int | None = None
    lora_targets: str | None = None
    lora_alpha: int | None = None
    lora_dropout: float | None = None
    use_rslora: bool | None = None
    use_dora: bool | None = None
    lora_init: str | None = None
    loraplus_lr_ratio: float | None = None
    lora_exclude: str | None = None
    uses_autocast: bool | None = None
    train_embeddings: bool | None = None
    train_vision: bool | None = None
    train_projector: bool | None = None
    train_language: bool | None = None
    full_vision: bool | None = None
    full_projector: bool | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    hpz: int | None = None
    dp_shard_size: int | None = None
    sequence_parallel: int | None = None
    activation_checkpointing: bool | None = None
    vision_activation_checkpointing: bool | None = None
    offload_activations: bool | None = None
    tiled_mlp: bool | None = None
    fuses_optimizer: bool | None = None
    deepspeed_adam: bool | None = None
    caches_casts: bool | None = None
    liger_layers: bool | None = None
    compiled_norms: bool | None = None
    fused_adapters: bool | None = None
    upcasts_frozen: bool | None = None
    use_double_quant: bool | None = None
    expandable_segments: bool | None = None
    gradient_as_bucket_view: bool | None = None
    fsdp: bool | None = None
    reshard_after_forward: bool | None = None
    sync_each_batch: bool | None = None
    reduces_in_float32: bool | None = None
    shards_packed: bool | None = None
    uses_orig_params: bool | None = None
    prefetches_forward: bool | None = None
    nvme_path: str | None = None
    method: Method | None = None
    precision: Precision | None = None
    optimizer: OptimizerKind | None = None
    offload_optimizer: Offload | None = None
    offload_params: Offload | None = None
    attention: AttentionImplementation | None = None
    linear_attention: LinearAttention | None = None
    torch_version: TorchVersion | None = None
    transformers_version: TransformersVersion | None = None
    loss: LossKind | None = None
    batching: Batching | None = None
    shard_units: ShardUnits | None = None
    flat_parameters: FlatParameters | None = None
    adapter_dtype: AdapterDtype | None = None
    weight_dtype: WeightDtype | None = None
    batches_on_gpu: BatchesOnGpu | None = None
    input_gradients: InputGradients | None = None
    checkpoint_kind: CheckpointKind | None = None
    gradient_clipping: float | None = None
    zero: ZeroSettings | None = None
    evaluation: Evaluation | None = None
    task: TrainingTask | None = None

    @property
    def names(self) -> frozenset[str]:
        """The fields that are decided."""
        return frozenset(item.name for item in fields(self) if getattr(self, item.name) is not None)

    def completed(self, defaults: "DecidedRecipe") -> "DecidedRecipe":
        """The decided settings, with what is open here as ``defaults`` has it."""
        return completed(self, defaults)

    def recipe(self) -> Recipe:
        """The recipe that has the defaults of ``Recipe`` where nothing is decided. Raises InputError."""
        return Recipe(**self._values())

    def applied_to(self, recipe: Recipe) -> Recipe:
        """``recipe`` with what is decided here."""
        return recipe.with_changes(**self._values())

    def _values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.names}
        if self.zero_stage == PLAIN:
            values["zero_stage"] = None
        if self.optimizer is OptimizerKind.MUON:
            values.setdefault("gradient_clipping", MUON_GRADIENT_CLIPPING)
        return values


def decided_by(recipe: Recipe) -> DecidedRecipe:
    """Every setting of ``recipe`` that an option of its own can say, decided."""
    names = [item.name for item in fields(DecidedRecipe) if item.name not in WITHOUT_OPTION]
    values: dict[str, Any] = {name: getattr(recipe, name) for name in names}
    values["zero_stage"] = PLAIN if recipe.zero_stage is None else recipe.zero_stage
    return DecidedRecipe(**values)

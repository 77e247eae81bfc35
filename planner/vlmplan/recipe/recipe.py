"""How to train: ``recipe.settings`` resolved to values (never "auto"), and what follows from them.

A ``Recipe`` is what the trainer will do. Its element types per engine and precision:

| engine | precision | frozen weights | trained weights | master copy | autocast |
|---|---|---|---|---|---|
| plain PyTorch | bf16, fp16 | 16 bit | float32 | the weights themselves | yes, unless told otherwise |
| plain PyTorch | bf16-pure | 16 bit | 16 bit | none | no |
| FSDP1 | bf16 | 16 bit | 16 bit | float32 shards | yes, unless told otherwise |
| DeepSpeed | bf16, fp16 | 16 bit | 16 bit | float32 in the optimizer | no |
| DeepSpeed | bf16-pure | 16 bit | 16 bit | bfloat16 in the optimizer | no |
| FSDP2 | bf16 | 16 bit | 16 bit | float32 in its shards | no |
| any | fp32 | float32 | float32 | see the stage | no |

``adapter_dtype`` says otherwise for what peft trains in plain PyTorch, ``weight_dtype`` for the model's own weights
and for shards of frozen ones.
"""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from vlmplan.files.json_reader import JsonDict
from vlmplan.files.record_json import record_json
from vlmplan.recipe.batch_counts import BatchCounts
from vlmplan.recipe.choices import (
    ALPHA_PER_RANK,
    OLORA,
    PISSA,
    AdapterDtype,
    AttentionImplementation,
    InputGradients,
    LossKind,
    Method,
    OptimizerKind,
    Part,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.settings import ENGINE_FIELDS, MICRO_BATCH_FIELDS, MODEL_FIELDS
from vlmplan.recipe.task_choices import Reference
from vlmplan.units import DType

PLAIN: Final = "none"
"""The ``--zero-stage`` that means PyTorch without DeepSpeed."""


def engine_name(recipe: "Recipe", num_gpus: int) -> str:
    """What answers call the engine of ``recipe``: ``plain PyTorch``, ``DDP``, ``FSDP1``, ``FSDP2`` or ``ZeRO-2``."""
    if recipe.zero_stage is not None:
        return f"ZeRO-{recipe.zero_stage}"
    if recipe.fsdp:
        return "FSDP1" if recipe.is_flat else "FSDP2"
    return "plain PyTorch" if num_gpus == 1 else "DDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(BatchCounts):
    """The settings, and what follows from them: element types, what engines and caches ask for, JSON."""

    @property
    def uses_deepspeed(self) -> bool:
        return self.zero_stage is not None

    @property
    def reference(self) -> Reference:
        """The kind of the task's reference; where it says nothing, as TRL's trainers have it (``dpo_trainer.py``:
        adapters are switched off, else there is a second model; ``grpo_config.py``: ``beta`` is 0;
        ``reward_trainer.py``: none)."""
        if self.task is None or self.task.is_reward or (self.task.is_grpo and self.task.reference is None):
            return Reference.NONE
        usual = Reference.ADAPTER_OFF if self.trains_adapters else Reference.COPY
        return self.task.reference or usual

    @property
    def shards_checkpointed_adapters(self) -> bool:
        """Where TRL's scripts for pairs make checkpoints reentrant ('PEFT + DeepSpeed ZeRO-3 requires reentrant
        checkpointing', trl 1.16 ``dpo_trainer.py``)."""
        return self.zero_stage == 3 and self.trains_adapters and self.activation_checkpointing

    @property
    def has_reentrant_checkpoints(self) -> bool:
        """Whether the task's checkpoints are reentrant; where it says nothing, as TRL's script has them."""
        said = False if self.task is None else self.task.reentrant_checkpoints
        return self.shards_checkpointed_adapters if said is None else said

    @property
    def casts_weights(self) -> bool:
        """Whether the engine computes with weights that it has cast, and updates others: DeepSpeed with its master
        weights, FSDP2 with its float32 shards (``MixedPrecisionPolicy``)."""
        return self.uses_deepspeed or self.fsdp

    @property
    def trains_adapters(self) -> bool:
        return self.method is not Method.FULL

    @property
    def partitions_states(self) -> bool:
        """Whether ZeRO gives each rank a partition of the optimizer's states: its stages 1, 2 and 3."""
        return self.zero_stage in (1, 2, 3)

    @property
    def keeps_linear_inputs(self) -> bool:
        """Whether ``F.linear`` is DeepSpeed's (``zero/linear.py``): it keeps the input even of a frozen weight, and
        no view of the weight, which would keep a gathered one whole until backward."""
        return self.zero_stage == 3 and self.zero.memory_efficient_linear

    @property
    def evaluates_by_another_order(self) -> bool:
        """Whether modules that run in training are left out in evaluation: the dropout in front of DoRA's product is
        (``DoraLinearVariant.forward`` in peft 0.21 ``tuners/lora/variants.py``)."""
        return self.trains_adapters and self.use_dora and self.lora_dropout > 0

    @property
    def masks_its_row(self) -> bool:
        """Whether the samples of a micro batch are one row under a mask, whose attention takes its square."""
        return self.batching.is_flat and self.attention is not AttentionImplementation.FLASH_ATTENTION_2

    @property
    def scatters_gradients(self) -> bool:
        """Whether each rank is sent only its part of the mean gradients: never with Muon at stage 3, which DeepSpeed
        refuses otherwise (``zero/stage3.py``)."""
        return self.zero.reduce_scatter and not (self.zero_stage == 3 and self.optimizer is OptimizerKind.MUON)

    @property
    def autocast(self) -> DType | None:
        """Element type of ``torch.autocast``; None where the weights' own types decide. verl has it around weights that
        FSDP2 has cast (``dp_actor.py``), which it leaves as they are."""
        may = self.can_autocast or (self.task is not None and self.task.has_entropies)
        return self.precision.dtype if self.uses_autocast and may else None

    @property
    def can_autocast(self) -> bool:
        """Whether ``torch.autocast`` may be around forward: DeepSpeed and FSDP2 compute in the type of the weights."""
        return (self.is_flat or not self.casts_weights) and self.precision in (Precision.BF16, Precision.FP16)

    @property
    def trained_dtype(self) -> DType:
        """Element type of trained weights and their gradients."""
        if self.trains_adapters:
            is_model_type = self.adapter_dtype is AdapterDtype.MODEL
        else:
            is_model_type = self.weight_dtype is WeightDtype.MODEL
        if self.keeps_adapters_wide:
            return DType.FLOAT32
        is_of_computation = self.casts_weights or not self.can_autocast
        return self.precision.dtype if is_model_type or is_of_computation else DType.FLOAT32

    @property
    def keeps_adapters_wide(self) -> bool:
        """Whether adapters stay in float32 under ZeRO-3: DeepSpeed casts no weight of a model that was made in shards
        (``_cast_module_mixed_precision`` leaves out those of ``zero.Init``), adapters that peft adds neither."""
        return self.trains_adapters and self.zero_stage == 3 and self.adapter_dtype is AdapterDtype.FLOAT32

    @property
    def copy_dtype(self) -> DType:
        """Element type of the embeddings that adapters train beside them (peft's ``modules_to_save``)."""
        if self.weight_dtype is WeightDtype.FLOAT32 and not self.casts_weights:
            return DType.FLOAT32
        says_type = self.adapter_dtype is not AdapterDtype.TABLE
        return self.precision.dtype if says_type or self.autocast is None else DType.FLOAT32

    @property
    def full_part_dtype(self) -> DType:
        """Element type of parts that are trained in full beside adapters: they are the model's own, so that what peft
        makes float32 of a 4-bit model are they too (``prepare_model_for_kbit_training``)."""
        return DType.FLOAT32 if self.upcasts_frozen else self.copy_dtype

    @property
    def frozen_parts(self) -> frozenset[Part]:
        """The parts that are not trained."""
        return frozenset(part for part in Part if not getattr(self, f"train_{part.value}"))

    @property
    def full_parts(self) -> frozenset[Part]:
        """The parts whose own weights are trained beside adapters of others."""
        is_full = {Part.VISION: self.full_vision, Part.PROJECTOR: self.full_projector}
        return frozenset(part for part, is_own in is_full.items() if is_own and self.trains_adapters)

    @property
    def trains_full_parts(self) -> bool:
        """Whether weights of the model itself are trained beside adapters."""
        return bool(self.full_parts)

    @property
    def changes_base(self) -> bool:
        """Whether adapters start as parts of the weights, which keep the rest (PiSSA, OLoRA)."""
        return self.trains_adapters and self.lora_init.startswith((PISSA, OLORA))

    @property
    def adapter_alpha(self) -> int:
        """``lora_alpha`` as peft gets it."""
        return ALPHA_PER_RANK * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    @property
    def frozen_dtype(self) -> DType:
        """Element type of frozen weights that are not packed."""
        upcasts = self.upcasts_frozen and not self.fsdp
        is_wide = upcasts or (self.weight_dtype is WeightDtype.FLOAT32 and not self.casts_weights)
        return DType.FLOAT32 if is_wide else self.precision.dtype

    @property
    def frozen_held_dtype(self) -> DType:
        """Element type of the same when the engine gets the model: FSDP2 shards them as they are, and gathers them in
        the type of the computation (``param_dtype`` of its ``MixedPrecisionPolicy``)."""
        is_wide = self.fsdp and (self.upcasts_frozen or self.weight_dtype is WeightDtype.FLOAT32)
        return DType.FLOAT32 if is_wide else self.frozen_dtype

    @property
    def loaded_dtype(self) -> DType:
        """Element type in which weights are loaded: that of trained ones where there are any, so that none is rounded
        on the way."""
        if self.weight_dtype is WeightDtype.FLOAT32:
            return DType.FLOAT32
        return self.precision.dtype if self.trains_adapters else self.held_dtype

    @property
    def buffer_dtype(self) -> DType:
        """Element type of tables of a model that are no parameters: DeepSpeed casts them with the weights
        (``module.to``), nothing else does."""
        return self.precision.dtype if self.casts_loaded else self.loaded_dtype

    @property
    def computed_dtype(self) -> DType:
        """Element type of tables that a model computes in float32: ``zero.Init`` makes them in the weights' type, and
        DeepSpeed else casts none (``_cast_module_mixed_precision``)."""
        return self.precision.dtype if self.zero_stage == 3 else DType.FLOAT32

    @property
    def reduce_dtype(self) -> DType:
        """Element type in which FSDP reduces gradients."""
        return DType.FLOAT32 if self.reduces_in_float32 else self.trained_dtype

    @property
    def has_ends_in_root(self) -> bool:
        """Whether FSDP2's root has the input embedding and the head."""
        return self.shard_units is not ShardUnits.ENDS_TOO

    @property
    def keeps_last_layers(self) -> bool:
        """Whether FSDP2 reshards all layers but the last of each stack after forward."""
        return self.shard_units.keeps_last and self.reshard_after_forward

    @property
    def gathers_adapters_alone(self) -> bool:
        """Whether FSDP2 has each matrix of an adapter by itself, or FSDP1, which never has them otherwise."""
        return self.trains_adapters and self.fsdp and (self.is_flat or self.shard_units is ShardUnits.ADAPTERS_TOO)

    @property
    def seen_adapter_dtype(self) -> DType | None:
        """Element type that peft sees of an adapter's matrices where FSDP has each by itself and they are shards
        (``adapter_views``), to which what they get is cast. None: they are whole with their layer."""
        return self.held_dtype if self.gathers_adapters_alone else None

    @property
    def gradient_units(self) -> tuple[ShardUnits, bool] | None:
        """The units in which frozen weights get gradients beside trained ones, and whether torch has them so at all:
        FSDP1's of a model without adapters, with ``use_orig_params``."""
        return (self.shard_units, self.uses_orig_params) if self.is_flat and not self.trains_adapters else None

    @property
    def held_dtype(self) -> DType:
        """Element type of trained weights as the model has them when the engine gets it: FSDP2 shards them as they are
        and updates the shards."""
        return self.master_dtype if self.fsdp else self.trained_dtype

    @property
    def casts_loaded(self) -> bool:
        """Whether DeepSpeed makes 16-bit weights of those that were loaded in float32, whole and in host memory. Under
        ZeRO-3 they are made in shards of 16 bit in the first place (``zero.Init``)."""
        is_cast = self.zero_stage in (0, 1, 2) and self.precision.dtype is not DType.FLOAT32
        return is_cast and self.loaded_dtype is DType.FLOAT32

    @property
    def master_dtype(self) -> DType:
        """Element type in which the optimizer updates weights: in plain PyTorch their own."""
        if not self.casts_weights:
            return self.trained_dtype
        is_narrow = self.fsdp and self.trains_adapters and self.adapter_dtype is AdapterDtype.MODEL
        if self.precision is Precision.BF16_PURE or is_narrow:
            return DType.BFLOAT16
        return DType.FLOAT32

    @property
    def leaves_out_packed(self) -> bool:
        """Whether FSDP2 leaves 4-bit weights out of its shards: bytes cannot be parameters of its
        (``incompatible_params4bit`` in ``fsdp2_prepare_model``, accelerate 1.15 ``utils/fsdp_utils.py``)."""
        return self.fsdp and not self.shards_packed

    @property
    def pixel_dtypes(self) -> tuple[DType, ...]:
        """Element types that a micro batch's pixels are there in, as they came first and as the model gets them last:
        Hugging Face's Trainer casts them under DeepSpeed (``_prepare_input``), the root under FSDP2
        (``cast_forward_inputs``), else the model does."""
        if not self.batches_on_gpu.has_wide_pixels:
            return (self.precision.dtype,)
        is_cast = self.casts_weights and self.precision.dtype is not DType.FLOAT32
        if self.task is not None and self.task.is_grpo and is_cast:  # cast with the answers, and kept so
            return (self.precision.dtype,)
        return (DType.FLOAT32, self.precision.dtype) if is_cast else (DType.FLOAT32,)

    @property
    def needs_input_gradients(self) -> tuple[bool, bool]:
        """Whether results of the language model's input embedding need gradients, and those of encoders'."""
        kind = self.input_gradients
        if kind is InputGradients.ALWAYS:
            return True, True
        if not self.activation_checkpointing or (kind is InputGradients.PEFT and self.method is not Method.LORA):
            return False, False
        return kind is not InputGradients.NONE, kind in (InputGradients.ALL, InputGradients.PEFT)

    @property
    def keeps_graph(self) -> bool:
        """Whether the training loop holds something of a micro batch until the next (``losses/openrlhf.py``)."""
        return self.loss is LossKind.OPENRLHF

    @property
    def steps_within_backward(self) -> bool:
        """Whether DeepSpeed's step is the end of accelerate's ``backward`` (1.15 ``utils/deepspeed.py``), while Hugging
        Face's Trainer names the loss (``training_step`` in transformers 5.23 ``trainer.py``), whose graph stays until
        then. Trainers of tasks are made of it, but OpenRLHF's, which has a loop of its own."""
        is_of_task = self.task is not None and not self.task.is_of_openrlhf
        return self.uses_deepspeed and (is_of_task or self.keeps_batches)

    @property
    def checkpoints_reentrantly(self) -> bool:
        """Whether checkpoints of activations are reentrant (``CheckpointKind``)."""
        has_checkpoints = self.activation_checkpointing or self.vision_activation_checkpointing
        return self.has_reentrant_checkpoints or (has_checkpoints and self.checkpoint_kind.is_reentrant)

    @property
    def keeps_batches(self) -> bool:
        """Whether all micro batches of a step are on the GPU until the next step begins."""
        return self.batches_on_gpu.are_all_of_step

    @property
    def num_waiting(self) -> int:
        """Micro batches of the step that are on the GPU beside the one that is computed."""
        return self.grad_accum - 1 if self.keeps_batches else 0

    @property
    def model_key(self) -> tuple[Any, ...]:
        """What a prepared model depends on: which weights are trained, and in which types it is held and computes."""
        return (
            *(self.casts_weights, self.keeps_adapters_wide, self.buffer_dtype, self.seen_adapter_dtype),
            self.scores_rows,
            self.gradient_units,
            *_OF_MODEL(self),
        )

    @property
    def flattens_update(self) -> bool:
        """Whether ``FP16_Optimizer`` has what ZeRO-0 updates in flat buffers (``_configure_fp16_optimizer`` in
        deepspeed 0.19.8 ``runtime/engine.py``)."""
        is_adamw = self.deepspeed_adam and self.optimizer is OptimizerKind.ADAMW
        return is_adamw and self.master_dtype is not self.trained_dtype

    @property
    def engine_key(self) -> tuple[Any, ...]:
        """The engine and what is offloaded, with the sizes that its stage reads."""
        return (*_OF_ENGINE(self), self.zero.read_by(self.zero_stage))

    def with_changes(self, **changes: Any) -> "Recipe":
        """A recipe with other values of these settings. ``dataclasses.replace`` takes three times as long, and a search
        makes thousands."""
        made = object.__new__(Recipe)
        for fill, value in zip(_FILLS.values(), _VALUES(self), strict=True):
            fill(made, value)
        for name, value in changes.items():
            if name not in _FILLS:
                raise TypeError(f"a recipe has no {name}")
            _FILLS[name](made, value)
        made.__post_init__()
        return made

    def without_micro_batch(self) -> "Recipe":
        """One recipe for all that differ in nothing but how micro batches are computed and how many there are: of these
        an engine asks nothing before one runs. Sizes that the stage does not read are left out too."""
        return self.with_changes(**_ANY_MICRO_BATCH, zero=self.zero.read_by(self.zero_stage))

    def as_json(self) -> JsonDict:
        """Every option as resolved, under the names of the command line (underscores for dashes)."""
        result = record_json(self)
        if self.task is not None:
            result["task"]["reentrant_checkpoints"] = self.has_reentrant_checkpoints
        result["zero_stage"] = PLAIN if self.zero_stage is None else self.zero_stage
        return result


_NAMES = tuple(field.name for field in fields(Recipe))
_VALUES = attrgetter(*_NAMES)
_FILLS = {name: getattr(Recipe, name).__set__ for name in _NAMES}
"""What fills each field of a new recipe, as assignment is refused."""
_OF_MODEL = attrgetter(*MODEL_FIELDS)
_OF_ENGINE = attrgetter(*(name for name in ENGINE_FIELDS if name != "zero"))
_ANY_MICRO_BATCH = {field.name: field.default for field in fields(Recipe) if field.name in MICRO_BATCH_FIELDS}

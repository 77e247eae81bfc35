"""What trainers that build on Hugging Face's let the settings of a recipe be: all of them, or several.

Read in transformers 5.23, accelerate 1.15, peft 0.21 and the trainers that each ``source`` names.
"""

from vlmplan.other_trainers.fsdp import unread_losses
from vlmplan.other_trainers.hugging_face import OPTIMIZERS
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, always
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    REGEX,
    AdapterDtype,
    BatchesOnGpu,
    CheckpointKind,
    FlatParameters,
    LossKind,
    Method,
    OptimizerKind,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.lora_targets import stacked_targets

KNOWN_OPTIMIZERS = tuple(dict.fromkeys(kind for kind, _ in OPTIMIZERS.values()))


def _precisions(context: LimitContext) -> tuple[Precision, ...]:
    everywhere = (Precision.BF16, Precision.FP16, Precision.FP32)
    return everywhere if context.recipe.uses_deepspeed else (*everywhere, Precision.BF16_PURE)


def _scaled_precisions(context: LimitContext) -> tuple[Precision, ...] | None:
    is_unscaled = context.recipe.zero_stage == 0
    return tuple(kind for kind in Precision if kind is not Precision.FP16) if is_unscaled else None


def _losses_of_shards(context: LimitContext) -> tuple[LossKind, ...] | None:
    recipe = context.recipe
    if not recipe.fsdp or recipe.has_ends_in_root:
        return None
    refused = unread_losses(sees=context.sees, trains_adapters=recipe.trains_adapters)
    return tuple(kind for kind in LossKind if kind not in refused)


def _pure_of_all(context: LimitContext) -> tuple[Precision, ...] | None:
    has_adapters = context.recipe.fsdp and context.recipe.trains_adapters
    return tuple(kind for kind in Precision if kind is not Precision.BF16_PURE) if has_adapters else None


def _fused(context: LimitContext) -> tuple[bool, ...]:
    """Whether AdamW is fused: beside Muon, which ``ds_config.json`` names, it is DeepSpeed's ``FusedAdam``."""
    kind = context.recipe.optimizer
    if kind is OptimizerKind.MUON:
        return (True,)
    return (True, False) if kind is OptimizerKind.ADAMW else (False, True)


def _tied_checkpointing(context: LimitContext) -> tuple[bool, ...] | None:
    return (context.recipe.activation_checkpointing,) if context.sees else None


def _named_targets(context: LimitContext) -> tuple[str, ...] | None:
    return () if context.recipe.trains_adapters and context.recipe.lora_targets == "attention" else None


LAYERS_AS_UNITS = Limit(
    field="shard_units",
    allowed=lambda context: (ShardUnits.LAYERS if context.recipe.fsdp else ShardUnits.ENDS_TOO,),
    sentence="its FSDP2 gathers layers by themselves and all else with the root (--shard-units layers)",
    source="accelerate 1.11 utils/fsdp_utils.py fsdp2_prepare_model; axolotl 0.19 monkeypatch/accelerate/fsdp2.py",
    is_behaviour=True,
)
NO_COMPILED_NORMS = Limit(
    field="compiled_norms",
    allowed=always(False),
    sentence="its norms are transformers' own or Liger's; --compiled-norms is not to be had",
    source="Automodel@36044ad3 components/models/common/utils.py Float32RMSNorm: of NeMo AutoModel's own models",
    is_behaviour=True,
)
NO_FUSED_ADAPTERS = Limit(
    field="fused_adapters",
    allowed=always(False),
    sentence="its adapters are peft's; --fused-adapters is not to be had",
    source="Automodel@36044ad3 components/_peft/lora.py: NeMo AutoModel's own",
    is_behaviour=True,
)
WHOLE_LAYERS = Limit(
    field="checkpoint_kind",
    allowed=always(*(kind for kind in CheckpointKind if kind is not CheckpointKind.PARTS)),
    sentence="its checkpoints are of whole layers; --checkpoint-kind parts is not to be had",
    source="transformers 5.23 modeling_layers.py GradientCheckpointingLayer",
)


def has_patience(recipe: Recipe) -> bool:
    """Whether evaluations may end the run."""
    return recipe.evaluation is not None and recipe.evaluation.early_stopping_patience is not None


def _threshold_is_not_said(context: LimitContext) -> tuple[None, ...] | None:
    evaluation = context.recipe.evaluation
    return (None,) if evaluation is not None and evaluation.early_stopping_threshold else None


NO_THRESHOLD = Limit(
    field="evaluation",
    allowed=_threshold_is_not_said,
    sentence="no key of it says how much lower a loss has to be; --early-stopping-threshold is not to be had",
    source="axolotl core/builders/causal.py, LLaMA-Factory train/tuner.py: EarlyStoppingCallback gets a patience alone",
)


COMMON_LIMITS: tuple[Limit, ...] = (
    NO_COMPILED_NORMS,
    NO_FUSED_ADAPTERS,
    NO_THRESHOLD,
    WHOLE_LAYERS,
    *(
        Limit(
            field=field,
            allowed=always(False),
            sentence="beside adapters it trains no weights of the model itself but copies; "
            f"--{field.replace('_', '-')} is not to be had",
            source="peft 0.21 tuners/tuners_utils.py freezes all but adapters and modules_to_save",
        )
        for field in ("full_vision", "full_projector")
    ),
    Limit(
        field="tiled_mlp",
        allowed=always(False),
        sentence="it has no option for DeepSpeed's TiledMLP; --tiled-mlp is not to be had",
        source="no configuration of transformers 5.23, accelerate 1.15, TRL, ms-swift or LLaMA-Factory names it",
    ),
    Limit(
        field="uses_autocast",
        allowed=lambda context: (True,) if context.casts else None,
        sentence="it computes under autocast wherever bf16 or fp16 is set; --no-autocast is not to be had",
        source="accelerate 1.15 accelerator.py prepare_model: model.forward is wrapped in autocast",
        is_behaviour=True,
    ),
    Limit(
        field="caches_casts",
        allowed=lambda context: (True,) if context.casts else (context.is_plain, not context.is_plain),
        sentence="its autocast keeps 16-bit copies until forward ends; --no-cached-casts is not to be had",
        source="accelerate 1.15 utils/dataclasses.py AutocastKwargs.cache_enabled: True, and no argument sets it",
        is_behaviour=True,
    ),
    Limit(
        field="gradient_as_bucket_view",
        allowed=lambda setup: (not setup.is_plain,),
        sentence="its DDP keeps gradients beside its buckets, as torch's does; --gradients-in-buckets is not to be had",
        source="transformers 5.23 trainer.py create_accelerator_and_postprocess: no argument sets it",
        is_behaviour=True,
    ),
    Limit(
        field="sync_each_batch",
        allowed=lambda context: (not context.recipe.fsdp,),
        sentence="under FSDP2 it reduces gradients in the last micro batch of a step alone; --sync-each-batch is not "
        "to be had",
        source="transformers 5.23 trainer.py _run_epoch: accelerator.no_sync, which is set_requires_gradient_sync",
        is_behaviour=True,
    ),
    Limit(
        field="loss",
        allowed=_losses_of_shards,
        sentence="under FSDP2 Liger's loss would read a head that is not gathered, unless all of a text model is "
        "trained, and TRL's one that is sharded in float32 where a model that sees is; --zero-stage 3 trains it",
        source="accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model: the head is a unit with the final norm, or "
        "alone where _find_final_norm finds none; losses that do not call it have no forward hook",
    ),
    Limit(
        field="flat_parameters",
        allowed=always(FlatParameters.NONE),
        sentence="FSDP1 is planned for files that have it, and written for none; give --flat-parameters none for FSDP2",
        source="transformers 5.23 training_args.py _process_fsdp_args: FSDP1 is deprecated",
    ),
    Limit(
        field="shard_units",
        allowed=always(ShardUnits.ENDS_TOO),
        sentence="its FSDP2 gathers embedding and head by themselves too (--shard-units layers-and-ends)",
        source="accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model",
        is_behaviour=True,
    ),
    Limit(
        field="reduces_in_float32",
        allowed=always(False),
        sentence="its FSDP2 reduces gradients in 16 bit; --float32-reduce is not to be had",
        source="accelerate 1.15 utils/dataclasses.py set_mixed_precision: one type for all",
    ),
    Limit(
        field="precision",
        allowed=_pure_of_all,
        sentence="under FSDP2 its adapters would be float32 beside 16-bit weights; --precision bf16-pure is not to be "
        "had",
        source="peft 0.21 mapping_func.py get_peft_model: autocast_adapter_dtype=True",
    ),
    Limit(
        field="upcasts_frozen",
        allowed=always(False),
        sentence="it does not call peft's prepare_model_for_kbit_training; --kbit-upcast is not to be had",
        source="TRL 1.16 trainer/sft_trainer.py, LLaMA-Factory 0.9.5 model/model_utils/checkpointing.py "
        "prepare_model_for_training, ms-swift 4.6 pipelines/train/tuner.py: none of them calls it",
        is_behaviour=True,
    ),
    Limit(
        field="fuses_optimizer",
        allowed=_fused,
        sentence="beside Muon, DeepSpeed updates the other weights with its fused AdamW; leave --foreach-optimizer off",
        source="transformers 5.23 trainer_optimizer.py: adamw_torch and adamw_torch_fused; the others have one kernel",
        is_behaviour=True,
    ),
    Limit(
        field="deepspeed_adam",
        allowed=always(False),
        sentence="the ds_config.json that is written has no optimizer, so that it hands DeepSpeed torch's AdamW; leave "
        "--deepspeed-adam off",
        source="transformers 5.23 integrations/deepspeed.py deepspeed_optim_sched: the Trainer's own without one",
        is_behaviour=True,
    ),
    Limit(
        field="dp_shard_size",
        allowed=always(None),
        sentence="copies of the model are said to accelerate's launcher (dp_replicate_size and dp_shard_size of its "
        "parallelism_config), not in this file; --dp-shard-size is written for the bundled trainer and axolotl",
        source="accelerate 1.15 utils/launch.py prepare_extend_env_parallelism_config: variables of the process",
    ),
    Limit(
        field="sequence_parallel",
        allowed=always(1),
        sentence="--sequence-parallel is written for the bundled trainer alone",
        source="vlmplan: the keys of others (accelerate's parallelism_config, ms-swift's sequence_parallel_size) share "
        "samples and labels in ways of their own, of which there is no memory model",
    ),
    Limit(
        field="optimizer",
        allowed=always(*KNOWN_OPTIMIZERS, OptimizerKind.MUON),
        sentence="this is none of its optimizers: torchao's are of 8 and 4 bits",
        source="transformers 5.23 trainer_optimizer.py _get_torchao_optimizer: AdamW4bit, AdamW8bit",
    ),
    Limit(
        field="precision",
        allowed=_precisions,
        sentence="under DeepSpeed its bf16 keeps float32 master weights; --precision bf16-pure is not to be had there",
        source="transformers 5.23 integrations/deepspeed.py fill_match bf16.enabled; the optimizer is the Trainer's",
    ),
    Limit(
        field="precision",
        allowed=_scaled_precisions,
        sentence="--precision fp16 does not go with --zero-stage 0 there: DeepSpeed divides gradients by a scale with "
        "which it has multiplied no loss; give --zero-stage 1, or none",
        source="deepspeed 0.19.8 runtime/engine.py backward: scales where the optimizer is ZeRO's; "
        "runtime/fp16/unfused_optimizer.py unscale_and_clip_grads",
    ),
    Limit(
        field="lora_targets",
        allowed=_named_targets,
        sentence="--lora-targets attention is a word of vlmplan's; name the modules, such as q_proj,v_proj",
        source="peft 0.21 tuners/tuners_utils.py: target_modules are names, a pattern or all-linear",
    ),
)
"""Of all trainers that build on Hugging Face's."""

BATCHES_OF_A_STEP = Limit(
    field="batches_on_gpu",
    allowed=always(BatchesOnGpu.STEP_FLOAT32),
    sentence="all micro batches of a step are on the GPU at once, with pixels in float32; --batches-on-gpu "
    "step-float32 is what it has",
    source="transformers 5.23 trainer.py get_batch_samples; accelerate 1.15 data_loader.py DataLoaderShard moves each",
    is_behaviour=True,
)


def _ligers_layers(context: LimitContext) -> tuple[bool, ...]:
    return (context.recipe.loss is LossKind.LIGER,)


LIGER_AS_A_WHOLE = Limit(
    field="liger_layers",
    allowed=_ligers_layers,
    sentence="Liger's layers and its loss are written together: give --loss liger and --liger-layers, or neither",
    source="transformers 5.23 integrations/liger.py: use_liger_kernel; liger_kernel_config is left at its defaults",
    is_behaviour=True,
)
NO_ACTIVATIONS_ON_HOST = Limit(
    field="offload_activations",
    allowed=always(False),
    sentence="it leaves the inputs of layers on the GPU; --offload-activations is not to be had",
    source="transformers 5.23 trainer.py has no hooks for saved tensors; TRL's activation_offloading is its own",
)
NO_EXCLUSIONS = Limit(
    field="lora_exclude",
    allowed=always(None),
    sentence="it leaves no module out, neither what --lora-exclude names nor what peft cannot adapt of this model's "
    "linear layers; name the modules with --lora-targets",
    source="its peft.LoraConfig is made without exclude_modules",
)
NO_LORAPLUS = Limit(
    field="loraplus_lr_ratio",
    allowed=always(None),
    sentence="its optimizer has one learning rate; --loraplus-lr-ratio is not to be had",
    source="transformers 5.23 trainer.py create_optimizer: groups by weight decay alone",
)


def unless_a_pattern(context: LimitContext) -> tuple[str, ...] | None:
    """Limits ``lora_targets`` to names, without regular expressions."""
    recipe = context.recipe
    return () if recipe.trains_adapters and recipe.lora_targets.startswith(REGEX) else None


TIED_CHECKPOINTING = Limit(
    field="vision_activation_checkpointing",
    allowed=_tied_checkpointing,
    sentence="it checkpoints the activations of all layers or of none, those of the vision tower included",
    source="transformers 5.23 modeling_utils.py gradient_checkpointing_enable: every GradientCheckpointingLayer",
)


def all_parts_trained(context: LimitContext) -> tuple[bool, ...] | None:
    """The limit of a trainer that freezes nothing."""
    return (True,) if context.sees else None


def is_casting_full(context: LimitContext) -> bool:
    """Whether the types of a wholly trained model's weights are a choice."""
    return context.casts and context.recipe.method is Method.FULL


def has_wide_shards(context: LimitContext) -> bool:
    """Whether FSDP2 has frozen weights, whose shards may be float32 beside a computation in bfloat16."""
    recipe = context.recipe
    freezes = context.sees and not (recipe.train_vision and recipe.train_projector and recipe.train_language)
    return recipe.fsdp and recipe.precision is Precision.BF16 and (recipe.trains_adapters or freezes)


def one_type(context: LimitContext) -> tuple[WeightDtype, ...]:
    """The types of a trainer in which weights stay as they are loaded: all in 16 bit, or all in float32, which
    gradients of fp16 need."""
    if has_wide_shards(context):
        return (WeightDtype.TABLE, WeightDtype.FLOAT32)
    if not context.casts:
        return (WeightDtype.TABLE,)
    if not is_casting_full(context):
        return (WeightDtype.TABLE, WeightDtype.FLOAT32)
    is_fp16 = context.recipe.precision is Precision.FP16
    return (WeightDtype.FLOAT32,) if is_fp16 else (WeightDtype.MODEL, WeightDtype.FLOAT32)


def peft_adapters(context: LimitContext) -> tuple[AdapterDtype, ...] | None:
    """The limit of a trainer in which adapters stay as peft makes them."""
    if context.recipe.method is Method.FULL:
        return None
    return (AdapterDtype.FLOAT32,) if context.casts or leaves_adapters_wide(context.recipe) else (AdapterDtype.TABLE,)


def leaves_adapters_wide(recipe: Recipe) -> bool:
    """Whether peft's float32 adapters stay under DeepSpeed: ``zero.Init`` has made the model, which is not cast then
    (deepspeed 0.19.8 ``runtime/engine.py`` ``_cast_module_mixed_precision``)."""
    is_16_bit = recipe.precision in (Precision.BF16, Precision.FP16)
    return recipe.zero_stage == 3 and recipe.method is Method.LORA and is_16_bit


def no_stacked_experts(context: LimitContext) -> tuple[str, ...] | None:
    """The limit of a trainer without a key for peft's ``target_parameters``."""
    has_stacked = context.recipe.trains_adapters and stacked_targets(context.recipe.lora_targets)
    return () if has_stacked else None

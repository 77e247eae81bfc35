"""``TrainingArguments`` of Hugging Face's Trainer, on which TRL, LLaMA-Factory, ms-swift and axolotl build theirs.

Keys and defaults of transformers 5.23 (``training_args.py``, ``trainer.py``, ``trainer_optimizer.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmplan.data_rules import Order
from vlmplan.other_trainers.argument_kinds import OF_TRAINING_ARGUMENTS, check_kinds
from vlmplan.other_trainers.argument_rules import number_of, optimizer_arguments, refuse_together
from vlmplan.other_trainers.evaluated import OF_SCRIPTS, EvaluationRules, read_evaluation
from vlmplan.other_trainers.idle_kinds import KEYS, check_idle
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.saving import DEFAULT_STEPS, read_saving
from vlmplan.other_trainers.settings import MAX_NUMBER, NO, Settings
from vlmplan.recipe import PLAIN
from vlmplan.recipe.choices import AttentionImplementation, BatchesOnGpu, InputGradients, OptimizerKind, Precision
from vlmplan.run.saving import Saving

ORDERS: Mapping[str, Order] = {
    "random": Order.RANDOM,
    "group_by_length": Order.BY_LENGTH,
    "sequential": Order.SEQUENTIAL,
}
NOT_PLANNED = "vlmplan has no memory model of it"
OPTIMIZERS: Mapping[str, tuple[OptimizerKind, bool]] = {
    "adamw_torch": (OptimizerKind.ADAMW, False),
    "adamw_torch_fused": (OptimizerKind.ADAMW, True),
    "adamw_8bit": (OptimizerKind.ADAMW_8BIT, False),
    "adamw_bnb_8bit": (OptimizerKind.ADAMW_8BIT, False),
    "paged_adamw_32bit": (OptimizerKind.PAGED_ADAMW, False),
    "paged_adamw_8bit": (OptimizerKind.PAGED_ADAMW_8BIT, False),
    "adafactor": (OptimizerKind.ADAFACTOR, False),
    "lion_32bit": (OptimizerKind.LION, False),
    "lion_8bit": (OptimizerKind.LION_8BIT, False),
    "paged_lion_32bit": (OptimizerKind.PAGED_LION, False),
    "paged_lion_8bit": (OptimizerKind.PAGED_LION_8BIT, False),
    "adamw_torch_8bit": (OptimizerKind.TORCHAO_ADAMW_8BIT, False),
    "adamw_torch_4bit": (OptimizerKind.TORCHAO_ADAMW_4BIT, False),
    "sgd": (OptimizerKind.SGD, False),
}
"""Optimizer, and whether torch's update is one kernel."""
GONE: Mapping[str, str] = {"adamw_hf": "adamw_torch"}
"""Optimizers of earlier releases of transformers, and those that its deprecation of them names in their place."""
ATTENTION: Mapping[str, AttentionImplementation] = {
    "sdpa": AttentionImplementation.SDPA,
    "eager": AttentionImplementation.EAGER,
    "flash_attention_2": AttentionImplementation.FLASH_ATTENTION_2,
}
WITHOUT_EFFECT = KEYS | frozenset(
    """overwrite_output_dir do_train lr_scheduler_kwargs optim_args logging_dir include_num_input_tokens_seen
    include_tokens_per_second report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
    save_safetensors hub_token hub_model_id hub_revision accelerator_config label_names length_column_name debug
    sortish_sampler""".split()
)
"""Keys that change neither the bytes of a GPU in training nor the seconds of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A trainer's defaults; those here are of ``TrainingArguments``."""

    micro_batch: int = 8
    accumulation: int | None = 1
    """None: the trainer makes it of the batch and the number of GPUs."""
    epochs: float = 3.0
    checkpointing: bool | None = False
    """None: a key of the trainer's own decides, and ``gradient_checkpointing`` beside it."""
    bf16: bool | None = False
    """None: neither bf16 nor fp16 unless said; the trainer makes them of the type of the weights."""
    optimizer: str = "adamw_torch_fused"
    optimizer_tables: bool = False
    """Whether ``optim_args`` may be a table."""
    loader_workers: int = 0
    keeps_best: bool = False
    """Whether the best model is looked for in every run that evaluates."""
    writes_result: bool = True
    """Whether the model is written beside the last checkpoint when training has ended."""
    evaluation: EvaluationRules = OF_SCRIPTS
    more_schedulers: tuple[str, ...] = ()
    """Of learning rates, beside transformers'."""
    hands_on: bool = True
    """Whether ``TrainingArguments`` are made of the values as they are, nulls and all."""
    logging_steps: float = DEFAULT_STEPS


@dataclass(slots=True)
class Arguments:
    """What all these trainers have in common, as options; what follows from the model and its types is not in it."""

    options: dict[str, Value]
    precision: Precision | None
    """None: neither bf16 nor fp16."""
    gradient_clipping: float
    deepspeed: object
    """A path, an object, or None."""
    fsdp: object = None
    """As ``fsdp`` says it: true, or words; None where it shards nothing."""
    fsdp_config: object = None
    """A path, an object, or None."""
    order: Order = Order.RANDOM
    """Of the samples in an epoch."""
    saving: Saving = field(default_factory=Saving)
    loader_workers: int = 0
    output_dir: str = ""
    """Where checkpoints go; empty where nothing is said."""


def read_arguments(settings: Settings, defaults: Defaults) -> Arguments:
    """The options that ``TrainingArguments`` mean, however they are given."""
    if defaults.hands_on:
        refuse_together(settings, logging_steps=defaults.logging_steps)
    options = _batches(settings, defaults) | _optimizer(settings, defaults)
    deepspeed = settings.raw("deepspeed")
    fsdp = settings.raw("fsdp") if settings.is_on("fsdp") else None
    fsdp_config = None if fsdp is None else settings.raw("fsdp_config")
    settings.ignore(("fsdp", "fsdp_config"))  # which mean nothing where ``fsdp`` is empty (``_process_fsdp_args``)
    _refuse_what_has_no_plan(settings)
    order = _order(settings)
    settings.ignore(("ddp_bucket_cap_mb",))
    options["activation_checkpointing"] = _checkpoints(settings, defaults)
    clipping = max(0.0, settings.number("max_grad_norm", 1.0, least=-MAX_NUMBER))  # at most 0: no clipping
    saving = read_saving(settings, keeps_best=defaults.keeps_best, writes_result=defaults.writes_result)
    output_dir = settings.text("output_dir", "")
    if settings.text("resume_from_checkpoint", "").casefold() not in ("", *NO):
        settings.note("it goes on from a checkpoint: what reading that takes of GPUs and hosts is in the estimate")
    workers = settings.maybe_count("dataloader_num_workers")
    check_idle(settings, defaults.more_schedulers)
    settings.ignore(WITHOUT_EFFECT)
    options |= read_evaluation(settings, defaults.evaluation)
    settings.ignore_all_of("fsdp_")
    precision = read_precision(settings, defaults)
    if defaults.hands_on:
        check_kinds(settings, OF_TRAINING_ARGUMENTS)
    return Arguments(
        options=options,
        precision=precision,
        gradient_clipping=clipping,
        deepspeed=deepspeed,
        fsdp=fsdp,
        fsdp_config=fsdp_config,
        order=order,
        saving=saving,
        output_dir=output_dir,
        loader_workers=defaults.loader_workers if workers is None else workers,
    )


def _batches(settings: Settings, defaults: Defaults) -> dict[str, Value]:
    """Samples of a micro batch and of a step, where micro batches wait, and how often all samples are seen."""
    options: dict[str, Value] = {
        "micro_batch": settings.count("per_device_train_batch_size", defaults.micro_batch, least=1)
    }
    if defaults.accumulation is not None or "gradient_accumulation_steps" in settings:
        options["grad_accum"] = settings.count("gradient_accumulation_steps", defaults.accumulation or 1, least=1)
    settings.ignore(("gradient_accumulation_steps",))
    options["batches_on_gpu"] = BatchesOnGpu.STEP_FLOAT32.value
    options["input_gradients"] = InputGradients.ALL.value
    options["epochs"] = epochs = settings.number("num_train_epochs", defaults.epochs)
    if not epochs:
        settings.refuse("num_train_epochs", "a number above 0 is needed")
    return options


def _refuse_what_has_no_plan(settings: Settings) -> None:
    settings.only("torch_compile torch_compile_backend torch_compile_mode", "torch.compile is not planned")
    settings.only("label_smoothing_factor", f"the smoothed loss makes more copies of the logits: {NOT_PLANNED}")
    settings.only("auto_find_batch_size", "it changes the batch while it trains; write the batch that fits")
    settings.only("use_cpu use_mps_device no_cuda", "a run without CUDA is not planned")
    settings.only("optim_target_modules", NOT_PLANNED)


def _order(settings: Settings) -> Order:
    """``_get_train_sampler`` of the Trainer; ``group_by_length`` is the older key."""
    groups = settings.maybe_flag("group_by_length")
    name = settings.text("train_sampling_strategy", "") if "train_sampling_strategy" in settings else ""
    if name == "batch_rebalance":
        settings.refuse("train_sampling_strategy", f"batches of other sizes on every GPU: {NOT_PLANNED}")
    elif name not in ("", *ORDERS):
        settings.refuse("train_sampling_strategy", f"one of {', '.join(ORDERS)} is needed")
    settings.ignore(("train_sampling_strategy",))
    return ORDERS.get(name, Order.BY_LENGTH if groups else Order.RANDOM)


def _optimizer(settings: Settings, defaults: Defaults) -> dict[str, Value]:
    name = settings.text("optim", defaults.optimizer)
    if name in GONE:
        settings.note(
            f"optim {name} is of earlier releases of transformers: planned as {GONE[name]}, which replaced it"
        )
        name = GONE[name]
    if name not in OPTIMIZERS:
        settings.refuse("optim", f"{NOT_PLANNED}; one of {', '.join(OPTIMIZERS)} is needed")
        return {}
    kind, is_fused = OPTIMIZERS[name]
    arguments = optimizer_arguments(settings, takes_table=defaults.optimizer_tables)
    if kind is OptimizerKind.SGD:
        _refuse_other_sgd(settings, arguments)
    return {"optimizer": kind.value, "fuses_optimizer": is_fused}


def _refuse_other_sgd(settings: Settings, arguments: Mapping[str, str]) -> None:
    """``_get_sgd``: a momentum is in ``optim_args`` or there is none. With weight decay torch's foreach update makes a
    second copy of all gradients (``_multi_tensor_sgd``)."""
    settings.raw("optim_args")
    if not number_of(arguments.get("momentum")):
        settings.refuse(
            "optim", f"without a momentum it has no state: {NOT_PLANNED}; with optim_args: momentum=0.9 it has"
        )
    decays = arguments.get("weight_decay", settings.value("weight_decay"))
    if number_of(decays):
        settings.refuse("optim", f"with weight_decay its update copies all gradients: {NOT_PLANNED}")


def _checkpoints(settings: Settings, defaults: Defaults) -> bool:
    settings.ignore(("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"))
    newer = settings.maybe_flag("activation_checkpointing")
    if defaults.checkpointing is None:
        return bool(newer or settings.maybe_flag("gradient_checkpointing"))
    return settings.flag("gradient_checkpointing", defaults.checkpointing if newer is None else newer)


def is_reentrant(settings: Settings, *, default: bool) -> bool:
    """Whether activation checkpoints are reentrant; ``default`` without ``gradient_checkpointing_kwargs``."""
    said = settings.table("gradient_checkpointing_kwargs")
    return bool(said.get("use_reentrant")) if said else default


def read_precision(settings: Settings, defaults: Defaults) -> Precision | None:
    if defaults.bf16 is None:
        fp16, bf16 = bool(settings.maybe_flag("fp16")), bool(settings.maybe_flag("bf16"))
    else:
        fp16 = settings.flag("fp16", False)
        bf16 = settings.flag("bf16", defaults.bf16 and not fp16)
    if fp16 and bf16:
        settings.refuse("fp16", "and bf16 is true too; one of the two is needed")
    return Precision.BF16 if bf16 else Precision.FP16 if fp16 else None


def attention_option(settings: Settings, key: str, names: Mapping[str, AttentionImplementation]) -> dict[str, Value]:
    """The option of an attention implementation; none where the trainer leaves it to the model."""
    name = settings.text(key, "").casefold()
    if not name or name == "auto":
        return {}
    if name not in names:
        settings.refuse(key, f"{NOT_PLANNED}; one of {', '.join(names)} is planned")
        return {}
    return {"attention": names[name].value}


def plain_options(*, casts: bool, is_mixed: bool = False) -> dict[str, Value]:
    """What that Trainer does without DeepSpeed: accelerate's autocast, which keeps its casts, or none, and on several
    GPUs DDP as torch has it by itself (``create_accelerator_and_postprocess`` says nothing of its buckets).
    ``is_mixed``: weights are float32 beside 16-bit ones, and nothing autocasts."""
    options: dict[str, Value] = {"zero_stage": PLAIN, "gradient_as_bucket_view": False}
    options |= {"uses_autocast": True, "caches_casts": True} if casts else {}
    return options | ({"precision": Precision.BF16.value, "uses_autocast": False} if is_mixed else {})

"""How to train: the settings that decide bytes and seconds, resolved to values (never "auto").

A ``Recipe`` is what the trainer will do. Its element types per engine and precision:

| engine | precision | frozen weights | trained weights | master copy | autocast |
|---|---|---|---|---|---|
| plain PyTorch | bf16, fp16 | 16 bit | float32 | the weights themselves | yes, unless told otherwise |
| plain PyTorch | bf16-pure | 16 bit | 16 bit | none | no |
| DeepSpeed | bf16, fp16 | 16 bit | 16 bit | float32 in the optimizer | no |
| DeepSpeed | bf16-pure | 16 bit | 16 bit | bfloat16 in the optimizer | no |
| either | fp32 | float32 | float32 | see the stage | no |

``adapter_dtype`` says otherwise for what peft trains in plain PyTorch, ``weight_dtype`` for the model's own weights.
"""

from dataclasses import dataclass, fields
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.evaluation import Evaluation
from vlmplan.json_reader import JsonDict
from vlmplan.lora_targets import is_lora_init, pattern_of
from vlmplan.recipe_choices import (
    ALL_LINEAR,
    ALPHA_PER_RANK,
    DEFAULT_INIT,
    LORA_INITS,
    OLORA,
    PISSA,
    PISSA_ITERATIONS,
    REGEX,
    AdapterDtype,
    AttentionImplementation,
    BatchesOnGpu,
    Batching,
    InputGradients,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    WeightDtype,
)
from vlmplan.training_task import Reference, TrainingTask
from vlmplan.units import MAX_COUNT, DType
from vlmplan.zero_settings import DEFAULT_ZERO_SETTINGS, ZeroSettings

PLAIN: Final = "none"
"""The ``--zero-stage`` that means PyTorch without DeepSpeed."""


def engine_name(recipe: "Recipe", num_gpus: int) -> str:
    """What answers call the engine of ``recipe``: ``plain PyTorch``, ``DDP``, ``FSDP2`` or ``ZeRO-2``."""
    if recipe.zero_stage is not None:
        return f"ZeRO-{recipe.zero_stage}"
    if recipe.fsdp:
        return "FSDP2"
    return "plain PyTorch" if num_gpus == 1 else "DDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Every setting of a training run that the planner decides, resolved."""

    method: Method = Method.FULL
    lora_rank: int = 16
    lora_targets: str = ALL_LINEAR
    lora_alpha: int | None = None
    """peft's numerator of the adapters' scale; None: ``ALPHA_PER_RANK`` times the rank."""
    lora_dropout: float = 0.0
    """Probability with which an input of ``lora_A`` is dropped."""
    use_rslora: bool = False
    """The scale is alpha by the root of the rank, not by the rank."""
    use_dora: bool = False
    """Adapters turn weights, and a trained vector says how long each row of the result is (peft's ``use_dora``)."""
    lora_init: str = DEFAULT_INIT
    """peft's ``init_lora_weights``: ``default``, ``gaussian``, ``olora``, ``pissa`` or ``pissa_niter_N``."""
    loraplus_lr_ratio: float | None = None
    """LoRA+: how many times the learning rate of ``lora_A`` that of ``lora_B`` is; None: they have one."""
    lora_exclude: str | None = None
    """Modules that take no adapter though ``lora_targets`` means them, written as those are."""
    use_double_quant: bool = True
    """The scales of 4-bit weights are quantised too (bitsandbytes' ``compress_statistics``), in QLoRA."""
    adapter_dtype: AdapterDtype = AdapterDtype.TABLE
    weight_dtype: WeightDtype = WeightDtype.TABLE
    uses_autocast: bool = True
    """``torch.autocast`` around forward, in plain PyTorch with bf16 and fp16; DeepSpeed never does."""
    train_embeddings: bool = False
    train_vision: bool = True
    train_projector: bool = True
    train_language: bool = True
    precision: Precision = Precision.BF16
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    fuses_optimizer: bool = True
    """One kernel for the whole update; without it torch's foreach implementation, which needs a copy of a state."""
    liger_layers: bool = False
    """Norms, MLPs and rotary positions are Liger's kernels."""
    upcasts_frozen: bool = False
    """peft's ``prepare_model_for_kbit_training``: weights of a 4-bit model that are not 4-bit become float32."""
    caches_casts: bool = False
    """torch.autocast's default: 16-bit copies of float32 weights stay until forward ends."""
    expandable_segments: bool = True
    """``PYTORCH_ALLOC_CONF=expandable_segments:True``: memory that is free inside torch can take any shape."""
    zero_stage: int | None = None
    """0 to 3, or None for PyTorch without DeepSpeed: plain on one GPU, ``DistributedDataParallel`` on several."""
    gradient_as_bucket_view: bool = True
    """Gradients lie in DistributedDataParallel's buckets; without it (torch's default) beside them."""
    fsdp: bool = False
    """PyTorch shards weights, gradients and states by itself (FSDP2, ``torch.distributed.fsdp.fully_shard``), layer by
    layer; ``zero_stage`` is None then."""
    reshard_after_forward: bool = True
    """Under FSDP2 the weights of a layer are whole only while it runs; without it from its forward to its backward."""
    sync_each_batch: bool = True
    """Under FSDP2 every micro batch reduces its gradients to shards; without it (accelerate's default) the last of a
    step does, and whole gradients wait for it."""
    reduces_in_float32: bool = False
    """Under FSDP2 gradients are reduced in float32 (``MixedPrecisionPolicy.reduce_dtype``), and wait so for the last
    micro batch, not in the type of the computation."""
    offload_optimizer: Offload = Offload.NONE
    offload_params: Offload = Offload.NONE
    hpz: int = 1
    """ZeRO++'s hpZ (stage 3): ranks, neighbours of one another, that keep a copy of all weights between them, from
    which a weight is made whole again after its first use in a step. 1: none."""
    sequence_parallel: int = 1
    """Ranks, neighbours of one another, that share every sample: each has its part of the tokens, and in attention all
    tokens of its part of the heads (DeepSpeed's Ulysses). 1: every rank has samples of its own."""
    nvme_path: str | None = None
    """The folder on every node's NVMe drive that offload to nvme writes to."""
    micro_batch: int = 1
    grad_accum: int = 1
    batching: Batching = Batching.PADDED
    batches_on_gpu: BatchesOnGpu = BatchesOnGpu.TURN
    input_gradients: InputGradients = InputGradients.NONE
    activation_checkpointing: bool = True
    vision_activation_checkpointing: bool = True
    offload_activations: bool = False
    """Inputs of checkpointed layers wait for backward in pinned host memory."""
    tiled_mlp: bool = False
    """MLPs of the language model run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."""
    attention: AttentionImplementation = AttentionImplementation.SDPA
    linear_attention: LinearAttention = LinearAttention.TORCH
    loss: LossKind = LossKind.CHUNKED
    gradient_clipping: float = 1.0
    zero: ZeroSettings = DEFAULT_ZERO_SETTINGS
    evaluation: Evaluation | None = None
    task: TrainingTask | None = None
    """Preferences or rewards that are trained on; None: samples as they are (SFT)."""

    def __post_init__(self) -> None:
        for name in ("lora_rank", "hpz", "sequence_parallel", "micro_batch", "grad_accum"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_COUNT:
                allowed = "1 or more" if value < 1 else f"at most {MAX_COUNT:,}"
                raise InputError(f"{option_name(name)} is {value}; {allowed} is needed")
        self._check_adapters()
        if self.zero_stage not in (None, 0, 1, 2, 3):
            raise InputError(f"--zero-stage is {self.zero_stage}; none, 0, 1, 2 or 3 is needed")
        if self.nvme_path is not None and not self.nvme_path.strip():
            raise InputError("--nvme-path is empty; a folder on the NVMe drive of every node is needed")
        if self.gradient_clipping < 0:
            raise InputError(f"gradient_clipping is {self.gradient_clipping}; 0 (off) or more is needed")

    def _check_adapters(self) -> None:
        if self.lora_alpha is not None and not 1 <= self.lora_alpha <= MAX_COUNT:
            raise InputError(f"--lora-alpha is {self.lora_alpha}; a whole number from 1 to {MAX_COUNT:,} is needed")
        if not 0 <= self.lora_dropout < 1:
            raise InputError(f"--lora-dropout is {self.lora_dropout}; 0 or more and less than 1 is needed")
        if not is_lora_init(self.lora_init):
            raise InputError(
                f"--lora-init is {self.lora_init}; one of {', '.join(LORA_INITS)}, or {PISSA_ITERATIONS}N with N "
                f"iterations is needed"
            )
        if self.loraplus_lr_ratio is not None and not 1 <= self.loraplus_lr_ratio <= MAX_COUNT:
            raise InputError(f"--loraplus-lr-ratio is {self.loraplus_lr_ratio:g}; 1 or more is needed")
        for name in ("lora_targets", "lora_exclude"):
            if (getattr(self, name) or "").startswith(REGEX):
                pattern_of(getattr(self, name), option_name(name))

    @property
    def uses_deepspeed(self) -> bool:
        return self.zero_stage is not None

    def samples_per_step(self, num_gpus: int) -> int:
        """Samples of an optimizer step over all ranks: the global batch."""
        return self.micro_batch * self.grad_accum * num_gpus // self.sequence_parallel

    @property
    def rows(self) -> int:
        """Rows of the model's input in one micro batch on one GPU."""
        return self.micro_batch if self.task is None else self.micro_batch * self.task.rows_per_sample

    @property
    def micro_batches_at_once(self) -> int:
        """Of GRPO: micro batches whose answers are generated together."""
        assert self.task is not None
        return self.grad_accum if self.task.steps_per_generation is None else self.task.steps_per_generation

    @property
    def reference(self) -> Reference:
        """Where the task's reference is; where it says nothing, as TRL's trainers have it (``dpo_trainer.py``: adapters
        are switched off, else there is a second model; ``grpo_config.py``: ``beta`` is 0)."""
        if self.task is None or (self.task.is_grpo and self.task.reference is None):
            return Reference.NONE
        usual = Reference.ADAPTER_OFF if self.trains_adapters else Reference.COPY
        return self.task.reference or usual

    @property
    def casts_weights(self) -> bool:
        """Whether the engine computes with weights that it has cast, and updates others: DeepSpeed with its master
        weights, FSDP2 with its float32 shards (``MixedPrecisionPolicy``)."""
        return self.uses_deepspeed or self.fsdp

    @property
    def trains_adapters(self) -> bool:
        return self.method is not Method.FULL

    @property
    def keeps_linear_inputs(self) -> bool:
        """Whether ``F.linear`` is DeepSpeed's (``zero/linear.py``): it keeps the input even of a frozen weight, and
        no view of the weight, which would keep a gathered one whole until backward."""
        return self.zero_stage == 3 and self.zero.memory_efficient_linear

    @property
    def scatters_gradients(self) -> bool:
        """Whether each rank is sent only its part of the mean gradients: never with Muon at stage 3, which DeepSpeed
        refuses otherwise (``zero/stage3.py``)."""
        return self.zero.reduce_scatter and not (self.zero_stage == 3 and self.optimizer is OptimizerKind.MUON)

    @property
    def autocast(self) -> DType | None:
        """Element type of ``torch.autocast``; None where the weights' own types decide."""
        return self.precision.dtype if self.uses_autocast and self.can_autocast else None

    @property
    def can_autocast(self) -> bool:
        """Whether ``torch.autocast`` may be around forward: DeepSpeed and FSDP2 compute in the type of the weights."""
        return not self.casts_weights and self.precision in (Precision.BF16, Precision.FP16)

    @property
    def trained_dtype(self) -> DType:
        """Element type of trained weights and their gradients."""
        if self.trains_adapters:
            is_model_type = self.adapter_dtype is AdapterDtype.MODEL
        else:
            is_model_type = self.weight_dtype is WeightDtype.MODEL
        if self.keeps_adapters_wide:
            return DType.FLOAT32
        return self.precision.dtype if is_model_type or not self.can_autocast else DType.FLOAT32

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
    def changes_base(self) -> bool:
        """Whether adapters start as parts of the weights, which keep the rest (PiSSA, OLoRA)."""
        return self.trains_adapters and self.lora_init.startswith((PISSA, OLORA))

    @property
    def adapter_alpha(self) -> int:
        """``lora_alpha`` as peft gets it."""
        return ALPHA_PER_RANK * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    @property
    def frozen_dtype(self) -> DType:
        """Element type of frozen weights that are not 4-bit."""
        is_wide = self.upcasts_frozen or (self.weight_dtype is WeightDtype.FLOAT32 and not self.casts_weights)
        return DType.FLOAT32 if is_wide else self.precision.dtype

    @property
    def loaded_dtype(self) -> DType:
        """Element type in which weights are loaded: that of trained ones where there are any, so that none is rounded
        on the way."""
        if self.weight_dtype is WeightDtype.FLOAT32:
            return DType.FLOAT32
        return self.precision.dtype if self.trains_adapters else self.held_dtype

    @property
    def reduce_dtype(self) -> DType:
        """Element type in which FSDP2 reduces gradients."""
        return DType.FLOAT32 if self.reduces_in_float32 else self.trained_dtype

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
        if self.precision is Precision.BF16_PURE:
            return DType.BFLOAT16
        return DType.FLOAT32

    @property
    def pixel_dtypes(self) -> tuple[DType, ...]:
        """Element types that a micro batch's pixels are there in, as they came first and as the model gets them last:
        Hugging Face's Trainer casts them under DeepSpeed (``_prepare_input``), the root under FSDP2
        (``cast_forward_inputs``), else the model does."""
        if self.batches_on_gpu is not BatchesOnGpu.STEP_FLOAT32:
            return (self.precision.dtype,)
        is_cast = self.casts_weights and self.precision.dtype is not DType.FLOAT32
        if self.task is not None and self.task.is_grpo and is_cast:  # cast with the answers, and kept so
            return (self.precision.dtype,)
        return (DType.FLOAT32, self.precision.dtype) if is_cast else (DType.FLOAT32,)

    @property
    def needs_input_gradients(self) -> tuple[bool, bool]:
        """Whether results of the language model's input embedding need gradients, and those of encoders'."""
        kind = self.input_gradients
        if not self.activation_checkpointing or (kind is InputGradients.PEFT and self.method is not Method.LORA):
            return False, False
        return kind is not InputGradients.NONE, kind in (InputGradients.ALL, InputGradients.PEFT)

    @property
    def keeps_batches(self) -> bool:
        """Whether all micro batches of a step are on the GPU until the next step begins."""
        return self.batches_on_gpu is not BatchesOnGpu.TURN

    @property
    def num_waiting(self) -> int:
        """Micro batches of the step that are on the GPU beside the one that is computed."""
        return self.grad_accum - 1 if self.keeps_batches else 0

    @property
    def model_key(self) -> tuple[Any, ...]:
        """What a prepared model depends on: which weights are trained, and in which types it is held and computes."""
        return (self.casts_weights, self.keeps_adapters_wide, *_OF_MODEL(self))

    @property
    def engine_key(self) -> tuple[Any, ...]:
        """The engine and what is offloaded, with the sizes that its stage reads."""
        return (*_OF_ENGINE(self), self.zero.read_by(self.zero_stage))

    def with_changes(self, **changes: Any) -> "Recipe":
        """As ``dataclasses.replace``, which takes three times as long: a search makes thousands."""
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
        """The same for all recipes that differ in nothing but how micro batches are computed and how many there are: of
        these an engine asks nothing before one runs. Sizes that the stage does not read are left out too."""
        return self.with_changes(**_ANY_MICRO_BATCH, zero=self.zero.read_by(self.zero_stage))

    def as_json(self) -> JsonDict:
        """Every option as resolved, under the names of the command line (underscores for dashes)."""
        result: JsonDict = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                value = value.value
            if isinstance(value, ZeroSettings):
                value = {item.name: getattr(value, item.name) for item in fields(value)}
            result[field.name] = value.as_json() if isinstance(value, Evaluation | TrainingTask) else value
        result["zero_stage"] = PLAIN if self.zero_stage is None else self.zero_stage
        return result


MODEL_FIELDS = (
    *("method", "lora_rank", "lora_targets", "lora_exclude", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    *("lora_init", "loraplus_lr_ratio", "use_double_quant"),
    *("adapter_dtype", "train_embeddings", "train_vision", "train_projector", "train_language"),
    *("precision", "weight_dtype", "uses_autocast", "upcasts_frozen", "liger_layers"),
)
"""What a prepared model depends on."""
ENGINE_FIELDS = (
    *("zero_stage", "gradient_as_bucket_view", "fsdp", "reshard_after_forward", "sync_each_batch"),
    "reduces_in_float32",
    *("offload_optimizer", "offload_params", "hpz", "nvme_path", "zero"),
    "sequence_parallel",
)
UPDATE_FIELDS = ("optimizer", "fuses_optimizer", "gradient_clipping")
MICRO_BATCH_FIELDS = (
    *("micro_batch", "grad_accum", "batching", "batches_on_gpu", "attention", "linear_attention", "loss"),
    *("activation_checkpointing", "vision_activation_checkpointing", "offload_activations", "tiled_mlp"),
    "input_gradients",
    *("evaluation", "task"),
)
"""How a micro batch is computed, and how many there are, of evaluation and of what is generated too."""
PROCESS_FIELDS = ("caches_casts", "expandable_segments")
"""What is said to torch's autocast and allocator."""
GROUPS = (MODEL_FIELDS, ENGINE_FIELDS, UPDATE_FIELDS, MICRO_BATCH_FIELDS, PROCESS_FIELDS)
"""Every field of ``Recipe`` is in one of them."""
_NAMES = tuple(field.name for field in fields(Recipe))
_VALUES = attrgetter(*_NAMES)
_FILLS = {name: getattr(Recipe, name).__set__ for name in _NAMES}
"""What fills each field of a new recipe, as assignment is refused."""
_OF_MODEL = attrgetter(*MODEL_FIELDS)
_OF_ENGINE = attrgetter(*(name for name in ENGINE_FIELDS if name != "zero"))
_ANY_MICRO_BATCH = {field.name: field.default for field in fields(Recipe) if field.name in MICRO_BATCH_FIELDS}


def option_name(field: str) -> str:
    """The command-line option of a recipe field: ``micro_batch`` → ``--micro-batch``."""
    return "--" + field.replace("_", "-")

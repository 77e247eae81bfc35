"""The settings of a training run that decide bytes and seconds, each checked, and in groups by what depends on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.errors import InputError, require_within
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    DEFAULT_INIT,
    LORA_INITS,
    PISSA_ITERATIONS,
    REGEX,
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
from vlmplan.recipe.evaluation import OF_BEST, Evaluation
from vlmplan.recipe.libraries import PLANNED_TORCH, PLANNED_TRANSFORMERS, TorchVersion, TransformersVersion
from vlmplan.recipe.lora_targets import is_lora_init, pattern_of
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.zero import DEFAULT_ZERO_SETTINGS, ZeroSettings
from vlmplan.units import MAX_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSettings:
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
    full_vision: bool = False
    """Beside adapters the vision encoder's own weights are trained; it gets no adapters."""
    full_projector: bool = False
    """The same of the projector, as LLaVA's scripts have it."""
    precision: Precision = Precision.BF16
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    fuses_optimizer: bool = True
    """One kernel for the whole update; without it torch's foreach implementation, which needs a copy of a state."""
    deepspeed_adam: bool = False
    """Under ZeRO-0 DeepSpeed makes AdamW itself (``FusedAdam``), as its file's ``optimizer`` says: in 16 bit trained
    weights, their master copies and gradients lie flat then. For other stages it makes no difference: never set."""
    liger_layers: bool = False
    """Norms, MLPs and rotary positions are Liger's kernels."""
    compiled_norms: bool = False
    """Norms of the language model are compiled, one kernel each (NeMo AutoModel's own Llama and Qwen2)."""
    fused_adapters: bool = False
    """LoRA keeps a layer's input alone, and a SwiGLU MLP of adapted layers is one operation (NeMo AutoModel's)."""
    upcasts_frozen: bool = False
    """peft's ``prepare_model_for_kbit_training``: weights of a packed model that are not packed become float32."""
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
    """Under FSDP gradients are reduced in float32 (``MixedPrecisionPolicy.reduce_dtype``), and under FSDP2 wait
    so for the last micro batch, not in the type of the computation."""
    shards_packed: bool = True
    """Under FSDP2 4-bit weights are kept in the type of the computation (``bnb_4bit_quant_storage``) and sharded as
    others are; without it in bytes, which are left out of the shards: every rank has all of them."""
    shard_units: ShardUnits = ShardUnits.ENDS_TOO
    flat_parameters: FlatParameters = FlatParameters.NONE
    """Not ``NONE``: it is FSDP1 that shards, whose units are layers, and whose forward is under autocast as
    accelerate has it."""
    uses_orig_params: bool = True
    """Under FSDP1 the optimizer has views of the weights that a flat parameter is made of, each at an address of 16
    bytes; without it the flat parameters themselves."""
    dp_shard_size: int | None = None
    """Under FSDP the ranks, neighbours of one another, that share one copy of weights, gradients and states; others
    have copies of their own, and gradients are summed over all (hybrid sharding, HSDP). None: all ranks share one."""
    prefetches_forward: bool = False
    """Under FSDP1 a unit is gathered when the forward of the one before it begins."""
    offload_optimizer: Offload = Offload.NONE
    offload_params: Offload = Offload.NONE
    hpz: int = 1
    """ZeRO++'s hpZ (stage 3): ranks, neighbours of one another, that keep a copy of all weights between them, from
    which a weight is all-gathered after its first use in a step. 1: none."""
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
    checkpoint_kind: CheckpointKind = CheckpointKind.NON_REENTRANT
    activation_checkpointing: bool = True
    vision_activation_checkpointing: bool = True
    offload_activations: bool = False
    """Inputs of checkpointed layers wait for backward in pinned host memory."""
    tiled_mlp: bool = False
    """MLPs of the language model run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."""
    attention: AttentionImplementation = AttentionImplementation.SDPA
    linear_attention: LinearAttention = LinearAttention.TORCH
    torch_version: TorchVersion = PLANNED_TORCH
    """Minor releases of what a run imports, as far as its bytes depend on them; the trainer takes what is installed."""
    transformers_version: TransformersVersion = PLANNED_TRANSFORMERS
    loss: LossKind = LossKind.CHUNKED
    gradient_clipping: float = 1.0
    zero: ZeroSettings = DEFAULT_ZERO_SETTINGS
    evaluation: Evaluation | None = None
    task: TrainingTask | None = None
    """Preferences or rewards that are trained on; None: samples as they are (SFT)."""

    def __post_init__(self) -> None:
        for name in ("lora_rank", "hpz", "sequence_parallel", "micro_batch", "grad_accum"):
            require_within(option_name(name), getattr(self, name), least=1, most=MAX_COUNT)
        self._check_adapters()
        if self.deepspeed_adam and self.zero_stage != 0:
            object.__setattr__(self, "deepspeed_adam", False)
        if self.dp_shard_size is not None:
            require_within("--dp-shard-size", self.dp_shard_size, least=2, most=MAX_COUNT)
        if self.zero_stage not in (None, 0, 1, 2, 3):
            raise InputError(f"--zero-stage is {self.zero_stage}; none, 0, 1, 2 or 3 is needed")
        if self.nvme_path is not None and not self.nvme_path.strip():
            raise InputError("--nvme-path is empty; a folder on the NVMe drive of every node is needed")
        if self.gradient_clipping < 0:
            raise InputError(f"gradient_clipping is {self.gradient_clipping}; 0 (off) or more is needed")

    @property
    def is_flat(self) -> bool:
        """Whether FSDP1 shards."""
        return self.fsdp and self.flat_parameters is not FlatParameters.NONE

    def sharing_ranks(self, num_ranks: int) -> int:
        """Of ``num_ranks`` those that share one copy of the model states under FSDP."""
        return num_ranks if self.dp_shard_size is None else min(self.dp_shard_size, num_ranks)

    @property
    def can_accumulate(self) -> bool:
        """Whether a step may have several micro batches: FSDP1 cannot add to gradients that the host has
        (``prepare_gradient_for_backward`` in torch's ``_flat_param.py``)."""
        return not (self.is_flat and self.sync_each_batch and self.offload_params is not Offload.NONE)

    @property
    def checkpoints_parts(self) -> bool:
        """Whether it is parts of layers that run again."""
        checkpoints = self.activation_checkpointing or self.vision_activation_checkpointing
        return checkpoints and self.checkpoint_kind is CheckpointKind.PARTS

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


MODEL_FIELDS = (
    *("method", "lora_rank", "lora_targets", "lora_exclude", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    *("lora_init", "loraplus_lr_ratio", "use_double_quant"),
    *("adapter_dtype", "train_embeddings", "train_vision", "train_projector", "train_language"),
    *("full_vision", "full_projector"),
    *("precision", "weight_dtype", "uses_autocast", "upcasts_frozen", "liger_layers", "transformers_version"),
    *("compiled_norms", "fused_adapters"),
)
"""What a prepared model depends on."""
ENGINE_FIELDS = (
    *("zero_stage", "gradient_as_bucket_view", "fsdp", "reshard_after_forward", "sync_each_batch"),
    *("reduces_in_float32", "shards_packed", "shard_units", "dp_shard_size"),
    *("flat_parameters", "uses_orig_params", "prefetches_forward"),
    *("offload_optimizer", "offload_params", "hpz", "nvme_path", "zero"),
    "sequence_parallel",
)
UPDATE_FIELDS = ("optimizer", "fuses_optimizer", "deepspeed_adam", "gradient_clipping")
MICRO_BATCH_FIELDS = (
    *("micro_batch", "grad_accum", "batching", "batches_on_gpu", "attention", "linear_attention", "loss"),
    "torch_version",
    *("activation_checkpointing", "vision_activation_checkpointing", "offload_activations", "tiled_mlp"),
    *("input_gradients", "checkpoint_kind"),
    *("evaluation", "task"),
)
"""How a micro batch is computed, and how many there are, of evaluation and of what is generated too."""
PROCESS_FIELDS = ("caches_casts", "expandable_segments")
"""What is said to torch's autocast and allocator."""
GROUPS = (MODEL_FIELDS, ENGINE_FIELDS, UPDATE_FIELDS, MICRO_BATCH_FIELDS, PROCESS_FIELDS)
"""Every field of ``RecipeSettings`` is in one of them."""
ADAPTER_FIELDS = (
    *("lora_rank", "lora_targets", "lora_exclude", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    *("lora_init", "loraplus_lr_ratio", "adapter_dtype", "train_embeddings", "full_vision", "full_projector"),
)
"""Settings that mean nothing where all weights are trained (``Method.FULL``)."""
RESULT_FIELDS = (
    *("method", "lora_rank", "lora_targets", "lora_alpha", "use_rslora", "use_dora", "lora_init", "lora_exclude"),
    *("train_embeddings", "train_vision", "train_projector", "train_language", "optimizer"),
    *("full_vision", "full_projector"),
)
"""Settings that two runs must share for one to start from the weights or the adapter of the other."""
CHANGEABLE_FIELDS = (
    *("micro_batch", "grad_accum", "offload_optimizer", "offload_params", "nvme_path", "hpz", "zero"),
    *("activation_checkpointing", "vision_activation_checkpointing", "offload_activations", "tiled_mlp"),
    *("attention", "linear_attention", "loss", "liger_layers", "input_gradients", "checkpoint_kind"),
    *("compiled_norms", "fused_adapters"),
    *("expandable_segments", "fuses_optimizer", "caches_casts", "gradient_as_bucket_view"),
    *("torch_version", "transformers_version"),
    *("reshard_after_forward", "sync_each_batch", "reduces_in_float32", "shards_packed"),
)
"""Settings that a run may change when it goes on from a checkpoint: how a step is computed and where its memory is, not
what it computes. All others stay as they were, also those that are not in this list yet (``fixed_settings``)."""


def fixed_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a recipe's JSON, its ``values``, two runs must share for one to go on from the other's checkpoint; of an
    evaluation all but what the best one decides."""
    found = {name: value for name, value in values.items() if name not in CHANGEABLE_FIELDS}
    if found.get("evaluation") is not None:
        evaluation = found["evaluation"].items()
        found["evaluation"] = {name: value for name, value in evaluation if name not in OF_BEST}
    return found


def option_name(field: str) -> str:
    """The command-line option of a recipe field: ``micro_batch`` → ``--micro-batch``."""
    return "--" + field.replace("_", "-")

"""Keyword arguments, with the names of the command line's options: ``--seq-len 2048`` is ``seq_len=2048``.

A switch is True or False: ``--freeze-vision`` is ``train_vision=False``. None is an option that is not given. What an
option does, its unit and its default are in ``vlmplan estimate --help-all``. Light: imports nothing but typing.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

Model = str | PathLike[str] | Mapping[str, Any]
"""An alias, a Hugging Face id, a folder or config.json, or the content of one, as ``config.to_dict()`` gives it."""
File = str | PathLike[str]
Gpus = str | Sequence[str]
"""GPUs for a search: one name or several, each ``NAME`` or ``NAME:COUNT``."""
Pricing = Literal["on_demand", "reserved", "community", "marketplace", "interruptible", "own"]


Comparable = Literal["zero", "method", "precision", "optimizer", "checkpointing"]
"""What setups side by side differ in."""


class WorkloadOptions(TypedDict, total=False):
    """Samples by their sizes, or ``data``: the samples themselves, whose images may be in ``image_folder``. What else
    is said of their length and images is a limit then. ``image_size`` and ``video_size`` are (width, height) in pixels,
    or ``"448x336"``."""

    seq_len: int | None
    sample_len: int | None
    target_len: int | None
    images_per_sample: int | None
    image_size: str | tuple[int, int] | None
    videos_per_sample: int | None
    video_frames: int | None
    video_seconds: float | None
    video_fps: float | None
    video_size: str | tuple[int, int] | None
    audio_seconds: float | None
    audios_per_sample: int | None
    num_samples: int | None
    epochs: float | None
    global_batch: int | None
    data: File | None
    image_folder: File | None


class SavingOptions(TypedDict, total=False):
    """Options of checkpoints: after how many steps they are written, and how many stay. ``disk`` is the output folder's
    room in GiB."""

    save_every: int | None
    keep_last: int | None
    disk: float | None


class MachineOptions(TypedDict, total=False):
    """Machines beside their GPUs. ``host_ram`` is in GiB. ``calibration`` False leaves out what was measured on such a
    GPU."""

    num_nodes: int | None
    host_ram: float | None
    inter_node_gbit: float | None
    calibration: bool | None


Optimizer = Literal[
    "adamw",
    "adamw-8bit",
    "paged-adamw",
    "paged-adamw-8bit",
    "adafactor",
    "sgd",
    "lion",
    "lion-8bit",
    "paged-lion",
    "paged-lion-8bit",
    "muon",
    "torchao-adamw",
    "torchao-adamw-8bit",
    "torchao-adamw-4bit",
    "anyprecision-adamw",
]


class RecipeOptions(TypedDict, total=False):
    """How to train. ``ds_config`` is a ds_config.json, or what one holds."""

    method: Literal["full", "lora", "lora-8bit", "qlora"] | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_alpha: int | None
    lora_dropout: float | None
    lora_exclude: str | Sequence[str] | None
    use_rslora: bool | None
    use_dora: bool | None
    lora_init: str | None
    loraplus_lr_ratio: float | None
    adapter_dtype: Literal["table", "float32", "model"] | None
    weight_dtype: Literal["table", "float32", "model"] | None
    autocast: bool | None
    train_embeddings: bool | None
    train_vision: bool | None
    train_projector: bool | None
    train_language: bool | None
    full_vision: bool | None
    full_projector: bool | None
    precision: Literal["bf16", "fp16", "fp32", "bf16-pure"] | None
    optimizer: Optimizer | None
    fused_optimizer: bool | None
    deepspeed_adam: bool | None
    cached_casts: bool | None
    kbit_upcast: bool | None
    double_quant: bool | None
    gradients_in_buckets: bool | None
    fsdp: bool | None
    reshard_after_forward: bool | None
    sync_each_batch: bool | None
    dp_shard_size: int | None
    float32_reduce: bool | None
    shard_packed: bool | None
    shard_units: (
        Literal[
            "layers-and-ends",
            "layers",
            "language-layers",
            "layers-and-embedding",
            "layers-and-adapters",
            "layers-last-whole",
            "language-layers-last-whole",
        ]
        | None
    )
    flat_parameters: Literal["none", "on-demand", "backward-pre", "backward-post"] | None
    orig_params: bool | None
    forward_prefetch: bool | None
    expandable_segments: bool | None
    zero_stage: Literal["none", "0", "1", "2", "3", 0, 1, 2, 3] | None
    ds_config: File | Mapping[str, Any] | None
    offload_optimizer: Literal["none", "cpu", "nvme"] | None
    offload_params: Literal["none", "cpu", "nvme"] | None
    hpz: int | None
    sequence_parallel: int | None
    nvme_path: File | None
    micro_batch: int | None
    grad_accum: int | None
    batches_on_gpu: Literal["turn", "turn-float32", "step", "step-float32"] | None
    input_gradients: Literal["none", "language", "all", "always", "peft"] | None
    checkpoint_kind: Literal["non-reentrant", "reentrant", "reentrant-calls", "parts"] | None
    activation_checkpointing: bool | None
    vision_activation_checkpointing: bool | None
    offload_activations: bool | None
    tiled_mlp: bool | None
    batching: Literal["padded", "padding-free", "packed"] | None
    attention: Literal["sdpa", "flash_attention_2", "eager"] | None
    linear_attention: Literal["torch", "fla"] | None
    torch_version: Literal["2.13", "2.14", "2.15"] | None
    transformers_version: Literal["5.23", "5.24"] | None
    loss: (
        Literal[
            "chunked",
            "full",
            "model",
            "trl",
            "liger",
            "verl",
            "verl-quotient",
            "verl-fused",
            "log-softmax",
            "openrlhf",
            "selective",
            "tempered",
            "tempered-entropy",
            "axolotl",
            "axolotl-answers",
            "unsloth",
            "rows",
            "bradley-terry",
        ]
        | None
    )
    liger_layers: bool | None
    compiled_norms: bool | None
    fused_adapters: bool | None


class EvaluationOptions(TypedDict, total=False):
    """What is evaluated between steps, which is planned where ``eval_batch`` is said: samples of a GPU at a time."""

    eval_batch: int | None
    eval_samples: int | None
    eval_every: str | float | None
    eval_keeps: Literal["loss", "predictions", "logits"] | None
    eval_accumulation: int | None
    eval_new_tokens: int | None
    eval_beams: int | None
    eval_on_start: bool | None
    eval_delay: float | None
    eval_after_training: bool | None
    early_stopping_patience: int | None
    early_stopping_threshold: float | None
    load_best_model_at_end: bool | None
    eval_loss: bool | None
    eval_fused_loss: bool | None
    eval_generations: int | None


class TaskOptions(TypedDict, total=False):
    """What is trained for: samples as they are (``sft``), preferences (``dpo``), a reward model of them (``reward``),
    answers that are good or bad (``kto``) or rewards (``grpo``)."""

    task: Literal["sft", "dpo", "reward", "kto", "grpo"] | None
    reference: Literal["none", "adapter-off", "adapter-copy", "copy", "precomputed"] | None
    max_completion_tokens: int | None
    num_generations: int | None
    steps_per_generation: int | None
    num_iterations: int | None
    generation: Literal["transformers", "vllm", "server"] | None
    vllm_memory_utilization: float | None
    vllm_sleep_level: int | None
    vllm_tensor_parallel: int | None
    reward_model_parameters: int | None
    kto_loss: Literal["kto", "apo-zero-unpaired"] | None
    reentrant_checkpoints: bool | None
    disable_dropout: bool | None
    router_loss: bool | None
    task_trainer: (
        Literal[
            "trl",
            "verl",
            "verl-engine",
            "llamafactory",
            "openrlhf",
            "ms-swift",
            "axolotl",
            "easyr1",
            "unsloth",
            "vlm-r1",
            "r1-v",
        ]
        | None
    )
    scoring_batch: int | None
    idle_offload: Literal["none", "weights", "optimizer", "all"] | None
    reference_shards: Literal["gpu", "host", "host-float32"] | None
    sync_buffer_mib: int | None
    sync_groups: int | None


class CatalogOptions(TypedDict, total=False):
    """Catalogs of your own on top of the others; later ones win."""

    catalog: File | Sequence[File]


class SearchOptions(TypedDict, total=False):
    """The offers that a search may take, and what prices assume. US dollars, hours, days and Gbit/s."""

    max_usd_per_hour: float | None
    max_usd: float | None
    max_hours: float | None
    provider: str | Sequence[str]
    region: str | Sequence[str]
    pricing: Pricing | Sequence[Pricing]
    max_price_age_days: int | None
    spot_interruptions_per_day: float | None
    download_gbit: float | None


class TrainerOptions(TypedDict, total=False):
    """The trainer that it is planned for, as that trains and within what it can do; None is the bundled one."""

    for_: Literal["trl", "transformers", "llamafactory", "ms-swift", "axolotl"] | None


class SetupOptions(
    WorkloadOptions, MachineOptions, RecipeOptions, EvaluationOptions, TaskOptions, CatalogOptions, total=False
):
    """What all functions take: samples, machines, how to train and for what, what is evaluated, and catalogs."""


class CompareOptions(TrainerOptions, SetupOptions, SavingOptions, total=False):
    """Arguments of ``vlmplan.compare``: the options of ``vlmplan estimate --compare``."""


class EstimateOptions(CompareOptions, total=False):
    """Arguments of ``vlmplan.estimate``: the options of ``vlmplan estimate``."""

    scaling: bool
    sample_lengths: str | PathLike[str] | None


class RecommendOptions(TrainerOptions, SetupOptions, SearchOptions, total=False):
    """Arguments of ``vlmplan.recommend``: the options of ``vlmplan recommend``."""

    objective: Literal["cost", "time", "vram"]
    pareto: bool
    rehearse: bool


class AdviseOptions(SetupOptions, SearchOptions, total=False):
    """Arguments of ``vlmplan.advise``: the options of ``vlmplan advise``."""

    objective: Literal["cost", "time"] | None


class CheckOptions(SetupOptions, SavingOptions, total=False):
    """Arguments of ``vlmplan.check``: the options of ``vlmplan check``."""

    fix: bool


class DiagnoseOptions(SetupOptions, total=False):
    """Arguments of ``vlmplan.diagnose``: the options of ``vlmplan diagnose`` beside its log."""

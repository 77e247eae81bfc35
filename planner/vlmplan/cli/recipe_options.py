"""The options of how to train, and of evaluation: what a recipe is made of."""

import click

from vlmplan.cli.option_kinds import FILE, Decorator, choice, count, switch, under
from vlmplan.recipe.choices import (
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
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.switches import SWITCHES

OPTIMIZERS = tuple(kind.value for kind in OptimizerKind)


def _switch(name: str, help_text: str) -> Decorator:
    """The option of a setting that is on or off."""
    on, off = SWITCHES[name]
    return switch(name, on, off, help_text)


TRAINED = under(
    "What is trained",
    choice("--method", Method, "What is trained."),
    count("--lora-rank", "Rank of the adapters.  [default: 16]"),
    click.option(
        "--lora-targets",
        metavar="NAMES",
        help="all-linear, attention, names NAME,NAME, regex:PATTERN of whole names; experts.NAME for stacked experts.  "
        "[default: all-linear]",
    ),
    click.option(
        "--lora-exclude",
        metavar="NAMES",
        help="Of these, NAME,NAME or regex:PATTERN take no adapter.  [default: what peft cannot adapt]",
    ),
    count("--lora-alpha", "Numerator of the adapters' scale.  [default: twice the rank]"),
    click.option("--lora-dropout", type=float, metavar="P", help="Dropped part of what adapters see.  [default: 0]"),
    _switch("use_rslora", "Adapters' scale by the root of the rank."),
    _switch("use_dora", "Adapters turn weights; a trained vector has their lengths (DoRA)."),
    click.option(
        "--lora-init",
        metavar="NAME",
        help="What adapters start from: default, gaussian, olora, pissa or pissa_niter_N.  [default: default]",
    ),
    click.option(
        "--loraplus-lr-ratio", type=float, metavar="N", help="Learning rate of lora_B by that of lora_A (LoRA+)."
    ),
    choice(
        "--adapter-dtype",
        AdapterDtype,
        "Adapters in plain PyTorch: peft's float32 beside trained copies in the model's type, or all in the model's.",
    ),
    _switch("train_embeddings", "With adapters, train embeddings and head."),
    _switch("train_vision", "The vision tower."),
    _switch("train_projector", "What maps vision to language."),
    _switch("train_language", "The language model."),
)
NUMBERS = under(
    "Precision and optimizer",
    choice("--precision", Precision, "bf16 and fp16 keep fp32 master weights."),
    choice(
        "--weight-dtype",
        WeightDtype,
        "The model's own weights in plain PyTorch with bf16 or fp16: trained ones in float32 beside frozen ones in 16 "
        "bit, all in float32, or all in 16 bit.  [default: table]",
    ),
    _switch("uses_autocast", "torch.autocast around forward in plain PyTorch."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}."),
    _switch("fuses_optimizer", "Kernel of plain PyTorch's update."),
    _switch("caches_casts", "Plain PyTorch keeps 16-bit copies until forward ends."),
    _switch("upcasts_frozen", "peft's float32 copies of what QLoRA leaves in 16 bit."),
    _switch("use_double_quant", "QLoRA packs the scales of 4-bit weights too."),
    _switch("expandable_segments", "torch's allocator with segments that grow, as launch.sh of recommend sets it."),
)
ENGINE = under(
    "Engine",
    choice("--zero-stage", ("none", "0", "1", "2", "3"), "none is PyTorch without DeepSpeed, on several GPUs its DDP."),
    click.option(
        "--ds-config", type=FILE, metavar="FILE", help='A ds_config.json, taken as it is; "auto" as transformers does.'
    ),
    _switch("gradient_as_bucket_view", "Where DDP has gradients; torch's default is beside its buckets."),
    _switch("fsdp", "PyTorch's FSDP2 (fully_shard) in place of DDP, without DeepSpeed."),
    _switch(
        "reshard_after_forward",
        "FSDP2 frees a layer's whole weights after its forward, and gathers them again for backward.",
    ),
    _switch(
        "sync_each_batch",
        "FSDP2 reduces gradients in every micro batch, or in the last of a step alone, with whole gradients till then.",
    ),
    _switch("reduces_in_float32", "FSDP2 reduces gradients in float32."),
    choice("--offload-optimizer", Offload, "Where optimizer states live."),
    choice("--offload-params", Offload, "Where weights live between uses (stage 3)."),
    count("--hpz", "Ranks that keep a copy of all weights between them: GPUs per node, under stage 3 (ZeRO++)."),
    count("--sequence-parallel", "GPUs that share each sample, which is cut along its tokens (DeepSpeed's Ulysses)."),
    click.option("--nvme-path", metavar="DIR", help="Folder on every node's NVMe drive for offload."),
)
STEP = under(
    "Batches, activations and loss",
    count("--micro-batch", "Samples per GPU and forward pass."),
    count("--grad-accum", "Micro batches per optimizer step."),
    choice(
        "--batches-on-gpu",
        BatchesOnGpu,
        "Micro batches there at once: one, or a step's; Hugging Face's Trainer has pixels in float32.",
    ),
    choice(
        "--input-gradients",
        InputGradients,
        "Results of frozen embeddings that need gradients, as checkpoints of other trainers ask for.",
    ),
    _switch("activation_checkpointing", "Of the language model."),
    _switch("vision_activation_checkpointing", "Of the vision tower.  [default: as the language model]"),
    _switch("offload_activations", "Inputs of checkpointed layers wait in host memory."),
    _switch("tiled_mlp", "MLPs run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."),
    choice(
        "--batching",
        Batching,
        "padding-free puts the samples of a micro batch one behind the other into one row; packed fills rows of "
        "--seq-len with several samples before that.  [default: padded]",
    ),
    choice("--attention", AttentionImplementation, "Attention implementation."),
    choice(
        "--linear-attention",
        LinearAttention,
        "Gated delta nets: transformers' own operations, or the kernels of flash-linear-attention and causal-conv1d.",
    ),
    choice(
        "--loss",
        LossKind,
        "full makes all logits at once; model too, and frees them for backward; trl is TRL's fused head, liger "
        "Liger's fused loss, made of Triton kernels.",
    ),
    _switch("liger_layers", "Norms, MLPs and positions are Liger's, in other trainers."),
)
RECIPE: tuple[Decorator, ...] = (*TRAINED, *NUMBERS, *ENGINE, *STEP)

EVALUATION = under(
    "Evaluation",
    count("--eval-batch", "Samples per GPU in evaluation, which is planned then."),
    count("--eval-samples", "Samples of an evaluation.  [default: 1000]"),
    choice(
        "--eval-keeps",
        Kept,
        "What it keeps of a sample for metrics: logits, their argmax, or the loss alone.  [default: loss]",
    ),
    count("--eval-accumulation", "Batches after which that moves to the host.  [default: all of them]"),
    count("--eval-new-tokens", "Tokens that it generates for each sample.  [default: 0]"),
    count("--eval-beams", "Beams of that.  [default: 1]"),
    _switch("eval_loss", "It computes the loss, beside what it generates."),
)

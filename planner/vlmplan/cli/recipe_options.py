"""The options of how to train, and of evaluation: what a recipe is made of."""

import click

from vlmplan.cli.option_kinds import FILE, Decorator, choice, count, switch
from vlmplan.evaluation import Kept
from vlmplan.recipe_choices import (
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

OPTIMIZERS = tuple(kind.value for kind in OptimizerKind)
RECIPE: tuple[Decorator, ...] = (
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
    switch("use_rslora", "use-rslora", "no-rslora", "Adapters' scale by the root of the rank."),
    switch("use_dora", "use-dora", "no-dora", "Adapters turn weights; a trained vector has their lengths (DoRA)."),
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
    choice(
        "--weight-dtype",
        WeightDtype,
        "The model's own weights in plain PyTorch with bf16 or fp16: trained ones in float32 beside frozen ones in 16 "
        "bit, all in float32, or all in 16 bit.  [default: table]",
    ),
    switch("uses_autocast", "autocast", "no-autocast", "torch.autocast around forward in plain PyTorch."),
    switch("train_embeddings", "train-embeddings", "no-train-embeddings", "With adapters, train embeddings and head."),
    switch("train_vision", "train-vision", "freeze-vision", "The vision tower."),
    switch("train_projector", "train-projector", "freeze-projector", "What maps vision to language."),
    switch("train_language", "train-language", "freeze-language", "The language model."),
    choice("--precision", Precision, "bf16 and fp16 keep fp32 master weights."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}."),
    switch("fuses_optimizer", "fused-optimizer", "foreach-optimizer", "Kernel of plain PyTorch's update."),
    switch("caches_casts", "cached-casts", "no-cached-casts", "Plain PyTorch keeps 16-bit copies until forward ends."),
    switch("upcasts_frozen", "kbit-upcast", "no-kbit-upcast", "peft's float32 copies of what QLoRA leaves in 16 bit."),
    switch("use_double_quant", "double-quant", "no-double-quant", "QLoRA packs the scales of 4-bit weights too."),
    switch(
        "expandable_segments",
        "expandable-segments",
        "no-expandable-segments",
        "torch's allocator with segments that grow, as launch.sh of recommend sets it.",
    ),
    choice("--zero-stage", ("none", "0", "1", "2", "3"), "none is PyTorch without DeepSpeed, on several GPUs its DDP."),
    click.option(
        "--ds-config", type=FILE, metavar="FILE", help='A ds_config.json, taken as it is; "auto" as transformers does.'
    ),
    switch(
        "gradient_as_bucket_view",
        "gradients-in-buckets",
        "gradients-beside-buckets",
        "Where DDP has gradients; torch's default is beside its buckets.",
    ),
    switch("fsdp", "fsdp", "no-fsdp", "PyTorch's FSDP2 (fully_shard) in place of DDP, without DeepSpeed."),
    switch(
        "reshard_after_forward",
        "reshard-after-forward",
        "no-reshard-after-forward",
        "FSDP2 frees a layer's whole weights after its forward, and gathers them again for backward.",
    ),
    switch(
        "sync_each_batch",
        "sync-each-batch",
        "no-sync-each-batch",
        "FSDP2 reduces gradients in every micro batch, or in the last of a step alone, with whole gradients till then.",
    ),
    switch("reduces_in_float32", "float32-reduce", "no-float32-reduce", "FSDP2 reduces gradients in float32."),
    choice("--offload-optimizer", Offload, "Where optimizer states live."),
    choice("--offload-params", Offload, "Where weights live between uses (stage 3)."),
    count("--hpz", "Ranks that keep a copy of all weights between them: GPUs per node, under stage 3 (ZeRO++)."),
    count("--sequence-parallel", "GPUs that share each sample, which is cut along its tokens (DeepSpeed's Ulysses)."),
    click.option("--nvme-path", metavar="DIR", help="Folder on every node's NVMe drive for offload."),
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
    switch(
        "activation_checkpointing", "activation-checkpointing", "no-activation-checkpointing", "Of the language model."
    ),
    switch(
        "vision_activation_checkpointing",
        "vision-activation-checkpointing",
        "no-vision-activation-checkpointing",
        "Of the vision tower.  [default: as the language model]",
    ),
    switch(
        "offload_activations",
        "offload-activations",
        "no-offload-activations",
        "Inputs of checkpointed layers wait in host memory.",
    ),
    switch(
        "tiled_mlp", "tiled-mlp", "no-tiled-mlp", "MLPs run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."
    ),
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
    switch(
        "liger_layers", "liger-layers", "no-liger-layers", "Norms, MLPs and positions are Liger's, in other trainers."
    ),
)

EVALUATION: tuple[Decorator, ...] = (
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
    switch("eval_loss", "eval-loss", "no-eval-loss", "It computes the loss, beside what it generates."),
)

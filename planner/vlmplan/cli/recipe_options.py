"""The options of how to train, and of evaluation: what a recipe is made of."""

import click

from vlmplan.cli.option_kinds import FILE, REAL, Decorator, choice, count, one_of, switch, under
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
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.libraries import TorchVersion, TransformersVersion
from vlmplan.recipe.switches import SWITCHES

OPTIMIZERS = tuple(kind.value for kind in OptimizerKind)


def _switch(name: str, help_text: str) -> Decorator:
    """The option of a setting that is on or off."""
    on, off = SWITCHES[name]
    return switch(name, on, off, help_text)


TRAINED = under(
    "What is trained",
    choice(
        "--method",
        Method,
        "Full fine-tuning, adapters (LoRA), or adapters on weights of 8 bits (LLM.int8) or 4 (QLoRA).",
    ),
    count("--lora-rank", "Rank of the adapters.  [default: 16]"),
    click.option(
        "--lora-targets",
        metavar="NAMES",
        help="Layers that get adapters: all-linear, attention, NAME,NAME, or regex:PATTERN of whole names; "
        "experts.NAME for stacked experts.  [default: all-linear]",
    ),
    click.option(
        "--lora-exclude",
        metavar="NAMES",
        help="Layers among these that get none: NAME,NAME or regex:PATTERN.  [default: what peft cannot adapt]",
    ),
    count("--lora-alpha", "Adapters are scaled by alpha / rank.  [default: twice the rank]"),
    click.option(
        "--lora-dropout", type=REAL, metavar="P", help="Dropout of the adapters' input, 0 to 1.  [default: 0]"
    ),
    _switch("use_rslora", "Scale adapters by alpha / sqrt(rank) (rsLoRA)."),
    _switch("use_dora", "Adapters change the direction of weights, a trained vector their magnitude (DoRA)."),
    click.option(
        "--lora-init",
        metavar="NAME",
        help="What adapters start from: default, gaussian, olora, pissa or pissa_niter_N.  [default: default]",
    ),
    click.option(
        "--loraplus-lr-ratio",
        type=REAL,
        metavar="N",
        help="Learning rate of lora_B divided by that of lora_A (LoRA+).",
    ),
    choice(
        "--adapter-dtype",
        AdapterDtype,
        "Type of adapters in plain PyTorch: that of all trained weights (table); float32, with trained copies of "
        "layers in the model's type, as peft has it; or the model's.",
    ),
    _switch("train_embeddings", "With adapters, also train embeddings and output head in full."),
    _switch("train_vision", "Train or freeze the vision encoder."),
    _switch("train_projector", "Train or freeze the projector from vision to language."),
    _switch("train_language", "Train or freeze the language model."),
    _switch("full_vision", "With adapters, train the vision encoder's own weights, without adapters."),
    _switch("full_projector", "With adapters, train the projector's own weights, as LLaVA does."),
)
NUMBERS = under(
    "Precision and optimizer",
    choice("--precision", Precision, "bf16 and fp16 keep fp32 master weights, bf16-pure none."),
    choice(
        "--weight-dtype",
        WeightDtype,
        "The model's own weights in plain PyTorch with bf16 or fp16: trained ones in float32 beside frozen ones in 16 "
        "bit, all in float32, or all in 16 bit.  [default: table]",
    ),
    _switch("uses_autocast", "Run forward under torch.autocast in plain PyTorch."),
    click.option("--optimizer", type=one_of(OPTIMIZERS), metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}."),
    _switch("fuses_optimizer", "Kernels of the optimizer step in plain PyTorch."),
    _switch("deepspeed_adam", "Whether DeepSpeed makes AdamW under ZeRO-0 (optimizer in its file), or gets torch's."),
    _switch("caches_casts", "autocast keeps its 16-bit copies of weights until forward ends."),
    _switch(
        "upcasts_frozen", "Cast what QLoRA leaves in 16 bit to float32, as peft's prepare_model_for_kbit_training does."
    ),
    _switch("use_double_quant", "Quantise the scales of 4-bit weights too (QLoRA)."),
    _switch("expandable_segments", "expandable_segments of torch's allocator; what recommend writes sets it."),
)
ENGINE = under(
    "Engine",
    choice(
        "--zero-stage",
        ("none", "0", "1", "2", "3"),
        "DeepSpeed's ZeRO stage; none is plain PyTorch, with DDP on several GPUs.",
    ),
    click.option(
        "--ds-config",
        type=FILE,
        metavar="FILE",
        help='A ds_config.json, followed as it is; "auto" is filled in as transformers does.',
    ),
    _switch(
        "gradient_as_bucket_view",
        "Gradients are views of DDP's buckets (gradient_as_bucket_view), or copies beside them, torch's default.",
    ),
    _switch("fsdp", "PyTorch's FSDP2 (fully_shard) in place of DDP, without DeepSpeed."),
    _switch(
        "reshard_after_forward",
        "FSDP2 frees a layer's whole weights after its forward, and gathers them again for backward.",
    ),
    _switch(
        "sync_each_batch",
        "FSDP2 reduces gradients in every micro batch, or only in the last of a step: until then they are not sharded.",
    ),
    count(
        "--dp-shard-size",
        "GPUs that share one copy of the model under FSDP, such as those of a node; others have copies of their own "
        "(HSDP, of FSDP1 HYBRID_SHARD).  [default: all]",
    ),
    _switch("reduces_in_float32", "FSDP2 reduces gradients in float32."),
    _switch(
        "shards_packed",
        "FSDP2 shards 4-bit weights (QLoRA), which bnb_4bit_quant_storage in the type of the computation lets it, or "
        "leaves them whole on every GPU.",
    ),
    choice(
        "--shard-units",
        ShardUnits,
        "What FSDP2 gathers by itself, all else with the root: layers, embedding and head (layers-and-ends); layers, "
        "as accelerate up to 1.13 (layers); the language model's (language-layers); layers and embedding, as verl "
        "(layers-and-embedding); layers and each matrix of an adapter, as axolotl (layers-and-adapters); or layers, of "
        "which the last stays whole until backward with the root, as NeMo AutoModel (layers-last-whole, "
        "language-layers-last-whole).  [default: layers-and-ends; with --flat-parameters layers]",
        metavar="UNITS",
    ),
    choice(
        "--flat-parameters",
        FlatParameters,
        "With --fsdp: FSDP1 in FSDP2's place (one flat parameter of each layer, planned and rehearsed), whose backward "
        "gathers a layer when its turn comes, or before the one behind it begins or when that is over.  "
        "[default: none]",
    ),
    _switch("uses_orig_params", "Under FSDP1 the optimizer has the model's weights, not the flat parameters."),
    _switch("prefetches_forward", "Under FSDP1 a layer is gathered when the forward of the one before it begins."),
    choice("--offload-optimizer", Offload, "Where optimizer states are kept."),
    choice("--offload-params", Offload, "Where weights are kept between uses (stage 3)."),
    count("--hpz", "Ranks of a secondary partition of the weights (ZeRO++ hpZ, stage 3): the GPUs of a node."),
    count("--sequence-parallel", "GPUs that share each sample, split along its tokens (DeepSpeed's Ulysses)."),
    click.option("--nvme-path", metavar="DIR", help="Folder on every node's NVMe drive for offload."),
)
STEP = under(
    "Batches, activations and loss",
    count("--micro-batch", "Samples per GPU and forward pass."),
    count("--grad-accum", "Micro batches per optimizer step."),
    choice(
        "--batches-on-gpu",
        BatchesOnGpu,
        "Micro batches on the GPU at once: one (turn), or all of a step; turn-float32 and step-float32 have their "
        "pixels in float32, as NeMo AutoModel and Hugging Face's Trainer do.",
    ),
    choice(
        "--input-gradients",
        InputGradients,
        "Frozen embeddings whose outputs require gradients (enable_input_require_grads), as other trainers' activation "
        "checkpointing has it.",
    ),
    choice(
        "--checkpoint-kind",
        CheckpointKind,
        "use_reentrant of activation checkpoints, which decides how far a layer runs again, how long inputs of 8-bit "
        "layers live, and frozen weights under ZeRO-3; reentrant-calls: with the hooks of a layer inside, as "
        "transformers before 5.23 has them; parts: of attention, MLP and norms each by itself (NeMo AutoModel).",
    ),
    _switch(
        "activation_checkpointing",
        "Keep only the inputs of the language model's layers, and compute the rest again in backward.",
    ),
    _switch("vision_activation_checkpointing", "The same in the vision encoder.  [default: as in the language model]"),
    _switch("offload_activations", "Keep the inputs of checkpointed layers in host memory until backward."),
    _switch("tiled_mlp", "MLPs run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."),
    choice(
        "--batching",
        Batching,
        "How samples become rows: padded to the longest of a micro batch; padding-free, all of a micro batch in one "
        "row; packed, as many as fit into rows of --seq-len.  [default: padded]",
    ),
    choice("--attention", AttentionImplementation, "Implementation of attention."),
    choice(
        "--linear-attention",
        LinearAttention,
        "Of gated delta nets: transformers' own operations (torch), or the kernels of flash-linear-attention and "
        "causal-conv1d (fla).",
    ),
    choice(
        "--torch-version",
        TorchVersion,
        "Release of torch that the run has. Default: the one installed here, else that of constraints.txt.",
    ),
    choice(
        "--transformers-version",
        TransformersVersion,
        "Release of transformers that the run has. Default: the one installed here, else that of constraints.txt.",
    ),
    choice(
        "--loss",
        LossKind,
        "chunked never holds all logits; full holds them until backward; model is the loss in transformers' own class; "
        "trl is TRL's chunked loss, liger Liger's fused one, verl, verl-quotient and verl-fused verl's, log-softmax "
        "LLaMA-Factory's of preferences, openrlhf OpenRLHF's, selective ms-swift's, axolotl axolotl's, and in GRPO "
        "axolotl-answers axolotl's, unsloth Unsloth's, rows VLM-R1's and R1-V's.",
        metavar="KIND",
    ),
    _switch("liger_layers", "Liger's norms, MLPs and rotary embeddings, in other trainers."),
    _switch("compiled_norms", "Norms are one compiled kernel each, as in NeMo AutoModel's own Llama and Qwen2."),
    _switch("fused_adapters", "LoRA that keeps a layer's input alone, as NeMo AutoModel's does."),
)
RECIPE: tuple[Decorator, ...] = (*TRAINED, *NUMBERS, *ENGINE, *STEP)

EVALUATION = under(
    "Evaluation",
    count("--eval-batch", "Samples per GPU in evaluation; with it evaluation is planned."),
    count("--eval-samples", "Samples in the evaluation set; without, seconds and dollars have no evaluation."),
    click.option(
        "--eval-every",
        metavar="epoch|end|N",
        help="When it evaluates: after every epoch, at the end, or every N steps and at the end; N below 1 is a "
        "part of the run.  [default: epoch]",
    ),
    _switch("eval_on_start", "Whether it evaluates before the first step too (eval_on_start).  [default: no]"),
    click.option(
        "--eval-delay",
        type=REAL,
        metavar="X",
        help="Steps before the first evaluation, or epochs where it evaluates after those (eval_delay).  [default: 0]",
    ),
    _switch("eval_after_training", "Whether it evaluates once more when training has ended.  [default: no]"),
    count(
        "--early-stopping-patience",
        "Evaluations in a row without a lower loss that end the run, whose result is the best (EarlyStoppingCallback).",
    ),
    click.option(
        "--early-stopping-threshold",
        type=REAL,
        metavar="X",
        help="How much lower a loss has to be for that (early_stopping_threshold).  [default: 0, lower at all]",
    ),
    _switch(
        "load_best_model_at_end",
        "Whether the result is that of the evaluation with the lowest loss.  [default: with --early-stopping-patience]",
    ),
    choice(
        "--eval-keeps",
        Kept,
        "What evaluation keeps of each sample: loss, predictions (argmax of logits), or logits.  [default: loss]",
    ),
    count(
        "--eval-accumulation", "Batches after which it is moved to the host (eval_accumulation_steps).  [default: all]"
    ),
    count("--eval-new-tokens", "Tokens that evaluation generates for each sample.  [default: 0]"),
    count("--eval-beams", "Beams of that generation.  [default: 1]"),
    _switch("eval_loss", "Whether evaluation computes the loss when it generates."),
    _switch(
        "eval_fused_loss",
        "Whether Liger's fused loss is fused in evaluation too; all logits are made without, as in LLaMA-Factory and "
        "axolotl.  [default: fused]",
    ),
    count("--eval-generations", "GRPO: answers to each prompt in evaluation.  [default: --num-generations]"),
)

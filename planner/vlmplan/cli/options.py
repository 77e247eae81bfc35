"""Options that several commands share. Values are checked where they are used, so here they are only parsed."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from vlmplan.units import MAX_AMOUNT

ClickValues = dict[str, Any]
"""What click parsed, by the names of options; those that were given come first, in their order."""
Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


class FilePath(click.Path):
    """A path that is not empty, as ``--out "$FOLDER"`` is where the variable is not set: that would mean ``.``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path cannot be empty", param, ctx)
        return super().convert(value, param, ctx)


class Amount(click.FloatRange):
    """A number of 0 or more that is neither infinite nor none at all, as ``nan`` is."""

    def __init__(self) -> None:
        super().__init__(min=0, max=MAX_AMOUNT)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


FILE = FilePath(path_type=Path)
AMOUNT = Amount()
PRICING = ("on_demand", "reserved", "community", "marketplace", "interruptible", "own")


def today() -> date:
    """The day against which prices age; a function so that tests can stand still."""
    return date.today()


def _switch(name: str, on: str, off: str, help_text: str) -> Decorator:
    return click.option(f"--{on}/--{off}", name, default=None, help=help_text)


def _choice(flag: str, choices: Sequence[str], help_text: str) -> Decorator:
    return click.option(flag, type=click.Choice(choices), help=help_text)


def _count(flag: str, help_text: str) -> Decorator:
    return click.option(flag, type=int, metavar="N", help=help_text)


def _model_unless_configured(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What ``required=True`` does, unless a file of another trainer may name the model."""
    if value is None and ctx.params.get("config") is None:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


CONFIG: Decorator = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    help="What another trainer is started with: YAML, JSON or a shell script of TRL, LLaMA-Factory, ms-swift or "
    "Hugging Face's Trainer, or accelerate's YAML. Options beside it win.",
)
TRAINERS = ("trl", "transformers", "llamafactory", "ms-swift")
FOR: Decorator = click.option(
    "--for",
    "made_for",
    type=click.Choice(TRAINERS),
    help="Plan for this trainer: as it trains, within what it can do.  [default: the bundled trainer]",
)
SAMPLES: Decorator = click.option(
    "--data",
    type=FILE,
    metavar="FILE",
    help="The samples themselves: JSONL, a JSON list, or a folder of them. Lengths, images and their number are taken "
    "from them; --seq-len is the limit then, --image-size and --images-per-sample are the most.",
)
IMAGE_FOLDER: Decorator = click.option(
    "--image-folder", type=FILE, metavar="DIR", help="Where images are that the data names; else beside its file."
)
DATA = (SAMPLES, IMAGE_FOLDER)
WORKLOAD: tuple[Decorator, ...] = (
    click.option(
        "--model",
        callback=_model_unless_configured,
        metavar="NAME",
        help="Alias, Hugging Face id, folder or config.json.  [required]",
    ),
    _count("--seq-len", "Tokens per sample, image tokens included.  [default: 1024]"),
    _count("--sample-len", "Tokens per sample where --seq-len is that of packed rows.  [default: one fills a row]"),
    _count("--images-per-sample", "Images in each sample.  [default: 1 for models that see, else 0]"),
    click.option("--image-size", metavar="WxH", help="Pixels of each image.  [default: 448x448]"),
    _count("--videos-per-sample", "Videos in each sample, in place of images.  [default: 1 where videos are told of]"),
    _count("--video-frames", "Frames that the model is given of each video; no number is assumed."),
    click.option("--video-seconds", type=float, metavar="X", help="In their place: how long each video is."),
    click.option("--video-fps", type=float, metavar="X", help="Frames of each second.  [default: the processor's]"),
    click.option("--video-size", metavar="WxH", help="Pixels of each frame as it is stored.  [default: 448x448]"),
    _count("--num-samples", "Samples in the dataset.  [default: 10000]"),
    click.option("--epochs", type=float, metavar="N", help="Passes over the dataset.  [default: 1]"),
    _count("--global-batch", "Samples per optimizer step over all GPUs."),
)
SAVING: tuple[Decorator, ...] = (
    _count("--save-every", "Steps between checkpoints.  [default: 30 minutes, or as the --config has it]"),
    _count("--keep-last", "Checkpoints that are kept.  [default: 2, or as the --config has it]"),
    click.option(
        "--disk",
        type=float,
        metavar="GIB",
        help="Room that the output folder has.  [default: this machine's with local and cpu, else unknown]",
    ),
)
OPTIMIZERS = (
    *("adamw", "adamw-8bit", "paged-adamw-8bit", "adafactor", "sgd"),
    *("lion", "lion-8bit", "paged-lion-8bit", "muon"),
    *("torchao-adamw", "torchao-adamw-8bit", "torchao-adamw-4bit"),
)
RECIPE: tuple[Decorator, ...] = (
    _choice("--method", ("full", "lora", "qlora"), "What is trained."),
    _count("--lora-rank", "Rank of the adapters.  [default: 16]"),
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
    _count("--lora-alpha", "Numerator of the adapters' scale.  [default: twice the rank]"),
    click.option("--lora-dropout", type=float, metavar="P", help="Dropped part of what adapters see.  [default: 0]"),
    _switch("use_rslora", "use-rslora", "no-rslora", "Adapters' scale by the root of the rank."),
    _switch("use_dora", "use-dora", "no-dora", "Adapters turn weights; a trained vector has their lengths (DoRA)."),
    click.option(
        "--lora-init",
        metavar="NAME",
        help="What adapters start from: default, gaussian, olora, pissa or pissa_niter_N.  [default: default]",
    ),
    click.option(
        "--loraplus-lr-ratio", type=float, metavar="N", help="Learning rate of lora_B by that of lora_A (LoRA+)."
    ),
    _choice(
        "--adapter-dtype",
        ("table", "float32", "model"),
        "Adapters in plain PyTorch: peft's float32 beside trained copies in the model's type, or all in the model's.",
    ),
    _choice(
        "--weight-dtype",
        ("table", "float32", "model"),
        "The model's own weights in plain PyTorch with bf16 or fp16: trained ones in float32 beside frozen ones in 16 "
        "bit, all in float32, or all in 16 bit.  [default: table]",
    ),
    _switch("uses_autocast", "autocast", "no-autocast", "torch.autocast around forward in plain PyTorch."),
    _switch("train_embeddings", "train-embeddings", "no-train-embeddings", "With adapters, train embeddings and head."),
    _switch("train_vision", "train-vision", "freeze-vision", "The vision tower."),
    _switch("train_projector", "train-projector", "freeze-projector", "What maps vision to language."),
    _switch("train_language", "train-language", "freeze-language", "The language model."),
    _choice("--precision", ("bf16", "fp16", "fp32", "bf16-pure"), "bf16 and fp16 keep fp32 master weights."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}."),
    _switch("fuses_optimizer", "fused-optimizer", "foreach-optimizer", "Kernel of plain PyTorch's update."),
    _switch("caches_casts", "cached-casts", "no-cached-casts", "Plain PyTorch keeps 16-bit copies until forward ends."),
    _switch("upcasts_frozen", "kbit-upcast", "no-kbit-upcast", "peft's float32 copies of what QLoRA leaves in 16 bit."),
    _switch(
        "expandable_segments",
        "expandable-segments",
        "no-expandable-segments",
        "torch's allocator with segments that grow, as launch.sh of recommend sets it.",
    ),
    _choice(
        "--zero-stage", ("none", "0", "1", "2", "3"), "none is PyTorch without DeepSpeed, on several GPUs its DDP."
    ),
    click.option(
        "--ds-config", type=FILE, metavar="FILE", help='A ds_config.json, taken as it is; "auto" as transformers does.'
    ),
    _switch(
        "gradient_as_bucket_view",
        "gradients-in-buckets",
        "gradients-beside-buckets",
        "Where DDP has gradients; torch's default is beside its buckets.",
    ),
    _switch("fsdp", "fsdp", "no-fsdp", "PyTorch's FSDP2 (fully_shard) in place of DDP, without DeepSpeed."),
    _switch(
        "reshard_after_forward",
        "reshard-after-forward",
        "no-reshard-after-forward",
        "FSDP2 frees a layer's whole weights after its forward, and gathers them again for backward.",
    ),
    _switch(
        "sync_each_batch",
        "sync-each-batch",
        "no-sync-each-batch",
        "FSDP2 reduces gradients in every micro batch, or in the last of a step alone, with whole gradients till then.",
    ),
    _switch("reduces_in_float32", "float32-reduce", "no-float32-reduce", "FSDP2 reduces gradients in float32."),
    _choice("--offload-optimizer", ("none", "cpu", "nvme"), "Where optimizer states live."),
    _choice("--offload-params", ("none", "cpu", "nvme"), "Where weights live between uses (stage 3)."),
    _count("--hpz", "Ranks that keep a copy of all weights between them: GPUs per node, under stage 3 (ZeRO++)."),
    _count("--sequence-parallel", "GPUs that share each sample, which is cut along its tokens (DeepSpeed's Ulysses)."),
    click.option("--nvme-path", metavar="DIR", help="Folder on every node's NVMe drive for offload."),
    _count("--micro-batch", "Samples per GPU and forward pass."),
    _count("--grad-accum", "Micro batches per optimizer step."),
    _choice(
        "--batches-on-gpu",
        ("turn", "step", "step-float32"),
        "Micro batches there at once: one, or a step's; Hugging Face's Trainer has pixels in float32.",
    ),
    _choice(
        "--input-gradients",
        ("none", "language", "all", "peft"),
        "Results of frozen embeddings that need gradients, as checkpoints of other trainers ask for.",
    ),
    _switch(
        "activation_checkpointing", "activation-checkpointing", "no-activation-checkpointing", "Of the language model."
    ),
    _switch(
        "vision_activation_checkpointing",
        "vision-activation-checkpointing",
        "no-vision-activation-checkpointing",
        "Of the vision tower.  [default: as the language model]",
    ),
    _switch(
        "offload_activations",
        "offload-activations",
        "no-offload-activations",
        "Inputs of checkpointed layers wait in host memory.",
    ),
    _switch(
        "tiled_mlp", "tiled-mlp", "no-tiled-mlp", "MLPs run on a tile of the tokens at a time (DeepSpeed's TiledMLP)."
    ),
    _choice(
        "--batching",
        ("padded", "padding-free", "packed"),
        "padding-free puts the samples of a micro batch one behind the other into one row; packed fills rows of "
        "--seq-len with several samples before that.  [default: padded]",
    ),
    _choice("--attention", ("sdpa", "flash_attention_2", "eager"), "Attention implementation."),
    _choice(
        "--linear-attention",
        ("torch", "fla"),
        "Gated delta nets: transformers' own operations, or the kernels of flash-linear-attention and causal-conv1d.",
    ),
    _choice(
        "--loss",
        ("chunked", "full", "model", "trl", "liger"),
        "full makes all logits at once; model too, and frees them for backward; trl is TRL's fused head, liger "
        "Liger's fused loss, made of Triton kernels.",
    ),
    _switch(
        "liger_layers", "liger-layers", "no-liger-layers", "Norms, MLPs and positions are Liger's, in other trainers."
    ),
)

EVALUATION: tuple[Decorator, ...] = (
    _count("--eval-batch", "Samples per GPU in evaluation, which is planned then."),
    _count("--eval-samples", "Samples of an evaluation.  [default: 1000]"),
    _choice(
        "--eval-keeps",
        ("loss", "predictions", "logits"),
        "What it keeps of a sample for metrics: logits, their argmax, or the loss alone.  [default: loss]",
    ),
    _count("--eval-accumulation", "Batches after which that moves to the host.  [default: all of them]"),
    _count("--eval-new-tokens", "Tokens that it generates for each sample.  [default: 0]"),
    _count("--eval-beams", "Beams of that.  [default: 1]"),
    _switch("eval_loss", "eval-loss", "no-eval-loss", "It computes the loss, beside what it generates."),
)


def _only_gpu(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str | None:
    """The value of an option that another command takes several times."""
    if len(values) > 1:
        raise click.UsageError(f"--gpu is given {len(values)} times ({', '.join(values)}); once is allowed here", ctx)
    return values[0] if values else None


NETWORK: Decorator = click.option(
    "--inter-node-gbit",
    type=float,
    metavar="N",
    help="Gbit/s that a machine sends to the next, all its adapters together. Up to 100 as over sockets, above with "
    "RDMA (InfiniBand, RoCE, EFA).  [default: 100]",
)
HOST_RAM: Decorator = click.option(
    "--host-ram",
    type=float,
    metavar="GIB",
    help="Host memory of each of your machines.  [default: this machine's with local and cpu, else unknown]",
)
CALIBRATION: Decorator = _switch(
    "calibration",
    "calibration",
    "no-calibration",
    "What vlmplan calibrate measured on such a GPU, in place of what is assumed.  [default: used where it is there]",
)
ONE_CLUSTER: tuple[Decorator, ...] = (
    click.option(
        "--gpu",
        multiple=True,
        callback=_only_gpu,
        metavar="NAME[:COUNT]",
        help="Of the catalog (see vlmplan gpus), local, or cpu:N.",
    ),
    _count("--num-nodes", "Equal machines.  [default: 1]"),
    HOST_RAM,
    NETWORK,
    CALIBRATION,
)
PRICES: tuple[Decorator, ...] = (
    _count("--max-price-age-days", "Only prices seen so lately.  [default: any, with a note where it decides]"),
    click.option(
        "--spot-interruptions-per-day",
        type=float,
        metavar="N",
        help="Of one interruptible machine.  [default: 1; published: 0.05 to 5]",
    ),
    click.option("--download-gbit", type=float, metavar="N", help="Gbit/s from the Hub.  [default: 2]"),
)
CATALOG: Decorator = click.option(
    "--catalog",
    "catalog_files",
    multiple=True,
    metavar="FILE",
    type=FILE,
    help="A catalog of your own on top of the others (repeatable; later wins).",
)
REPORT: Decorator = click.option(
    "--html", type=FILE, metavar="FILE", help="Write the answer as a page that brings its charts with it."
)
FORCE: Decorator = click.option("--force", is_flag=True, help="Let --html overwrite a file.")
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def options(*groups: Sequence[Decorator] | Decorator) -> Callable[[Command], Command]:
    """A decorator that adds options in the order given."""
    flat: list[Decorator] = []
    for group in groups:
        flat += [group] if callable(group) else group

    def decorate(command: Command) -> Command:
        for option in reversed(flat):
            command = option(command)
        return command

    return decorate


def argument_name(option: click.Option) -> str:
    """The keyword of an option, that of its first flag: ``--seq-len`` is ``seq_len``, ``--for`` is ``for_``."""
    name = option.opts[0].removeprefix("--").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def options_of(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their keywords."""
    return {argument_name(option): option for option in command.params if isinstance(option, click.Option)}


def print_document(document: Mapping[str, Any]) -> None:
    """Print what --json gives."""
    click.echo(document_text(document))


def document_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, in which what is infinite is null."""
    import json

    try:
        return json.dumps(document, indent=2, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def words_of(command: click.Command, values: Mapping[str, Any]) -> list[str]:
    """The words that make ``command`` parse ``values``, in their order; what is None is left out."""
    known = {option.name: option for option in command.params if isinstance(option, click.Option)}
    words: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        option = known[name]
        on, off = option.opts[0], option.secondary_opts[:1]
        if isinstance(value, bool):
            words += [on] if value else off
        else:
            items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
            words += [word for item in items for word in (on, str(item))]
    return words


def write_report(path: Path | None, text: Callable[[], str], *, force: bool) -> list[str]:
    """Write the report where the user wants one; what to say of that."""
    if path is None:
        return []
    from vlmplan.files import write_atomically

    write_atomically(path, text(), force=force)
    return [f"written: {path}"]


def refuse_files(files: Mapping[str, Path | None], *, force: bool) -> None:
    """Raise InputError where a file, by the option that names it, would be overwritten or written twice."""
    from vlmplan.errors import InputError
    from vlmplan.files import refuse_existing

    paths = [path for path in files.values() if path is not None]
    refuse_existing(paths, force=force)
    if len({path.absolute() for path in paths}) < len(paths):
        *first, last = files
        raise InputError(f"{', '.join(first)} and {last} need a file each; two of them name the same one")

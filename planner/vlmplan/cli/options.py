"""Options that several commands share, in groups: samples, checkpoints, machines, prices, and the answer."""

from collections.abc import Sequence

import click

from vlmplan.cli.option_kinds import FILE, Decorator, count, switch, under

MODEL_AND_SAMPLES = "Model and samples"
MACHINES = "Machines"
OFFERS = "Offers and limits"
"""Headings of the help."""
TRAINERS = ("trl", "transformers", "llamafactory", "ms-swift", "axolotl")
PRICING = ("on_demand", "reserved", "community", "marketplace", "interruptible", "own")


def _model_unless_configured(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What ``required=True`` does, unless a file of another trainer may name the model."""
    if value is None and ctx.params.get("config") is None:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


CONFIG = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--config",
        type=FILE,
        metavar="FILE",
        help="What another trainer is started with: YAML, JSON or a shell script of TRL, LLaMA-Factory, ms-swift, "
        "axolotl or Hugging Face's Trainer, or accelerate's YAML. Options beside it win.",
    ),
)
FOR = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--for",
        "made_for",
        type=click.Choice(TRAINERS),
        help="Plan for this trainer: as it trains, within what it can do.  [default: the bundled trainer]",
    ),
)
IMAGE_FOLDER: Decorator = click.option(
    "--image-folder",
    type=FILE,
    metavar="DIR",
    help="Where images and sounds are that the data names; else beside its file.",
)
DATA = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--data",
        type=FILE,
        metavar="FILE",
        help="The samples themselves: JSONL, a JSON list, or a folder of them. Lengths, images, sounds and their "
        "number are taken from them; --seq-len is the limit then, --image-size, --images-per-sample, --audio-seconds "
        "and --audios-per-sample are the most.",
    ),
    IMAGE_FOLDER,
)
PLAN_FILE: Decorator = click.option(
    "--plan",
    "plan_file",
    type=FILE,
    metavar="FILE",
    help="A plan.json, or the folder it is in; or options of estimate.",
)
MODEL = under(
    MODEL_AND_SAMPLES,
    click.option("--model", metavar="NAME", help="Alias, Hugging Face id, folder or config.json."),
)
WORKLOAD = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--model",
        callback=_model_unless_configured,
        metavar="NAME",
        help="Alias, Hugging Face id, folder or config.json.  [required]",
    ),
    count("--seq-len", "Tokens per sample, those of images and sound included.  [default: 1024]"),
    count("--sample-len", "Tokens per sample where --seq-len is that of packed rows.  [default: one fills a row]"),
    count("--target-len", "Tokens per answer where a decoder of its own writes it (BART).  [default: 128]"),
    count("--images-per-sample", "Images in each sample.  [default: 1 for models that see, else 0]"),
    click.option("--image-size", metavar="WxH", help="Pixels of each image.  [default: 448x448]"),
    count("--videos-per-sample", "Videos in each sample, in place of images.  [default: 1 where videos are told of]"),
    count("--video-frames", "Frames that the model is given of each video; no number is assumed."),
    click.option("--video-seconds", type=float, metavar="X", help="In their place: how long each video is."),
    click.option("--video-fps", type=float, metavar="X", help="Frames of each second.  [default: the processor's]"),
    click.option(
        "--video-size",
        metavar="WxH",
        help="Pixels of each frame as it is stored, with --data at the most.  [default: 448x448]",
    ),
    click.option(
        "--audio-seconds", type=float, metavar="X", help="How long each sound of a sample is, with --data at the most."
    ),
    count("--audios-per-sample", "Sounds in each sample.  [default: 1 where --audio-seconds is given]"),
    count("--num-samples", "Samples in the dataset.  [default: 10000]"),
    click.option("--epochs", type=float, metavar="N", help="Passes over the dataset.  [default: 1]"),
    count("--global-batch", "Samples per optimizer step over all GPUs."),
)
SAVING = under(
    "Checkpoints",
    count("--save-every", "Steps between checkpoints.  [default: 30 minutes, or as the --config has it]"),
    count("--keep-last", "Checkpoints that are kept.  [default: 2, or as the --config has it]"),
    click.option(
        "--disk",
        type=float,
        metavar="GIB",
        help="Room that the output folder has.  [default: this machine's with local and cpu, else unknown]",
    ),
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
CALIBRATION: Decorator = switch(
    "calibration",
    "calibration",
    "no-calibration",
    "What vlmplan calibrate measured on such a GPU, in place of what is assumed.  [default: used where it is there]",
)
ONE_CLUSTER = under(
    MACHINES,
    click.option(
        "--gpu",
        multiple=True,
        callback=_only_gpu,
        metavar="NAME[:COUNT]",
        help="Of the catalog (see vlmplan gpus), local, or cpu:N.",
    ),
    count("--num-nodes", "Equal machines.  [default: 1]"),
    HOST_RAM,
    NETWORK,
    CALIBRATION,
)
PRICES = under(
    OFFERS,
    count("--max-price-age-days", "Only prices seen so lately.  [default: any, with a note where it decides]"),
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

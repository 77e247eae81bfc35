"""Options that several commands share, in groups: samples, checkpoints, machines, prices, and the answer."""

import click

from vlmplan.cli.completion import gpu_names, model_names
from vlmplan.cli.option_kinds import FILE, REAL, Decorator, count, one_of, switch, under

MODEL_AND_SAMPLES = "Model and samples"
MACHINES = "Machines"
OFFERS = "Offers and limits"
"""Headings of the help."""
TRAINERS = ("trl", "transformers", "llamafactory", "ms-swift", "axolotl")
PRICING = ("on_demand", "reserved", "community", "marketplace", "interruptible", "own")


def _model_unless_configured(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What ``required=True`` does, unless a file of another trainer may name the model."""
    if value is None and ctx.params.get("config") is None:
        raise click.MissingParameter("Name one, such as --model qwen2-vl-2b", ctx=ctx, param=param)
    return value


CONFIG = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--config",
        type=FILE,
        metavar="FILE",
        help="What another trainer is started with: YAML, JSON or a shell script of TRL, LLaMA-Factory, ms-swift, "
        "axolotl, OpenRLHF, verl, EasyR1, NeMo AutoModel or Hugging Face's Trainer, or accelerate's YAML. Options "
        "beside it win.",
    ),
)
FOR = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--for",
        "made_for",
        type=one_of(TRAINERS),
        help="Plan for this trainer: as it trains, within what it can do.  [default: the bundled trainer]",
    ),
)
IMAGE_FOLDER: Decorator = click.option(
    "--image-folder",
    type=FILE,
    metavar="DIR",
    help="Folder of the images and sounds that the data names.  [default: that of the data]",
)
DATA = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--data",
        type=FILE,
        metavar="FILE",
        help="Plan from these samples: JSONL, a JSON list, Parquet, Arrow, CSV, or a folder of them. Their number, "
        "lengths, images and sounds are counted; --seq-len, --image-size, --images-per-sample, --audio-seconds and "
        "--audios-per-sample are limits then.",
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
    click.option(
        "--model", shell_complete=model_names, metavar="NAME", help="Alias, Hugging Face id, folder or config.json."
    ),
)
WORKLOAD = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--model",
        shell_complete=model_names,
        callback=_model_unless_configured,
        metavar="NAME",
        help="Alias, Hugging Face id, folder or config.json.  [required, here or by --config]",
    ),
    count("--seq-len", "Tokens per sample, those of images and sound included.  [default: 1024]"),
    count("--sample-len", "With --batching packed, tokens per sample.  [default: --seq-len]"),
    count("--target-len", "Tokens per answer of models with encoder and decoder (BART, Whisper).  [default: 128]"),
    count("--images-per-sample", "Images in each sample.  [default: 1 for models that take images, else 0]"),
    click.option("--image-size", metavar="WxH", help="Pixels of each image.  [default: 448x448]"),
    count(
        "--videos-per-sample",
        "Videos in each sample, in place of images.  [default: 1 with --video-frames or --video-seconds]",
    ),
    count("--video-frames", "Frames of each video that the model is given; this or --video-seconds is needed."),
    click.option("--video-seconds", type=REAL, metavar="X", help="In place of --video-frames, how long each video is."),
    click.option(
        "--video-fps", type=REAL, metavar="X", help="Frames that are taken of each second.  [default: the processor's]"
    ),
    click.option(
        "--video-size",
        metavar="WxH",
        help="Pixels of each frame as it is stored; with --data a limit.  [default: 448x448]",
    ),
    click.option("--audio-seconds", type=REAL, metavar="X", help="How long each sound is; with --data a limit."),
    count("--audios-per-sample", "Sounds in each sample.  [default: 1 where --audio-seconds is given]"),
    count("--num-samples", "Samples in the dataset.  [default: 10000]"),
    click.option("--epochs", type=REAL, metavar="N", help="Passes over the dataset.  [default: 1]"),
    count("--global-batch", "Samples per optimizer step over all GPUs."),
)
SAVING = under(
    "Checkpoints",
    count("--save-every", "Steps between checkpoints.  [default: 30 minutes, or as the --config has it]"),
    count("--keep-last", "Checkpoints that are kept.  [default: 2, or as the --config has it]"),
    click.option(
        "--disk",
        type=REAL,
        metavar="GIB",
        help="Free disk space of the output folder.  [default: this machine's with --gpu local or cpu, else unknown]",
    ),
)
NETWORK: Decorator = click.option(
    "--inter-node-gbit",
    type=REAL,
    metavar="N",
    help="Gbit/s between two machines, all network adapters together; up to 100 over sockets, above with RDMA "
    "(InfiniBand, RoCE, EFA).  [default: 100]",
)
HOST_RAM: Decorator = click.option(
    "--host-ram",
    type=REAL,
    metavar="GIB",
    help="Host memory of each machine.  [default: this machine's with --gpu local or cpu, else unknown]",
)
CALIBRATION: Decorator = switch(
    "calibration",
    "calibration",
    "no-calibration",
    "Use what vlmplan calibrate measured on such a GPU.  [default: if there is any]",
)
ONE_CLUSTER = under(
    MACHINES,
    click.option(
        "--gpu",
        shell_complete=gpu_names,
        metavar="NAME[:COUNT]",
        help="A GPU of vlmplan gpus and how many, local (this machine's), or cpu:RANKS.",
    ),
    count("--num-nodes", "Number of equal machines.  [default: 1]"),
    HOST_RAM,
    NETWORK,
    CALIBRATION,
)
PRICES = under(
    OFFERS,
    count(
        "--max-price-age-days",
        "Only prices seen within so many days.  [default: any, with a note where their age may decide]",
    ),
    click.option(
        "--spot-interruptions-per-day",
        type=REAL,
        metavar="N",
        help="Interruptions of one interruptible machine.  [default: 1; published: 0.05 to 5]",
    ),
    click.option(
        "--download-gbit", type=REAL, metavar="N", help="Gbit/s at which the model is downloaded.  [default: 2]"
    ),
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
    "--html", type=FILE, metavar="FILE", help="Write the answer as one HTML file, charts included."
)
FORCE: Decorator = click.option("--force", is_flag=True, help="Let --html overwrite a file.")
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")

"""The options of ``vlmplan launch``: of the command, of the stages of a curriculum, and of commands to be copied."""

from typing import Any

import click

from vlmplan.cli.option_kinds import FILE, REAL, SectionedCommand, count, one_of, options, under
from vlmplan.cli.options import (
    CATALOG,
    DATA,
    FORCE,
    IMAGE_FOLDER,
    JSON,
    MODEL,
    ONE_CLUSTER,
    PLAN_FILE,
    REPORT,
    WORKLOAD,
)
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.task_options import TASK
from vlmplan.run.training import MONITOR_PACKAGES, SCHEDULES, SPEECH_TASKS

CURRICULUM_FILE = "curriculum.json"
"""In the output folder of a curriculum: what it is."""
PLAN = under(
    "What to run",
    PLAN_FILE,
    click.option("--curriculum", type=FILE, metavar="FILE", help="A YAML file of stages, one after another."),
    click.option("--demo", is_flag=True, help="A tiny model and made-up images on 2 CPU ranks; no download."),
)
TRAINING_DATA = under(
    "Training data",
    click.option("--train-data", type=FILE, metavar="FILE", help="Samples to train on, as --data takes them."),
    click.option(
        "--eval-data",
        type=FILE,
        metavar="FILE",
        help="Samples that are evaluated after every epoch, or when the plan says.",
    ),
    IMAGE_FOLDER,
    count("--dummy-data", "N made-up samples instead of data."),
    click.option("--skip-bad-samples", is_flag=True, help="Leave out samples that cannot be used."),
    click.option("--group-by-length", is_flag=True, help="Put samples of similar length into a micro batch."),
    click.option("--language", metavar="NAME", help="Whisper: language of the speech, such as german or de."),
    click.option("--speech-task", type=one_of(SPEECH_TASKS), help="Whisper: the task in its prompt."),
    click.option("--rewards", type=FILE, metavar="FILE", help="GRPO: a Python file of yours with reward functions."),
    click.option(
        "--beta",
        type=REAL,
        metavar="X",
        help="Weight of the KL term to the reference model.  [default: 0.1 in DPO and KTO, 0.04 in GRPO]",
    ),
    click.option(
        "--center-rewards-coefficient",
        type=REAL,
        metavar="X",
        help="Reward models: weight of the squared sum of both scores in the loss.  [default: 0]",
    ),
    click.option(
        "--desirable-weight", type=REAL, metavar="X", help="KTO: weight of the loss of good answers.  [default: 1]"
    ),
    click.option(
        "--undesirable-weight", type=REAL, metavar="X", help="KTO: weight of the loss of bad answers.  [default: 1]"
    ),
    click.option("--temperature", type=REAL, metavar="X", help="GRPO: sampling temperature of answers.  [default: 1]"),
)
RUN = under(
    "Run",
    click.option("--output-dir", type=FILE, metavar="DIR", help="Checkpoints, log and result of one run."),
    click.option("--adapter", type=FILE, metavar="DIR", help="Start from the weights of this adapter."),
    click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of --output-dir."),
    click.option("--dry-run", is_flag=True, help="Check everything, print what would run, and write nothing."),
    click.option("--hostfile", type=FILE, metavar="FILE", help="The nodes, HOST slots=GPUS in each line."),
    click.option("--random-weights", is_flag=True, help="Initialise weights at random, load none."),
    click.option(
        "--learning-rate",
        type=REAL,
        metavar="X",
        help="Highest learning rate.  [default: 1e-5 for full, 1e-4 for adapters]",
    ),
    click.option("--weight-decay", type=REAL, metavar="X", help="Weight decay of the optimizer.  [default: 0]"),
    click.option(
        "--warmup-fraction", type=REAL, metavar="X", help="Steps of warm-up, as a fraction of all.  [default: 0.03]"
    ),
    click.option(
        "--schedule",
        type=one_of(SCHEDULES),
        help="How the learning rate falls after the warm-up.  [default: cosine]",
    ),
    count("--save-every", "Steps between checkpoints."),
    click.option(
        "--save-minutes",
        type=REAL,
        metavar="X",
        help="Minutes between checkpoints; 0 for never.  [default: 30 without --save-every]",
    ),
    count("--keep-last", "Checkpoints that are kept.  [default: 2]"),
    count("--max-steps", "Stop after so many steps."),
    count("--seed", "Seed of the order of samples and of random weights.  [default: 0]"),
    click.option(
        "--merge-adapters",
        is_flag=True,
        help="Also write the model with its adapters merged in; of a run that has ended with --resume.",
    ),
    count("--measured-steps", "First steps left out of the speed; on CPU ranks those measured.  [default: 3]"),
    click.option(
        "--monitor",
        type=one_of(tuple(MONITOR_PACKAGES)),
        multiple=True,
        help="Also write loss and speed there (repeatable).",
    ),
)
PLANNED = (MODEL, DATA[:1], WORKLOAD[1:], ONE_CLUSTER, RECIPE, EVALUATION, TASK)
LAUNCH = options(PLAN, TRAINING_DATA, RUN, *PLANNED, CATALOG, REPORT, FORCE, JSON)


@click.command("launch", cls=SectionedCommand)
@LAUNCH
def parser(**values: Any) -> None:
    """Reads options and writes them down; runs nothing."""

"""What ``vlmplan launch`` and the trainer agree on: the trainer's options, and names in the folder of a run."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, cast

from vlmplan.errors import InputError, VlmplanError, require_within
from vlmplan.files import open_regular
from vlmplan.files.json_reader import read_json_object, shown
from vlmplan.recipe import Recipe
from vlmplan.recipe.evaluation import OF_BEST, OPTION_NAMES
from vlmplan.run.adapter_keys import CHOOSING, OTHERS, is_there

CHECKPOINTS, MANIFEST = "checkpoints", "complete.json"
"""Where checkpoints are, and what each has once it is whole."""
MODEL_FOLDER, ADAPTER_FOLDER, MERGED_FOLDER = "model", "adapter", "merged"
"""The result: a whole model, an adapter, and on request the model with the adapter merged in."""
ADAPTER_CONFIG = "adapter_config.json"
"""What peft writes beside the weights of an adapter."""
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Where peft looks for weights, in its order; where neither is, it would ask the Hub (``load_peft_weights``, 0.21)."""
BEST = "best"
"""Where the result of the best evaluation is while a run goes on, by its step."""
METRICS_FILE = "metrics.jsonl"
"""A line for every step that was trained."""
LENGTHS_FILE = "sample_lengths.txt"
"""Tokens of every sample that is trained on, one a line: for ``vlmplan estimate --sample-lengths``."""
REPORT_FILE = "report.json"
"""Planned and measured; the last thing that a run writes."""
STARTED = "VLMPLAN_STARTED"
"""The variable in which ``vlmplan launch`` tells its ranks when it started them, in seconds since 1970."""
EXIT_OUT_OF_MEMORY = 4
"""Exit code of a rank whose memory ran out: after those of every command, 0 to 3; 128 + N is of signals."""
MONITOR_PACKAGES = {"tensorboard": ("deepspeed", "tensorboard"), "wandb": ("deepspeed", "wandb"), "csv": ("deepspeed",)}
"""The monitors that a run can write curves to, through DeepSpeed, and the packages that each needs."""
SAVE_MINUTES = 30.0
"""Minutes between checkpoints where nothing else is asked for: what a killed run loses at most. A choice: saving 7
billion weights with their optimizer, some 100 GB, takes a minute or two."""
DEFAULT_KEEP_LAST = 2
"""Checkpoints that stay where nothing else is asked for: the newest, and one to fall back to. A choice."""
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8
"""torch's defaults, written out because bitsandbytes and DeepSpeed have others for some optimizers."""
SEPARATOR = "  "
STEP_LINE = re.compile(rf"step (\d+)/(\d+){SEPARATOR}(\S.*)")
SPEECH_TASKS = ("transcribe", "translate")
"""What Whisper is told to do with a sound: write it as it is said, or in English."""
SCHEDULES = ("cosine", "linear", "constant")
LEARNING_RATES = {"full": 1e-5, "lora": 1e-4, "lora-8bit": 1e-4, "qlora": 1e-4}
"""By method, where none is given: what the model cards of Qwen2-VL, LLaVA and Llama fine-tune with. A choice."""
DATA_SOURCES = ("train_data", "dummy_data")
MAX_INTEGER = 2**63 - 1
"""The largest that torch takes as a seed, and far more than there are steps."""
LEAST = {"dummy_data": 1, "save_every": 1, "keep_last": 1, "max_steps": 1, "measured_steps": 0, "seed": 0}
OF_LOSSES = ("beta", "center_rewards_coefficient", "desirable_weight", "undesirable_weight")
"""Numbers of the losses of tasks."""
MOST = {
    **dict.fromkeys((*OF_LOSSES, "temperature", "learning_rate", "weight_decay"), 1_000),
    "save_minutes": 1_000_000,
}
"""Far more than anything is trained with, and two years. A choice: larger numbers overflow in the middle of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """What the user asks of the trainer beside the plan. ``learning_rate`` None: by method. ``save_minutes`` None:
    ``SAVE_MINUTES``, or never where ``save_every`` says when; 0: never. ``rewards``, ``OF_LOSSES``
    and ``temperature`` are of tasks (``launch.task_runs``), ``language`` and ``speech_task`` of Whisper.

    Raises InputError for what is not allowed.
    """

    output_dir: Path
    train_data: Path | None = None
    eval_data: Path | None = None
    image_folder: Path | None = None
    dummy_data: int | None = None
    rewards: Path | None = None
    beta: float | None = None
    center_rewards_coefficient: float | None = None
    desirable_weight: float | None = None
    undesirable_weight: float | None = None
    temperature: float = 1.0
    adapter: Path | None = None
    resume: bool = False
    skip_bad_samples: bool = False
    group_by_length: bool = False
    language: str | None = None
    speech_task: str | None = None
    random_weights: bool = False
    learning_rate: float | None = None
    weight_decay: float = 0.0
    warmup_fraction: float = 0.03
    schedule: str = "cosine"
    save_every: int | None = None
    save_minutes: float | None = None
    keep_last: int = DEFAULT_KEEP_LAST
    max_steps: int | None = None
    seed: int = 0
    merge_adapters: bool = False
    measured_steps: int = 3
    monitor: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [flag(name) for name in DATA_SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none of them is given"
            raise InputError(f"one of {', '.join(map(flag, DATA_SOURCES))} is needed; {found}")
        for name, least in LEAST.items():
            require_within(flag(name), getattr(self, name), least=least, most=MAX_INTEGER)
        for name, most in MOST.items():
            require_within(flag(name), getattr(self, name), least=0, most=most)
        if self.merge_adapters and self.random_weights:
            raise InputError("--merge-adapters needs a checkpoint to merge into; --random-weights has none")
        if not 0 <= self.warmup_fraction <= 1:
            raise InputError(f"--warmup-fraction is {self.warmup_fraction}; a number from 0 to 1 is needed")

    @property
    def save_seconds(self) -> float | None:
        """Seconds after which a checkpoint is due; None where time does not decide."""
        default = SAVE_MINUTES if self.save_every is None else 0
        return 60 * (default if self.save_minutes is None else self.save_minutes) or None

    def arguments(self) -> list[str]:
        """The trainer's command line, without what is the default. Paths are absolute: other nodes start elsewhere."""
        words: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value is True:
                words.append(flag(item.name))
            elif isinstance(value, tuple):
                words += [word for part in cast("tuple[str, ...]", value) for word in (flag(item.name), part)]
            elif value != default_of(item):
                words += [flag(item.name), os.path.abspath(value) if isinstance(value, Path) else str(value)]
        return words


def adapter_problem(folder: Path, recipe: Recipe) -> str | None:
    """Why a run cannot start from the adapter in ``folder``."""
    if not recipe.trains_adapters:
        return "--adapter goes with --method lora, lora-8bit or qlora; full fine-tuning has no adapters"
    if recipe.changes_base:
        return (
            f"--adapter does not go with --lora-init {recipe.lora_init}, whose adapters start from the weights; give "
            f"--lora-init default"
        )
    if not (folder / ADAPTER_CONFIG).is_file():
        return f"--adapter {folder} has no {ADAPTER_CONFIG}, so it is not an adapter that peft saved"
    weights = adapter_weights(folder)
    if weights is None:
        return f"--adapter {folder} has no {' or '.join(ADAPTER_WEIGHTS)}, so it has no weights"
    try:
        open_regular(weights).close()
    except OSError as error:
        return f"--adapter {folder}: {weights.name} cannot be read: {error.strerror}"
    return _other_adapter(folder, recipe)


def adapter_weights(folder: Path) -> Path | None:
    """The file in ``folder`` that has the weights of an adapter; None where there is none."""
    return next((folder / name for name in ADAPTER_WEIGHTS if os.path.lexists(folder / name)), None)


def _other_adapter(folder: Path, recipe: Recipe) -> str | None:
    """How the plan's adapters differ from the one in ``folder``. Its scale and kind are in no weight: another one would
    start from something else than was trained, and nothing would say so."""
    try:
        config = read_json_object(folder / ADAPTER_CONFIG)
    except VlmplanError as error:
        return f"--adapter: {error}"
    odd = [name for name in OTHERS if name not in CHOOSING and is_there(name, config.get(name))]
    odd += ["bias"] if config.get("bias") not in (None, "none") else []
    odd += ["peft_type"] if config.get("peft_type") not in (None, "LORA") else []
    if odd:
        has = f"{odd[0]} {shown(config[odd[0]])}"
        return f"--adapter {folder} has {has}, which no plan has: merge the adapter into its model and start from that"
    alpha = config.get("lora_alpha")
    planned = {
        "r": (recipe.lora_rank, f"--lora-rank {config.get('r')}"),
        "lora_alpha": (recipe.adapter_alpha, f"--lora-alpha {alpha:g}" if isinstance(alpha, (int, float)) else ""),
        "use_rslora": (recipe.use_rslora, "--use-rslora" if config.get("use_rslora") else "--no-rslora"),
        "use_dora": (recipe.use_dora, "--use-dora" if config.get("use_dora") else "--no-dora"),
    }
    for key, (value, option) in planned.items():
        found = config.get(key)
        if found is None or found == value:
            continue
        how = f"plan with {option}, as it was trained"
        if not isinstance(found, int) and not (isinstance(found, float) and found.is_integer()):
            how = "no plan has it: merge the adapter into its model and start from that"
        return f"--adapter {folder} has {key} {json.dumps(found)}, and the plan {json.dumps(value)}; {how}"
    return None


def best_problem(options: TrainerOptions, recipe: Recipe) -> str | None:
    """Why there is no best evaluation of a run whose result is to be that."""
    evaluation = recipe.evaluation
    if evaluation is None or not evaluation.keeps_best or options.eval_data is not None:
        return None
    name = next(name for name in OF_BEST if getattr(evaluation, name))
    return f"{OPTION_NAMES[name]} needs --eval-data FILE: the samples by whose loss the best is known"


def monitor_problems(monitors: Iterable[str], is_installed: Callable[[str], bool]) -> Iterator[str]:
    """What each of the ``monitors`` misses."""
    for name in monitors:
        for package in MONITOR_PACKAGES[name]:
            if not is_installed(package):
                yield f"--monitor {name} needs {package}, not installed here: pip install {package}"


def step_line(step: int, num_steps: int, parts: Sequence[str]) -> str:
    """The line that the trainer prints of an optimizer step, of which ``vlmplan launch`` makes a bar in a terminal."""
    return SEPARATOR.join([f"step {step}/{num_steps}", *parts])


def parts_of_step_line(line: str) -> tuple[int, int, list[str]] | None:
    """The inverse of ``step_line``; None for another line.

    >>> parts_of_step_line("step 3/8  loss 0.5  done")
    (3, 8, ['loss 0.5', 'done'])
    """
    match = STEP_LINE.fullmatch(line)
    return None if match is None else (int(match[1]), int(match[2]), match[3].split(SEPARATOR))


def default_of(item: "Field[Any]") -> Any:
    """The value of an option that is not given; None for one that has to be."""
    return None if item.default is MISSING else item.default


def flag(name: str) -> str:
    """The command-line option of a field: ``save_every`` → ``--save-every``."""
    return "--" + name.replace("_", "-")

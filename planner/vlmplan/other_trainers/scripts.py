"""Which training command a shell script holds: the trainer, its options, and the files that they name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from vlmplan.errors import InputError
from vlmplan.other_trainers.shell import Command, arguments_of, commands_of

PYTHONS = frozenset(("python", "python3", "accelerate", "torchrun", "deepspeed"))
LAUNCHER_VALUES = frozenset(
    """--config_file --num_processes --num_machines --machine_rank --main_process_port --main_process_ip
    --mixed_precision --nproc_per_node --nproc-per-node --nnodes --node_rank --node-rank --master_port --master-port
    --master_addr --master-addr --rdzv_backend --rdzv-backend --rdzv_endpoint --rdzv-endpoint --rdzv_id --num_gpus
    --num_nodes --include --exclude --hostfile --launcher --module -m --deepspeed_config_file --zero_stage""".split()
)
"""Options of launchers that take a value; others are taken for switches."""
TRL_DPO = "trl dpo"
"""Whose keys ``trl dpo`` takes, beside ``trl`` for those of ``trl sft``."""
TASKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "swift": ("swift", ("sft", "pt")),
    "llamafactory-cli": ("llamafactory", ("train",)),
    "lmf": ("llamafactory", ("train",)),
    "trl": ("trl", ("sft", "dpo")),
}
"""Programs: whose they are, and with which word they train."""
SCRIPTS: Mapping[str, str] = {
    **dict.fromkeys(("sft", "sft_vlm", "sft_gemma3", "sft_vlm_gemma3", "sft_gpt_oss"), "trl"),
    **dict.fromkeys(("dpo", "dpo_vlm"), TRL_DPO),
}
"""Scripts of TRL, by their names: whose keys they take."""
OTHER = "Trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What a script trains. ``trainer``: trl, ``TRL_DPO``, llamafactory, swift, or ``OTHER`` for one's own."""

    trainer: str
    values: Mapping[str, Any]
    files: tuple[str, ...]
    """Files of settings that the command names."""
    command: Command
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    accelerate_file: str | None = None
    num_processes: int | None = None


def looks_like_script(text: str) -> bool:
    """Whether a text is a shell script that starts something, rather than YAML."""
    if text.startswith("#!"):
        return True
    names = (*TASKS, *PYTHONS)
    starts = (line.split() for line in text.splitlines())
    return any(words and PurePath(words[0]).name in names and len(words) > 1 and words[1] != ":" for words in starts)


def run_of_script(text: str, *, source: str) -> ScriptRun:
    """The one training command of a script. Raises InputError where there is none, or more than one."""
    runs = [run for command in commands_of(text, source=source) if (run := _run(command, source)) is not None]
    if not runs:
        raise InputError(
            f"{source} holds no command that is known to train: swift sft, llamafactory-cli train, trl sft or dpo, or "
            f"a script that accelerate, torchrun, deepspeed or python starts"
        )
    if len(runs) > 1:
        raise InputError(f"{source} holds {len(runs)} commands that train; keep one of them in a file of its own")
    return runs[0]


def _run(command: Command, source: str) -> ScriptRun | None:
    """What a command trains; None for one that does not train."""
    words, program = command.words[1:], command.program
    if program in TASKS:
        return _known(command, program, words, source)
    if program not in PYTHONS:
        return None
    launched, rest = _without_launcher(words if program != "accelerate" else words[1:])
    trainer = _trainer_of(rest[0], rest[1:]) if rest else None
    if trainer is None:
        return None
    files, values = arguments_of(command, rest[1:], source=source)
    return _with_files(command, trainer, files, values, launched)


def _trainer_of(script: str, words: tuple[str, ...]) -> str | None:
    """Whose script it is: by its name, or by its options, one of the user's own."""
    if not script.endswith(".py"):  # a module: swift.cli.sft
        script = script.replace(".", "/")
    path = PurePath(script)
    if "swift" in path.parts:
        return "swift" if path.stem in TASKS["swift"][1] else None
    if path.stem in SCRIPTS:
        return SCRIPTS[path.stem]
    is_own = path.suffix == ".py" and any(word.startswith("--per_device_train_batch_size") for word in words)
    return OTHER if is_own else None


def _known(command: Command, program: str, words: tuple[str, ...], source: str) -> ScriptRun | None:
    trainer, tasks = TASKS[program]
    if not words or words[0] not in tasks:
        return None
    if (program, words[0]) == ("trl", "dpo"):
        trainer = TRL_DPO
    files, values = arguments_of(command, words[1:], source=source)
    if trainer == "swift":
        _refuse_split_model(command, source)
    return _with_files(command, trainer, files, values, {})


def _refuse_split_model(command: Command, source: str) -> None:
    """Raise InputError where ms-swift puts layers on several GPUs: more devices than processes."""
    devices = [name for name in command.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    processes = _count(command.environment.get("NPROC_PER_NODE", "1"))
    if processes is not None and len(devices) > processes:
        raise InputError(
            f"{source}: {len(devices)} devices for NPROC_PER_NODE={processes} put a model's layers on several GPUs, "
            f"one after another, which is not planned; NPROC_PER_NODE={len(devices)} trains on all of them at once"
        )


def _with_files(
    command: Command, trainer: str, words: list[str], values: dict[str, Any], launched: Mapping[str, str]
) -> ScriptRun:
    files = [word for word in words if "=" not in word]
    for word in words:
        if "=" in word:  # as llamafactory-cli takes them
            key, _, value = word.partition("=")
            values[key] = value
    named = values.pop("config", None)
    files += [named] if isinstance(named, str) else []
    processes = launched.get("--num_processes") or command.environment.get("NPROC_PER_NODE")
    return ScriptRun(
        trainer=trainer,
        values=values,
        files=tuple(files),
        command=command,
        environment=command.environment,
        accelerate_file=launched.get("--config_file") or _text(values.pop("accelerate_config", None)),
        num_processes=_count(processes or ""),
    )


def _count(text: str) -> int | None:
    """A number of processes; None for what is none."""
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _without_launcher(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The launcher's own options, and the words from the script on."""
    options: dict[str, str] = {}
    position = 0
    while position < len(words) and words[position].startswith("-"):
        name, equals, value = words[position].partition("=")
        position += 1
        if name in ("-m", "--module"):
            break
        if equals:
            options[name] = value
        elif name in LAUNCHER_VALUES and position < len(words):
            options[name] = words[position]
            position += 1
    return options, words[position:]

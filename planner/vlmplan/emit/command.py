"""The command that starts a plan.

Flags are those of ``deepspeed/launcher/runner.py`` 0.19.8. The launcher starts one process per GPU with RANK,
LOCAL_RANK and WORLD_SIZE set; ``--no_local_rank`` keeps it from adding an argument for them, ``--quiet`` from all
notes but errors. With ``--num_gpus`` it ignores CUDA_VISIBLE_DEVICES and takes the first cards, so cards chosen there
are passed on as ``--include``.
"""

import shlex
from collections.abc import Sequence

from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.units import counted

TRAINER = "vlmplan_trainer"
RUNNER = "deepspeed.launcher.runner"


def launch_command(
    plan: Plan,
    *,
    plan_path: str = "plan.json",
    hostfile: str = "hostfile",
    python: str | None = None,
    visible_devices: str | None = None,
    arguments: Sequence[str] = (),
) -> list[str]:
    """The command as a list of words; ``arguments`` go to the trainer.

    ``python`` is an interpreter to run everything with; without it ``deepspeed`` and ``python`` are looked up.
    ``visible_devices`` is CUDA_VISIBLE_DEVICES, where the user has set it. Raises InputError if that names too few.
    """
    alone = trainer_command(plan_path, python=python, arguments=arguments)
    if not plan.has_ranks:
        return alone
    runner = ["deepspeed"] if python is None else [python, "-m", RUNNER]
    return [*runner, *_places(plan, hostfile, visible_devices), "--quiet", "--no_local_rank", "--module", *alone[2:]]


def trainer_command(plan_path: str, *, python: str | None, arguments: Sequence[str]) -> list[str]:
    """The trainer in one process."""
    return [python or "python", "-m", TRAINER, "--plan", plan_path, *arguments]


def _places(plan: Plan, hostfile: str, visible_devices: str | None) -> list[str]:
    hardware = plan.hardware
    counts = ["--num_nodes", str(hardware.num_nodes), "--num_gpus", str(hardware.gpus_per_node)]
    if hardware.num_nodes > 1:
        return ["--hostfile", hostfile, *counts]
    if not visible_devices or hardware.vendor == "cpu":
        return counts
    devices = [device.strip() for device in visible_devices.split(",") if device.strip()]
    if len(devices) < hardware.num_gpus:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {visible_devices}, but the plan is for {counted(hardware.num_gpus, 'GPU')}; "
            f"name that many, or plan for fewer"
        )
    return ["--include", "localhost:" + ",".join(devices[: hardware.num_gpus])]


def input_files(plan: Plan) -> dict[str, str]:
    """The options of what a run is given beside its plan, each with a file's name as an example: data, what is
    evaluated where that is planned, and what rewards answers of GRPO."""
    task = plan.recipe.task
    files = {"--train-data": "data.jsonl"}
    files |= {} if plan.recipe.evaluation is None else {"--eval-data": "held-out.jsonl"}
    return files | ({"--rewards": "rewards.py"} if task is not None and task.is_grpo else {})


def input_variable(option: str) -> str:
    """The variable of a shell that holds the file.

    >>> input_variable("--train-data")
    'TRAIN_DATA'
    """
    return option[2:].replace("-", "_").upper()


def inputs_text(plan: Plan, *, is_of_shell: bool = False) -> str:
    """``input_files``, with words for the files, or variables of a shell that hold them."""
    return " ".join(f'{one} "${input_variable(one)}"' if is_of_shell else f"{one} FILE" for one in input_files(plan))


def launch_text(plan: Plan, *, plan_path: str) -> str:
    """The command as one line of shell."""
    return shlex.join(launch_command(plan, plan_path=plan_path))

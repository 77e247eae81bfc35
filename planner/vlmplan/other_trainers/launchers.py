"""What starts a training script: python, torchrun, DeepSpeed's launcher and accelerate, with options of their own.

Sources: torch 2.13 ``distributed/run.py``, deepspeed 0.19.8 ``launcher/runner.py``, accelerate 1.15
``commands/launch.py``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import PurePath
from typing import Any, Final

from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.shell_variables import settled

PYTHON = re.compile(r"python[0-9.]*")
LAUNCHERS: Mapping[str, str] = {
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate-launch",
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
}
MODULES: Mapping[str, str] = {
    "accelerate": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "accelerate.commands.launch": "accelerate-launch",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
"""The same launchers, behind ``python -m``."""
ALONE = frozenset(("python", "swift"))
"""Programs that start one process where no variable says how many (ms-swift: ``cli/main.py``)."""
RUNNERS = frozenset("uv poetry pipenv pdm hatch rye conda mamba micromamba srun ray".split())
"""Programs that start what stands behind their own words."""
SWITCHES: Mapping[str, frozenset[str]] = {
    "accelerate-launch": frozenset(
        """cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation
        enable_cpu_affinity fp8_use_autocast_during_eval help h multi_gpu no_python no_tpu_cluster quiet q same_network
        tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config""".split()
    ),
    "torchrun": frozenset("help h no_python run_path standalone virtual_local_rank".split()),
    "deepspeed": frozenset(
        "no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank q quiet help h".split()
    ),
}
"""Options without a value; all others of these programs take one."""
WITH_VALUE = frozenset("WX")
"""Options of python that take a value; all others are switches."""
OF_DEEPSPEED = frozenset(
    """deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_multinode_launcher deepspeed_moe_layer_cls_names gradient_accumulation_steps gradient_clipping
    offload_optimizer_device offload_optimizer_nvme_path offload_param_device offload_param_nvme_path zero3_init_flag
    zero3_save_16bit_model zero_stage""".split()
)
"""Options of accelerate that its file has under ``deepspeed_config``."""
ENGINES: Mapping[str, str] = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "tpu": "XLA",
    "multi_gpu": "MULTI_GPU",
}
"""Switches of accelerate, as its file names them under ``distributed_type``; the first that is there decides."""
SECTIONS: Mapping[str, str] = {
    "fsdp_": "fsdp_config",
    "megatron_lm_": "megatron_lm_config",
    "fp8_": "fp8_config",
    "parallelism_config_": "parallelism_config",
}
"""How options of accelerate begin that its file has in an object."""
OF_AXOLOTL = "axolotl.cli.train"
"""The module that its command starts by a launcher."""
PROCESSES = frozenset(("num_processes", "num_machines"))
AT_THE_TOP = ("mixed_precision", *sorted(PROCESSES))
COMPILES: Final = "dynamo_backend"
OF_LAUNCHER = (*AT_THE_TOP, COMPILES, *ENGINES, *sorted(OF_DEEPSPEED - {"gradient_accumulation_steps"}))
"""What TRL's command hands on to accelerate: it has no keys of these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """``options`` of the launcher by their names with underscores, switches are ``true``; ``words`` begin with the
    script."""

    program: str = "python"
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    words: tuple[str, ...] = ()

    @property
    def accelerate_options(self) -> dict[str, Any]:
        """What accelerate's file would have for its options."""
        return in_file_form(self.options) if self.program == "accelerate-launch" else {}

    def num_processes(self, environment: Mapping[str, str]) -> int | None:
        """The processes of all machines; None where it is not said."""
        options = self.options
        if self.program == "accelerate-launch":
            return count(options.get("num_processes", ""))
        if self.program == "torchrun":
            return _product(options.get("nproc_per_node", "1"), options.get("nnodes", "1"))
        if self.program == "deepspeed":
            per_node = options.get("num_gpus", options.get("num_accelerators", ""))
            return _product(per_node, options.get("num_nodes", "1"))
        alone = "1" if self.program in ALONE else ""
        return _product(environment.get("NPROC_PER_NODE", alone), environment.get("NNODES", "1"))

    def num_machines(self, environment: Mapping[str, str]) -> int | None:
        """The machines that it starts processes on; None where it is not said."""
        said = (self.options[name] for name in ("nnodes", "num_nodes", "num_machines") if name in self.options)
        return count(next(said, environment.get("NNODES", "")))


def launcher_of(word: str) -> str | None:
    """The launcher that a word names: ``python`` or one of ``LAUNCHERS``; None for another program."""
    name = PurePath(word).name
    return "python" if PYTHON.fullmatch(name) else LAUNCHERS.get(name)


def launched(program: str, words: Sequence[str]) -> Launched | None:
    """What a launcher starts with these words behind its name; None where it starts nothing."""
    if program == "accelerate":
        return launched("accelerate-launch", words[1:]) if words[:1] in (["launch"], ("launch",)) else None
    options: dict[str, str] = {}
    position = 0
    is_module = False
    while position < len(words) and words[position].startswith("-") and not is_module:
        word, equals, value = words[position].partition("=")
        name = word.lstrip("-").replace("-", "_")
        position += 1
        is_module = name in ("m", "module")
        has_value = name in WITH_VALUE if program == "python" else name not in SWITCHES[program]
        if equals or is_module or not has_value:
            options[name] = value or "true"
        elif position < len(words):
            options[name] = words[position]
            position += 1
    rest = tuple(words[position:])
    if is_module and program == "python" and rest[:1] and rest[0] in MODULES:
        return launched(MODULES[rest[0]], rest[1:])
    return Launched(program=program, options=options, words=rest)


def settled_options(found: Launched) -> Launched:
    """The same with ``Unwritten`` for what only the shell knows of its options."""
    return replace(found, options={name: settled(value) for name, value in found.options.items()})


def launched_by_axolotl(values: dict[str, Any], behind: tuple[str, ...]) -> Launched:
    """The launcher that ``axolotl train`` hands words behind ``--`` to: accelerate's, unless ``--launcher`` names
    another (``cli/utils/train.py``). Of ``values`` those are taken out that are not its file's."""
    values.pop("main_process_port", None)
    processes = values.pop("num_processes", None)
    program = {"torchrun": "torchrun", "python": "python"}.get(str(values.get("launcher")), "accelerate-launch")
    found = launched(program, [*behind, "-m", OF_AXOLOTL]) or Launched(program=program)
    named = {} if processes is None else {"num_processes": str(processes)}
    return replace(found, options={**named, **found.options})


def in_file_form(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``accelerate launch`` as its file has them; those that decide neither engine nor precision are left
    out, and how many processes it starts where only the shell knows.

    >>> in_file_form({"use_deepspeed": "true", "zero_stage": "3", "main_process_port": "0"})
    {'deepspeed_config': {'zero_stage': '3'}, 'distributed_type': 'DEEPSPEED'}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        section = next((SECTIONS[start] for start in SECTIONS if name.startswith(start)), None)
        if name in OF_DEEPSPEED:
            found.setdefault("deepspeed_config", {})[name] = value
        elif section is not None:
            found.setdefault(section, {})[name] = value
        elif name == COMPILES and str(value).casefold() != "no":
            found["dynamo_config"] = {name: value}
        elif name in AT_THE_TOP and not (name in PROCESSES and isinstance(value, Unwritten)):
            found[name] = value
    engine = next((ENGINES[name] for name in ENGINES if name in options), None)
    return found | ({} if engine is None else {"distributed_type": engine})


def over(file: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """accelerate's file with its own options, which go before (``_validate_launch_command``)."""
    merged = dict(file)
    for key, value in own.items():
        present = merged.get(key)
        merged[key] = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value
    return merged


def count(text: str) -> int | None:
    """A number of processes; None for what is none."""
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else None


def _product(*texts: str) -> int | None:
    numbers = [count(text) for text in texts]
    return None if None in numbers else prod(number for number in numbers if number is not None)

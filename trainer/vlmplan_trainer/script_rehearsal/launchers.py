"""Launchers: what each would start on every GPU, by its own parser, and the variables that it would set."""

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vlmplan.errors import InputError
from vlmplan_trainer.script_rehearsal.programs import python_program

KNOWN = "python, torchrun, accelerate launch, deepspeed, trl and programs of Python packages that are installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks that ``--gpu`` and ``--num-nodes`` give, and which of them runs."""

    rank: int
    gpus_per_node: int
    num_nodes: int

    @property
    def num_ranks(self) -> int:
        return self.gpus_per_node * self.num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A script, or a module, with its arguments; ``environment`` is what its launcher sets.

    ``is_program``: it may start the script itself, in processes of its own.
    """

    script: str
    arguments: list[str]
    is_module: bool = False
    is_program: bool = False
    environment: dict[str, str] = field(default_factory=dict[str, str])


def understood(words: Sequence[str], world: World) -> Launch:
    """What ``words`` would run on each rank. Raises InputError for launchers that are not known."""
    program = os.path.basename(words[0])
    if program.startswith("python"):
        return _python(list(words[1:]), world)
    if program == "torchrun":
        return _torchrun(list(words[1:]), world)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate(list(words[2:]), world)
    if program == "deepspeed":
        return _deepspeed(list(words[1:]), world)
    if program == "trl" and len(words) > 1:
        return Launch(script=f"trl.scripts.{words[1]}", arguments=list(words[2:]), is_module=True)
    path = python_program(words[0])
    if path is not None:
        return Launch(script=path, arguments=list(words[1:]), is_program=True)
    raise InputError(f"{' '.join(words[:2])} is not a launcher that rehearse knows: {KNOWN}")


def rank_variables(world: World, *, is_launched: bool = False) -> dict[str, str]:
    """The variables of a rank as ``torchrun`` sets them. One rank alone needs none unless ``is_launched``, as ``python
    train.py`` has none."""
    values = {
        "RANK": world.rank,
        "LOCAL_RANK": world.rank % world.gpus_per_node,
        "WORLD_SIZE": world.num_ranks,
        "LOCAL_WORLD_SIZE": world.gpus_per_node,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 1,  # never opened
    }
    return {name: str(value) for name, value in values.items()} if is_launched or world.num_ranks > 1 else {}


def _python(words: list[str], world: World) -> Launch:
    while words and words[0].startswith("-") and words[0] != "-m":
        if words[0] not in ("-u", "-O", "-B", "-I", "-s", "-E"):
            raise InputError(f"python {words[0]} cannot be rehearsed; give a script, or -m and a module")
        del words[0]
    if words[:1] == ["-m"]:
        del words[0]
        if words[:1] == ["torch.distributed.run"]:
            return _torchrun(words[1:], world)
        if words[:1] == ["accelerate.commands.launch"]:
            return _accelerate(words[1:], world)
        return _launch(words, is_module=True)
    return _launch(words)


def _launch(words: Sequence[str], *, is_module: bool = False, environment: dict[str, str] | None = None) -> Launch:
    if not words:
        raise InputError("the command names no script; give one, as in -- python train.py")
    return Launch(
        script=words[0], arguments=list(words[1:]), is_module=is_module, environment=environment or dict[str, str]()
    )


@contextmanager
def _refusing(name: str) -> Any:
    """A parser's own exit is a sentence."""
    try:
        yield
    except (SystemExit, ValueError) as error:
        raise InputError(f"{name} refuses its options: {error}") from None


def _same_ranks(name: str, given: Any, expected: int) -> None:
    if given not in (None, expected):
        raise InputError(f"{name} is {given}, but --gpu gives {expected}; give both the same")


def _torchrun(words: list[str], world: World) -> Launch:
    from torch.distributed.run import get_args_parser

    with _refusing("torchrun"):
        args = get_args_parser().parse_args(words)
    if str(args.nproc_per_node).isdigit() and "nproc" in " ".join(words):
        _same_ranks("--nproc_per_node", int(args.nproc_per_node), world.gpus_per_node)
    script = [args.training_script, *args.training_script_args]
    return _launch(script, is_module=args.module, environment=rank_variables(world, is_launched=True))


def _accelerate(words: list[str], world: World) -> Launch:
    from accelerate.commands import launch
    from accelerate.utils import launch as variables

    with _refusing("accelerate launch"):
        args = launch.launch_command_parser().parse_args(words)
        _same_ranks("--num_processes", args.num_processes, world.num_ranks)
        has_configuration = args.config_file is not None or os.path.isfile(launch.default_config_file)
        if not has_configuration:
            args.num_processes = world.num_ranks
        args, found, has_own_precision = launch._validate_launch_command(args)
        _same_ranks("num_processes of the configuration", args.num_processes, world.num_ranks)
        args.num_processes = world.num_ranks
        defaults: Any = found
        if args.use_deepspeed:  # as ``launch_command`` of accelerate 1.15 does
            given = list(defaults.deepspeed_config) if defaults else []
            given += ["mixed_precision"] if has_own_precision else []
            args.deepspeed_fields_from_accelerate_config = ",".join(given)
        prepare: Callable[[Any], Any]
        if args.use_deepspeed:
            prepare = _deepspeed_variables
        elif world.num_ranks > 1:
            prepare = variables.prepare_multi_gpu_env
        else:
            prepare = _single_variables
        before = dict(os.environ)
        environment = {name: str(value) for name, value in prepare(args).items() if before.get(name) != str(value)}
    script = [args.training_script, *args.training_script_args]
    return _launch(script, is_module=args.module, environment=environment)


def _deepspeed_variables(args: Any) -> Any:
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    return prepare_deepspeed_cmd_env(args)[1]


def _single_variables(args: Any) -> Any:
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    return prepare_simple_launcher_cmd_env(args)[1]


def _deepspeed(words: list[str], world: World) -> Launch:
    from deepspeed.launcher.runner import parse_args

    with _refusing("deepspeed"):
        args = parse_args(words)
    if args.num_gpus > 0:
        _same_ranks("--num_gpus", args.num_gpus, world.gpus_per_node)
    script = [args.user_script, *args.user_args]
    if not args.no_local_rank and not args.module:
        script.insert(1, f"--local_rank={world.rank % world.gpus_per_node}")
    return _launch(script, is_module=args.module, environment=rank_variables(world, is_launched=True))

"""Which training command a shell script holds: the trainer, its options, and the files that they name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.notes import listed
from vlmplan.other_trainers.launchers import (
    LAUNCHERS,
    OF_AXOLOTL,
    OF_LAUNCHER,
    RUNNERS,
    Launched,
    count,
    launched,
    launched_by_axolotl,
    launcher_of,
    settled_options,
)
from vlmplan.other_trainers.ms_swift.preferences import KIND, PREFERENCES, READ_KINDS
from vlmplan.other_trainers.nemo_automodel.command import AUTOMODEL, arguments_of_automodel, is_of_automodel
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.shell import Command, commands_of, line_of, refuse_broken
from vlmplan.other_trainers.shell_options import arguments_of
from vlmplan.other_trainers.started_modules import NOT_OF_OPENRLHF, OF_OPENRLHF, OF_VERL
from vlmplan.other_trainers.torchtune import ENDED, OF_FILES, TUNE
from vlmplan.other_trainers.verl.hydra import overrides_of
from vlmplan.other_trainers.vision_scripts.r1_v import R1_V
from vlmplan.other_trainers.vision_scripts.told import script_of_options
from vlmplan.other_trainers.vision_scripts.vlm_r1 import SCRIPTS as VLM_R1_SCRIPTS
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1

TRL_DPO, TRL_REWARD, TRL_KTO, TRL_GRPO = "trl dpo", "trl reward", "trl kto", "trl grpo"
"""Whose keys the commands of these names take, beside ``trl`` for those of ``trl sft``."""
OF_TRL = ("trl", TRL_DPO, TRL_REWARD, TRL_KTO, TRL_GRPO)
RLHF: Final = "rlhf"
"""The word of ``swift`` for training on preferences and rewards."""
TASKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "swift": ("swift", ("sft", "pt", RLHF)),
    "llamafactory-cli": ("llamafactory", ("train",)),
    "lmf": ("llamafactory", ("train",)),
    "trl": ("trl", ("sft", "dpo", "reward", "kto", "grpo")),
    "axolotl": ("axolotl", ("train",)),
    AUTOMODEL: (NEMO_AUTOMODEL, ()),
}
"""Programs: whose they are, and with which word they train; NeMo AutoModel's asks for none."""
READ = (
    f"swift sft, pt and rlhf for {listed(READ_KINDS)}, llamafactory-cli train, trl sft, dpo, reward, kto and grpo, "
    "axolotl train, verl's main_ppo, EasyR1's main, OpenRLHF's train_sft, train_dpo and train_rm"
)
OF_TRAINER: Final = "--per_device_train_batch_size"
"""The option of ``TrainingArguments`` that tells a script of one's own around the Trainer."""
STARTED = f"a script that accelerate, torchrun, deepspeed or python starts with the Trainer's options ({OF_TRAINER})"
BY_OPTIONS = frozenset(("dpo", "grpo"))
"""What ``--task`` plans and no file of these programs is read for, but TRL's."""
SCRIPTS: Mapping[str, str] = {
    **dict.fromkeys(("sft", "sft_vlm", "sft_gemma3", "sft_vlm_gemma3", "sft_gpt_oss"), "trl"),
    **dict.fromkeys(("dpo", "dpo_vlm"), TRL_DPO),
    **dict.fromkeys(("reward", "reward_modeling"), TRL_REWARD),
    "kto": TRL_KTO,
    **dict.fromkeys(("grpo", "grpo_vlm"), TRL_GRPO),
    **dict.fromkeys(VLM_R1_SCRIPTS, VLM_R1),
}
"""Scripts of TRL, and of VLM-R1, by their names: whose keys they take."""
OF_R1_V = (("--max_pixels", "--min_pixels", "--jsonl_path"), "--num_generations")
"""Options that its grpo.py has, which others have renamed, and that of Open-R1-Video for its data."""
UNCUT = ("sft_vlm", "sft_vlm_gemma3")
"""Those that set ``max_length`` to None themselves, whatever was asked for."""
OTHER_TASKS: Mapping[str, str] = {
    **{name: name for name in ("orpo", "cpo", "rloo", "ppo", "gkd", "bco", "online_dpo")},
    "run_orpo": "orpo",
    **dict.fromkeys(("run_dpo", "train_dpo"), "dpo"),
    "train_grpo": "grpo",
    "train_cls": "classification",
    **dict.fromkeys(("llm_sft", "llm_dpo"), "ms-swift 2"),
    "internvl_chat_mpo": "mixed preference optimization",
    "internvl_chat_dpo": "dpo",
}
"""Scripts of TRL, and of handbooks that are built on it, for which no file is read: by their names, what they train."""
OTHER = "Trainer"
BY_KEYS = "keys"
"""Of a program of one's own with a file of arguments alone, of which the program or the file tells whose it is."""
OF_LLAMA_FACTORY = (("src", "train.py"), ("src", "train_bash.py"), ("llamafactory", "launcher"))
"""Its own scripts, which a launcher starts with a file of its keys, or with these as options; the second is of releases
before 0.8, and the third is what its command starts torchrun with."""
MODULE_OF_LLAMA_FACTORY = "llamafactory.cli"
"""Its command, behind ``python -m``."""
OWN_OF_LLAMA_FACTORY = ("--finetuning_type", "--stage")
"""Options that no other script of that name has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What a script trains. ``trainer``: trl, ``TRL_DPO``, llamafactory, swift, or ``OTHER`` for one's own."""

    trainer: str
    values: Mapping[str, Any]
    files: tuple[str, ...]
    """Files of settings that the command names."""
    command: Command
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    launched: Launched = field(default_factory=Launched)

    @property
    def script(self) -> str:
        """The name of the script in Python that is started, without its ending; empty for a program of a trainer."""
        return PurePath(self.launched.words[0]).stem if self.launched.words else ""

    @property
    def num_processes(self) -> int | None:
        """The processes that it starts on all machines; None where it does not say."""
        return self.launched.num_processes(self.environment)


def looks_like_script(text: str) -> bool:
    """Whether a text is a shell script that starts something, rather than YAML."""
    if text.startswith("#!"):
        return True
    names = (*TASKS, *LAUNCHERS, *RUNNERS)
    starts = [words for line in text.splitlines() if len(words := line.split()) > 1 and words[1] != ":"]
    return any(PurePath(words[0]).name in names or launcher_of(words[0]) is not None for words in starts)


def run_of_script(text: str, *, source: str, folder: Path | None = None) -> ScriptRun:
    """The one training command of a script, which lies in ``folder``. Raises InputError where there is none, or more
    than one."""
    commands = commands_of(text, source=source, folder=folder)
    runs = [run for command in commands if (run := _run(command, source)) is not None]
    runs = runs or [run for command in commands if (run := _run_of_file(command, source)) is not None]
    if not runs:
        raise InputError(_nothing_read(commands, source))
    if len(runs) > 1:
        lines = listed([str(line_of(text, run.command)) for run in runs])
        raise InputError(
            f"{source} holds {len(runs)} commands that train, in lines {lines}; keep one of them in a file of its own"
        )
    refuse_broken(text, commands, runs[0].command, source)
    return runs[0]


def python_runs(text: str, *, source: str, folder: Path | None = None) -> list[ScriptRun]:
    """Every command that starts a program in Python by its file, whatever that does."""
    found: list[ScriptRun] = []
    for command in commands_of(text, source=source, folder=folder):
        program, words = _started(command)
        launcher = launcher_of(program)
        started = None if launcher is None else launched(launcher, words)
        if started is not None and started.words and started.words[0].endswith(".py"):
            found.append(_with_files(command, BY_KEYS, [], {}, settled_options(started)))
    return found


def _run(command: Command, source: str) -> ScriptRun | None:
    """What a command trains; None for one that does not train."""
    program, words = _started(command)
    if program in TASKS:
        return _known(command, program, words, source)
    launcher = launcher_of(program)
    found = None if launcher is None else launched(launcher, words)
    if found is not None and found.words[:1] == (MODULE_OF_LLAMA_FACTORY,):
        return _known(command, "llamafactory-cli", found.words[1:], source)
    if found is not None and found.words[:1] and PurePath(found.words[0]).name in TASKS:
        return _known(command, PurePath(found.words[0]).name, found.words[1:], source, by=settled_options(found))
    trainer = _trainer_of(found.words[0], found.words[1:]) if found is not None and found.words else None
    if found is None or trainer is None:
        return None
    found = settled_options(found)
    if trainer in OF_VERL.values():
        values = overrides_of(found.words[1:], source=source)
        return _with_files(command, trainer, [], values, replace(found, program="ray"))  # which starts the processes
    if trainer == NEMO_AUTOMODEL:
        files, values, _ = arguments_of_automodel(found.words[1:], source)
        return _with_files(command, trainer, files, values, found)
    if trainer in (OTHER, script_of_options(found.words[1:])) and _is_module(found.words[0]):  # which is a file
        found = replace(found, words=(f"{_path_of(found.words[0])}.py", *found.words[1:]))
    files, values = arguments_of(found.words[1:], source=source)
    if trainer == "swift" and _path_of(found.words[0]).stem == RLHF and not _is_read_of_rlhf(values, files):
        return None
    if trainer == "trl" and PurePath(found.words[0]).stem in UNCUT:
        values["max_length"] = None
    if (command.program, found.program) == ("srun", "python"):
        found = replace(found, program="srun")  # Slurm's own options say how often it starts
    return _with_files(command, trainer, files, values, found)


def _run_of_file(command: Command, source: str) -> ScriptRun | None:
    """What a script of the user's own trains whose only word is a file, as ``HfArgumentParser.parse_yaml_file`` and
    ``parse_json_file`` take it (transformers' examples, such as run_clm.py), or that takes one as ``TrlParser`` does
    (``--config``), or before its options as that of alignment-handbook; None for other commands."""
    program, words = _started(command)
    launcher = launcher_of(program)
    found = None if launcher is None else launched(launcher, words)
    if found is None or len(found.words) < len(("script", "file")):
        return None
    script, *rest = found.words
    kind = OTHER_TASKS.get(PurePath(script).stem)
    if PurePath(script).suffix != ".py" or kind not in (None, *BY_OPTIONS):
        return None
    if any(word.partition("=")[0] == "--config" for word in rest):
        files, values = arguments_of(rest, source=source)
        return _with_files(command, BY_KEYS, files, values, found) if _is_settings(values.get("config")) else None
    trainer = OTHER if len(rest) == 1 and kind is None else BY_KEYS
    files, values = arguments_of(rest, source=source) if _is_settings(rest[0]) else ([], {})
    return _with_files(command, trainer, files, values, found) if len(files) == 1 else None


def _is_settings(name: object) -> bool:
    return isinstance(name, str) and PurePath(name).suffix in (".yaml", ".yml", ".json")


def _nothing_read(commands: list[Command], source: str) -> str:
    """The sentence on a script of which no command is read."""
    found = [_other_task(command) for command in commands]
    for name, kind in sorted(found, key=lambda one: one[1] not in BY_OPTIONS):
        if name == TUNE:
            return f"{source} starts {name} of {ENDED}; give the YAML file of its --config to vlmplan check: {OF_FILES}"
        if name in NOT_OF_OPENRLHF:
            return f"{source} starts {name}, which trains {kind}"
        if kind in BY_OPTIONS:
            return (
                f"{source} starts {name}, which is not read; --task {kind} of vlmplan estimate and recommend plans it "
                f"by options"
            )
        if kind is not None:
            return f"{source} starts {name if kind in name else f'{name} for {kind}'}, which is not planned; {READ} are"
    own = [name for name, _ in found if name.endswith(".py")]
    modules = [name for name, _ in found if "train" in name and all(map(str.isidentifier, f"{name}.".split(".")[:-1]))]
    if modules and not own:
        return f"{source} starts {modules[0]}, which is not read; {READ} are"
    if own:
        return (
            f"{source} starts {own[0]} without options of Hugging Face's Trainer ({OF_TRAINER} and others), so what it "
            f"trains is not known; say it with the options of vlmplan estimate, or run it as it is, without a GPU: "
            f"vlmplan rehearse --gpu NAME:COUNT -- python {own[0]}"
        )
    return f"{source} holds no command that is known to train: {READ}, or {STARTED}"


def _other_task(command: Command) -> tuple[str, str | None]:
    """What a command starts, and what that trains where it is known and no file is read for it."""
    program, words = _started(command)
    name = " ".join((program, *words[:1]))
    if program == "swift" and words[:1] == (RLHF,):
        return name, _kind_of_rlhf(words)
    if name == TUNE:
        return name, None
    if program in TASKS:
        return name, words[0] if words and words[0] not in TASKS[program][1] else None
    launcher = launcher_of(program)
    found = None if launcher is None else launched(launcher, words)
    script = PurePath(found.words[0] if found is not None and found.words else program)
    if found is not None and (path := _path_of(str(script))).stem == RLHF and "swift" in path.parts:
        return f"swift {RLHF}", _kind_of_rlhf(found.words)
    return script.name, NOT_OF_OPENRLHF.get(script.name, OTHER_TASKS.get(script.stem, _own_loop(script)))


def _own_loop(script: PurePath) -> str | None:
    """What a script with options of the Trainer trains by in its place, by its name (``run_clm_no_trainer.py``)."""
    return "a loop of its own" if script.stem.endswith("_no_trainer") else None


def _kind_of_rlhf(words: Sequence[str]) -> str:
    """What ``swift rlhf`` with these words trains."""
    kinds = (value for option, value in pairwise(words) if option in ("--rlhf_type", "--rlhf-type"))
    return next(kinds, RLHF)


def _started(command: Command) -> tuple[str, tuple[str, ...]]:
    """The program that a command starts, by itself or through another, and the words behind it."""
    words = command.words
    if command.program in RUNNERS:
        words = words[_place_of_started(words) :]
    return PurePath(words[0]).name, words[1:]


def _place_of_started(words: tuple[str, ...]) -> int:
    """The place of the program that another starts: a launcher's name may be the value of an option, too."""
    names = [place for place, word in enumerate(words) if PurePath(word).name in TASKS or launcher_of(word) is not None]
    return next((place for place in names if not words[place - 1].startswith("-")), (*names, 0)[0])


def _trainer_of(script: str, words: tuple[str, ...]) -> str | None:
    """Whose script it is: by its name, or by its options, one of the user's own."""
    path = _path_of(script)
    if path.parts[-2:] in OF_LLAMA_FACTORY and _is_of_llama_factory(words):
        return "llamafactory"
    if path.parts[-3:] == tuple(OF_AXOLOTL.split(".")):
        return "axolotl"
    if is_of_automodel(path):
        return NEMO_AUTOMODEL
    if path.parts[-3:] in OF_VERL:
        return OF_VERL[path.parts[-3:]]
    if path.parts[-3:-1] == ("openrlhf", "cli"):
        return OF_OPENRLHF.get((*path.parts[-3:-1], path.stem))
    if "swift" in path.parts:
        return "swift" if path.stem in TASKS["swift"][1] else None
    if path.stem.startswith("grpo") and _is_of_r1_v(path, words):
        return R1_V
    if path.stem in SCRIPTS:
        return SCRIPTS[path.stem]
    if path.stem in OTHER_TASKS:
        return None
    is_own = (path.suffix == ".py" or _is_module(script)) and any(word.startswith(OF_TRAINER) for word in words)
    return (script_of_options(words) or OTHER) if is_own and _own_loop(path) is None else None


def _is_of_r1_v(path: PurePath, words: tuple[str, ...]) -> bool:
    """Whether it has options of R1-V's grpo.py; one of another name, the answers of GRPO beside the pixels."""
    pixels, answers = OF_R1_V
    has_answers = path.stem == "grpo" or any(word.startswith(answers) for word in words)
    is_known = path.stem in SCRIPTS and path.stem != "grpo"
    return not is_known and has_answers and any(word.startswith(pixels) for word in words)


def _is_of_llama_factory(words: tuple[str, ...]) -> bool:
    is_file = bool(words) and words[0].endswith((".yaml", ".yml", ".json"))
    return is_file or any(word.partition("=")[0] in OWN_OF_LLAMA_FACTORY for word in words)


def _is_module(script: str) -> bool:  # behind -m: names with dots between them
    return not script.endswith(".py") and all(map(str.isidentifier, script.split(".")))


def _path_of(script: str) -> PurePath:
    """Of a script, or of a module: swift.cli.sft."""
    return PurePath(script if script.endswith(".py") else script.replace(".", "/"))


def _known(
    command: Command, program: str, words: tuple[str, ...], source: str, *, by: Launched | None = None
) -> ScriptRun | None:
    """A trainer's own program; ``by`` what starts it, where that is a launcher (``torchrun $(which swift) sft``)."""
    trainer, tasks = TASKS[program]
    if program == AUTOMODEL:
        files, values, handed = arguments_of_automodel(words, source)
        return _with_files(command, trainer, files, values, by or handed)
    if not words or words[0] not in tasks:
        return None
    if program == "trl" and words[0] != "sft":
        trainer = f"trl {words[0]}"
    own, behind = _behind_dashes(words[1:])
    files, values = arguments_of(own, source=source)
    if (program, words[0]) == ("swift", RLHF) and not _is_read_of_rlhf(values, files):
        return None
    if trainer == "swift" and by is None:
        _refuse_split_model(command, source)
    handed = launched_by_axolotl(values, behind) if trainer == "axolotl" else by or Launched(program=program)
    if program == "trl":  # whose command starts accelerate's launcher
        options = {name: str(values.pop(name)) for name in (*OF_LAUNCHER, "accelerate_config") if name in values}
        file = options.pop("accelerate_config", None)
        options |= {} if file is None else {"config_file": file}
        handed = Launched(program="accelerate-launch", options=options)
    return _with_files(command, trainer, files, values, handed)


def _is_read_of_rlhf(values: dict[str, Any], files: list[str]) -> bool:
    """Whether ``swift rlhf`` trains what is read: by its options, where it is not left to a file."""
    if "config" not in values and not files:
        values.setdefault(KIND, PREFERENCES)
    return values.get(KIND, PREFERENCES) in READ_KINDS


def _behind_dashes(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a command, and those behind ``--``, which are another's."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _refuse_split_model(command: Command, source: str) -> None:
    """Raise InputError where ms-swift puts layers on several GPUs: more devices than processes."""
    devices = [name for name in command.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    said = command.environment.get("NPROC_PER_NODE")
    processes = count(said or "1")
    if processes is not None and len(devices) > processes:
        how = f"for NPROC_PER_NODE={said}" if said else "without NPROC_PER_NODE"
        raise InputError(
            f"{source}: {len(devices)} devices {how} put a model's layers on several GPUs, one after another, which is "
            f"not planned; NPROC_PER_NODE={len(devices)} trains on all of them at once"
        )


def _with_files(
    command: Command, trainer: str, files: list[str], values: dict[str, Any], launched: Launched
) -> ScriptRun:
    named = values.pop("config", None)
    if isinstance(named, Unwritten):
        raise InputError(f"{command.program}: --config {shown(named)} is known only to the shell; write the value")
    return ScriptRun(
        trainer=trainer,
        values=values,
        files=(*files, named) if isinstance(named, str) else tuple(files),
        command=command,
        environment=command.environment,
        launched=launched,
    )

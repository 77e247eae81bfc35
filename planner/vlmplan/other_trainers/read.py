"""What a file of another trainer means to that trainer: its ``TrainerConfig``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmplan.architecture.families import build_model, has_family
from vlmplan.architecture.parameter_adapters import absent_targets
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.model_types.language_parts import AUTO_CLASS, CLASSES, SUFFIX
from vlmplan.models import alias_of_absent
from vlmplan.notes import listed
from vlmplan.other_trainers.accelerate import ACCELERATE, read_accelerate
from vlmplan.other_trainers.launchers import count
from vlmplan.other_trainers.meaning import Surroundings, not_asked
from vlmplan.other_trainers.ms_swift.shipped import NAMED_DEEPSPEED
from vlmplan.other_trainers.opened import OpenedConfig, open_trainer_config
from vlmplan.other_trainers.plain_trainer import MODEL_OF_SCRIPTS
from vlmplan.other_trainers.programs import UNSLOTH_RUNS
from vlmplan.other_trainers.programs.gathered import AS_WITH_BF16
from vlmplan.other_trainers.readers import MODEL_KEYS, NAMES, NESTED, READERS, SAME_MODELS, SHIPPED_FILES
from vlmplan.other_trainers.record import TrainerConfig, Unwritten
from vlmplan.other_trainers.scripts import OF_TRL, OTHER
from vlmplan.other_trainers.settings import OwnKeys, Settings
from vlmplan.other_trainers.unsloth.names import makers_name
from vlmplan.other_trainers.verl.hydra import flattened
from vlmplan.recipe.choices import Method, Precision
from vlmplan.recipe.lora_targets import listed_targets
from vlmplan.units import counted
from vlmplan.workload import ModelFiles

OF_RUNS: Mapping[str, str] = {
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "grad_accum",
    "max_grad_norm": "gradient_clipping",
}
"""Keys of ``TrainingArguments`` whose defaults are not taken for runs of which accelerate's file alone is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says beside the file, as far as reading it depends on it."""

    model: str | None = None
    num_gpus: int | None = None
    num_nodes: int = 1
    uses_deepspeed: bool | None = None
    shards: bool | None = None
    method: Method | None = None
    precision: Precision | None = None
    computes_in_bf16: Callable[[], bool | None] = not_asked
    find_model: Callable[[str], ModelFiles]


def read_trainer_config(path: Path, asked: Asked) -> TrainerConfig:
    """What the file means to its trainer.

    Raises UnavailableError where it cannot be read, InputError for what is none, or not planned: one sentence with
    every key that is wrong.
    """
    return read_opened(open_trainer_config(path), asked)


def read_opened(opened: OpenedConfig, asked: Asked) -> TrainerConfig:
    """What the configuration means, of a file that is opened already."""
    around = Surroundings(
        folder=opened.folder,
        num_gpus=asked.num_gpus,
        num_nodes=asked.num_nodes,
        environment=opened.environment,
        uses_deepspeed=asked.uses_deepspeed,
        shards=asked.shards,
        method=asked.method,
        precision=asked.precision,
        computes_in_bf16=asked.computes_in_bf16,
        script="" if opened.run is None else opened.run.script,
        named_deepspeed=opened.unsaved,
    )
    source, run = opened.source, opened.run
    if opened.trainer == "accelerate":
        return _of_accelerate(opened.values, around, asked, source)
    of_program = opened.program or opened.parsed
    own_keys = (opened.own_keys, frozenset[str]() if of_program is None else of_program.own_keys)
    is_alone = of_program is not None and of_program.loads_language_alone
    read = _read(opened.trainer, opened.values, around, asked, source, own_keys, is_alone=is_alone)
    is_half = read.options.get("precision") == Precision.FP16.value
    notes = [note for note in opened.notes if not (is_half and AS_WITH_BF16 in note)]
    processes = _processes_of_file(opened) if run is None else run.num_processes
    if processes is not None and asked.num_gpus is not None and processes != asked.num_gpus:
        starts = f"{processes} process{'es' * (processes > 1)}"
        notes.append(f"{source} starts {starts}; planned on {counted(asked.num_gpus, 'GPU')}, as --gpu says")
    machines = None if run is None or processes is not None else run.launched.num_machines(run.environment)
    if machines is not None and asked.num_gpus is not None and machines != asked.num_nodes:
        notes.append(
            f"{source} starts on {counted(machines, 'machine')}; planned on {asked.num_nodes}, as --num-nodes says"
        )
    return replace(read, notes=(*read.notes, *notes))


def _processes_of_file(opened: OpenedConfig) -> int | None:
    """The processes that a file of TRL hands on to accelerate's launcher; other files say none."""
    is_trl = opened.trainer in OF_TRL
    return count(str(opened.values.get("num_processes", ""))) if is_trl else None


def _read(
    trainer: str,
    values: Mapping[str, Any],
    around: Surroundings,
    asked: Asked,
    source: str,
    own_keys: OwnKeys = (frozenset(), frozenset()),
    *,
    is_alone: bool = False,
) -> TrainerConfig:
    """``is_alone``: whether of a model that sees the language model alone is loaded."""
    _, read = READERS[trainer]
    if trainer == "swift":
        around = replace(around, named_deepspeed={**NAMED_DEEPSPEED, **around.named_deepspeed})
    if trainer in SHIPPED_FILES:
        around = replace(around, shipped_deepspeed=SHIPPED_FILES[trainer])
    values = _with_model(trainer, values, asked, source)
    found = (value for key in MODEL_KEYS if isinstance(value := values.get(key), str))
    said = next((value for value in found if _is_written(value)), None)
    try:
        named = asked.model or said
        if asked.model is None and said is not None and trainer in SAME_MODELS:
            named = SAME_MODELS[trainer](said, source)
        if trainer in UNSLOTH_RUNS and named is not None:
            named = makers_name(named)
        alias = alias_of_absent(named) if asked.model is None and named else None
        model = asked.find_model(alias or named) if named else None
        part = f"{alias or named}{SUFFIX}" if is_alone and model is not None and model.model_type in CLASSES else None
        model = model if part is None or asked.model is not None else asked.find_model(part)
    except VlmplanError as error:
        read(settings_of(trainer, values, source, own_keys), None, around)  # what is wrong with the file comes first
        if isinstance(error, UnavailableError) and asked.model is None:
            raise UnavailableError(f"{error}; --model names one in place of the file's") from None
        raise
    found = _without_absent_targets(read(settings_of(trainer, values, source, own_keys), model, around), model)
    if part is not None and asked.model is not None:
        note = f"{source} loads the language model alone, with {AUTO_CLASS}: --model {part} plans that"
        return replace(found, notes=(*found.notes, note))
    if part is not None:
        found = replace(found, options={**found.options, "model": part})
    if alias is None:
        return found
    note = f"the model is {named}, which is not on this machine: taken for {alias} by its name; --model names another"
    return replace(found, options={**found.options, "model": part or alias}, notes=(note, *found.notes))


def _without_absent_targets(found: TrainerConfig, model: ModelFiles | None) -> TrainerConfig:
    """Without the names of layers to adapt that this model has not, which peft passes over beside one that it has."""
    targets = found.options.get("lora_targets")
    if not isinstance(targets, str) or "," not in targets or model is None or not has_family(model.config):
        return found
    absent = absent_targets(build_model(model.config), targets)
    left = [name for name in listed_targets(targets) if name not in absent]
    if not absent or not left:
        return found
    note = f"no layer of this model is called {listed(absent)}: peft passes over such names beside others"
    return replace(found, options={**found.options, "lora_targets": ",".join(left)}, notes=(*found.notes, note))


def _with_model(trainer: str, values: Mapping[str, Any], asked: Asked, source: str) -> Mapping[str, Any]:
    """The values, levels as one, without the model's keys where the user names another."""
    if trainer in NESTED:
        values = flattened(values)
        if asked.model is not None:
            values = {key: value for key, value in values.items() if key not in MODEL_KEYS}
    if asked.model is not None:
        known = {key: value for key, value in values.items() if key not in MODEL_KEYS or _is_written(value)}
        values = {key: known[key] for key in known if trainer != OTHER or key not in MODEL_OF_SCRIPTS}
    elif empty := [key for key in MODEL_KEYS if values.get(key) is True]:  # an option of a command without its value
        raise InputError(f"{source}: {empty[0]} has no value; the name of a model is needed, or --model")
    return values


def _is_written(value: object) -> bool:
    return not isinstance(value, Unwritten)


def settings_of(
    trainer: str, values: Mapping[str, Any], source: str, own_keys: OwnKeys = (frozenset(), frozenset())
) -> Settings:
    """The keys and values of a file of one of ``READERS``; ``own_keys``: those that the user says to be his own, and
    those of a program."""
    title, _ = READERS[trainer]
    names = NAMES[trainer](values) if trainer in NAMES else str
    settings = Settings(values, source=source, trainer=title, names=names)
    settings.own_keys, settings.keys_of_program = own_keys
    return settings


def _of_accelerate(values: Mapping[str, Any], around: Surroundings, asked: Asked, source: str) -> TrainerConfig:
    """accelerate's file alone: the engine, the precision, and the steps and the clipping that its DeepSpeed section
    says; the Trainer's defaults for the rest, but for what every run says itself."""
    settings = Settings(values, source=source, trainer=ACCELERATE)
    decided = read_accelerate(settings)
    settings.close()
    read = _read(OTHER, decided, around, asked, source)
    return replace(
        read,
        trainer=ACCELERATE,
        options={name: value for name, value in read.options.items() if name not in OF_RUNS.values()},
        gradient_clipping=None,
        said=settings.said,
        defaults=tuple(setting for setting in read.defaults if setting.key not in OF_RUNS),
        idle=settings.idle,
        notes=(*settings.notes, *read.notes),
    )

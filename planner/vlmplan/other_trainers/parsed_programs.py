"""Programs of one's own that train with TRL's trainers, and take their arguments from the command that starts them by
transformers' or TRL's parser: whose trainer it is, from the program, beside values from the command and its file.

Model, adapters and packed weights are what ``trl sft`` and its like make of the same keys, where the program hands them
on (TRL 1.16 ``scripts/utils.py`` ``TrlParser``, ``trainer/utils.py`` ``get_peft_config``, ``get_quantization_config``);
what it writes itself of the model's types goes before them.
"""

import ast
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import text_of
from vlmplan.notes import listed
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.plain_trainer import LENGTH_KEYS
from vlmplan.other_trainers.programs import TRAINER_RUN, ProgramRun, program_source, run_of_program
from vlmplan.other_trainers.programs.calls import Call, Program
from vlmplan.other_trainers.programs.gathered import (
    ARGUMENTS,
    DPO_TRAINERS,
    GRPO_TRAINERS,
    KTO_TRAINERS,
    OTHERWISE,
    REWARD_TRAINERS,
    SFT_TRAINERS,
)
from vlmplan.other_trainers.programs.modules import linked
from vlmplan.other_trainers.programs.options import WORDS, of_field
from vlmplan.other_trainers.programs.parsed_arguments import (
    OF_MODELS,
    PARSERS,
    PLAIN_ARGUMENTS,
    arguments_class,
    fields_of,
)
from vlmplan.other_trainers.programs.trl_runs import LANGUAGE_CLASS, MODEL_CLASS, OF_LOADING, TYPES
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.scripts import BY_KEYS, OF_TRL, OTHER, TRL_DPO, TRL_GRPO, TRL_KTO, TRL_REWARD, ScriptRun
from vlmplan.other_trainers.shell_options import arguments_of
from vlmplan.other_trainers.whose import trainer_of

TRAINERS: Final[Mapping[str, str]] = {
    SFT_TRAINERS[0]: "trl",
    DPO_TRAINERS[0]: TRL_DPO,
    REWARD_TRAINERS[0]: TRL_REWARD,
    KTO_TRAINERS[0]: TRL_KTO,
    GRPO_TRAINERS[0]: TRL_GRPO,
}
ADAPTERS, PACKING = "get_peft_config", "get_quantization_config"
"""TRL's functions that make adapters and packed weights of a command's keys."""
WRITTEN: Final = {ADAPTERS: ("LoraConfig", "get_peft_model"), PACKING: ("BitsAndBytesConfig",)}
"""Calls by which a program makes them by itself."""
WITH_DEFAULTS: Final = frozenset(
    """optim per_device_train_batch_size gradient_accumulation_steps num_train_epochs bf16 fp16 gradient_checkpointing
    max_grad_norm""".split()
)
"""Arguments of transformers that decide bytes and seconds, for which a program's own class may have other defaults."""
ASKED_BY: Final = {ADAPTERS: ("use_peft",), PACKING: ("load_in_4bit", "load_in_8bit")}
"""Keys that ask for them."""


class Parsed(NamedTuple):
    """Whose trainer a run is of, its ``values`` with what the program writes, and ``notes`` on where both are from.
    ``own_keys`` mean something to the program alone; ``is_of_command``: the trainer's arguments are the command's;
    ``loads_language_alone`` and ``environment`` as in ``ProgramRun``."""

    trainer: str
    values: dict[str, Any]
    notes: tuple[str, ...] = ()
    own_keys: frozenset[str] = frozenset()
    is_of_command: bool = False
    loads_language_alone: bool = False
    environment: Mapping[str, str] = {}


def as_parsed(run: ScriptRun, values: dict[str, Any], folder: Path | None, source: str) -> Parsed:
    """The run of a script whose program is one's own, with ``values`` from its command and file. Raises InputError
    where the program makes of its arguments what no key says."""
    if run.trainer not in (OTHER, BY_KEYS, *OF_TRL) or not run.launched.words:
        return Parsed(run.trainer, values)
    name = run.launched.words[0]
    program = _program(name, folder, source)
    if program is not None and (own := started_program(run, folder, source, values)) is not None:
        return own
    is_alone = program is not None and _loads_language_alone(program.calls())
    if run.trainer in OF_TRL:  # by its name, and as far as its arguments tell
        return Parsed(run.trainer, values, loads_language_alone=is_alone)
    trainer = None if program is None else _trainer(program)
    if program is None or trainer is None:
        if run.trainer == OTHER:
            own_defaults = {key: one for key, one in _own_defaults(name, folder, source).items() if key not in values}
            said = ", ".join(f"{key} {one}" for key, one in own_defaults.items())
            notes = (f"{said}: by default of {PurePath(name).name}'s own class of arguments",) if said else ()
            return Parsed(OTHER, own_defaults | values, notes)
        why = "is not here" if program is None else "holds no trainer of TRL's with parsed arguments"
        note = f"{PurePath(name).name} {why}: planned as the keys of {', '.join(run.files)} say whose they are"
        return Parsed(trainer_of(values, source), values, (note,))
    calls = program.calls()
    for maker in (ADAPTERS, PACKING):
        _refuse_what_is_not_handed_on(program, calls, maker, values)
    note = f"{trainer.name} of {program.source} is planned with these arguments, as trl's own command trains with them"
    written = _written(calls, trainer)
    kept = {key: value for key, value in values.items() if key not in TYPES or TYPES[0] not in written}
    return Parsed(TRAINERS[trainer.name], kept | written, (note,), loads_language_alone=is_alone)


def started_program(
    run: ScriptRun, folder: Path | None, source: str, values: Mapping[str, object] | None = None
) -> Parsed | None:
    """The run of a program that reads its options with argparse, or into objects of classes of its own, by those that
    its command says, or by these ``values``; None for another, or one that is not here. Raises InputError where the
    program trains, reads them with argparse, and not all of it is read."""
    if folder is None or not run.launched.words or not run.launched.words[0].endswith(".py"):
        return None
    try:
        path = found_file(run.launched.words[0], folder, source, "the program", [])
        code = program_source(text_of(path, name=str(path), most_bytes=MAX_BYTES), source=str(path), is_notebook=False)
    except (InputError, UnavailableError):
        return None
    text = _text_with_imports(code.code, path)
    is_parsed = any(parser in text for parser in PARSERS)
    words, options = arguments_of(run.launched.words[1:], source=source)
    given = {**options, WORDS: [path.name, *words]} if not is_parsed else options if values is None else values
    try:
        found = run_of_program(code, source=path.name, folder=path.resolve().parent, given=given)
    except InputError:
        if is_parsed:
            return None
        raise
    if found is None or (is_parsed and _leaves_open(found, given)):
        return None
    notes = [f"{path.name} is read with the options that {source} starts it with"]
    unread = [key for key in OF_MODELS if is_parsed and key in given and f".{key}" not in text]
    if unread:
        notes.append(f"{listed(unread)}: {path.name} does not read {'it' if len(unread) == 1 else 'them'}")
    own = {key: given[key] for key in LENGTH_KEYS if key in given} if found.trainer == TRAINER_RUN else {}
    values = own | dict(found.values)
    own_keys, is_alone = found.own_keys | own.keys(), found.loads_language_alone
    return Parsed(found.trainer, values, (*notes, *found.notes), own_keys, is_parsed, is_alone, found.environment)


def _text_with_imports(code: str, path: Path) -> str:
    """A program with what it imports of files beside it, as ``train_mem.py`` takes all it does from ``train.py``."""
    try:
        return linked(ast.parse(code), path).text + code
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code


def _own_defaults(name: str, folder: Path | None, source: str) -> dict[str, Any]:
    """What a program's own class of transformers' arguments makes of those that nobody says."""
    found: dict[str, Any] = {}
    if folder is None or not name.endswith(".py"):
        return found
    with suppress(InputError, UnavailableError, SyntaxError, ValueError, RecursionError, MemoryError):
        path = found_file(name, folder, source, "the program", [])
        text = text_of(path, name=str(path), most_bytes=MAX_BYTES)
        tree = ast.parse(_text_with_imports(text, path))
        for made in ast.walk(tree):
            if isinstance(made, ast.ClassDef) and arguments_class(tree, made.name) in PLAIN_ARGUMENTS:
                fields = {key: of_field(one) for key, one in fields_of(tree, made.name).items() if key in WITH_DEFAULTS}
                found |= {key: one.value for key, one in fields.items() if isinstance(one, ast.Constant)}
    return found


def _leaves_open(found: ProgramRun, given: Mapping[str, object]) -> bool:
    """Whether more is not known of a run than of the command, or whether that asks for what the run has not."""
    asked = [key for keys in ASKED_BY.values() for key in keys if str(given.get(key, "")).casefold() == "true"]
    if any(not found.values.get(key) for key in asked):
        return True
    unknown = {str(value) for value in given.values() if isinstance(value, Unwritten)}
    return any(isinstance(value, Unwritten) and str(value) not in unknown for value in found.values.values())


def _program(name: str, folder: Path | None, source: str) -> Program | None:
    """The program that a command starts; None where it is not here, or no Python of this release."""
    if folder is None or not name.endswith(".py"):
        return None
    try:
        path = found_file(name, folder, source, "the program", [])
        text = text_of(path, name=str(path), most_bytes=MAX_BYTES)
        return Program(program_source(text, source=str(path), is_notebook=False).code, source=path.name)
    except (InputError, UnavailableError):
        return None


def _trainer(program: Program) -> Call | None:
    """The one trainer of TRL's whose arguments a parser makes."""
    calls = program.calls()
    trainers = [call for call in calls if call.name in TRAINERS]
    if len(trainers) != 1 or not any(call.name in PARSERS for call in calls):
        return None
    given = next((one.value for one in trainers[0].node.keywords if one.arg == "args"), None)
    found = program.call_of(given)
    return None if given is None or (found is not None and found.name in ARGUMENTS) else trainers[0]


def _refuse_what_is_not_handed_on(program: Program, calls: list[Call], maker: str, values: Mapping[str, Any]) -> None:
    """Raise InputError where adapters or packed weights are the program's own, or asked for and not made."""
    names = {call.name for call in calls}
    written = [name for name in WRITTEN[maker] if name in names]
    if written:
        raise InputError(
            f"{program.source} writes {written[0]} itself and takes the rest from a command, which are not read "
            f"together; {maker} of its arguments is{OTHERWISE}"
        )
    asked = [key for key in ASKED_BY[maker] if str(values.get(key, False)).casefold() == "true"]
    if asked and maker not in names:
        raise InputError(
            f"{asked[0]} is true, but {program.source} does not call {maker}, without which it has no effect; leave it "
            f"off"
        )


def _loads_language_alone(calls: list[Call]) -> bool:
    """Whether all classes that load models are of language models."""
    loads = [call.name for call in calls if MODEL_CLASS.fullmatch(call.name)]
    return bool(loads) and all(LANGUAGE_CLASS.fullmatch(name) for name in loads)


def _written(calls: list[Call], trainer: Call) -> dict[str, Any]:
    """How the program loads its model, where a class of transformers does and not the trainer."""
    loads = [call for call in calls if MODEL_CLASS.fullmatch(call.name) and call.span < trainer.span]
    if not loads:
        return {}
    keywords = loads[-1].keywords
    known = {name: keywords[name] for name in OF_LOADING if name in keywords}
    values = {name: keyword.worth.value for name, keyword in known.items() if keyword.worth is not None}
    said = [values.pop(name) for name in TYPES if name in values]
    is_handed_on = loads[-1].unpacked or not keywords.keys().isdisjoint(TYPES)
    types = said[:1] or ([] if is_handed_on else ["auto"])  # transformers' own default
    return values | dict(zip(TYPES, types, strict=False))

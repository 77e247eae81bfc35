"""The changed text of a trainer's file, of its DeepSpeed file, and what changed in them."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.editing.engine import DeepSpeedSource, deepspeed_source, written_json
from vlmplan.other_trainers.editing.json_text import object_in_json
from vlmplan.other_trainers.editing.keys import KeyChanges, deepspeed_name
from vlmplan.other_trainers.editing.objects import TextFormat, edited
from vlmplan.other_trainers.editing.program_text import OF_ADAPTERS, OF_LOADING, edited_program
from vlmplan.other_trainers.editing.script_text import ScriptEditor
from vlmplan.other_trainers.editing.yaml_text import object_in_yaml
from vlmplan.other_trainers.ms_swift.reading import OF_A_RUN
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.opened import ENVIRONMENT_KEYS, Form, OpenedConfig, open_trainer_config
from vlmplan.other_trainers.programs import OF_PROGRAMS
from vlmplan.other_trainers.started_modules import OF_OPENRLHF

NEAR: Mapping[str, tuple[str, ...]] = {
    "gradient_accumulation_steps": ("per_device_train_batch_size", "micro_batch_size"),
    "per_device_train_batch_size": ("gradient_accumulation_steps",),
    "optim": ("learning_rate",),
    "deepspeed": ("finetuning_type", "tuner_type", "train_type", "bf16", "torch_dtype"),
    "gradient_checkpointing": ("gradient_accumulation_steps", "per_device_train_batch_size", "micro_batch_size"),
    "disable_gradient_checkpointing": ("gradient_accumulation_steps", "per_device_train_batch_size"),
    "flash_attn": ("model_name_or_path",),
    "attn_implementation": ("model_name_or_path", "base_model"),
    "attn_impl": ("torch_dtype", "model"),
    "quantization_bit": ("finetuning_type", "model_name_or_path"),
    "quantization_method": ("quantization_bit", "finetuning_type", "model_name_or_path"),
    "quant_bits": ("tuner_type", "train_type", "model"),
    "quant_method": ("tuner_type", "train_type", "model"),
    "load_in_4bit": ("use_peft", "adapter", "lora_r"),
    "load_in_8bit": ("use_peft", "adapter", "lora_r"),
    "gradient_checkpointing_kwargs": ("gradient_checkpointing",),
    "use_reentrant_gc": ("finetuning_type", "model_name_or_path"),
    "image_max_pixels": ("cutoff_len", "model_name_or_path"),
    "max_pixels": ("max_length", "model"),
    "train_sampling_strategy": ("gradient_accumulation_steps", "per_device_train_batch_size"),
    "group_by_length": ("gradient_accumulation_steps", "per_device_train_batch_size"),
    "packing": ("cutoff_len", "max_length"),
    "micro_batch_size": ("gradient_accumulation_steps",),
    "eval_batch_size": ("micro_batch_size",),
    "optimizer": ("lr_scheduler", "learning_rate"),
    "adapter": ("base_model",),
    "sample_packing": ("sequence_len",),
    "activation_offloading": ("gradient_checkpointing",),
}
"""Where a new key is best put: after the first of these that is there, else at the end. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A key of a file, None before or after where it is not there."""

    file: Path
    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """What ``path`` is to hold; ``before`` is what ``origin`` holds, empty where the file is new."""

    path: Path
    origin: Path | None
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The change as ``diff -u`` shows it, for ``patch``."""
        names = ("/dev/null" if self.origin is None else str(self.origin), str(self.path))
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), *names)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Files to be written, the trainer's own first, and the keys that differ in them, which ``keys`` asked for.
    ``opened`` is the trainer's as it is read then."""

    files: tuple[FileText, ...]
    changes: tuple[KeyChange, ...]
    opened: OpenedConfig = field(hash=False)
    notes: tuple[str, ...]
    keys: KeyChanges = field(hash=False)


def require_own_words(opened: OpenedConfig) -> None:
    """Raise InputError for a file that a trainer writes and nobody starts it with."""
    if opened.trainer == "swift" and opened.form is Form.JSON and OF_A_RUN.intersection(opened.values):
        raise InputError(
            f"{opened.source} is what ms-swift writes of a run and does not read to start one: change the script or "
            f"the YAML that started it"
        )
    if opened.trainer in OF_OPENRLHF.values():
        raise InputError(
            f"{opened.source}: options of OpenRLHF's scripts are read, not changed; check without --fix says by "
            f"vlmplan's options what fits"
        )
    if opened.run is not None and opened.trainer in OF_PROGRAMS and not _is_of_command(opened):
        raise _of_program(opened)
    if opened.trainer == NEMO_AUTOMODEL and opened.run is not None:
        raise InputError(f"{opened.source} starts {NEMO_AUTOMODEL} with a recipe: change {_named(opened)}")
    if opened.trainer == "axolotl" and opened.run is not None:
        raise InputError(
            f"{opened.source} starts axolotl, whose options have forms of their own: change {_named(opened)}"
        )


def _is_of_command(opened: OpenedConfig) -> bool:
    """Whether the trainer's arguments of a program that a script starts are the options of its command."""
    return opened.parsed is not None and opened.parsed.is_of_command


def _of_program(opened: OpenedConfig) -> InputError:
    """What is written in the program that a script starts is not changed in the script."""
    assert opened.run is not None
    return InputError(
        f"{opened.source} starts {opened.run.launched.words[0]}, in which what it trains is written: change that "
        f"program; check without --fix says by vlmplan's options what fits"
    )


def _named(opened: OpenedConfig) -> str:
    """The files that a script's command names."""
    return " and ".join(opened.run.files) if opened.run is not None and opened.run.files else "its YAML"


def patched(opened: OpenedConfig, changes: KeyChanges, target: Path) -> Patch:
    """The files with these changes, as they are to be at ``target`` and beside it.

    Raises InputError for a value that cannot be changed by itself.
    """
    require_own_words(opened)
    values, inner, beside = dict(changes.values), JsonDict(), None
    if _is_of_command(opened) and not values.keys().isdisjoint(OF_LOADING | OF_ADAPTERS):
        raise _of_program(opened)  # the model and its adapters are not of the trainer's arguments
    source = deepspeed_source(opened)
    if changes.deepspeed is not None:
        name = deepspeed_name(opened, changes)
        if name is not None:
            values["deepspeed"] = name
        elif _is_inline(source, opened) and changes.deepspeed_changes is not None:
            inner = {"deepspeed": changes.deepspeed_changes}
        elif isinstance(opened.values.get("deepspeed"), str) and source is not None and source.is_text:
            values["deepspeed"] = json.dumps(changes.deepspeed)
        else:
            beside = _deepspeed_file(changes, source, target)
            if opened.values.get("deepspeed") != str(beside.path):
                values["deepspeed"] = str(beside.path)
    text, notes = _edited(opened, values | inner, changes.variables)
    unsaved = {} if beside is None or changes.deepspeed is None else {str(beside.path): changes.deepspeed}
    main = FileText(path=target, origin=opened.path, before=opened.text, after=text)
    return Patch(
        files=(main,) if beside is None else (main, beside),
        changes=tuple(_key_changes(opened, values | inner, changes, source, main, beside)),
        opened=replace(open_trainer_config(target, text), unsaved=unsaved),
        notes=(*changes.notes, *notes),
        keys=changes,
    )


def _is_inline(source: DeepSpeedSource | None, opened: OpenedConfig) -> bool:
    return source is not None and isinstance(opened.values.get("deepspeed"), Mapping) and opened.form is not Form.SCRIPT


def _deepspeed_file(changes: KeyChanges, source: DeepSpeedSource | None, target: Path) -> FileText:
    """The DeepSpeed file beside ``target``: the present one with what changes of it, or a new one."""
    path = target.with_name(f"{target.stem}.deepspeed.json")
    if source is None or source.path is None or changes.deepspeed_changes is None:
        return FileText(path=path, origin=None, before="", after=written_json(changes.deepspeed or {}))
    style = TextFormat(source=str(source.path), is_json=True, near={})
    text = edited(source.text, object_in_json(source.text), changes.deepspeed_changes, style)
    return FileText(path=path, origin=source.path, before=source.text, after=text)


def _edited(opened: OpenedConfig, values: JsonDict, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text, and sentences on what is no longer made by the shell."""
    if opened.form is Form.SCRIPT:
        run = opened.run
        assert run is not None
        equals = opened.trainer == "llamafactory" and bool(run.files)
        editor = ScriptEditor(opened.text, run.command, source=opened.source, equals=equals)
        return editor.edited(values, variables, NEAR)
    if opened.program is not None:
        return edited_program(opened.program, values, source=opened.source), []
    if variables:
        values = values | {ENVIRONMENT_KEYS[opened.trainer]: dict(variables)}
    style = TextFormat(source=opened.source, is_json=opened.form is Form.JSON, near=NEAR)
    if style.is_json:
        return edited(opened.text, object_in_json(opened.text), values, style), []
    return edited(opened.text, object_in_yaml(opened.text, source=opened.source), values, style), []


def _key_changes(
    opened: OpenedConfig,
    values: JsonDict,
    changes: KeyChanges,
    source: DeepSpeedSource | None,
    main: FileText,
    beside: FileText | None,
) -> Iterator[KeyChange]:
    own = opened.values if opened.run is None else opened.run.values
    for key, after in values.items():
        yield from _flat(main.path, key, own.get(key), after)
    for name, value in changes.variables.items():
        yield KeyChange(file=main.path, key=name, before=opened.environment.get(name), after=value)
    if beside is not None:
        content = {} if source is None or changes.deepspeed_changes is None else source.content
        for key, after in (changes.deepspeed_changes or changes.deepspeed or {}).items():
            yield from _flat(beside.path, key, content.get(key), after)


def _flat(file: Path, key: str, before: Any, after: Any) -> Iterator[KeyChange]:
    """Objects key by key, with dots between their names."""
    if not isinstance(after, Mapping):
        yield KeyChange(file=file, key=key, before=before, after=after)
        return
    inner = dict(cast(Mapping[str, Any], before)) if isinstance(before, Mapping) else JsonDict()
    for name, value in cast(Mapping[str, Any], after).items():
        yield from _flat(file, f"{key}.{name}", inner.get(name), value)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)

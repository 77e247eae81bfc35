"""Write ``planner/vlmplan/data/argument_kinds.json``: of which kind the values of trainers' arguments are.

``HfArgumentParser`` refuses values of another kind than a field's on a command line and in text, and so do the trainers
later where a file says them. Run with TRL installed after its version or transformers' has changed:

    python tests/tools/argument_kinds.py
"""

import dataclasses
import enum
import json
import sys
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import transformers
from transformers import TrainingArguments

OUTPUT: Final = Path(__file__).parents[2] / "planner" / "vlmplan" / "data" / "argument_kinds.json"
SCALARS: Final = {frozenset((bool,)): "bool", frozenset((int,)): "int"}
NUMBERS: Final = {int, float}


def kind(annotation: Any) -> str | list[Any] | None:
    """``int``, ``float``, ``bool``, ``floats``, the choices that there are, or None of what any text may be."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = [one for one in (typing.get_args(annotation) if is_union else (annotation,)) if one is not type(None)]
    if len(members) == 1 and typing.get_origin(members[0]) is typing.Literal:
        return list(typing.get_args(members[0]))
    if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], enum.Enum):
        return [one.value for one in members[0]]
    if members == [list[float]]:
        return "floats"
    if set(members) <= NUMBERS and float in members:
        return "float"
    try:
        return SCALARS.get(frozenset(members))
    except TypeError:
        return None


def kinds(classes: Iterable[type]) -> dict[str, Any]:
    """By name, of the fields of all classes that have one and the same."""
    found: dict[str, list[Any]] = {}
    for one in classes:
        hints = typing.get_type_hints(one)
        for field in dataclasses.fields(one):
            if field.init:
                choices = field.metadata.get("choices")
                found.setdefault(field.name, []).append(list(choices) if choices else kind(hints[field.name]))
    return {name: of[0] for name, of in sorted(found.items()) if of[0] is not None and all(it == of[0] for it in of)}


def grouped(kind_by_name: dict[str, Any]) -> dict[str, Any]:
    """Names by kind, and the choices by name."""
    names: dict[str, list[str]] = {}
    for name, one in kind_by_name.items():
        if isinstance(one, str):
            names.setdefault(one, []).append(name)
    choices = {name: one for name, one in kind_by_name.items() if isinstance(one, list)}
    return {**{one: " ".join(of) for one, of in sorted(names.items())}, "choices": choices}


def table() -> dict[str, Any]:
    import trl
    from trl import DPOConfig, GRPOConfig, ModelConfig, RewardConfig, ScriptArguments, SFTConfig

    try:
        from trl import KTOConfig
    except ImportError:
        from trl.experimental.kto import KTOConfig

    shared = kinds([TrainingArguments])
    own = kinds([ScriptArguments, ModelConfig, SFTConfig, DPOConfig, RewardConfig, KTOConfig, GRPOConfig])
    return {
        "source": f"transformers {transformers.__version__}, trl {trl.__version__} (Apache-2.0)",
        "TrainingArguments": grouped(shared),
        "TRL": grouped({name: one for name, one in own.items() if name not in shared}),
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes\n")

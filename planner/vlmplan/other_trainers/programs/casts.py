"""Casts of a program's model between loading and training: ``model.half()``, ``model.to(torch.bfloat16)``.

What is trained is as if it had been loaded in that type. Adapters that are there before are cast with it, and so is
what ``prepare_model_for_kbit_training`` has made float32.
"""

import ast
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.calls import Call
from vlmplan.other_trainers.programs.frozen import MAX_STEPS, PARTS, parts_of
from vlmplan.other_trainers.programs.gathered import OTHERWISE, Gathered
from vlmplan.other_trainers.programs.loads import is_before_trainer
from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.record import Unwritten

CASTS: Final = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
"""Methods of ``torch.nn.Module`` that cast all of it."""
TO: Final = "to"
PLANNED: Final = ("float32", "bfloat16", "float16")
OTHER_TYPES: Final = ("float64", "double", "half", "float", "float8_e4m3fn", "float8_e5m2")
DTYPE: Final = "dtype"
PASSED: Final = (*CASTS, TO, "cuda", "cpu", "train", "eval")
"""Methods that return the model itself."""


def cast_type(found: Gathered, loads: Call, before: list[Call]) -> str | None:
    """The type that the model of ``loads`` is cast to before the trainer is made; None where it is not. ``before``: the
    calls after which a cast is of something else than the model's own weights. Raises InputError for such a cast."""
    makers, calls = [loads, *before], [one.node for one in found.all_calls if last_name(one.node.func) in (*CASTS, TO)]
    casts = [(node, kind) for node in calls if (kind := _type_of(found, node, makers)) is not None]
    casts = [(node, kind) for node, kind in casts if is_before_trainer(found, node)]
    if not casts:
        return None
    node, kind = casts[-1]
    text = found.program.text_of(node)
    earlier = next((one for one in before if one.span < found.program.span(node)), None)
    if earlier is not None:
        raise InputError(
            f"{found.program.source}: {text} casts what {earlier.name} has made, too: not planned{OTHERWISE}"
        )
    if any(found.values.get(key) for key in ("load_in_4bit", "load_in_8bit")):
        raise InputError(
            f"{found.program.source}: {text} casts a model whose weights are packed, which transformers refuses but of "
            f"bfloat16(), and that is not planned; leave it out"
        )
    if kind not in PLANNED and not isinstance(kind, Unwritten):
        raise InputError(f"{found.program.source}: {text}; one of {', '.join(PLANNED)} is planned{OTHERWISE}")
    return kind if found.program.is_certain(node) else Unwritten(text)


def _type_of(found: Gathered, node: ast.Call, makers: list[Call]) -> str | None:
    """The type that a call casts the model to; None for one that casts nothing, or something else."""
    function = node.func
    if not isinstance(function, ast.Attribute) or not _is_model(found, function.value, makers):
        return None
    if function.attr in CASTS:
        return CASTS[function.attr]
    for one in (*node.args, *(word.value for word in node.keywords if word.arg in (DTYPE, None))):
        value: Any = found.program.value_of(one)
        if isinstance(value, str) and value in (*PLANNED, *OTHER_TYPES):
            return value
        if value is None and DTYPE in found.program.text_of(one).casefold():
            return Unwritten(found.program.text_of(one))
    return None


def _is_model(found: Gathered, node: ast.expr, makers: list[Call]) -> bool:
    """Whether it is what one of ``makers`` has made, by a name or through calls of its own (``.cuda().half()``)."""
    for _ in range(MAX_STEPS):
        made = found.program.call_of(node)
        if made is None:
            return isinstance(node, ast.Name) and parts_of(found.program, makers[0], node) == PARTS
        if any(made.node is one.node for one in makers):
            return True
        function = made.node.func
        if not isinstance(function, ast.Attribute) or function.attr not in PASSED:
            return False
        node = function.value
    return False

"""The keywords of a program in Python, changed one by one."""

import ast
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.editing.splices import Splice, indentation, line_start, newline_of, spliced
from vlmplan.other_trainers.programs import UNSLOTH_RUNS, ProgramRun, ProgramSource
from vlmplan.other_trainers.programs.calls import Call, Keyword

OF_LOADING: Final = frozenset(
    "max_seq_length load_in_4bit load_in_16bit dtype torch_dtype attn_implementation use_bnb_nested_quant".split()
)
OF_ADAPTERS: Final = frozenset("r lora_alpha use_gradient_checkpointing lora_r lora_target_modules use_peft".split())
QUANTIZATION, PACKS = "quantization_config", "load_in_4bit"
OF_PACKING: Final = {
    "use_bnb_nested_quant": "bnb_4bit_use_double_quant",
    **{key: key for key in ("bnb_4bit_quant_type", "bnb_4bit_quant_storage")},
}
"""Keys of TRL's beside that one, and what ``BitsAndBytesConfig`` calls them."""
OF_LOADERS: Final = ("dtype", "torch_dtype", "attn_implementation")
"""What a class of transformers takes of them when it loads."""
BITS: Final = "BitsAndBytesConfig"
TRANSFORMERS: Final = "transformers"


class Code(str):
    """A value that is written as it is."""

    __slots__ = ()


def edited_program(run: ProgramRun, values: Mapping[str, Any], *, source: str) -> str:
    """The file's text with these keywords, None takes one away. Raises InputError where a value cannot be changed by
    itself."""
    return _with_splices(run.source, list(_splices(run, values, source)), source)


def _with_splices(program: ProgramSource, splices: Sequence[Splice], source: str) -> str:
    """The file's text with parts of the code replaced. Raises InputError for a notebook that is written otherwise than
    Jupyter writes it."""
    if program.cells is None:
        return spliced(program.text or program.code, splices)
    document = cast(JsonDict, json.loads(program.notebook))
    written = _writer(document, program.notebook, source)
    starts = [cell.start for cell in program.cells]
    by_cell: dict[int, list[Splice]] = {}
    for one in splices:
        by_cell.setdefault(bisect_right(starts, one.start) - 1, []).append(one)
    for number, own in by_cell.items():
        cell = program.cells[number]
        text = spliced(cell.text, [Splice(one.start - cell.start, one.end - cell.start, one.text) for one in own])
        holder = document["cells"][cell.place]
        holder["source"] = text.splitlines(keepends=True) if isinstance(holder["source"], list) else text
    return written(document)


def _writer(document: JsonDict, text: str, source: str) -> Callable[[JsonDict], str]:
    """How the notebook is written: the form in which it comes out as it is."""
    end = text[len(text.rstrip()) :]
    for indent, is_ascii in product((1, 2, 4, None), (False, True)):
        written = partial(_in_form, indent=indent, is_ascii=is_ascii, end=end)
        if written(document) == text:
            return written
    raise InputError(f"{source} is written otherwise than Jupyter writes notebooks; save it there once, or change it")


def _in_form(document: JsonDict, *, indent: int | None, is_ascii: bool, end: str) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=is_ascii) + end


def _splices(run: ProgramRun, values: Mapping[str, Any], source: str) -> Iterator[Splice]:
    new: dict[int, tuple[Call, dict[str, Any]]] = {}
    if _packs_anew(run, values):
        values = {key: value for key, value in values.items() if key not in (PACKS, *OF_PACKING)} | _packing(
            run, values
        )
        yield from _imported(run.source.code)
    for key, value in values.items():
        keyword = run.keywords.get(key)
        if keyword is not None and (keyword.value_span.is_imported or keyword.span.is_imported):
            raise InputError(f"{source} imports what {key} is from another file; change it there")
        if keyword is not None and value is None:
            yield _removed(run, keyword, source)
        elif keyword is not None:
            yield Splice(*keyword.value_span, _literal(value))
        elif value is not None:
            call = _call_of(run, key, source)
            new.setdefault(call.span.start, (call, {}))[1][key] = value
    for call, added in new.values():
        yield _added(run.source.code, call, added)


def _packs_anew(run: ProgramRun, values: Mapping[str, Any]) -> bool:
    """Whether weights are to be packed by a keyword that the program has not yet, of what loads them."""
    is_new = run.trainer not in UNSLOTH_RUNS and PACKS not in run.keywords
    return values.get(PACKS) is True and is_new and QUANTIZATION not in (run.loads or run.trains).keywords


def _packing(run: ProgramRun, values: Mapping[str, Any]) -> dict[str, Code]:
    """The keyword that packs weights to 4 bits, as TRL makes it of its own keys (``get_quantization_config``)."""
    code = run.source.code
    own = {PACKS: True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}
    own |= {name: values[key] for key, name in OF_PACKING.items() if values.get(key) is not None}
    is_known = _imports(code, BITS) or _place_of_import(code) is not None
    words = ", ".join(f"{key}={_literal(value)}" for key, value in own.items())
    return {QUANTIZATION: Code(f"{'' if is_known else f'{TRANSFORMERS}.'}{BITS}({words})")}


def _imported(code: str) -> Iterator[Splice]:
    """The line that imports what packs weights, before the first that imports from transformers, where it is needed."""
    place = None if _imports(code, BITS) else _place_of_import(code)
    if place is not None:
        start = 0
        for _ in range(place - 1):
            start = code.index("\n", start) + 1
        yield Splice(start, start, f"from {TRANSFORMERS} import {BITS}{newline_of(code)}")


def _imports(code: str, name: str) -> bool:
    return any(one.name == name for node in _imports_of(code) for one in node.names if one.asname in (None, name))


def _place_of_import(code: str) -> int | None:
    """The line of the first import from transformers at the top of a program."""
    lines = [node.lineno for node in _imports_of(code) if node.module == TRANSFORMERS and not node.level]
    return min(lines, default=None)


def _imports_of(code: str) -> list[ast.ImportFrom]:
    return [node for node in ast.parse(code).body if isinstance(node, ast.ImportFrom)]


def _call_of(run: ProgramRun, key: str, source: str) -> Call:
    """The call that a keyword belongs to."""
    is_unsloth = run.trainer in UNSLOTH_RUNS
    call = run.arguments
    if key == QUANTIZATION:
        call = run.loads or run.trains  # of a name the trainer itself loads the model
    elif key in OF_LOADING:
        call = run.loads if is_unsloth or key in OF_LOADERS else None
    elif key in OF_ADAPTERS:
        call = run.adapts or (run.loads if is_unsloth else None)
    if call is None:
        raise InputError(f"{source}: {key} has no call to stand in; write one, and its value there")
    if call.span.is_imported:
        raise InputError(
            f"{source} imports {call.name}(...), in which {key} would stand, from another file; add it there"
        )
    return call


def _added(code: str, call: Call, values: Mapping[str, Any]) -> Splice:
    """Keywords before the call's first own one, in a line of their own where that is in one."""
    own = sorted(one.span for one in call.keywords.values() if one.is_removable)
    between = _between(code, call)
    words = [f"{key}{between}{_literal(value)}" for key, value in values.items()]
    if not own:
        end = call.span.end - 1
        return Splice(end, end, (", " if call.node.args or call.node.keywords else "") + ", ".join(words))
    start = own[0].start
    indent = indentation(code, start)
    begins_line = line_start(code, start) + len(indent) == start
    after = f",{newline_of(code)}{indent}" if begins_line else ", "
    return Splice(start, start, "".join(word + after for word in words))


def _between(code: str, call: Call) -> str:
    """How the call writes an equals sign."""
    written = [code[one.span.start : one.span.end] for one in call.keywords.values() if one.is_removable]
    return " = " if written and " =" in written[0].partition("=")[0] + "=" else "="


def _removed(run: ProgramRun, keyword: Keyword, source: str) -> Splice:
    """The keyword with what is written up to the next one, or with the comma before it."""
    calls = [call for call in (run.loads, run.adapts, run.arguments) if call is not None]
    call = next((one for one in calls if keyword in one.keywords.values()), None)
    if call is None or not keyword.is_removable:
        raise InputError(f"{source}: {keyword.name} is no keyword that can be taken out by itself")
    later = [one.span.start for one in call.keywords.values() if one.span.start > keyword.span.start]
    if later:
        return Splice(keyword.span.start, min(later), "")
    before = run.source.code.rfind(",", 0, keyword.span.start)
    return Splice(max(before, call.span.start), keyword.span.end, "")


def _literal(value: Any) -> str:
    if isinstance(value, Code):
        return value
    return repr(value) if not isinstance(value, str) else f'"{value}"'

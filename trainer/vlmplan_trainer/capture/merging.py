"""One program for any number of samples, out of captures of two and of three.

Sizes grow with the samples by equal steps. Where a model goes through its images one by one, the capture of three
samples has one more turn of each loop than that of two: a stretch of instructions that repeats the stretch before it.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vlmplan.errors import InputError
from vlmplan_trainer.capture.operations import Instruction, Operand, Output

SCHEMA = 2
"""Version of what is written; the planner has the same."""
FEW, MANY = 2, 3
"""Samples of the two captures."""
LONGEST_TURN = 2000
"""Instructions of one turn of a loop. Longer than any that was seen."""


def program_json(instructions: Sequence[Instruction], inputs: dict[str, int], num_samples: int) -> dict[str, Any]:
    """A capture as it is, for ``num_samples`` alone."""
    rows = [_row(one, [_plain(output) for output in one.outputs], one.values, num_samples) for one in instructions]
    return {"samples": num_samples, "inputs": inputs, "instructions": rows, "turns": [], "grows": False}


def merged_json(few: Sequence[Instruction], many: Sequence[Instruction], inputs: dict[str, int]) -> dict[str, Any]:
    """The capture of three samples, with sizes and turns as they are of any number from there on.

    Raises InputError where the two are not of one form.
    """
    pairs, turns = aligned([_signature(one) for one in few], [_signature(one) for one in many])
    rows: list[Any] = []
    for place, one in enumerate(many):
        if place in pairs:
            rows.append(_merged_row(few[pairs[place]], one))
        else:
            rows.append(_row(one, [_plain(output) for output in one.outputs], one.values, MANY))
    return {"samples": MANY, "inputs": inputs, "instructions": rows, "turns": turns, "grows": True}


def aligned(few: Sequence[Any], many: Sequence[Any]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """For each place of ``many`` the same of ``few``, and the turns that ``many`` has beside, as (start, stop).

    >>> aligned("abcd", "abcbcd")
    ({0: 0, 1: 1, 2: 2, 5: 3}, [(3, 5)])
    """
    turns = _turns(few, many, 0, 0)
    if turns is None:
        raise InputError("the model does not do with three samples what it does with two")
    beside = {place for start, stop in turns for place in range(start, stop)}
    places = (place for place in range(len(many)) if place not in beside)
    return {place: other for other, place in enumerate(places)}, turns


def _turns(few: Sequence[Any], many: Sequence[Any], other: int, place: int) -> list[tuple[int, int]] | None:
    """The turns behind ``place`` of ``many`` and ``other`` of ``few``; None where there is no way to the ends of both.

    The shortest turn that leads there is taken. Instructions that are the same are always taken together: a turn that
    has begun with them ends with them too.
    """
    while other < len(few) and place < len(many) and few[other] == many[place]:
        other, place = other + 1, place + 1
    if place == len(many):
        return [] if other == len(few) else None
    for length in range(1, min(place, len(many) - place, LONGEST_TURN) + 1):
        if many[place] == many[place - length] and many[place - length : place] == many[place : place + length]:
            further = _turns(few, many, other, place + length)
            if further is not None:
                return [(place, place + length), *further]
    return None


def _signature(one: Instruction) -> Any:
    names = tuple(operand for operand in one.inputs if isinstance(operand, str))
    kinds = tuple(type(operand).__name__ for operand in one.inputs)
    return one.op, one.values.get("module"), names, kinds


def _merged_row(few: Instruction, many: Instruction) -> list[Any]:
    grown = len(many.outputs) - len(few.outputs)
    results = [_between(less, more) for less, more in zip(few.outputs, many.outputs, strict=False)]
    results += [_plain(output) for output in many.outputs[len(few.outputs) :]]
    lists = [
        len(more) - len(less)
        for less, more in zip(few.inputs, many.inputs, strict=True)
        if isinstance(more, list) and isinstance(less, list)
    ]
    grows = {"outputs": grown} if grown else {}
    grows |= {"inputs": max(lists)} if lists and max(lists) else {}
    values = dict(many.values)
    if grows:
        values["grows"] = grows
    return _row(many, results, values, MANY)


def _between(less: Output, more: Output) -> list[Any]:
    """An output whose sizes are a number, or [size with no sample, size of each]."""
    if len(less.shape) != len(more.shape):
        raise InputError("the model makes other tensors of three samples than of two")
    sizes = [
        size if size == other else [size - MANY * (size - other), size - other]
        for other, size in zip(less.shape, more.shape, strict=True)
    ]
    return [more.slot, sizes, more.dtype, more.of]


def _plain(output: Output) -> list[Any]:
    return [output.slot, list(output.shape), output.dtype, output.of]


def _row(one: Instruction, outputs: list[Any], values: dict[str, Any], num_samples: int) -> list[Any]:
    """[op, inputs, outputs, values, freed], as JSON has it."""
    lengths = values.get("lengths")
    if lengths is not None:
        values = values | {"lengths": _of_each_sample(lengths, num_samples)}
    said: list[Operand] = list(one.inputs)
    return [one.op, said, outputs, values, one.freed]


def _of_each_sample(lengths: list[int], num_samples: int) -> list[list[int]]:
    """Runs of equal sequences, (length, how many), in one sample. Raises InputError where samples differ."""
    own = lengths[: len(lengths) // num_samples]
    if own * num_samples != lengths:
        raise InputError("equal samples are not packed equally")
    return [[length, len(list(group))] for length, group in groupby(own)]

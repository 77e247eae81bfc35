"""Which layers of a captured program do the same, so that one of them is run for all.

A chain are layers one behind the other, each of which takes the result of the one before it and nothing else that needs
a gradient, and whose results nothing else takes. Two layers of a chain are of one form where their instructions are the
same but for the numbers of results.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture.captured.program import Instruction, Operand, Program, numbers


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: ``start`` and ``stop`` of its instructions, what begins and ends it left out.

    ``taken`` are the results from before it, ``results`` those of it that are alive behind it.
    """

    name: str
    start: int
    stop: int
    taken: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def places(self) -> range:
        return range(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Chain:
    """``layers`` with the ``forms`` of each, of which equal ones do the same. ``x`` is what the first takes, and
    ``shares_x`` whether something behind it takes it too."""

    layers: tuple[Layer, ...]
    forms: tuple[int, ...]
    x: int
    shares_x: bool


Stretch = Chain | Layer | range
"""Instructions between layers are a range of their places."""


def stretches(program: Program, is_layer: Callable[[str], bool]) -> list[Stretch]:
    """The program up to the language model, in order. ``is_layer`` tells by a module's name whether it is a layer of a
    stack."""
    instructions = program.instructions
    end = next(place for place, one in enumerate(instructions) if one.op == "language")
    found: list[Stretch] = []
    start = place = 0
    while place < end:
        one = instructions[place]
        if one.op != "layer" or not is_layer(one.values["module"]):
            place += 1
            continue
        if start < place:
            found.append(range(start, place))
        stop = _end(instructions, place)
        found.append(_layer(instructions, place, stop))
        start = place = stop
    if start < end:
        found.append(range(start, end))
    return list(_chained(program, found))


def _end(instructions: Sequence[Instruction], start: int) -> int:
    """The place behind the layer that begins at ``start``."""
    name = instructions[start].values["module"]
    place = start + 1
    while not (instructions[place].op == "end_layer" and instructions[place].values["module"] == name):
        place += 1
    return place + 1


def _layer(instructions: Sequence[Instruction], begin: int, end: int) -> Layer:
    made: set[int] = set()
    taken: dict[int, None] = {}
    freed: set[int] = set()
    for place in range(begin + 1, end - 1):
        one = instructions[place]
        taken.update((slot, None) for slot in numbers(one.inputs) if slot not in made)
        made.update(output.slot for output in one.outputs)
        freed.update(one.freed)
    freed.update(instructions[end - 1].freed)
    results = tuple(sorted(made - freed))
    return Layer(instructions[begin].values["module"], begin + 1, end - 1, tuple(taken), results)


def _chained(program: Program, found: Sequence[Stretch]) -> Iterator[Stretch]:
    """``found`` with layers that follow each other as chains."""
    last_uses = _last_uses(program)
    pending: list[Layer] = []
    for stretch in found:
        follows = isinstance(stretch, Layer) and bool(pending) and _follows(pending[-1], stretch, last_uses)
        if pending and not follows:
            yield from _chain(program, pending, last_uses)
            pending = []
        if isinstance(stretch, Layer):
            pending.append(stretch)
        else:
            yield stretch
    yield from _chain(program, pending, last_uses)


def _follows(before: Layer, layer: Layer, last_uses: Mapping[int, int]) -> bool:
    """Whether ``layer`` takes the one result of the layer before it, and nothing else does."""
    if before.name.rpartition(".")[0] != layer.name.rpartition(".")[0] or len(before.results) != 1:
        return False
    (result,) = before.results
    return result in layer.taken and last_uses[result] <= layer.stop


def _last_uses(program: Program) -> dict[int, int]:
    """The place at which each result is taken or freed for the last time; the end for one that is never freed."""
    places: dict[int, int] = {}
    freed: set[int] = set()
    for place, one in enumerate(program.instructions):
        places.update(dict.fromkeys((*numbers(one.inputs), *one.freed), place))
        freed.update(one.freed)
    made = (output.slot for instruction in program.instructions for output in instruction.outputs)
    places.update((slot, len(program.instructions)) for slot in made if slot not in freed)
    return places


def _chain(program: Program, layers: Sequence[Layer], last_uses: Mapping[int, int]) -> Iterator[Stretch]:
    """``layers`` as a chain; the last by itself where it has more than one result."""
    whole = [layer for layer in layers if len(layer.results) == 1]
    if whole and whole[0].taken:
        x = whole[0].taken[0]
        before = [x, *(layer.results[0] for layer in whole[:-1])]
        known: dict[Hashable, int] = {}
        forms = [
            known.setdefault(_form(program, layer, slot), len(known)) for layer, slot in zip(whole, before, strict=True)
        ]
        yield Chain(tuple(whole), tuple(forms), x, last_uses.get(x, 0) > whole[0].stop)
        layers = layers[len(whole) :]
    yield from layers


def _form(program: Program, layer: Layer, x: int) -> Hashable:
    """A key that layers share which do the same."""
    names: dict[int, Any] = {x: "x"}

    def named(operand: Operand) -> Any:
        if isinstance(operand, tuple):
            return tuple([named(part) for part in operand])
        if operand is None:
            return None
        if isinstance(operand, str):
            return operand.removeprefix(layer.name)
        return names.get(operand, ("outside", operand))

    rows: list[Any] = []
    for place in layer.places:
        one = program.instructions[place]
        taken = tuple([named(operand) for operand in one.inputs])
        for output in one.outputs:
            names.setdefault(output.slot, len(names))
        made = tuple([(names[output.slot], output.shape, output.dtype, named(output.of)) for output in one.outputs])
        values = tuple(
            [(key, named(value) if key in ("module", "like") else str(value)) for key, value in one.values.items()]
        )
        rows.append((one.op, taken, made, values, frozenset(named(slot) for slot in one.freed)))
    return tuple(rows)

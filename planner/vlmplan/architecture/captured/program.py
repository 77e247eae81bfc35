"""Captured operations in their order, and the same for any number of samples."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Operand = int | str | None | tuple["int | str | None", ...]
"""The number of a result, the name of a weight, nothing (what is left out), or a list of them."""
Size = int | tuple[int, int]
"""A number, or (with no sample, of each sample)."""


@dataclass(frozen=True, slots=True)
class Output:
    """A result by its number. ``of``: the operand whose storage it shares."""

    slot: int
    shape: tuple[Size, ...]
    dtype: str
    of: int | str | None = None

    def sized(self, num_samples: int) -> "Output":
        sizes = tuple([size if isinstance(size, int) else size[0] + size[1] * num_samples for size in self.shape])
        return Output(self.slot, sizes, self.dtype, self.of)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape where no size depends on the samples any more."""
        return self.shape  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Instruction:
    """``op`` is the name of an operation of torch, or ``call`` (of a module, by adapters perhaps replaced), ``attend``,
    ``enter`` (the language model), ``begin`` and ``end`` (of a module with weights of its own), ``layer`` and
    ``end_layer``, ``language`` (its layers begin), ``returned``. ``freed`` go behind it."""

    op: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Output, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    freed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """``samples``: of which it was captured; where it ``grows`` it holds for as many or more.

    ``inputs`` are the numbers of its inputs by name; ``turns`` are the stretches (start, stop) that come
    once more for each sample more.
    """

    samples: int
    inputs: Mapping[str, int]
    instructions: tuple[Instruction, ...]
    turns: tuple[tuple[int, int], ...] = ()
    grows: bool = False
    pixels: str = ""
    """The name of the largest input."""
    memo: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], compare=False, repr=False)
    """What others have found out about it, by keys of theirs."""

    def of(self, num_samples: int) -> "Program":
        """The program of ``num_samples``, without sizes that depend on them."""
        assert num_samples == self.samples or (self.grows and num_samples > self.samples)
        further = num_samples - self.samples
        instructions = tuple(_Growth(self, further).instructions()) if further else self.instructions
        sized = tuple([_sized(one, num_samples) for one in instructions])
        return Program(num_samples, self.inputs, sized, pixels=self.pixels)


def flat(operands: Sequence[Operand]) -> Iterator[int | str | None]:
    """``operands`` with those of lists among them."""
    for operand in operands:
        if isinstance(operand, tuple):
            yield from operand
        else:
            yield operand


def numbers(operands: Sequence[Operand]) -> Iterator[int]:
    """The results among ``operands``, those in lists too."""
    return (operand for operand in flat(operands) if isinstance(operand, int))


def _sized(one: Instruction, num_samples: int) -> Instruction:
    if all(isinstance(size, int) for output in one.outputs for size in output.shape):
        return one
    return replace(one, outputs=tuple([output.sized(num_samples) for output in one.outputs]))


class _Growth:
    """A program with ``further`` turns of each of its loops more.

    A result of the last turn has a copy in each further one. What a further turn takes from the turn before it, it
    takes from the copy of that; what the last turn took from a list of one entry for each sample (a split, another
    loop), it takes from the next entry; all else is the same in every turn. Behind a loop, a list of results gets the
    copies too, and a single one is that of the last turn.
    """

    def __init__(self, program: Program, further: int) -> None:
        self.program, self.further = program, further
        self.places: dict[int, tuple[int, int]] = {}
        for place, one in enumerate(program.instructions):
            for index, output in enumerate(one.outputs):
                self.places.setdefault(output.slot, (place, index))
        self.turn_of: dict[int, tuple[int, int]] = {}
        for turn in program.turns:
            self.turn_of.update(dict.fromkeys(range(*turn), turn))
        self.grown: dict[int, int] = {}
        for one in program.instructions:
            count = one.values.get("grows", {}).get("outputs", 0)
            self.grown.update((output.slot, count) for output in one.outputs[len(one.outputs) - count :])
        self.next_slot = 1 + max([output.slot for one in program.instructions for output in one.outputs], default=0)
        self.copies: dict[tuple[int, int], int] = {}

    def copy(self, slot: int, turn: int) -> int:
        """The number of the result that is ``slot``'s in the turn that is ``turn`` behind the last; itself for 0."""
        if not turn:
            return slot
        key = (slot, turn)
        if key not in self.copies:
            self.copies[key] = self.next_slot
            self.next_slot += 1
        return self.copies[key]

    def varies(self, slot: int) -> bool:
        """Whether there is one for each turn."""
        place = self.places.get(slot)
        return slot in self.grown or (place is not None and place[0] in self.turn_of)

    def instructions(self) -> Iterator[Instruction]:
        program = self.program
        for place, one in enumerate(program.instructions):
            turn = self.turn_of.get(place)
            if turn is None:
                yield self._outside(one)
                continue
            yield self._in_turn(place, turn, 0)
            if place + 1 == turn[1]:
                for further in range(1, self.further + 1):
                    yield from (self._in_turn(inside, turn, further) for inside in range(*turn))

    # -- outside of loops ------------------------------------------------------------------------------------------

    def _outside(self, one: Instruction) -> Instruction:
        if not self._meets_loops(one):
            return one
        grows = one.values.get("grows", {})
        count = grows.get("outputs", 0)
        outputs = list(one.outputs)
        for turn in range(1, self.further + 1):
            outputs += [
                replace(output, slot=self.copy(output.slot, turn)) for output in one.outputs[len(one.outputs) - count :]
            ]
        if not count:
            outputs = [replace(output, of=self._last(output.of)) for output in outputs]
        inputs = tuple([self._operand(operand, grows.get("inputs", 0)) for operand in one.inputs])
        return replace(one, inputs=inputs, outputs=tuple(outputs), freed=self._freed(one))

    def _meets_loops(self, one: Instruction) -> bool:
        slots = [*numbers(one.inputs), *one.freed, *[output.of for output in one.outputs]]
        return "grows" in one.values or any(isinstance(slot, int) and self.varies(slot) for slot in slots)

    def _operand(self, operand: Operand, count: int) -> Operand:
        if not isinstance(operand, tuple):
            return self._last(operand)
        if not count:
            return tuple([self._last(part) for part in operand])
        parts = list(operand)
        for turn in range(1, self.further + 1):
            parts += [self._of_turn(part, turn) for part in operand[-count:]]
        return tuple(parts)

    def _last(self, operand: int | str | None) -> int | str | None:
        return self._of_turn(operand, self.further)

    def _of_turn(self, operand: int | str | None, turn: int) -> int | str | None:
        return self.copy(operand, turn) if isinstance(operand, int) and self.varies(operand) else operand

    def _freed(self, one: Instruction) -> tuple[int, ...]:
        """What of a loop goes here goes with its copies, where that of the turn before it goes here as well."""
        freed: list[int] = []
        for slot in one.freed:
            if not self.varies(slot):
                freed.append(slot)
            elif slot in self.grown or self._before(slot) in one.freed:
                freed += [self.copy(slot, turn) for turn in range(self.further + 1)]
            else:
                freed.append(self.copy(slot, self.further))
        return tuple(freed)

    def _before(self, slot: int) -> int | None:
        """The result of the turn before that is ``slot``'s; None for what is in no loop."""
        place, index = self.places.get(slot, (-1, 0))
        turn = self.turn_of.get(place)
        if turn is None:
            return None
        return self.program.instructions[place - (turn[1] - turn[0])].outputs[index].slot

    # -- in a turn -------------------------------------------------------------------------------------------------

    def _in_turn(self, place: int, turn: tuple[int, int], further: int) -> Instruction:
        one, before = self.program.instructions[place], self.program.instructions[place - (turn[1] - turn[0])]
        inputs = tuple(
            [self._turned(operand, was, turn, further) for operand, was in zip(one.inputs, before.inputs, strict=True)]
        )
        outputs = tuple(
            [
                replace(
                    output, slot=self.copy(output.slot, further), of=self._carried(output.of, was.of, turn, further)
                )
                for output, was in zip(one.outputs, before.outputs, strict=False)
            ]
        )
        return replace(one, inputs=inputs, outputs=outputs, freed=self._freed_in_turn(one, before, turn, further))

    def _turned(self, operand: Operand, before: Operand, turn: tuple[int, int], further: int) -> Operand:
        if isinstance(operand, tuple):
            others = before if isinstance(before, tuple) and len(before) == len(operand) else (None,) * len(operand)
            return tuple([self._carried(part, was, turn, further) for part, was in zip(operand, others, strict=True)])
        return self._carried(operand, None if isinstance(before, tuple) else before, turn, further)

    def _carried(
        self, operand: int | str | None, before: int | str | None, turn: tuple[int, int], further: int
    ) -> int | str | None:
        if not further or not isinstance(operand, int):
            return operand
        start, stop = turn
        place, index = self.places.get(operand, (-1, 0))
        if start <= place < stop:
            return self.copy(operand, further)
        length = stop - start
        if start - length <= place < start:  # of the turn before
            same = self.program.instructions[place + length].outputs[index].slot
            return self.copy(same, further - 1)
        if self.varies(operand):
            return self.copy(operand, self.further if operand == before else further)
        return operand

    def _freed_in_turn(
        self, one: Instruction, before: Instruction, turn: tuple[int, int], further: int
    ) -> tuple[int, ...]:
        """What an operation of a further turn frees: as in the last turn, but what was there before the loop goes
        behind the last of the further ones."""
        freed: list[int] = []
        for slot in one.freed:
            place = self.places.get(slot, (-1, 0))[0]
            is_older = place < turn[0] - (turn[1] - turn[0]) and not self.varies(slot)
            if not is_older:
                carried = self._carried(slot, None, turn, further)
                freed.append(slot if not isinstance(carried, int) else carried)
            elif further == self.further:
                freed.append(slot)
        return tuple(freed)

"""Traces of every way to checkpoint activations and to compute the loss, put together from two.

A micro batch has three switches: whether the language model's layers run again in backward, whether all other layers
do, and whether the loss sees all logits at once. Each stretch of a trace depends on one of them: the layers on their
own switch, the final norm, the head and an embedding that shares the head's weight on the loss, what lies in between on
neither. So two traces, one with every
switch at one end and one with every switch at the other, hold all eight. Operations are exactly those of a trace of
its own. Memory may differ by a tensor that one stretch frees and another makes: such a difference shows as bytes that
are not freed by the end, and ``CombinedTrace.unmatched_bytes`` says how many.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.trace import Event, GradientReady, Hold, Run, Section, Span, Trace
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind

GAP = "between."
"""What the recorder calls a stretch between two sections, in which a caller's last reference is freed."""
LOSS = "loss"
"""The section behind the head in which a loss of whole logits is made; other losses are made inside the head's."""


class Switches(NamedTuple):
    """What of a recipe decides how its micro batch is computed: memory for time."""

    checkpoints_language: bool
    checkpoints_others: bool
    loss: LossKind

    @classmethod
    def of(cls, recipe: Recipe, *, has_others: bool) -> "Switches":
        """The switches of ``recipe``; a model without layers but the language model's has one switch less."""
        language = recipe.activation_checkpointing
        others = recipe.vision_activation_checkpointing if has_others else language
        return cls(checkpoints_language=language, checkpoints_others=others, loss=recipe.loss)

    def apply(self, recipe: Recipe) -> Recipe:
        return recipe.with_changes(
            activation_checkpointing=self.checkpoints_language,
            vision_activation_checkpointing=self.checkpoints_others,
            loss=self.loss,
        )


class CombinedTrace(NamedTuple):
    """A trace, and by how much its live bytes may differ from those of a trace of its own."""

    trace: Trace
    unmatched_bytes: int = 0


def language_labels(model: Model) -> tuple[str, ...]:
    """The labels of the language model's stacks of layers."""
    return tuple(stack.label for part, stack in model.stacks() if part is Part.LANGUAGE)


def tied_weight(model: Model) -> Parameter | None:
    """The weight that head and input embedding share. Its gradient is their sum, made in the embedding's backward."""
    return model.head.weight if model.ties_weights else None


class TracePair:
    """One micro batch, traced with its switches at either end.

    ``traced`` records a trace of the model with any switches, whose ``language_labels`` and ``tied_weight`` these are.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        tied: Parameter | None,
        ends: tuple[Switches, Switches],
        traced: Callable[[Switches], Trace],
    ) -> None:
        self._labels, self._tied = labels, tied
        self._ends, self._traced = ends, traced
        self._combined: dict[Switches, CombinedTrace] = {}

    @cached_property
    def _parts(self) -> "tuple[_Parts, _Parts] | None":
        """Both traces cut where the language model's layers begin and end; None where they cannot be combined."""
        first, second = (_Parts.of(self.combined(end).trace, self._labels) for end in self._ends)
        if first is None or second is None or first.stretches != second.stretches:
            return None
        return first, second

    def combined(self, switches: Switches) -> CombinedTrace:
        """The trace with these switches."""
        if switches not in self._combined:
            self._combined[switches] = self._new(switches)
        return self._combined[switches]

    def _new(self, switches: Switches) -> CombinedTrace:
        if switches in self._ends or self._parts is None:
            return CombinedTrace(self._traced(switches))
        before, layers, head = self._sources(switches)
        pieces = [
            *((head if head.gives_gradient(run, self._tied) else before, run) for run in before.before),
            *((layers, run) for run in layers.layers),
            *_tail(layers, head),
        ]
        return _joined(pieces, head.trace, self._parts[0])

    def _sources(self, switches: Switches) -> "tuple[_Parts, _Parts, _Parts]":
        """The trace that each part is taken from: by the other layers', the language layers' and the loss's switch."""
        assert self._parts is not None
        first = self._ends[0]
        return (
            self._parts[switches.checkpoints_others != first.checkpoints_others],
            self._parts[switches.checkpoints_language != first.checkpoints_language],
            self._parts[switches.loss is not first.loss],
        )

    def parts(self, switches: Switches) -> tuple[Trace, ...]:
        """Traces whose operations add up to those with these switches: of what comes before the language model's
        layers, of these, and of what follows. Equal parts are one object, whatever the other switches."""
        if self._parts is None:
            return (self.combined(switches).trace,)
        before, layers, head = self._sources(switches)
        return before.work_before, layers.work_layers, head.work_tail


@dataclass(frozen=True, eq=False)
class _Parts:
    """A trace, cut into what comes before the language model's layers, these, and what follows."""

    trace: Trace
    before: Sequence[Run]
    layers: Sequence[Run]
    tail: Sequence[Run]

    @classmethod
    def of(cls, trace: Trace, labels: tuple[str, ...]) -> "_Parts | None":
        """The parts of a trace; None without layers, or where views of weights are followed by numbers that another
        trace uses too."""
        places = [place for place, run in enumerate(trace.schedule) if _is_layer(run, labels)]
        if not places or any(isinstance(event, Hold) for event in _events(trace)):
            return None
        start, stop = places[0], places[-1] + 1
        return cls(trace, trace.schedule[:start], trace.schedule[start:stop], trace.schedule[stop:])

    def gives_gradient(self, run: Run, weight: Parameter | None) -> bool:
        """Whether the gradient of ``weight`` is whole in the backward of this run before the layers."""
        return weight is not None and (run.key, id(weight)) in self.given_before

    @cached_property
    def given_before(self) -> frozenset[tuple[str, int]]:
        """The sections before the layers, each with the parameters whose gradients are whole in its backward."""
        sections = {run.key: self.trace.sections[run.key] for run in self.before}
        return frozenset(
            (key, id(event.parameter))
            for key, section in sections.items()
            for event in section.backward
            if isinstance(event, GradientReady)
        )

    @property
    def stretches(self) -> list[Run]:
        """Everything but gaps and a loss of its own, which come and go with the switches."""
        return [run for run in self.trace.schedule if run.key != LOSS and not run.key.startswith(GAP)]

    @cached_property
    def changes(self) -> dict[str, int]:
        """Bytes by which each section changes what is live over forward and backward, gradients apart."""
        return {
            key: _change(section.forward) + _change(section.backward) for key, section in self.trace.sections.items()
        }

    @cached_property
    def left_bytes(self) -> int:
        """Live bytes at the end, gradients apart: 0 but for what lives before the first section and after the last."""
        return sum([self.changes[run.key] for run in self.trace.schedule]) + _change(self.trace.after)

    @cached_property
    def work_before(self) -> Trace:
        return Trace(self.trace.sections, list(self.before))

    @cached_property
    def work_layers(self) -> Trace:
        return Trace(self.trace.sections, list(self.layers))

    @cached_property
    def work_tail(self) -> Trace:
        return Trace(self.trace.sections, list(self.tail))


def _is_layer(run: Run, labels: tuple[str, ...]) -> bool:
    return run.layer is not None and any(run.key.startswith(f"{label}.") for label in labels)


def _events(trace: Trace) -> Iterable[Event]:
    for section in trace.sections.values():
        yield from section.forward


def _tail(layers: _Parts, head: _Parts) -> Iterable[tuple[_Parts, Run]]:
    """What follows the layers: gaps free what the layers left, the rest belongs to the loss."""
    ours = iter([run for run in head.tail if not run.key.startswith(GAP)])
    for run in layers.tail:
        if run.key.startswith(GAP):
            yield layers, run
        elif run.key != LOSS:
            yield head, next(ours)
    yield from ((head, run) for run in ours)


def _joined(pieces: Iterable[tuple[_Parts, Run]], head: Trace, recorded: _Parts) -> CombinedTrace:
    sections: dict[str, Section] = {}
    schedule: list[Run] = []
    left_bytes = _change(head.after)
    for source, run in pieces:
        key = run.key if source is recorded else f"{run.key}+"
        sections[key] = source.trace.sections[run.key]
        schedule.append(Run(key, run.layer))
        left_bytes += source.changes[run.key]
    joined = Trace(sections, schedule, head.after, head.kept_bytes)
    return CombinedTrace(joined, abs(left_bytes - recorded.left_bytes))


def _change(events: Iterable[Event]) -> int:
    total = 0
    for event in events:
        if isinstance(event, Span):
            total += event.delta_bytes
        elif isinstance(event, GradientReady):
            total -= event.num_bytes
    return total

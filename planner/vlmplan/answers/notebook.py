"""Answers as a notebook shows them: the sentences and tables of their texts as HTML."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING

from vlmplan.answers.advice import Words, asked_text, base_lines, changes_table, note_lines, reason_lines, sentence
from vlmplan.answers.estimate import caveat_lines, component_table, detail_lines, heading, setup_text, verdict_line
from vlmplan.answers.front import wins_by
from vlmplan.answers.offers import money_line
from vlmplan.answers.recommendation import assumed_lines, plans_table, rejection_lines, winner_lines
from vlmplan.answers.scaling import print_scaling
from vlmplan.answers.to_fit import way_out_parts
from vlmplan.estimation import Estimate
from vlmplan.other_trainers import TrainerConfig
from vlmplan.proposals.advice import Advice
from vlmplan.render import notebook
from vlmplan.render.captured import printed
from vlmplan.render.tables import Table
from vlmplan.search import Recommendation
from vlmplan.search.explanation import explanation
from vlmplan.units import counted, gib_text

if TYPE_CHECKING:
    from vlmplan.proposals.comparison import Variant
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.request import Request
    from vlmplan.scaling import Scaling

Command = Callable[["Request"], str]


def estimate_html(estimate: Estimate, notes: Sequence[str], hints: Sequence[str], after: Sequence[str] = ()) -> str:
    """An estimate with the notes of its hardware, hints, and elements that come ``after`` it."""
    return notebook.fragment([*_estimate(estimate, notes, hints), *after])


def _estimate(estimate: Estimate, notes: Sequence[str], hints: Sequence[str]) -> Iterator[str]:
    every = [*estimate.workload.model.notes, *estimate.cautions, *notes]
    yield notebook.title(heading(estimate))
    yield notebook.verdict(estimate.verdict.value, verdict_line(estimate))
    yield from notebook.sentences(
        (*caveat_lines(every), f"setup: {setup_text(estimate)}", *estimate.hints, *(f"hint: {hint}" for hint in hints))
    )
    yield memory(estimate)
    yield notebook.table(component_table(estimate))
    yield from notebook.sentences(detail_lines(estimate, notes))


def memory(estimate: Estimate) -> str:
    """Each phase with what is live after it, its peak, and a bar of the peak's components."""
    limit = estimate.device.usable_bytes
    return notebook.bars(
        ("phase", "after", "peak", f"at the peak; the line is at {gib_text(limit)}, usable"),
        [
            ((phase.name, gib_text(phase.resident.total), gib_text(phase.peak.total)), phase.peak.as_json())
            for phase in estimate.timeline.phases
        ],
        limit_bytes=limit,
    )


def way_out_elements(found: "WayOut | None", command: Command, on: date) -> list[str]:
    """What to change, each with its command."""
    elements: list[str] = []
    for text, _, request in () if found is None else way_out_parts(found, on):
        elements += notebook.sentences([text])
        elements += [] if request is None else [notebook.preformatted(command(request))]
    return elements


def scaling_element(found: "Scaling | None") -> str:
    """Speed and price on other numbers of a machine, as the terminal has them."""
    return as_printed(lambda: print_scaling(found))


def as_printed(prints: Callable[[], None]) -> str:
    """What is drawn for a terminal, as it is there."""
    return notebook.preformatted(printed(prints).strip("\n"))


def recommendation_html(found: Recommendation, hints: Sequence[str], after: Sequence[str]) -> str:
    """A recommendation, or why nothing fits, with elements that come ``after`` it."""
    return notebook.fragment([*_recommendation(found, hints), *after])


def _recommendation(found: Recommendation, hints: Sequence[str]) -> Iterator[str]:
    model = found.workload.model.id
    if not found.plans:
        yield notebook.title(f"{model}: nothing fits on {counted(found.num_clusters, 'machine')}")
        yield from notebook.sentences(rejection_lines(found.rejected))
        return
    winner = found.plans[0]
    why = explanation(found.plans, found.objective)
    yield notebook.title(f"{model}: {wins_by(found)}: {money_line(winner, found.as_of)}")
    yield notebook.verdict(winner.estimate.verdict.value, verdict_line(winner.estimate))
    yield from notebook.sentences((setup_text(winner.estimate), *winner_lines(found), *([] if why is None else [why])))
    yield from notebook.sentences(f"hint: {hint}" for hint in hints)
    yield memory(winner.estimate)
    yield notebook.table(plans_table(found))
    yield from notebook.sentences((*rejection_lines(found.rejected), *assumed_lines(found)))


def advice_html(found: Advice, words: Words, after: Sequence[str]) -> str:
    """What single changes buy, with elements that come ``after`` it."""
    return notebook.fragment([*_advice(found, words), *after])


def _advice(found: Advice, words: Words) -> Iterator[str]:
    yield notebook.title(f"{found.workload.model.id}: {asked_text(found)}")
    yield from notebook.sentences(base_lines(found))
    yield notebook.table(changes_table(found))
    yield from notebook.sentences((*reason_lines(found), sentence(found, words), *note_lines(found)))


def reading_html(config: TrainerConfig, notes: Sequence[str]) -> str:
    """How a configuration of another trainer is read."""
    rows = [(setting.key, setting.value, "file") for setting in config.said]
    rows += [(setting.key, setting.value, "default of the trainer") for setting in config.defaults]
    idle = f"no effect on memory or time: {', '.join(config.idle)}" if config.idle else ""
    table = Table(titles=("key", "value", "from"), rows=rows)
    return notebook.fragment(
        [
            notebook.title(f"{config.source}: read as {config.trainer} reads it"),
            notebook.table(table),
            *notebook.sentences((idle, *(f"note: {note}" for note in notes))),
        ]
    )


def fixes_html(text: str) -> str:
    """Changes of a trainer's own file, as the terminal has them: a diff and what each costs."""
    return notebook.fragment([notebook.preformatted(text)])


def diagnosis_html(source: str, message: str, found: Sequence[str], after: Sequence[str]) -> str:
    """Why a run ran out of memory, with elements that come ``after`` it."""
    return notebook.fragment([notebook.title(source), *notebook.sentences((message, *found)), *after])


def comparison_html(variants: "Sequence[Variant]") -> str:
    """Variants of a setup, a row each."""
    from vlmplan.answers.comparison import footnotes, heading, table

    elements = [notebook.title(heading(variants)), notebook.table(table(variants))]
    return notebook.fragment([*elements, *notebook.sentences(footnotes(variants))])

"""The report of an estimate, and the parts that every report on a plan shares."""

from collections.abc import Mapping, Sequence

from vlmplan.answers import modules
from vlmplan.answers.drawn import drawn
from vlmplan.answers.estimate import component_table, document
from vlmplan.engines.components import COMPONENT_NAMES
from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.tables import Table
from vlmplan.reports.elements import chart, folded, lines, paragraphs, preformatted, section, table, verdict
from vlmplan.reports.memory_picture import memory_picture
from vlmplan.reports.page import page
from vlmplan.units import count_text, duration_text, gib_text


def estimate_report(
    found: Estimate, notes: Sequence[str], *, hints: Sequence[str], command_text: str, more: str = ""
) -> str:
    """The file. ``hints``: what would help; ``command_text``: what asks for the same; ``more``: what the terminal
    shows besides, such as its scaling."""
    answer = drawn_estimate(found, notes)
    sections = [*setup_sections(answer, found, hints), besides(more), command_section(command_text)]
    model = found.workload.model.id
    return page(f"{model}: estimate", answer["heading"], filter(None, sections), {"estimate": answer})


def drawn_estimate(found: Estimate, notes: Sequence[str]) -> JsonDict:
    """What the charts of an estimate are drawn of."""
    return drawn(found, notes) | {"document": document(found, notes)}


def setup_sections(answer: JsonDict, found: Estimate, hints: Sequence[str]) -> list[str]:
    """Whether it fits, its memory and its time, each as chart and as tables, and what the terminal says in words."""
    return [
        section(
            "verdict",
            "Verdict",
            verdict(answer["document"]["verdict"], answer["verdict"]),
            paragraphs((*answer["cautions"], *hints)),
        ),
        memory_section(answer, found),
        time_section(answer["document"]),
        section("details", "In words", lines([f"setup: {answer['setup']}", *answer["lines"]])),
    ]


def memory_section(answer: JsonDict, found: Estimate, *, title: str = "Memory of the fullest GPU, by phase") -> str:
    """Bars and the same as tables."""
    return section(
        "memory",
        title,
        chart("memory", memory_picture(answer)),
        folded(
            "The same as tables",
            table(phase_table({phase["name"]: phase["components"] for phase in answer["phases"]}), "Memory by phase"),
            table(component_table(found), "The device at its fullest"),
        ),
        folded("By module", table(module_table(found), "Modules")),
    )


def module_table(found: Estimate) -> Table:
    """What each module takes: weights, whole and before they are sharded, and what it keeps for backward."""
    rows = [
        (
            row["module"],
            gib_text(row["bytes"]),
            gib_text(sum(row["kept"].values())),
            count_text(row["num_params"]),
            count_text(row["num_trained"]),
        )
        for row in modules.document(found)["modules"]
    ]
    titles = ("module", "weights, not sharded", "kept for backward", "parameters", "trained")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))


def phase_table(phases: Mapping[str, Mapping[str, int]]) -> Table:
    """What every phase holds at its peak, a column for each component that any has."""
    names = [name for name in COMPONENT_NAMES if any(parts.get(name) for parts in phases.values())]
    rows = [
        (phase, *(gib_text(parts.get(name, 0)) for name in names), gib_text(sum(parts.values())))
        for phase, parts in phases.items()
    ]
    titles = ("at the peak of", *(name.replace("_", " ") for name in names), "in all")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))


def time_section(document: JsonDict) -> str:
    """Seconds of a step by their parts."""
    parts, total = document["step_seconds_by_part"], document["step_seconds"]
    if not parts:
        return section("time", "Time of a step", paragraphs(["Not known for this hardware."]))
    fast, slow = document["step_seconds_range"]
    rows = [(name.replace("_", " "), duration_text(one), f"{one / total:.1%}") for name, one in parts.items() if one]
    rows.append(("a step", duration_text(total), "100.0%"))
    titles = ("part", "time", "share")
    shown = Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))
    limits = paragraphs([f"At best {duration_text(fast)}, at worst {duration_text(slow)}."])
    return section("time", "Time of a step", chart("time", table(shown, "Time of a step by its parts")), limits)


def said(identifier: str, title: str, texts: Sequence[str]) -> str:
    """A section of sentences; nothing without any."""
    return section(identifier, title, lines(texts)) if any(text.strip() for text in texts) else ""


def besides(text: str) -> str:
    """What is drawn for a terminal, as it is there; nothing where that is nothing."""
    return section("more", "Besides", preformatted(text, "besides")) if text.strip() else ""


def command_section(text: str) -> str:
    """The command line that asks for the same."""
    return section("command", "Asked with", preformatted(text, "command")) if text else ""

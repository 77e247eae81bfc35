"""The report of an advice: what single changes buy, the plan as it is, and each change beside it."""

from collections.abc import Iterator, Sequence

from vlmplan.answers.advice import Words, asked_text, base_lines, changes_table, note_lines, reason_lines, sentence
from vlmplan.proposals.advice import Advice
from vlmplan.reports.elements import lines, paragraphs, section, table
from vlmplan.reports.estimate import besides, command_section, drawn_estimate, said, setup_sections
from vlmplan.reports.page import page
from vlmplan.reports.plans import NamedPlan, drawn_plans, named_plan, plans_section


def advice_report(found: Advice, words: Words, *, hints: Sequence[str], command_text: str, more: str = "") -> str:
    """The file. Arguments are as of ``answers.advice.document`` and of ``estimate_report``."""
    plans = list(_plans(found))
    answer = None if found.base is None else drawn_estimate(found.base.estimate, ())
    sections = [
        section("advice", "Best change", paragraphs([sentence(found, words), *hints])),
        section("changes", "Each change by itself", table(changes_table(found), "Changes"), lines(reason_lines(found))),
        plans_section(plans),
        *([] if answer is None or found.base is None else setup_sections(answer, found.base.estimate, ())),
        said("base", "The plan as it is", list(base_lines(found))),
        said("assumed", "What is assumed", list(note_lines(found))),
        besides(more),
        command_section(command_text),
    ]
    data = {"plans": drawn_plans(plans)} | ({} if answer is None else {"estimate": answer})
    return page(f"{found.workload.model.id}: advice", asked_text(found), filter(None, sections), data)


def _plans(found: Advice) -> Iterator[NamedPlan]:
    """The plan as it is, and those with a change, the best first."""
    if found.base is not None:
        yield named_plan("now", found.base)
    for outcome in found.outcomes:
        if outcome.plan is not None:
            yield named_plan(outcome.change.name, outcome.plan)

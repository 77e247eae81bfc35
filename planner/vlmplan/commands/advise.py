"""What each single change of the best plan buys, for ``vlmplan advise`` and Python."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmplan.commands.data import OfData, described_data, of_search, print_of_data
from vlmplan.commands.day import today
from vlmplan.commands.waiting import Waiting, shown

if TYPE_CHECKING:
    from vlmplan.proposals.advice import Advice
    from vlmplan.request import Options, Request

    Words = Callable[[Options], str]
    """Changed options as the words of a command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An advice, and what the samples mean for the plan as it is."""

    found: "Advice"
    data: OfData | None


def answered(request: "Request", catalog_files: tuple[Path, ...], waiting: Waiting = nullcontext) -> Answer:
    """The advice on a request; one that names no objective has time where a budget is all that it limits."""
    from vlmplan.catalog import load_catalog
    from vlmplan.proposals.advice import advice
    from vlmplan.request import Objective
    from vlmplan.requested import searched_model

    wanted = request.search
    if wanted.objective is None:
        has_budget_alone = wanted.max_usd is not None and wanted.max_hours is None
        own = Objective.TIME if has_budget_alone else Objective.COST
        request = replace(request, search=replace(wanted, objective=own))
    catalog, model = load_catalog(catalog_files), searched_model(request)
    with shown(model, waiting):
        found = advice(request, catalog, model, today())
    return Answer(found=found, data=of_search(request, found.base))


def described(answer: Answer, command: "Callable[[Request], str]", words: "Words") -> dict[str, Any]:
    """The document of an answer."""
    from vlmplan.answers.advice import document
    from vlmplan.answers.to_fit import document as to_fit_json

    found = answer.found
    return document(found, words) | described_data(answer.data) | to_fit_json(found.way_out, command, found.as_of)


def report(answer: Answer, asked: str, command: "Callable[[Request], str]", words: "Words") -> str:
    """The page of an answer that was ``asked`` for with that command line."""
    from vlmplan.answers.to_fit import way_out_lines
    from vlmplan.render.captured import printed
    from vlmplan.reports import advice_report

    hints = way_out_lines(answer.found.way_out, command, answer.found.as_of)
    more = printed(lambda: print_of_data(answer.data))
    return advice_report(answer.found, words, hints=hints, command_text=asked, more=more)


def print_answer(answer: Answer, command: "Callable[[Request], str]", words: "Words") -> None:
    """What people see of an answer."""
    from vlmplan.answers.advice import print_advice
    from vlmplan.answers.to_fit import print_way_out

    print_advice(answer.found, words)
    print_of_data(answer.data)
    print_way_out(answer.found.way_out, command, answer.found.as_of)

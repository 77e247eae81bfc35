"""The best setup over many machines with what is shown beside it, for ``vlmplan recommend``, Python and the page."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmplan.commands.data import OfData, described_data, of_search, print_of_data
from vlmplan.commands.day import today
from vlmplan.commands.estimate import freezing_of
from vlmplan.commands.other_trainer import ForTrainer
from vlmplan.commands.other_trainer import document as made_for_json
from vlmplan.commands.waiting import Waiting, shown
from vlmplan.errors import InputError
from vlmplan.recipe.task_choices import Generation

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.freezing import Freezing
    from vlmplan.plan import Plan
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.rehearsal import Comparison
    from vlmplan.request import Request
    from vlmplan.search import Compared, RankedPlan, Recommendation


def compared(*, has_picture: bool, has_plot: bool = False) -> "Compared":
    """What is looked at: a picture tells methods apart, the plot of a terminal has at least a dot for each machine."""
    from vlmplan.search import Compared

    if has_picture:
        return Compared.METHODS
    return Compared.MACHINES if has_plot else Compared.NEEDED


class Answer(NamedTuple):
    """A recommendation with what was looked for besides."""

    found: "Recommendation"
    rehearsal: "Comparison | None"
    freezing: "Freezing | None"
    way_out: "WayOut | None"
    shows_pareto: bool
    data: OfData | None


def answered(
    request: "Request",
    catalog_files: tuple[Path, ...],
    *,
    compares: "Compared",
    shows_pareto: bool,
    rehearse: "Callable[[Plan, Estimate], Comparison] | None",
    waiting: Waiting = nullcontext,
) -> "Answer":
    """The search of a request with everything that is shown beside it; ``rehearse`` confirms the first plan,
    ``compares`` is of ``SearchQuery``."""
    from vlmplan.commands.to_fit import searched_way_out_of

    found = requested_recommendation(request, catalog_files, today(), compares, waiting)
    rehearsal = None
    if rehearse is not None:
        from vlmplan.proposals.confirmation import confirmed

        confirmation = confirmed(found, request.ds_config, rehearse)
        found, rehearsal = confirmation.found, confirmation.winner
    with shown(found.workload.model, waiting):
        way_out = searched_way_out_of(request, found, catalog_files)
    return Answer(
        found=found,
        rehearsal=rehearsal,
        freezing=freezing_of(found.plans[0].estimate, request) if found.plans else None,
        way_out=way_out,
        shows_pareto=shows_pareto,
        data=of_search(request, found.plans[0] if found.plans else None),
    )


def described(answer: Answer, command: "Callable[[Request], str]", made: ForTrainer | None = None) -> dict[str, Any]:
    """The document of an answer, with what is ``made`` for another trainer."""
    from vlmplan.answers import recommendation, to_fit
    from vlmplan.answers.estimate import freezing_json

    document = recommendation.document(answer.found, answer.rehearsal)
    document["freeze_vision"] = freezing_json(answer.freezing)
    if made is not None:
        document["made_for"] = made_for_json(made)
    return document | described_data(answer.data) | to_fit.document(answer.way_out, command, answer.found.as_of)


def print_answer(answer: Answer, lines: list[str], command: "Callable[[Request], str]") -> None:
    """What people see of an answer; ``lines`` say how to train the first plan."""
    from vlmplan.answers.estimate import freezing_hints
    from vlmplan.answers.recommendation import print_nothing_fits, print_recommendation
    from vlmplan.answers.to_fit import print_way_out
    from vlmplan.render.lines import say

    if not answer.found.plans:
        print_nothing_fits(answer.found)
        print_of_data(answer.data)
        print_way_out(answer.way_out, command, answer.found.as_of)
        return
    hints = freezing_hints(answer.freezing)
    print_recommendation(answer.found, answer.rehearsal, shows_pareto=answer.shows_pareto, hints=hints)
    print_of_data(answer.data)
    for line in ("", *lines):
        say(line)


def report(answer: Answer, asked: str, command: "Callable[[Request], str]") -> str:
    """The page of an answer that was ``asked`` for with that command line."""
    from vlmplan.answers.estimate import freezing_hints
    from vlmplan.answers.to_fit import way_out_lines
    from vlmplan.render.captured import printed
    from vlmplan.reports import recommendation_report

    hints = [f"hint: {hint}" for hint in freezing_hints(answer.freezing)]
    hints += way_out_lines(answer.way_out, command, answer.found.as_of)
    more = printed(lambda: print_of_data(answer.data))
    return recommendation_report(answer.found, hints=hints, command_text=asked, more=more)


def next_steps_of(found: "Recommendation", request: "Request", out: Path | None, *, force: bool) -> list[str]:
    """Write the winner's files where ``out`` says so; how to train it, in lines for the user."""
    if not found.plans:
        return []
    task = found.plans[0].estimate.recipe.task
    if task is not None and task.is_grpo and task.generation is not Generation.TRANSFORMERS:
        alone = f"--out writes what vlmplan launches, and --generation {task.generation.value} is planned alone"
        if out is None:
            return [alone]
        raise InputError(f"{alone}; leave --out off, or give --generation transformers")
    refused = _refused(found.plans[0].estimate, request)
    if out is None:
        return refused or ["add --out DIR to write plan.json, ds_config.json and launch.sh of the first plan"]
    from vlmplan.emit import inputs_text, is_for_skypilot, launch_text, sky_problem, write_files

    plan = plan_of(found.plans[0], request)
    written = write_files(plan, out, force=force)
    problem = sky_problem(plan) if is_for_skypilot(plan) else None
    started = [
        f"train with: bash {shlex.quote(str(out / 'launch.sh'))} {inputs_text(plan)} --output-dir DIR",
        f"which runs: {launch_text(plan, plan_path=str(out / 'plan.json'))}",
    ]
    return [
        f"written: {', '.join(str(path) for path in written)}",
        *(refused or started),
        *([] if problem is None else [f"no sky.yaml: {problem}"]),
        *_wheel_notes(written),
    ]


def _refused(estimate: "Estimate", request: "Request") -> list[str]:
    """Why ``vlmplan launch`` does not train what was estimated, and what does; nothing where it does."""
    from vlmplan.plan.task_problems import setup_problems
    from vlmplan.plan.unlaunched import recipe_problems, row_problems

    recipe, num_gpus = estimate.recipe, estimate.cluster.num_gpus
    task = recipe.task
    for_others = [*recipe_problems(recipe), *row_problems(recipe, estimate.workload.model)]
    refusals = for_others if task is None else [*setup_problems(recipe, task, num_gpus), *for_others]
    if not refusals:
        return []
    lines = [f"vlmplan launch refuses this plan: {refusals[0]}"]
    if not for_others:
        return lines
    if request.configured is None:
        return [*lines, "another trainer trains it: --for TRAINER --out DIR writes that trainer's own file"]
    from vlmplan.other_trainers.writing import tool_of_trainer

    trainer, path = request.configured.config.trainer, request.configured.path
    tool = tool_of_trainer(trainer)
    how = f"by {path} with the values above" if tool is None else f"--for {tool.value} --out DIR writes its own file"
    return [*lines, f"{trainer} trains it: {how}"]


def plan_of(ranked: "RankedPlan", request: "Request") -> "Plan":
    """What trains a plan of the search."""
    from vlmplan.plan import plan_from_estimate

    return plan_from_estimate(
        ranked.estimate,
        offer=ranked.offer,
        base=request.ds_config,
        usd=ranked.usd,
        save_every_steps=ranked.save_every_steps,
    )


def _wheel_notes(written: list[Path]) -> list[str]:
    """What is missing beside a sky.yaml where no wheel could be made."""
    from vlmplan.emit import SKY_FILE

    has_task, has_wheel = any(path.name == SKY_FILE for path in written), any(path.suffix == ".whl" for path in written)
    if not has_task or has_wheel:
        return []
    return ["sky.yaml needs a wheel of vlmplan beside it, which this copy cannot make: pip wheel --no-deps CHECKOUT"]


def requested_recommendation(
    request: "Request",
    catalog_files: tuple[Path, ...],
    on: date,
    compares: "Compared | None" = None,
    waiting: Waiting = nullcontext,
) -> "Recommendation":
    """The answer to a search; ``compares`` as in ``SearchQuery``, as there where it is left out.

    Raises InputError where no machine can run what is asked for, however much memory it has, as an estimate of it does.
    """
    from vlmplan.catalog import load_catalog
    from vlmplan.proposals.confirmation import searched
    from vlmplan.request import told_with_its_file
    from vlmplan.requested import searched_model
    from vlmplan.search.options import search_query

    with told_with_its_file(request):
        query = search_query(request, load_catalog(catalog_files), searched_model(request), on)
        query = query if compares is None else replace(query, compares=compares)
        with shown(query.workload.model, waiting):
            found = _in_words_of_file(searched(query), request)
        found.refuse_rules()
        return found


def refuse_without_prices(request: "Request", catalog_files: tuple[Path, ...], on: date) -> None:
    """Raise InputError for what is wrong with a search whatever machines cost, before anybody is asked for prices."""
    from vlmplan.catalog import load_catalog
    from vlmplan.request import SearchRequest, told_with_its_file
    from vlmplan.requested import searched_model
    from vlmplan.search.options import search_query

    limits = SearchRequest(max_usd=request.search.max_usd, max_hours=request.search.max_hours)
    with told_with_its_file(request):
        search_query(replace(request, search=limits), load_catalog(catalog_files), searched_model(request), on)


def _in_words_of_file(found: "Recommendation", request: "Request") -> "Recommendation":
    from vlmplan.request.setup import in_words_of_file

    config, given = request.ds_config, request.recipe.names
    rejected = [one._replace(reason=in_words_of_file(one.reason, config, given)) for one in found.rejected]
    return replace(found, rejected=tuple(rejected))

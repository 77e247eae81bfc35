"""What the functions do: the same calls as the commands of the command line, and their answers as results."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from vlmplan.answers import notebook
from vlmplan.api.arguments import command_values, in_words_of_python, options_of, request_of
from vlmplan.api.check_result import CheckResult, Configuration
from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.kinds import checked
from vlmplan.api.options import AdviseOptions, CheckOptions, EstimateOptions, File, Gpus, Model, RecommendOptions
from vlmplan.api.recommend_result import AdviseResult, RecommendResult
from vlmplan.cli import advise, check, estimate, recommend
from vlmplan.cli.of_data import OfData, print_of_data
from vlmplan.cli.options import document_text, today
from vlmplan.cli.to_fit import command_text
from vlmplan.errors import InputError
from vlmplan.plan import plan_from_estimate, plan_text
from vlmplan.render.captured import printed

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.rehearsal import Comparison
    from vlmplan.request import Request
    from vlmplan.search import RankedPlan

OneGpu = str | None
ManyGpus = Gpus | None
Parts = tuple[str, dict[str, Any]]
"""The document of a result as JSON, and what its attributes need besides."""


def estimated(model: Model | None, gpu: str | None, config: File | None, given: Mapping[str, Any]) -> EstimateResult:
    """``vlmplan.estimate``."""
    command = estimate.estimate
    with in_words_of_python(command):
        values = command_values(command, EstimateOptions, given)
        catalogs, lengths, scales = (values.pop(name) for name in ("catalog_files", "lengths", "scales"))
        request = request_of(model, config, {"gpu": checked("gpu", gpu, OneGpu), **values})
        answer = estimate.answered(request, catalogs, lengths, scales=scales)
        text_of = command_text(command, catalogs, order=("model", "gpu", "config", *values))
        return EstimateResult(*_estimate_parts(answer, request, text_of))


def recommended(
    model: Model | None, gpu: Gpus | None, config: File | None, given: Mapping[str, Any]
) -> RecommendResult:
    """``vlmplan.recommend``."""
    command = recommend.recommend
    with in_words_of_python(command):
        values = command_values(command, RecommendOptions, given)
        catalogs, shows_pareto, rehearses = (
            values.pop(name) for name in ("catalog_files", "shows_pareto", "rehearses")
        )
        request = request_of(model, config, {"gpu": checked("gpu", gpu, ManyGpus), **values})
        answer = recommend.answered(
            request,
            catalogs,
            compares_all=shows_pareto,
            shows_pareto=shows_pareto,
            rehearse=_rehearsed if rehearses else None,
        )
        text_of = command_text(command, catalogs, order=("model", "gpu", "config", *values))
        return RecommendResult(*_recommend_parts(answer, request, text_of))


def advised(model: Model | None, gpu: Gpus | None, config: File | None, given: Mapping[str, Any]) -> AdviseResult:
    """``vlmplan.advise``."""
    command = advise.advise
    with in_words_of_python(command):
        values = command_values(command, AdviseOptions, given)
        catalogs = values.pop("catalog_files")
        request = request_of(model, config, {"gpu": checked("gpu", gpu, ManyGpus), **values})
        answer = advise.answered(request, catalogs)
        found = answer.found
        text_of = advise.command_of(request, catalogs, order=("model", "gpu", "config", *values))
        document = advise.described(answer, text_of)
        after = [*_data_elements(answer.data), *notebook.way_out_elements(found.way_out, text_of, found.as_of)]
        more = {
            "text": printed(lambda: advise.print_answer(answer, text_of)),
            "html": notebook.advice_html(found, advise.words, after),
            "changes": list(map(document_text, document["changes"])),
            **_way_out(document, command),
        }
        return AdviseResult(document_text(document), more)


def checked_file(path: File, gpu: str | None, model: Model | None, given: Mapping[str, Any]) -> CheckResult:
    """``vlmplan.check``."""
    command = check.check
    with in_words_of_python(command):
        values = command_values(command, CheckOptions, given)
        catalogs = values.pop("catalog_files")
        request = request_of(model, _file(path), {"gpu": checked("gpu", gpu, OneGpu), **values})
        found = check.checked_of(request, catalogs)
        text_of = command_text(estimate.estimate, catalogs, order=("config", "model", "gpu", *values))
        reading = _reading_parts(request)
        inside = None if found.answer is None else _estimate_parts(found.answer, request, text_of)
        more = {
            "text": printed(lambda: check.print_check(found, text_of)),
            "html": reading[1]["html"] + ("" if inside is None else inside[1]["html"]),
            "config": reading,
            "estimate": inside,
        }
        return CheckResult(document_text(check.described_check(found, text_of)), more)


def configuration_of(path: File, gpu: str | None, model: Model | None) -> Configuration:
    """``vlmplan.read_config``."""
    with in_words_of_python(check.check):
        return Configuration(*_reading_parts(request_of(model, _file(path), {"gpu": checked("gpu", gpu, OneGpu)})))


def _file(path: File) -> File:
    """``path``, which may not be left out."""
    return checked("path", path, File)


def _rehearsed(plan: "Plan", found: "Estimate") -> "Comparison":
    """A rehearsal of which nobody is told meanwhile."""
    from vlmplan.rehearsal import rehearse

    return rehearse(plan, found)


# -- parts of results ------------------------------------------------------------------------------------------------


def _estimate_parts(answer: estimate.Answer, request: "Request", text_of: "Callable[[Request], str]") -> Parts:
    from vlmplan.answers.estimate import freezing_hints

    found, document = answer.estimate, estimate.described(answer, text_of)
    after = _data_elements(answer.data)
    if answer.scales:
        after.append(notebook.scaling_element(answer.scaling))
    after += notebook.way_out_elements(answer.way_out, text_of, today())
    more = {
        "text": printed(lambda: estimate.print_answer(answer, text_of)),
        "html": notebook.estimate_html(found, answer.hardware_notes, freezing_hints(answer.freezing), after),
        "command": text_of(request),
        **_facts(found),
        **_plan(lambda: plan_from_estimate(found, base=request.ds_config)),
        **_way_out(document, estimate.estimate),
    }
    return document_text(document), more


def _recommend_parts(answer: recommend.Answer, request: "Request", text_of: "Callable[[Request], str]") -> Parts:
    from vlmplan.answers.estimate import freezing_hints

    found, document = answer.found, recommend.described(answer, text_of)
    next_steps = recommend.next_steps_of(found, request, None, force=False)
    ranked = zip(document["plans"], found.plans, strict=True)
    after = [*_data_elements(answer.data), *notebook.way_out_elements(answer.way_out, text_of, found.as_of)]
    more = {
        "text": printed(lambda: recommend.print_answer(answer, next_steps, text_of)),
        "html": notebook.recommendation_html(answer.found, freezing_hints(answer.freezing), after),
        "plans": [_ranked_parts(plan_json, plan, request) for plan_json, plan in ranked],
        "rejected": list(map(document_text, document["rejected"])),
        **_way_out(document, recommend.recommend),
    }
    return document_text(document), more


def _ranked_parts(document: Mapping[str, Any], ranked: "RankedPlan", request: "Request") -> Parts:
    from vlmplan.answers.estimate import print_estimate

    found = ranked.estimate
    plan = _plan(lambda: recommend.plan_of(ranked, request))
    inside = {
        "text": printed(lambda: print_estimate(found)),
        "html": notebook.estimate_html(found, (), ()),
        "command": None,
        **_facts(found),
        **plan,
    }
    return document_text(document), {"estimate": (document_text(document["estimate"]), inside), **plan}


def _reading_parts(request: "Request") -> Parts:
    from vlmplan.answers.reading import document, print_reading

    assert request.configured is not None
    config, notes = request.configured.config, request.configured.notes[1:]
    keywords = _keywords(estimate.estimate)
    more = {
        "text": printed(lambda: print_reading(config, notes)),
        "html": notebook.reading_html(config, notes),
        "options": {keywords[name]: value for name, value in config.options.items()},
    }
    return document_text(document(config)), more


def _data_elements(found: OfData | None) -> list[str]:
    """The samples as the terminal has them; none without samples."""
    return [] if found is None else [notebook.as_printed(lambda: print_of_data(found))]


def _facts(found: "Estimate") -> dict[str, Any]:
    phases = [{**phase.as_json(), "components_at_peak": phase.peak.as_json()} for phase in found.timeline.phases]
    return {"phases": list(map(document_text, phases)), "num_steps": found.num_steps}


def _plan(make: "Callable[[], Plan]") -> dict[str, str | None]:
    """plan.json of a setup, or what is missing to run it."""
    try:
        with in_words_of_python(estimate.estimate):
            return {"plan": plan_text(make()), "no_plan": None}
    except InputError as error:
        return {"plan": None, "no_plan": str(error)}


def _way_out(document: Mapping[str, Any], command: click.Command) -> dict[str, Any]:
    to_fit, other = document["to_fit"], document["other_machine"]
    keywords = _keywords(command)
    options = {} if to_fit is None else {keywords[name]: value for name, value in to_fit["options"].items()}
    return {
        "to_fit": None if to_fit is None else (document_text(to_fit), {"options": options}),
        "other_machine": None if other is None else document_text(other),
    }


def _keywords(command: click.Command) -> dict[str, str]:
    """The keywords of a command's options by click's names."""
    return {str(option.name): name for name, option in options_of(command).items()}

"""The parts that results are made of: the document as JSON, and what attributes need besides, as texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from vlmplan.answers import notebook
from vlmplan.api.arguments import in_words_of_python, options_of
from vlmplan.cli.check import check_words
from vlmplan.cli.estimate import estimate as estimate_command
from vlmplan.cli.recommend import recommend as recommend_command
from vlmplan.commands import check, diagnose, estimate, recommend
from vlmplan.commands.data import OfData, print_of_data
from vlmplan.commands.day import today
from vlmplan.commands.document import document_text
from vlmplan.commands.fix import Fixed, described_fix, print_fixed
from vlmplan.commands.other_trainer import document as made_for_json
from vlmplan.commands.other_trainer import for_trainer, next_steps, trainer_texts
from vlmplan.errors import InputError
from vlmplan.plan import plan_from_estimate, plan_text
from vlmplan.render.captured import printed

if TYPE_CHECKING:
    from pathlib import Path

    from vlmplan.diagnosis import Diagnosis
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.proposals.comparison import Variant
    from vlmplan.proposals.fixes import Fix
    from vlmplan.request import Request
    from vlmplan.search import RankedPlan

    Command = Callable[[Request], str]
    Catalogs = tuple[Path, ...]

Parts = tuple[str, dict[str, Any]]
"""The document of a result as JSON, and what its attributes need besides."""


def estimate_parts(answer: estimate.Answer, request: "Request", text_of: "Command", catalogs: "Catalogs") -> Parts:
    """The parts of an ``EstimateResult``."""
    from vlmplan.answers.estimate import freezing_hints

    found, document = answer.estimate, estimate.described(answer, text_of)
    after = data_elements(answer.data)
    if answer.scales:
        after.append(notebook.scaling_element(answer.scaling))
    after += notebook.way_out_elements(answer.way_out, text_of, today())
    more = {
        "text": printed(lambda: estimate.print_answer(answer, text_of)),
        "html": notebook.estimate_html(found, answer.hardware_notes, freezing_hints(answer.freezing), after),
        "command": text_of(request),
        **_facts(found),
        **_startable(found, request, catalogs, lambda: plan_from_estimate(found, base=request.ds_config)),
        **way_out(document, estimate_command),
    }
    return document_text(document), more


def recommend_parts(answer: recommend.Answer, request: "Request", text_of: "Command", catalogs: "Catalogs") -> Parts:
    """The parts of a ``RecommendResult``."""
    from vlmplan.answers.estimate import freezing_hints

    found = answer.found
    made = None
    if found.plans:
        made = for_trainer(request, found.plans[0].estimate, catalogs, None, words=check_words, force=False)
    document = recommend.described(answer, text_of, made)
    steps = recommend.next_steps_of(found, request, None, force=False) if made is None else next_steps(made)
    ranked = zip(document["plans"], found.plans, strict=True)
    after = [*data_elements(answer.data), *notebook.way_out_elements(answer.way_out, text_of, found.as_of)]
    more = {
        "text": printed(lambda: recommend.print_answer(answer, steps, text_of)),
        "html": notebook.recommendation_html(answer.found, freezing_hints(answer.freezing), after),
        "plans": [_ranked_parts(plan_json, plan, request, catalogs) for plan_json, plan in ranked],
        "rejected": list(map(document_text, document["rejected"])),
        **way_out(document, recommend_command),
    }
    return document_text(document), more


def _ranked_parts(document: Mapping[str, Any], ranked: "RankedPlan", request: "Request", catalogs: "Catalogs") -> Parts:
    from vlmplan.answers.estimate import print_estimate

    found = ranked.estimate
    plan = _startable(found, request, catalogs, lambda: recommend.plan_of(ranked, request))
    inside = {
        "text": printed(lambda: print_estimate(found)),
        "html": notebook.estimate_html(found, (), ()),
        "command": None,
        **_facts(found),
        **plan,
    }
    return document_text(document), {"estimate": (document_text(document["estimate"]), inside), **plan}


def reading_parts(request: "Request") -> Parts:
    """The parts of a ``Configuration``: how a file of another trainer is read."""
    from vlmplan.answers.reading import document, print_reading

    assert request.configured is not None
    config, notes = request.configured.config, request.configured.notes[1:]
    keywords = _keywords(estimate_command)
    more = {
        "text": printed(lambda: print_reading(config, notes)),
        "html": notebook.reading_html(config, notes),
        "options": {keywords[name]: value for name, value in config.options.items()},
    }
    return document_text(document(config)), more


def data_elements(found: OfData | None) -> list[str]:
    """The samples as the terminal has them; none without samples."""
    return [] if found is None else [notebook.as_printed(lambda: print_of_data(found))]


def _facts(found: "Estimate") -> dict[str, Any]:
    phases = [{**phase.as_json(), "components_at_peak": phase.peak.as_json()} for phase in found.timeline.phases]
    return {"phases": list(map(document_text, phases)), "num_steps": found.num_steps}


def _startable(
    found: "Estimate", request: "Request", catalogs: "Catalogs", make: "Callable[[], Plan]"
) -> dict[str, Any]:
    """plan.json of a setup, or what is missing to run it; or the files of the trainer that it is made for."""
    made = for_trainer(request, found, catalogs, None, words=check_words, force=False)
    if made is not None:
        texts = {"made_for": document_text(made_for_json(made)), "files": trainer_texts(made, found)}
        return {"plan": None, "no_plan": f"planned for {made.title}, which takes its own files: write(folder)", **texts}
    return {**_plan(make), "made_for": None, "files": {}}


def _plan(make: "Callable[[], Plan]") -> dict[str, str | None]:
    """plan.json of a setup, or what is missing to run it."""
    try:
        with in_words_of_python(estimate_command):
            return {"plan": plan_text(make()), "no_plan": None}
    except InputError as error:
        return {"plan": None, "no_plan": str(error)}


def way_out(document: Mapping[str, Any], command: click.Command) -> dict[str, Any]:
    """What attributes need of the way out in a document."""
    keywords, other = _keywords(command), document["other_machine"]

    def changed(name: str) -> tuple[str, dict[str, Any]] | None:
        values = document[name]
        if values is None:
            return None
        options = {keywords[option]: value for option, value in values["options"].items()}
        return document_text(values), {"options": options}

    return {
        "to_fit": changed("to_fit"),
        "with_more_host": changed("with_more_host"),
        "other_machine": None if other is None else document_text(other),
    }


def _keywords(command: click.Command) -> dict[str, str]:
    """The keywords of a command's options by click's names."""
    return {str(option.name): name for name, option in options_of(command).items()}


def check_parts(checked: check.Checked, request: "Request", text_of: "Command", catalogs: "Catalogs") -> Parts:
    """The parts of a ``CheckResult``: a configuration and its estimate."""
    reading = reading_parts(request)
    inside = None if checked.answer is None else estimate_parts(checked.answer, request, text_of, catalogs)
    more = {
        "text": printed(lambda: check.print_check(checked, text_of)),
        "html": reading[1]["html"] + ("" if inside is None else inside[1]["html"]),
        "config": reading,
        "estimate": inside,
        "fixes": list[Parts](),
        "other_machine": None,
    }
    return document_text(check.described_check(checked, text_of)), more


def fixed_parts(fixed: Fixed, request: "Request", text_of: "Command", catalogs: "Catalogs") -> Parts:
    """The parts of a ``CheckResult`` with changes: a configuration, its estimate and the changes that help."""
    document = described_fix(fixed, text_of)
    text = printed(lambda: print_fixed(fixed, text_of))
    config, inside = reading_parts(request), estimate_parts(fixed.answer, request, text_of, catalogs)
    other = document["estimate"]["other_machine"]
    more = {
        "text": text,
        "html": notebook.fixes_html(text),
        "config": config,
        "estimate": inside,
        "fixes": [_fix_parts(*pair) for pair in zip(document["fix"], fixed.found.fixes, strict=True)],
        "other_machine": None if other is None else document_text(other),
    }
    return document_text(document), more


def _fix_parts(document: Mapping[str, Any], fix: "Fix") -> Parts:
    from vlmplan.answers.fix import changes_text

    main = fix.patch.files[0]
    more = {
        "title": changes_text(fix),
        "source": str(main.origin),
        "seen": main.before,
        "keys": document_text(asdict(fix.patch.keys)),
    }
    return document_text(document), more


def diagnosis_parts(found: "Diagnosis", text_of: "Command") -> Parts:
    """The parts of a ``DiagnoseResult``."""
    document = diagnose.described(found, text_of)
    planned = found.planned
    after = notebook.way_out_elements(None if planned is None else planned.way_out, text_of, today())
    more = {
        "text": printed(lambda: diagnose.print_found(found, text_of)),
        "html": notebook.diagnosis_html(document["source"], document["message"]["text"], document["sentences"], after),
        **way_out(document, estimate_command),
    }
    return document_text(document), more


def comparison_parts(
    name: str, variants: "Sequence[Variant]", request: "Request", text_of: "Command", catalogs: "Catalogs"
) -> Parts:
    """The parts of a ``CompareResult``: variants of a setup."""
    from vlmplan.answers import comparison

    document = comparison.document(name, variants)
    pairs = zip(document["variants"], variants, strict=True)
    more = {
        "text": printed(lambda: comparison.print_comparison(variants)),
        "html": notebook.comparison_html(variants),
        "variants": [_variant_parts(one, variant, request, text_of, catalogs) for one, variant in pairs],
    }
    return document_text(document), more


def _variant_parts(
    document: Mapping[str, Any], variant: "Variant", request: "Request", text_of: "Command", catalogs: "Catalogs"
) -> Parts:
    keywords = _keywords(estimate_command)
    inside = None
    if variant.estimate is not None:
        answer = estimate.Answer(
            estimate=variant.estimate, hardware_notes=[], freezing=None, way_out=None, scales=False, scaling=None
        )
        inside = estimate_parts(answer, request.with_options(variant.options), text_of, catalogs)
    options = {keywords[name]: value for name, value in variant.options.items()}
    return document_text(document), {"options": options, "estimate": inside}

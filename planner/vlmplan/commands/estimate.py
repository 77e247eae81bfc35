"""The estimate of a setup with what is shown beside it, for ``vlmplan estimate``, Python and the page."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmplan.commands.data import OfData, described_data, of_estimate, print_of_data
from vlmplan.commands.day import today

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.freezing import Freezing
    from vlmplan.proposals.fixes import Fix
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.request import Request
    from vlmplan.scaling import Scaling


class Answer(NamedTuple):
    """An estimate with what was looked for besides. ``scales``: its scaling is asked for, which may not be known."""

    estimate: "Estimate"
    hardware_notes: list[str]
    freezing: "Freezing | None"
    way_out: "WayOut | None"
    scales: bool
    scaling: "Scaling | None"
    data: "OfData | None" = None


def answered(request: "Request", catalog_files: tuple[Path, ...], lengths: str | None, *, scales: bool) -> Answer:
    """The estimate of a request with everything that is shown beside it."""
    from vlmplan.commands.to_fit import found_way_out

    answer = only_estimated(request, catalog_files)
    corrected = None if lengths is None else of_sample_lengths(lengths)
    result = answer.estimate if corrected is None else corrected(answer.estimate)
    return answer._replace(
        estimate=result,
        freezing=freezing_of(result, request, corrected),
        way_out=found_way_out(request, result, catalog_files, corrected=corrected),
        scales=scales,
        scaling=scaling_of(result, catalog_files, chooses_sizes=request.ds_config is None) if scales else None,
        data=of_estimate(request, result),
    )


def of_sample_lengths(lengths: str) -> "Callable[[Estimate], Estimate]":
    """What makes of an estimate that of samples whose lengths are as ``--sample-lengths`` says."""
    from vlmplan.sample_lengths import sample_lengths, with_sample_lengths

    return lambda found: with_sample_lengths(found, sample_lengths(lengths, found.workload))


def only_estimated(request: "Request", catalog_files: tuple[Path, ...]) -> Answer:
    """The estimate of a request, and nothing beside it."""
    from vlmplan.requested import requested_estimate

    result, notes = requested_estimate(request, catalog_files)
    return Answer(estimate=result, hardware_notes=notes, freezing=None, way_out=None, scales=False, scaling=None)


def described(answer: Answer, command: "Callable[[Request], str]") -> dict[str, Any]:
    """The document of an answer."""
    from vlmplan.answers import estimate, scaling, to_fit

    document = estimate.document(answer.estimate, answer.hardware_notes)
    document["reserved_with_room_bytes"] = answer.estimate.reserved_with_room_bytes
    document["freeze_vision"] = estimate.freezing_json(answer.freezing)
    document |= described_data(answer.data)
    if answer.scales:
        document["scaling"] = scaling.document(answer.scaling)
    return document | to_fit.document(answer.way_out, command, today())


def report(answer: Answer, asked: str, command: "Callable[[Request], str]") -> str:
    """The page of an answer that was ``asked`` for with that command line."""
    from vlmplan.reports import estimate_report

    return estimate_report(
        answer.estimate,
        answer.hardware_notes,
        hints=hint_lines(answer, command),
        command_text=asked,
        more=printed_besides(answer),
    )


def hint_lines(answer: Answer, command: "Callable[[Request], str]", fix: "Fix | None" = None) -> list[str]:
    """What would help, in sentences and commands; ``fix``: as a change of a trainer's file."""
    from vlmplan.answers.estimate import freezing_hints
    from vlmplan.answers.to_fit import way_out_lines

    hints = (*answer.estimate.hints, *freezing_hints(answer.freezing))
    return [*(f"hint: {hint}" for hint in hints), *way_out_lines(answer.way_out, command, today(), fix)]


def printed_besides(answer: Answer) -> str:
    """What a terminal shows of the data and of more machines."""
    from vlmplan.render.captured import printed

    def show() -> None:
        print_of_data(answer.data)
        if answer.scales:
            from vlmplan.answers.scaling import print_scaling

            print_scaling(answer.scaling)

    return printed(show)


def print_answer(answer: Answer, command: "Callable[[Request], str]", fix: "Fix | None" = None) -> None:
    """What people see of an answer; ``fix``: what makes it fit as a change of a trainer's file."""
    from vlmplan.answers.estimate import freezing_hints, print_estimate
    from vlmplan.answers.to_fit import print_way_out

    print_estimate(answer.estimate, answer.hardware_notes, freezing_hints(answer.freezing))
    print_of_data(answer.data)
    if answer.scales:
        from vlmplan.answers.scaling import print_scaling

        print_scaling(answer.scaling)
    print_way_out(answer.way_out, command, today(), fix)


def freezing_of(
    result: "Estimate", request: "Request", corrected: "Callable[[Estimate], Estimate] | None" = None
) -> "Freezing | None":
    """What --freeze-vision would bring, if that is much and the user has not decided; ``corrected`` makes of an
    estimate what ``result`` is."""
    from vlmplan.freezing import freezing

    if request.recipe.train_vision is not None:
        return None
    found = freezing(result, chooses_sizes=request.ds_config is None, corrected=corrected)
    if found is not None and request.made_for is not None:
        from vlmplan.other_trainers.writing import objection

        return None if objection(request.made_for, found.frozen.recipe, result.workload.model) else found
    return found


def scaling_of(result: "Estimate", catalog_files: tuple[Path, ...], *, chooses_sizes: bool) -> "Scaling | None":
    """The estimated setup on other numbers of its machine, at the cheapest current price of one; None if a speed is not
    known. ``chooses_sizes``: no ds_config says those of ZeRO."""
    from vlmplan.catalog import load_catalog
    from vlmplan.estimation import Estimator
    from vlmplan.scaling import scaling
    from vlmplan.search.offers import cheapest_of_node

    offer = cheapest_of_node(result.cluster.node, load_catalog(catalog_files), today())
    estimator = Estimator(result.workload, result.recipe)
    price = None if offer is None else offer.usd_per_hour
    return scaling(estimator, result.recipe, result.cluster, usd_per_hour=price, chooses_sizes=chooses_sizes)

"""What the samples of ``--data`` mean for a setup that was found, as commands show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmplan.data_plan import DataSource
    from vlmplan.data_plan.options import Largest, Option
    from vlmplan.data_plan.outlook import Outlook
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class OfData:
    """The samples, and the run of an ``estimate`` on them, which is None where nothing fits. ``options`` are what else
    could be done with them; a search tries others itself, and has no ``largest``."""

    source: "DataSource"
    estimate: "Estimate | None" = None
    outlook: "Outlook | None" = None
    options: "Sequence[Option]" = ()
    largest: "Largest | None" = None


def of_estimate(request: "Request", result: "Estimate") -> OfData | None:
    """The run on the request's samples, and what else could be done with them; None without samples."""
    if request.from_data is None:
        return None
    from vlmplan.data_plan.options import data_options, largest_that_fit
    from vlmplan.data_plan.outlook import Outlooks
    from vlmplan.estimation import Estimator

    source = request.from_data.source
    estimator = Estimator(result.workload, result.recipe)
    outlooks = Outlooks(result, source, estimator=estimator)
    outlook = outlooks.of(source)
    return OfData(
        source=source,
        estimate=result,
        outlook=outlook,
        options=data_options(outlooks, source),
        largest=largest_that_fit(result, estimator, outlooks, outlook.bound),
    )


def of_search(request: "Request", best: "Estimate | None") -> OfData | None:
    """The run of the best setup that a search found on the request's samples; None without samples."""
    samples = of_samples(request)
    if samples is None or best is None:
        return samples
    from vlmplan.data_plan.outlook import Outlooks

    source = samples.source
    return OfData(source=source, estimate=best, outlook=Outlooks(best, source).of(source))


def of_samples(request: "Request") -> OfData | None:
    """The request's samples alone; None without any."""
    return None if request.from_data is None else OfData(source=request.from_data.source)


def described_data(found: OfData | None) -> dict[str, Any]:
    """The key ``data`` of a document; empty without samples."""
    if found is None:
        return {}
    from vlmplan.answers import data, data_outlook

    document = data.document(found.source)
    if found.outlook is not None:
        document |= data_outlook.document(found.outlook)
    if found.largest is not None:
        document |= data_outlook.options_document(found.options, found.largest)
    return {"data": document}


def print_of_data(found: OfData | None) -> None:
    """What people see of it, after an empty line."""
    if found is None:
        return
    import click

    from vlmplan.answers.data import print_data
    from vlmplan.answers.data_outlook import print_options, print_outlook

    click.echo()
    print_data(found.source)
    if found.estimate is None or found.outlook is None:
        return
    print_outlook(found.estimate, found.source, found.outlook, is_of_search=found.largest is None)
    if found.largest is not None:
        print_options(found.source, found.outlook, found.options, found.largest)

"""What the samples of ``--data`` mean for a setup that was found, as commands show it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmplan.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from vlmplan.data_plan import DataSource
    from vlmplan.data_plan.data_run import DataRun
    from vlmplan.data_plan.options import Largest, Option
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request
    from vlmplan.search import RankedPlan


class OfData(NamedTuple):
    """The samples, and the run of an ``estimate`` on them, which is None where nothing fits. ``options`` are what else
    could be done with them; a search tries others itself, and has no ``largest``, but a ``plan`` with its price."""

    source: "DataSource"
    estimate: "Estimate | None" = None
    data_run: "DataRun | None" = None
    options: "Sequence[Option]" = ()
    largest: "Largest | None" = None
    plan: "RankedPlan | None" = None

    @property
    def run_usd(self) -> float | None:
        """What the run on these samples costs, None where no price is known."""
        seconds = None if self.data_run is None else self.data_run.run_seconds
        cost = None if self.plan is None or seconds is None else self.plan.cost_of(seconds / SECONDS_PER_HOUR)
        return None if cost is None else cost.usd


def of_estimate(request: "Request", result: "Estimate") -> OfData | None:
    """The run on the request's samples, and what else could be done with them; None without samples."""
    if request.from_data is None:
        return None
    from vlmplan.data_plan.data_run import DataRuns
    from vlmplan.data_plan.options import data_options, largest_that_fit
    from vlmplan.estimation import Estimator

    source = request.from_data.source
    estimator = Estimator(result.workload, result.recipe)
    data_runs = DataRuns(result, source, estimator=estimator)
    data_run = data_runs.of(source)
    return OfData(
        source=source,
        estimate=result,
        data_run=data_run,
        options=data_options(data_runs, source),
        largest=largest_that_fit(result, estimator, data_runs, data_run.bound),
    )


def of_search(request: "Request", best: "RankedPlan | None") -> OfData | None:
    """The run of the best setup that a search found on the request's samples; None without samples."""
    samples = of_samples(request)
    if samples is None or best is None:
        return samples
    from vlmplan.data_plan.data_run import DataRuns

    source, estimate = samples.source, best.estimate
    return OfData(source=source, estimate=estimate, data_run=DataRuns(estimate, source).of(source), plan=best)


def of_samples(request: "Request") -> OfData | None:
    """The request's samples alone; None without any."""
    return None if request.from_data is None else OfData(source=request.from_data.source)


def described_data(found: OfData | None) -> dict[str, Any]:
    """The key ``data`` of a document; empty without samples."""
    if found is None:
        return {}
    from vlmplan.answers import data, data_run

    document = data.document(found.source)
    if found.data_run is not None:
        document |= data_run.document(found.data_run)
    if found.plan is not None:
        document["run_usd"] = found.run_usd
    if found.largest is not None:
        document |= data_run.options_document(found.options, found.largest)
    return {"data": document}


def print_of_data(found: OfData | None) -> None:
    """What people see of it, after an empty line."""
    if found is None:
        return
    import click

    from vlmplan.answers.data import print_data
    from vlmplan.answers.data_run import print_data_run, print_options

    click.echo()
    print_data(found.source)
    if found.estimate is None or found.data_run is None:
        return
    is_of_search = found.largest is None
    print_data_run(found.estimate, found.source, found.data_run, is_of_search=is_of_search, run_usd=found.run_usd)
    if found.largest is not None:
        print_options(found.source, found.data_run, found.options, found.largest)

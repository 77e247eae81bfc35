"""From a plan to the comparison of its rehearsal with its estimate."""

from collections.abc import Callable

from vlmplan.estimation import Estimate
from vlmplan.plan import Plan
from vlmplan.rehearsal.comparison import Comparison, compared
from vlmplan.rehearsal.process import run_rehearsal
from vlmplan.rehearsal.request import request_json


def rehearse(
    plan: Plan,
    estimate: Estimate,
    *,
    rank: int | None = None,
    num_steps: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Rehearse ``plan``, whose estimate is ``estimate``; ``say`` gets the name of every phase when it begins.

    ``rank``: None for the one that the estimate describes, whose peak is the highest. Raises InputError for a rank or
    number of steps that cannot be, MissingPackageError where the trainer's packages are not installed, UnavailableError
    where the rehearsal dies.
    """
    if rank is None:
        rank = estimate.timeline.rank
    request = request_json(plan, estimate, rank=rank, num_steps=num_steps)
    return compared(run_rehearsal(request, plan, say=say), estimate)

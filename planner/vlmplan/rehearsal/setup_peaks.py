"""Peaks of setups from rehearsals of them: what is added where a model has no family to know them from."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate
from vlmplan.plan import plan_from_estimate

if TYPE_CHECKING:
    from vlmplan.files.json_reader import JsonDict
    from vlmplan.plan import Plan
    from vlmplan.rehearsal.result import Rehearsed

Peaks = Mapping[str, tuple[int, int]]
"""(resident, peak) bytes of a later step by phase."""
Rehearse = Callable[[Estimate, int | None], Peaks]
"""Of the setup of an estimate, in so many operations at most."""


class Setup(NamedTuple):
    """The setup of an estimate, to be rehearsed in so many operations at most."""

    estimate: Estimate
    most_operations: int | None = None


RehearseAll = Callable[[Sequence[Setup], Callable[[str], None]], Sequence[Peaks | VlmplanError]]
"""The peaks of each setup or why there are none, saying which of them begins."""


def rehearsed_peaks(short: Estimate, most_operations: int | None = None) -> Peaks:
    """What is alive behind each phase of a later step, and its peak or that of the first step, whichever is higher:
    a loss that is tried in vain is computed twice the first time. Library workspaces are included, as in estimates.

    Raises LongRehearsalError with more than ``most_operations``, and what ``run_rehearsal`` does.
    """
    (found,) = peaks_together([Setup(short, most_operations)], lambda text: None)
    if isinstance(found, VlmplanError):
        raise found
    return found


def peaks_together(setups: Sequence[Setup], say: Callable[[str], None]) -> list[Peaks | VlmplanError]:
    """``rehearsed_peaks`` of each setup, or what it raises; ``say`` gets which of how many begins."""
    from vlmplan.rehearsal.together import Asked, run_together

    asked: dict[int, Asked] = {}
    peaks: dict[int, Peaks | VlmplanError] = {}
    for place, setup in enumerate(setups):
        try:
            asked[place] = Asked(*_request(setup))
        except VlmplanError as error:
            peaks[place] = error
    for place, rehearsed in zip(asked, run_together(list(asked.values()), say), strict=True):
        is_error = isinstance(rehearsed, VlmplanError)
        peaks[place] = rehearsed if is_error else _peaks(rehearsed, setups[place].estimate)
    return [peaks[place] for place in range(len(setups))]


def _request(setup: Setup) -> "tuple[JsonDict, Plan]":
    from vlmplan.rehearsal.request import LEAST_STEPS, generating_step, request_json

    plan = plan_from_estimate(setup.estimate)
    request = request_json(plan, setup.estimate, rank=setup.estimate.timeline.rank)
    request["num_steps"] = generating_step(plan.recipe, LEAST_STEPS - 1)  # nobody asks what is alive at a peak
    if setup.most_operations is not None:
        request["most_operations"] = setup.most_operations
    return request, plan


def _peaks(rehearsed: "Rehearsed", estimate: Estimate) -> Peaks:
    from vlmplan.rehearsal.comparison import compared

    peaks: dict[str, tuple[int, int]] = {}
    for phase in compared(rehearsed, estimate).phases:
        first = 0 if phase.first_step is None else phase.first_step.peak_bytes
        peaks[phase.name] = phase.rehearsed.resident_bytes, max(first, phase.rehearsed.peak_bytes)
    return peaks

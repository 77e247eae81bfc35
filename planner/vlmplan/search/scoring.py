"""What a setup on an offer's machine takes: which of the machines it is, hours and USD."""

from vlmplan.cost import CostAssumptions
from vlmplan.hardware import Cluster, Offer
from vlmplan.search.answer import Objective, cost_of_run
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import ScoredSetup
from vlmplan.search.setup_records import BoundedSetup
from vlmplan.search.setups import SetupSpace
from vlmplan.units import SECONDS_PER_HOUR


class Scorer:
    """Hours and cost of the setups of one search, by what it assumes of a run."""

    def __init__(self, space: SetupSpace, objective: Objective, assumed: CostAssumptions) -> None:
        self._space, self._objective, self._assumed = space, objective, assumed
        self._machines: dict[tuple[int, int], Cluster] = {}

    def machine(self, candidate: Candidate, num_bytes: int, resume_bytes: int) -> tuple[Cluster, Offer | None] | None:
        """The cheapest with ``num_bytes`` of host memory, and ``resume_bytes`` where it may be taken away; each is one
        object."""
        found = candidate.with_host_bytes(num_bytes, resume_bytes)
        if found is None:
            return None
        cluster, offer = found
        if offer is None or offer is candidate.offers[0]:
            return candidate.cluster, offer
        return self._machines.setdefault((id(candidate), id(offer)), cluster), offer

    def score(self, candidate: Candidate, cluster: Cluster, offer: Offer | None, setup: BoundedSetup) -> ScoredSetup:
        """The setup on the candidate's machine, by what it takes."""
        seconds = self._space.run_seconds(setup, cluster)
        hours, usd = self.hours_and_usd(seconds, cluster, offer, setup)
        is_measured = setup.fits and self._objective is not Objective.VRAM
        return ScoredSetup(candidate, cluster, offer, setup, hours, usd, is_measured=is_measured)

    def hours_and_usd(
        self, seconds: float | None, cluster: Cluster, offer: Offer | None, setup: BoundedSetup
    ) -> tuple[float | None, float | None]:
        """(hours, usd) of a run of ``seconds``; None where a speed or a price is not known."""
        hours = None if seconds is None else seconds / SECONDS_PER_HOUR
        cost = cost_of_run(hours, offer, cluster, self._space.models.disk(setup.recipe), self._assumed)
        return hours, None if cost is None else cost.usd

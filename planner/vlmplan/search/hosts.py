"""Which of a candidate's machines has the host memory for a setup, and what is known to be short where none has."""

from collections.abc import Iterable

from vlmplan.hardware import Cluster, Offer
from vlmplan.recipe import Recipe
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import ScoredSetup
from vlmplan.search.scoring import Scorer
from vlmplan.search.setup_records import BoundedSetup
from vlmplan.search.setups import SetupSpace


class Hosts:
    """Host memory of the machines of all candidates, and the least that each is known to lack."""

    def __init__(self, space: SetupSpace, scorer: Scorer) -> None:
        self._space, self._scorer = space, scorer
        self._short: dict[int, int] = {}  # by candidate

    def short_bytes(self, candidate: Candidate) -> int | None:
        """The least host memory that a setup needed and no machine had; None where nothing was short."""
        return self._short.get(id(candidate))

    def machine(self, candidate: Candidate, recipe: Recipe) -> tuple[Cluster, Offer | None] | None:
        """The cheapest of the candidate's machines that has the host memory, None if none has."""
        return self._scorer.machine(candidate, *self._needed(candidate, recipe))

    def is_short_of_less(self, candidate: Candidate, recipe: Recipe) -> bool:
        """Whether no machine has the host memory, and it is less than what is known to be short."""
        num_bytes, known = max(self._needed(candidate, recipe)), self.short_bytes(candidate)
        return (known is None or num_bytes < known) and self.machine(candidate, recipe) is None

    def tells_nothing_new(self, candidate: Candidate, recipe: Recipe) -> bool:
        """Whether no machine has the host memory, and less is known to be short."""
        return self.machine(candidate, recipe) is None and not self.is_short_of_less(candidate, recipe)

    def scored(self, candidate: Candidate, setups: Iterable[BoundedSetup]) -> list[ScoredSetup]:
        """The setups that one of the candidate's machines has enough host memory for; where inputs of layers wait
        there, with a micro batch for which it has."""
        scored: list[ScoredSetup] = []
        for setup in setups:
            machine = self.machine(candidate, setup.recipe)
            while machine is None and setup.recipe.offload_activations:
                smaller = self._space.smaller(setup, candidate.cluster)
                if smaller is None:
                    break
                setup, machine = smaller, self.machine(candidate, smaller.recipe)
            if machine is not None:
                scored.append(self._scorer.score(candidate, *machine, setup))
                continue
            num_bytes = max(self._needed(candidate, setup.recipe))
            known = self._short.setdefault(id(candidate), num_bytes)
            self._short[id(candidate)] = min(known, num_bytes)
        return scored

    def _needed(self, candidate: Candidate, recipe: Recipe) -> tuple[int, int]:
        """Bytes on each node's host, and for going on from a checkpoint on machines that may be taken away."""
        models = self._space.models
        host_bytes = models.host_bytes(recipe, candidate.cluster)
        if not candidate.may_be_taken_away:
            return host_bytes, 0
        return host_bytes, models.resume_host_bytes(recipe, candidate.cluster)

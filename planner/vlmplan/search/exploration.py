"""What the methods can reach on the machines of a search: floors at first, then the setups that fit by their bounds.

Floors of seconds and of memory say what a method could reach on a machine. One more look at the most promising finds
its ways to compute a micro batch, one more the setups of these that fit one of the candidate's machines, or may.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from vlmplan.recipe.choices import Method
from vlmplan.search.answer import Limits, Objective, SearchQuery, cost_of_run
from vlmplan.search.choices import Engine
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import ScoredSetup, UnexploredMethod, shown_bytes
from vlmplan.search.hosts import Hosts
from vlmplan.search.scoring import Scorer
from vlmplan.search.setup_records import BoundedSetup, RecipeCandidate
from vlmplan.search.setups import SetupSpace
from vlmplan.search.shared_traces import SharedTraces
from vlmplan.units import SECONDS_PER_HOUR
from vlmplan.workload import DEFAULT_GLOBAL_BATCH

NOTICEABLE_FRACTION = 0.005
"""Part by which a setup has to be better before it is worth finding out exactly whether it fits. A choice: seconds are
less certain."""
EQUAL_FRACTION = 0.002
"""Part by which two engines' time and money may differ and the simpler one is taken. A choice."""
SECANT_FRACTION = 0.005
"""By how much hours and price of a setup may fall when it is computed exactly: what is scored above a limit by less is
looked at. A choice, well above what secants were seen to miss."""


class Exploration:
    """The setups that are known to be ``within`` the limits, and the methods that are still ``open``, not explored yet.

    ``over_limits`` are, by candidate, the setups and methods that are over them.
    """

    def __init__(self, query: SearchQuery, shared: SharedTraces) -> None:
        """``shared``: traces of other searches of the same workload."""
        self._objective, self._limits, self._assumed = query.objective, query.limits, query.assumed
        global_batch = query.workload.global_batch or DEFAULT_GLOBAL_BATCH
        self.space = SetupSpace(
            query.workload,
            query.fixed,
            global_batch,
            shared=shared,
            made_for=query.made_for,
            grows_on_several=query.grows_on_several,
            gpu_counts={candidate.cluster.num_gpus for candidate in query.candidates} or (1,),
        )
        self._is_alone = len(query.candidates) == 1
        tried = self.space.choices.methods
        self._methods = [method for method in tried if query.methods is None or method in query.methods]
        self.within: list[ScoredSetup] = []
        self.open: list[UnexploredMethod] = []
        self.over_limits: dict[int, list[ScoredSetup | UnexploredMethod]] = {}
        self.scorer = Scorer(self.space, self._objective, self._assumed)
        self.hosts = Hosts(self.space, self.scorer)

    def consider(self, candidate: Candidate) -> None:
        """Note what the methods could reach on the candidate. By bytes the slow ones may come first: limits are held to
        the floors of all ways then. Where there is one candidate every method is looked at in any case, and a floor of
        its seconds, which takes traces, is of no use."""
        asks_ways = self._objective is Objective.VRAM and self._limits != Limits()
        for method in self._methods:
            if not self.space.choices.engines(candidate.cluster, method):
                continue
            seconds = 0.0 if self._is_alone else self.space.least_seconds(candidate.cluster, method)
            entry = self._unexplored(candidate, method, seconds)
            self.open.append(entry)
            if asks_ways or not self.is_within_limits(entry):
                self._with_ways(entry)

    def may_hold(self, candidate: Candidate, method: Method) -> bool:
        """Whether the GPUs have room for the model states of some engine of the method, and one of the candidate's
        machines for what that keeps on the host: without either there is no setup, however small a micro batch."""
        cluster = candidate.cluster
        return any(
            self.space.room_beside_states(engine, cluster) is not None
            and any(self.hosts.machine(candidate, recipe) for recipe in self.space.of_any_host(engine[0], cluster))
            for engine in self.space.choices.engines(cluster, method)
        )

    def may_fit(self, candidate: Candidate) -> bool:
        """Whether a method has room for the smallest micro batch with all its checkpoints, too: without it ``ways`` has
        none. Nothing else is traced."""
        cluster = candidate.cluster
        return any(self.may_hold(candidate, one) and self.space.has_room(cluster, one) for one in self._methods)

    def _with_ways(self, entry: UnexploredMethod) -> UnexploredMethod | None:
        """The entry with its ways; None where it has none, or none within the limits."""
        self.open.remove(entry)
        candidate = entry.candidate
        ways = self.space.ways(candidate.cluster, entry.method)
        if not ways:
            return None
        known = self._unexplored(candidate, entry.method, ways[0].least_seconds, ways, entry.device_bytes)
        if not self.is_within_limits(known):
            self.over_limits.setdefault(id(candidate), []).append(known)
            return None
        self.open.append(known)
        return known

    def _unexplored(
        self,
        candidate: Candidate,
        method: Method,
        seconds: float,
        ways: list[RecipeCandidate] | None = None,
        device_bytes: int | None = None,
    ) -> UnexploredMethod:
        cluster = candidate.cluster
        hours = seconds / SECONDS_PER_HOUR
        offer = candidate.offers[0] if candidate.offers else None
        cost = cost_of_run(hours, offer, cluster, self.space.least_disk(cluster, method), self._assumed)
        if device_bytes is None:
            num_bytes = self.space.floor_bytes(cluster, method) if self._objective is Objective.VRAM else 0
            device_bytes = shown_bytes(num_bytes, cluster)
        usd = None if cost is None else cost.usd
        return UnexploredMethod(candidate, method, ways, hours, usd, device_bytes)

    def next_of(self, entry: UnexploredMethod) -> Sequence[ScoredSetup | UnexploredMethod]:
        """What is known of a method after one more look: its ways, then its setups."""
        if entry.ways is not None:
            return self._explored(entry, entry.ways)
        known = self._with_ways(entry)
        return [] if known is None else [known]

    def _explored(self, entry: UnexploredMethod, ways: list[RecipeCandidate]) -> list[ScoredSetup]:
        """The setups of a method that fit one of the candidate's machines, or may.

        Where none does by its bound, those that take least memory are computed exactly: others are worth a look only if
        one of them fits.
        """
        self.open.remove(entry)
        candidate, method = entry.candidate, entry.method
        cluster = candidate.cluster
        if self._objective is Objective.VRAM:
            found = self.hosts.scored(candidate, self.space.smallest(cluster, method))
        else:
            found = self._of_least_seconds(candidate, ways)
            if not any(one.setup.fits for one in found):
                fitting = self._fitting_lightest(candidate, method)
                found = self._simplest([*fitting, *found]) if fitting else []
        within = self._only_within_limits(found)
        if found and not within:
            self.over_limits.setdefault(id(candidate), []).extend(found)
        self.within += within
        return within

    def _fitting_lightest(self, candidate: Candidate, method: Method) -> list[ScoredSetup]:
        """What takes least memory, where it fits; not looked at where hosts are known to be short of less."""
        attempts = self.space.possible_lightest(candidate.cluster, method)
        if all(self.hosts.tells_nothing_new(candidate, setup.recipe) for setup in attempts):
            return []
        lightest = self.space.first_fitting(attempts, candidate.cluster)
        return [] if lightest is None else self.hosts.scored(candidate, [lightest])

    def _of_least_seconds(self, candidate: Candidate, ways: list[RecipeCandidate]) -> list[ScoredSetup]:
        """The fastest setups that fit, and faster ones that may, unless another is faster and cheaper than they can
        be.

        Without expandable segments everything stays: what fits may still be more than the allocator can place.
        """
        cluster = candidate.cluster
        is_exact = ways[0].recipe.expandable_segments
        best: dict[int, ScoredSetup] = {}  # by machine
        limits: dict[int, float] = {}  # by engine, as long as ``best`` stays

        def below(way: RecipeCandidate) -> float:
            if id(way.engine) not in limits:
                limits[id(way.engine)] = self._beaten_hours(candidate, best, way.engine) * SECONDS_PER_HOUR
            return limits[id(way.engine)]

        found: list[ScoredSetup] = []
        for setup in self.space.fastest(ways, cluster, below if is_exact else lambda _: inf):
            scored = self.hosts.scored(candidate, [setup])
            if not scored:
                limits.clear()  # less may be known to be short
            for entry in scored:
                found.append(entry)
                known = best.get(id(entry.cluster))
                if setup.fits and entry.hours is not None and (known is None or entry.is_as_good_as(known)):
                    best[id(entry.cluster)] = entry
                    limits.clear()
        return self._simplest(found) if is_exact else found

    def _beaten_hours(self, candidate: Candidate, best: Mapping[int, ScoredSetup], engine: Engine) -> float:
        """Hours of training from which on nothing of the engine is worth a look: those from which on the ``best`` on
        its machine is better, and none where no machine has the host memory and less is known to be short."""
        on_cheapest = best.get(id(candidate.cluster))
        if on_cheapest is not None:
            return self._worse_hours(on_cheapest, engine)
        recipes = self.space.of_any_host(engine[0], candidate.cluster)
        machines = {id(machine[0]) for machine in (self.hosts.machine(candidate, one) for one in recipes) if machine}
        if any(self.hosts.is_short_of_less(candidate, one) for one in recipes):
            return inf
        if not machines:
            return 0.0
        entry = best.get(next(iter(machines))) if len(machines) == 1 else None
        return inf if entry is None else self._worse_hours(entry, engine)

    def _worse_hours(self, entry: ScoredSetup, engine: Engine) -> float:
        """Hours of training from which on no setup of the engine is better than ``entry`` on the same machine: it takes
        longer, and if it writes less, that does not make up for the time."""
        hours = entry.hours
        assert hours is not None
        longer = hours * (1 + EQUAL_FRACTION)
        if entry.usd is None or entry.offer is None or not entry.offer.usd_per_hour:
            return longer
        disk = self.space.models.disk(engine[0])

        def usd(training_hours: float) -> float:
            cost = cost_of_run(training_hours, entry.offer, entry.cluster, disk, self._assumed)
            return inf if cost is None else cost.usd

        made_up_hours = max(0.0, entry.usd - usd(hours)) / entry.offer.usd_per_hour / entry.cluster.num_nodes
        limit = longer + made_up_hours
        return limit if usd(limit) >= entry.usd else inf

    def _simplest(self, found: list[ScoredSetup]) -> list[ScoredSetup]:
        """The setups that are noticeably better than simpler ones that fit: of equals the simplest engine stays."""
        kept: list[ScoredSetup] = []
        for entry in sorted(found, key=lambda entry: entry.simplicity):
            tolerance = EQUAL_FRACTION if entry.setup.fits else NOTICEABLE_FRACTION
            if not any(other.setup.fits and other.is_as_good_as(entry, tolerance) for other in kept):
                kept = [other for other in kept if not (entry.setup.fits and entry.is_as_good_as(other))]
                kept.append(entry)
        return kept

    def with_smaller_batch(self, entry: ScoredSetup) -> ScoredSetup | None:
        """The setup with the next smaller micro batch, where there is one within the limits."""
        return self._with_setup(entry, self.space.smaller(entry.setup, entry.cluster))

    def with_fewer_answers(self, entry: ScoredSetup) -> ScoredSetup | None:
        """What does not fit, with fewer of GRPO's answers generated at once, where that may help within the limits."""
        return self._with_setup(entry, self.space.with_fewer_answers(entry.setup, entry.cluster))

    def _with_setup(self, entry: ScoredSetup, setup: BoundedSetup | None) -> ScoredSetup | None:
        if setup is None:
            return None
        scored = self.scorer.score(entry.candidate, entry.cluster, entry.offer, setup)
        if not self.is_within_limits(scored):
            return None
        self.within.append(scored)
        return scored

    def _only_within_limits(self, entries: Iterable[ScoredSetup]) -> list[ScoredSetup]:
        return [entry for entry in entries if self.is_within_limits(entry)]

    def is_within_limits(self, entry: ScoredSetup | UnexploredMethod) -> bool:
        """Whether it is; of what is scored by secants alone, whether it may be when it is computed exactly."""
        is_exact = isinstance(entry, ScoredSetup) and entry.is_exact
        share = 1.0 if is_exact else 1 + SECANT_FRACTION
        limits = self._limits
        if limits.max_usd is not None and (entry.usd is None or entry.usd > limits.max_usd * share):
            return False
        return limits.max_hours is None or (entry.hours is not None and entry.hours <= limits.max_hours * share)

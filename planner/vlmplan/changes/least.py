"""The least combination of changes with which a setup fits.

What changes the results least comes first (``kinds``): nothing, then precision, optimizer and method, then the samples.
Within that, changes that keep the results are made all at once under every engine, and then taken back one after
another, what costs most time first, as long as it fits; of the engines the one that is left fastest wins, and among
equals the one with fewest changes. So none of what is left can be taken back alone.

Memory is taken to fall with every change of a kind. Where it does not, a combination may be missed, but what is given
was tried as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vlmplan.changes.change import Change, Levels
from vlmplan.changes.kinds import Space
from vlmplan.request import OptionValue, Request

SAME_SECONDS_FRACTION = 0.01
"""Part by which two steps may differ and count as equally long: far below what is known of them. A choice."""

LARGER_WEIGHT = 1.25
"""How many times slower a setup may be that keeps its engine and leaves the host alone than one that does not, and
still be preferred: other numerics, kernels to be compiled, and RAM that nobody may have looked at. A choice."""


ON_HOST = frozenset(("offload_activations", "eval_accumulation", "idle_offload"))
"""Options of changes that take memory of the host for what they save on a GPU."""


class Judge(Protocol):
    """What is known of requests."""

    def is_possible(self, request: Request) -> bool:
        """Whether it can be trained at all, whatever it takes. Quick."""
        ...

    def fits(self, request: Request) -> bool: ...

    def seconds(self, request: Request) -> float | None:
        """Seconds of one sample, whether the setup fits or not; None if a speed is not known."""
        ...

    def are_same(self, request: Request, other: Request) -> bool:
        """Whether both ask for the same setup."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Changes, and the ``request`` with all of them."""

    changes: tuple[Change, ...]
    request: Request

    @property
    def changed(self) -> dict[str, OptionValue]:
        """The options of all changes."""
        return {name: value for change in self.changes for name, value in change.options.items()}

    @property
    def keeps_results(self) -> bool:
        return not self.num_of_results

    @property
    def num_of_results(self) -> int:
        """Changes of the results."""
        return sum(not change.keeps_results for change in self.changes)

    @property
    def is_of_settings(self) -> bool:
        """Whether it keeps the results, the engine and the host's memory."""
        return self.keeps_results and not any(change.is_larger for change in self.changes)

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes)


def least_combination(space: Space, given: Request, judge: Judge) -> Combination | None:
    """The least changes of ``given`` that fit; None if none of those that were tried do.

    A package has to be worth it: with it fewer changes are left of those that change the results, or the setup is
    faster than another engine or memory of the host make it.
    """
    found = _least_of_settings(space, given, judge)
    if not space.packages or (found is not None and found.is_of_settings):
        return found
    kinds = (*space.kinds[:1], *space.packages, *space.kinds[1:])
    other = _least_of_settings(replace(space, kinds=kinds), given, judge)
    if found is None or other is None:
        return found or other
    if found.num_of_results != other.num_of_results:
        return min(found, other, key=lambda one: one.num_of_results)
    seconds, others = (judge.seconds(one.request) or 0.0 for one in (found, other))
    return other if found.keeps_results and others < seconds * (1 - SAME_SECONDS_FRACTION) else found


def _least_of_settings(space: Space, given: Request, judge: Judge) -> Combination | None:
    """The least combination of the space without what needs a package."""
    search = _Search(space, given, judge)
    results, samples = space.results, space.samples
    leanest = [one for one in reversed(results) if any("method" in change.options for change in one)] or results

    def can_fit(sample: tuple[Change, ...]) -> bool:
        return any(search.has_corner((*sample, *result)) for result in leanest)

    for result in results:
        found = search.best(result)
        if found is not None:
            return found
    if not samples or not can_fit(samples[-1]):
        return None
    sample = next(sample for sample in samples if can_fit(sample))
    return next(found for result in results if (found := search.best((*sample, *result))) is not None)


def leanest_combination(space: Space, given: Request, judge: Judge) -> Combination:
    """Everything changed that goes together on the present engine, whether it fits or not."""
    search = _Search(space, given, judge)
    last = space.samples[-1] if space.samples else ()
    corners = (search.corner((*last, *result)) for result in reversed(space.results))
    return search.combination(next(corner for corner in corners if corner is not None))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """``fixed`` changes, then of each kind the level at its place, 0 for none."""

    fixed: tuple[Change, ...]
    kinds: tuple[Levels, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        chosen = [levels[place - 1] for levels, place in zip(self.kinds, self.places, strict=True) if place]
        return (*self.fixed, *chosen)

    @property
    def off_host(self) -> "_Chosen":
        """Without the kinds that move something to the host."""
        kept = zip(self.kinds, self.places, strict=True)
        return replace(self, places=tuple(0 if ON_HOST & levels[0].options.keys() else place for levels, place in kept))

    def with_place(self, kind: int, place: int) -> "_Chosen":
        return replace(self, places=(*self.places[:kind], place, *self.places[kind + 1 :]))


class _Search:
    def __init__(self, space: Space, given: Request, judge: Judge) -> None:
        self._given, self._judge, self._kinds = given, judge, space.kinds
        self._engines: list[tuple[Change, ...]] = [(), *((change,) for change in space.engines)]

    def _request(self, chosen: _Chosen) -> Request:
        return self._given.with_options(_options(chosen))

    def _is_possible(self, chosen: _Chosen) -> bool:
        return self._judge.is_possible(self._request(chosen))

    def _fits(self, chosen: _Chosen) -> bool:
        return self._judge.fits(self._request(chosen))

    def _seconds(self, chosen: _Chosen) -> float:
        seconds = self._judge.seconds(self._request(chosen))
        return 0.0 if seconds is None else seconds

    # -- where everything is changed -------------------------------------------------------------------------------

    def has_corner(self, fixed: tuple[Change, ...]) -> bool:
        """Whether anything fits with these changes and some others that keep the results."""
        return any(self._fitting_corner((*fixed, *engine)) is not None for engine in self._engines)

    def _fitting_corner(self, fixed: tuple[Change, ...]) -> _Chosen | None:
        """All kinds changed as far as they go together, if that fits: with the smallest micro batch, or with the
        present one, which may need no room for gradients of earlier ones; and the same with nothing more on the host,
        which may be what is short."""
        corner = self.corner(fixed)
        if corner is None:
            return None
        whole = self._with_present_batch(corner)
        tried = [one for one in (corner, whole) if one is not None]
        return next((one for one in (*tried, *(chosen.off_host for chosen in tried)) if self._fits(one)), None)

    def corner(self, fixed: tuple[Change, ...]) -> _Chosen | None:
        chosen = _Chosen(fixed)
        if not self._is_possible(chosen):
            return None
        for levels in self._kinds:
            more = _Chosen(fixed, (*chosen.kinds, levels), (*chosen.places, 0))
            kind = len(more.places) - 1
            places = range(len(levels), -1, -1)
            chosen = next(one for place in places if self._is_possible(one := more.with_place(kind, place)))
        return chosen

    def _with_present_batch(self, corner: _Chosen) -> _Chosen | None:
        for kind, levels in enumerate(corner.kinds):
            if "micro_batch" in levels[0].options and corner.places[kind]:
                return corner.with_place(kind, 0)
        return None

    # -- taking back -----------------------------------------------------------------------------------------------

    def best(self, fixed: tuple[Change, ...]) -> Combination | None:
        """The fastest combination with these changes that fits, without those that need not be."""
        engines = [(*fixed, *engine) for engine in self._engines if self._is_possible(_Chosen((*fixed, *engine)))]
        bare = [self._weighed_seconds(_Chosen(engine)) for engine in engines]
        best: tuple[float, _Chosen] | None = None
        for place in sorted(range(len(engines)), key=bare.__getitem__):
            if best is not None and bare[place] >= best[0] * (1 - SAME_SECONDS_FRACTION):
                break  # not even without other changes is it faster
            corner = self._fitting_corner(engines[place])
            if corner is None:
                continue
            fastest = self._fastest(corner)
            seconds = self._weighed_seconds(fastest)
            if best is None or seconds < best[0] * (1 - SAME_SECONDS_FRACTION):
                best = seconds, fastest
        if best is None:
            return None
        chosen = self._with_present_engine(fixed, best[1])
        return self.combination(self._taken_back(chosen, range(len(chosen.places))))

    def _with_present_engine(self, fixed: tuple[Change, ...], chosen: _Chosen) -> _Chosen:
        """The same without its engine's change, if it fits without."""
        if chosen.fixed == fixed:
            return chosen
        places = dict(zip(chosen.kinds, chosen.places, strict=True))
        kinds = tuple(levels for levels in self._kinds if levels in places)
        bare = _Chosen(fixed, kinds, tuple(places[levels] for levels in kinds))
        return bare if self._is_possible(bare) and self._fits(bare) else chosen

    def _weighed_seconds(self, chosen: _Chosen) -> float:
        """Seconds of a sample, more by what a change has to be worth that is more than a setting."""
        weight = LARGER_WEIGHT if any(change.is_larger for change in chosen.changes) else 1.0
        return self._seconds(chosen) * weight

    def _fastest(self, corner: _Chosen) -> _Chosen:
        """The corner without what costs time, in the order of the kinds; a second time with the micro batch first."""
        costly = [kind for kind, levels in enumerate(corner.kinds) if not _is_free(levels)]
        one = self._taken_back(corner, costly)
        batch = next((kind for kind in costly if "micro_batch" in corner.kinds[kind][0].options), None)
        if batch is None or not one.places[batch] or costly[0] == batch or one.places[costly[0]]:
            return one
        other = self._taken_back(corner, [batch, *(kind for kind in costly if kind != batch)])
        return min(one, other, key=self._seconds)

    def _taken_back(self, chosen: _Chosen, kinds: Sequence[int]) -> _Chosen:
        """Each kind in turn at the least level that fits with the others."""
        for kind in kinds:
            chosen = self._least(chosen, kind)
        return chosen

    def _least(self, chosen: _Chosen, kind: int) -> _Chosen:
        """The least level of one kind that fits: none if that does, else by bisection."""
        if not chosen.places[kind]:
            return chosen
        bare = chosen.with_place(kind, 0)
        if self._fits(bare):
            return bare
        low, high = 1, chosen.places[kind]
        while low < high:
            middle = (low + high) // 2
            if self._fits(chosen.with_place(kind, middle)):
                high = middle
            else:
                low = middle + 1
        return chosen.with_place(kind, high)

    # -- the answer ------------------------------------------------------------------------------------------------

    def combination(self, chosen: _Chosen) -> Combination:
        """A combination without options that only repeat a default, and without changes that consist of such
        options."""
        request, wanted = self._request(chosen), _options(chosen)
        for name in [name for change in chosen.changes for name in change.options]:
            less = {other: value for other, value in wanted.items() if other != name}
            if self._judge.are_same(self._given.with_options(less), request):
                wanted = less
        kept: list[Change] = []
        for change in chosen.changes:
            own = {
                name: value
                for name, value in change.options.items()
                if name in wanted and wanted[name] == value != self._given.option(name)
            }
            kept += [replace(change, options=own)] if own else []
        return Combination(changes=tuple(kept), request=self._given.with_options(wanted))


def _options(chosen: _Chosen) -> dict[str, OptionValue]:
    """The options of all changes, of one option the last value."""
    return {name: value for change in chosen.changes for name, value in change.options.items()}


def _is_free(levels: Levels) -> bool:
    """Whether a kind costs no time: settings of torch's allocator, casts and optimizer."""
    names = {name for level in levels for name in level.options}
    return names <= {"caches_casts", "fuses_optimizer", "upcasts_frozen", "expandable_segments"}

"""The smallest changes of a trainer's own file with which its setup fits, or is faster where it does."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from vlmplan.catalog import load_catalog
from vlmplan.changes.change import Change
from vlmplan.changes.in_file import FileSetups
from vlmplan.changes.kinds import Space, engine_changes
from vlmplan.changes.least import LARGER_WEIGHT, SAME_SECONDS_FRACTION, Combination, least_combination
from vlmplan.changes.trials import Trials
from vlmplan.data_plan.data_run import DataRun
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate
from vlmplan.hardware import Offer
from vlmplan.memory.device import Verdict
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.other_trainers import OpenedConfig
from vlmplan.other_trainers.editing.patch import Patch, patched, require_own_words
from vlmplan.proposals.data_fixes import run_on_samples, sampling_keys, saves
from vlmplan.proposals.other_machine import OtherMachine, cheapest_other_machine
from vlmplan.recipe.choices import AttentionImplementation, Offload, OptimizerKind
from vlmplan.request import Request, requested_cluster
from vlmplan.request.setup import RequestedSetup, requested_setup
from vlmplan.requested import requested_estimate
from vlmplan.search.clusters import taken_host_bytes
from vlmplan.search.offers import cheapest_of_node
from vlmplan.units import divisors

MOST_FIXES = 3
WORTH_FRACTION = 0.1
"""Part of a step's time that each change has to save where the setup fits already: less is not worth touching a file
that works. A choice."""


_Candidate = tuple[float, int, Change, Request]
"""Seconds of a sample, place among the changes, the change, and what asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Changes of the file, and what they come to: ``estimate`` is of the file as it is read with them.

    ``keeps_results``: the same model comes out, but for rounding. ``adds_adapters`` to a run that had none;
    ``widens_update``: the optimizer updates weights in float32, which it did not. ``run`` is that on known samples.
    """

    patch: Patch
    estimate: Estimate
    request: Request
    keeps_results: bool
    adds_adapters: bool
    widens_update: bool
    run: DataRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """``fixes`` are the cheapest first, none where nothing helps; ``other_machine`` is sought where nothing fits here.
    ``offer`` is what such a machine costs, None where the catalog has no price. ``run`` is the present one on known
    samples."""

    present: Estimate
    fixes: tuple[Fix, ...]
    offer: Offer | None
    other_machine: OtherMachine | None = None
    run: DataRun | None = None
    packs: bool = False
    """Whether rows of known samples hold several as it is."""

    @property
    def fits_already(self) -> bool:
        return self.present.verdict is Verdict.FITS


def found_fixes(
    own: Request,
    opened: OpenedConfig,
    request: Request,
    present: Estimate,
    catalog_files: tuple[Path, ...],
    today: date,
    target: Path,
) -> Fixes:
    """Changes of the file for ``request``, which it and the options ``own`` mean, and of which ``present`` is the
    estimate. ``target`` is where the changed file is to be.

    Raises InputError for a file that nobody starts a trainer with, and for a value that cannot be changed by itself.
    """
    require_own_words(opened)
    catalog, model, cluster = load_catalog(catalog_files), present.workload.model, present.cluster
    setup = requested_setup(request, requested_cluster(request.hardware, catalog), model)
    files = FileSetups(own=own, opened=opened, request=request, present=setup, model=model)
    host_bytes = max(taken_host_bytes(cluster.node), present.host.peak_bytes)
    trials = Trials(catalog, model, least_host_bytes=host_bytes, own_setup=files.setup)
    fits_already = present.verdict is Verdict.FITS
    combinations = _faster(files, trials) if fits_already else _to_fit(files, trials)
    changed = _ChangedFile(files, trials, catalog_files, target)
    fixes = changed.fixes(combinations)
    run = run_on_samples(request, present)
    if run is not None and (fits_already or fixes):
        first = combinations[0] if combinations else Combination(changes=(), request=request)
        fixes = changed.with_data_fixes(fixes, run, first)
    other = None
    if not fixes and not fits_already:
        other = cheapest_other_machine(request, cluster, catalog, Trials(catalog, model), today)
    return Fixes(
        present=present,
        fixes=tuple(fixes),
        offer=cheapest_of_node(cluster.node, catalog, today),
        other_machine=other,
        run=run,
        packs=request.from_data is not None and request.from_data.source.rules.packs,
    )


class _ChangedFile:
    """The file at ``target`` with changes, read again as its trainer would read it."""

    def __init__(self, files: FileSetups, trials: Trials, catalog_files: tuple[Path, ...], target: Path) -> None:
        self._files, self._trials, self._catalog_files, self._target = files, trials, catalog_files, target

    def fixes(self, combinations: Iterable[Combination]) -> list[Fix]:
        """Each as a change of the file, without those that are no better than an earlier one.

        Raises InputError where the first is a value that cannot be changed by itself.
        """
        fixes: list[Fix] = []
        for combination in combinations:
            try:
                fix = self._fix(combination)
            except InputError:
                if not fixes:
                    raise
                continue
            if fix is not None and not any(_is_no_better(fix, other) for other in fixes):
                fixes.append(fix)
        return fixes

    def _fix(self, found: Combination, more: Mapping[str, Any] | None = None) -> Fix | None:
        """The changed file, with ``more`` keys of what is done with the samples; None where it does not fit after
        all."""
        files, trials = self._files, self._trials
        keys = files.keys(found.request)
        keys = keys if more is None else replace(keys, values={**keys.values, **more})
        patch = patched(files.opened, keys, self._target)
        request, tried = files.read(patch.opened), trials.setup(found.request)
        is_known = more is None and tried is not None and files.is_same(request, tried)
        if is_known and not isinstance(files.model, ProbedModelFiles):
            estimate = trials.estimate(found.request)
        else:
            estimate, _ = requested_estimate(request, self._catalog_files)
        if estimate.verdict is not Verdict.FITS or estimate.samples_per_step != files.samples_per_step:
            return None
        updates_alike = files.updates_alike(estimate.recipe)
        return Fix(
            patch=patch,
            estimate=estimate,
            request=request,
            keeps_results=found.keeps_results and updates_alike and more is None,
            adds_adapters=estimate.recipe.trains_adapters and not files.present.recipe.trains_adapters,
            widens_update=not updates_alike,
            run=run_on_samples(request, estimate),
        )

    def with_data_fixes(self, fixes: list[Fix], run: DataRun, first: Combination) -> list[Fix]:
        """``fixes`` with those of what else can be done with known samples, beside the ``first`` changes. Where the
        setup fits as it is, the fastest comes first; else the least that fits does."""
        files = self._files
        before = fixes[0].run if fixes else run
        assert before is not None
        more: list[Fix] = []
        fits_already = self._trials.fits(files.request)
        bases = [first]
        if first.changes and fits_already:
            bases.append(Combination(changes=(), request=files.request))
        for base, keys in product(bases, list(sampling_keys(files.opened, files.config, files.request))):
            with suppress(InputError):  # what this file has no place for, or its trainer refuses
                found = self._fix(base, keys)
                if found is not None and saves(found.run, before if base is first else run, WORTH_FRACTION):
                    more.append(found)
        if not fits_already:
            return [*fixes, *more]
        return sorted([*fixes, *more], key=lambda one: (one.run and one.run.run_seconds) or 0.0)[:MOST_FIXES]


def _is_no_better(one: Fix, other: Fix) -> bool:
    """Whether one change is as good as another in nothing, or hardly better."""
    mine, its = one.estimate, other.estimate
    pairs = (
        (mine.step_seconds, its.step_seconds),
        (mine.device.device_bytes, its.device.device_bytes),
        (mine.host.peak_bytes, its.host.peak_bytes),
    )
    is_slower_or_larger = all(
        (first or 0.0) >= (second or 0.0) * (1 - SAME_SECONDS_FRACTION) for first, second in pairs
    )
    return is_slower_or_larger and other.keeps_results >= one.keeps_results


# -- to fit ----------------------------------------------------------------------------------------------------------


def _to_fit(files: FileSetups, trials: Trials) -> list[Combination]:
    """The least combination, and the least ones without each of its changes."""
    space = files.space()
    first = least_combination(space, files.request, trials)
    if first is None:
        return []
    others: list[Combination] = []
    for change in first.changes:
        other = least_combination(_without(space, change), files.request, trials)
        if other is not None and all(not trials.are_same(other.request, one.request) for one in (first, *others)):
            others.append(other)
    others.sort(key=lambda one: (not one.keeps_results, trials.seconds(one.request) or 0.0))
    return [first, *others][:MOST_FIXES]


def _without(space: Space, change: Change) -> Space:
    names = set(change.options)

    def is_other(one: Change) -> bool:
        return not names & set(one.options)

    return Space(
        kinds=tuple(levels for levels in space.kinds if all(map(is_other, levels))),
        engines=tuple(engine for engine in space.engines if engine.name != change.name),
        results=tuple(result for result in space.results if all(map(is_other, result))),
        samples=tuple(sample for sample in space.samples if all(map(is_other, sample))),
        packages=tuple(levels for levels in space.packages if all(map(is_other, levels))),
    )


# -- faster ----------------------------------------------------------------------------------------------------------


def _faster(files: FileSetups, trials: Trials) -> list[Combination]:
    """Changes that each save ``WORTH_FRACTION`` of the time, all of them together first, then without the last ones."""
    present = trials.seconds(files.request)
    if present is None:
        return []
    steps: list[Combination] = []
    chosen, request, seconds = tuple[Change, ...](), files.request, present
    for _ in range(MOST_FIXES):
        step = _fastest_change(files, trials, request, seconds)
        if step is None:
            break
        change, request, seconds = step
        chosen = (*(one for one in chosen if not set(one.options) & set(change.options)), change)
        steps.append(Combination(changes=chosen, request=request))
    return list(reversed(steps))


def _fastest_change(
    files: FileSetups, trials: Trials, request: Request, seconds: float
) -> tuple[Change, Request, float] | None:
    """The change of ``request`` that saves most time and fits; None where none saves enough."""
    candidates: list[_Candidate] = []
    for place, change in enumerate(_faster_changes(trials.known_setup(request))):
        asked = request.with_options(change.options)
        setup = trials.setup(asked)
        if setup is None or not files.updates_alike(setup.recipe):
            continue
        taken = trials.seconds(asked)
        weight = LARGER_WEIGHT if change.is_larger else 1.0
        if taken is not None and taken * weight <= seconds * (1 - WORTH_FRACTION):
            candidates.append((taken, place, change, asked))
    candidates.sort(key=lambda one: one[:2])
    for taken, _, change, asked in _least_first(candidates):
        if trials.fits(asked):
            return change, asked, taken
    return None


def _least_first(candidates: "list[_Candidate]") -> "list[_Candidate]":
    """The fastest first; of those that are equally fast, the one that stands first among the changes."""
    return sorted(candidates, key=lambda one: (round(one[0] / (candidates[0][0] * SAME_SECONDS_FRACTION)), one[1]))


def _faster_changes(at: RequestedSetup) -> Iterator[Change]:
    """What may save time and takes memory, the least first."""
    recipe = at.recipe
    total = recipe.micro_batch * recipe.grad_accum
    for size in divisors(total):
        if size > recipe.micro_batch:
            options = {"micro_batch": size, "grad_accum": total // size}
            yield Change(name=f"micro batch {size} x {total // size}", options=options)
    if recipe.activation_checkpointing:
        options = {"activation_checkpointing": False, "vision_activation_checkpointing": False}
        yield Change(name="no activation checkpointing", options=options)
    if recipe.attention is AttentionImplementation.EAGER:
        yield Change(name="sdpa attention", options={"attention": AttentionImplementation.SDPA.value})
    if recipe.optimizer is OptimizerKind.ADAMW and not recipe.fuses_optimizer:
        yield Change(name="fused optimizer", options={"fuses_optimizer": True})
    host = (recipe.offload_optimizer, recipe.offload_params).count(Offload.CPU)
    for change in engine_changes(at._replace(ds_config=None)):
        moved = [change.options[name] for name in ("offload_optimizer", "offload_params")]
        if moved.count(Offload.CPU.value) <= host:
            yield change

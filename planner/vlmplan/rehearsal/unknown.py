"""Memory of a model that vlmplan does not describe: the setup rehearsed, and what the formulas miss is added.

The generic tree (``architecture/generic``) knows weights, gradients and optimizer states exactly, and guesses what a
layer keeps. So the setup is rehearsed with all layers. Where that takes too many operations, it is with the first two
layers and with three, or up to each new kind of layer (``prefixes``): what is missing there is added once for these two
and what stands around the layers, and for every further layer what the one of its kind added. A peak is the highest of
several moments, each of which grows with the layers in its own way, so that this may err. What was rehearsed once is
kept for the installed versions of the libraries.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from vlmplan.architecture.generic.layer_bytes import UNCORRECTED
from vlmplan.architecture.generic.layout import recurrent_classes
from vlmplan.architecture.generic.model import GENERIC_TERMS
from vlmplan.engines.components import Components
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate, estimate
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.memory.phases import Phase
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.phase_names import BACKWARD, FORWARD, REFERENCE
from vlmplan.plain_text import can_draw
from vlmplan.recipe import Recipe
from vlmplan.rehearsal.layers import layers_json
from vlmplan.rehearsal.prefixes import by_kind, layer_pattern, lengths, num_first_layers, shortened
from vlmplan.rehearsal.process import LongRehearsalError
from vlmplan.rehearsal.setup_peaks import Peaks, RehearseAll, Setup, peaks_together
from vlmplan.versions import installed_version

DRAWN_ON_TERMS = (
    "memory is rehearsed with its first layers and drawn on to all; FLOPs and time are those of a generic decoder"
)
REHEARSED_TERMS = "memory is rehearsed; FLOPs and time are those of a generic decoder"
ACTIVATIONS, WEIGHTS = "activations", "weights"
OF_ACTIVATIONS = (FORWARD, REFERENCE, BACKWARD)
"""Phases of which activations are not known. What is missing of others are buffers, which count as weights."""
MOST_OPERATIONS = 500_000
"""Of a rehearsal with all layers: about half a minute of one core (measured: 8,000 to 20,000 operations a second). A
choice."""
LEAST_FIRST = 2
"""Layers of which others are drawn on: one is both the first and the last, and its peaks may be elsewhere (seen: with
one, Falcon's backward with LoRA and checkpoints was 0.7% too high, with two exact)."""
MOST_MICRO_BATCHES = 3
"""Of a step: the first finds no gradients, the last reduces them, and all between are alike."""
PACKAGES = ("torch", "transformers", "deepspeed", "peft")
SCHEMA = 9
"""Version of what is kept."""

Gaps = dict[tuple[str, str], int]
"""Bytes that a rehearsal sees and the formulas do not, by phase and moment."""


def with_rehearsed_activations(found: Estimate, rehearse: RehearseAll | None = None) -> Estimate:
    """``found`` with its memory rehearsed, where its model has no family here; others as they are.

    Where that cannot be, the generic ones stay and a note says why. Raises what rehearsing does for layers that nothing
    else tells of.
    """
    return all_with_rehearsed_activations([found], rehearse)[0]


def all_with_rehearsed_activations(
    estimates: Sequence[Estimate], rehearse: RehearseAll | None = None
) -> list[Estimate]:
    """``with_rehearsed_activations`` of each. Those that one rehearsal tells of have it once, and all are rehearsed in
    one process."""
    digests = [_digest(one) if isinstance(one.workload.model, ProbedModelFiles) else None for one in estimates]
    of_digest = {digest: one for digest, one in zip(digests, estimates, strict=True) if digest is not None}
    missing = _kept_missing(of_digest, rehearse or peaks_together)
    return [
        one if digest is None else _with_missing_bytes(one, missing[digest])
        for digest, one in zip(digests, estimates, strict=True)
    ]


def _with_missing_bytes(found: Estimate, missing: "Missing | VlmplanError") -> Estimate:
    model = found.workload.model
    assert isinstance(model, ProbedModelFiles)
    if isinstance(missing, VlmplanError):
        if recurrent_classes(model.layout) and model.rehearsed is UNCORRECTED:
            raise missing
        note = f"Its activations are not rehearsed: {str(missing).rstrip(chr(46))}."
        return _with_notes(found, (*found.workload.model.notes, note))
    corrected = _corrected(found, missing.gaps)
    terms = REHEARSED_TERMS if missing.is_of_all_layers else DRAWN_ON_TERMS
    notes = (note.replace(GENERIC_TERMS, terms) if GENERIC_TERMS in note else note for note in model.notes)
    return _with_notes(corrected, tuple(notes))


# -- rehearsing ------------------------------------------------------------------------------------------------------


class Missing(NamedTuple):
    """``is_of_all_layers``: not drawn on from the first ones."""

    gaps: Gaps
    is_of_all_layers: bool


Found = dict[str, Missing | VlmplanError]
"""What is missing of each setup or why it cannot be told, by what it is kept under."""


def _kept_missing(estimates: Mapping[str, Estimate], rehearse: RehearseAll) -> Found:
    found: Found = {}
    for digest in estimates:
        kept = _read(kept_text(*_place(digest)))
        if kept is not None:
            found[digest] = kept
    others = {digest: one for digest, one in estimates.items() if digest not in found}
    if not others:
        return found
    with _shown_on_a_terminal(others) as say:
        made = _missing(others, rehearse, say)
    for digest, one in made.items():
        if isinstance(one, Missing):
            content = [one.is_of_all_layers, [[*key, num_bytes] for key, num_bytes in one.gaps.items()]]
            keep_text(json.dumps(content), *_place(digest))
    return found | made


def _place(digest: str) -> tuple[str, str]:
    return "activations", f"{digest}.json"


def _missing(estimates: Mapping[str, Estimate], rehearse: RehearseAll, say: Callable[[str], None]) -> Found:
    """What is missing with all layers, or what is drawn on from the first ones where these are too many."""
    found: Found = {}
    whole = {digest: one for digest, one in estimates.items() if one.recipe.task is None}  # others count no operations
    gaps = _gaps({digest: [Setup(_of_layers(one), MOST_OPERATIONS)] for digest, one in whole.items()}, rehearse, say)
    for digest, of_all in gaps.items():
        if isinstance(of_all, VlmplanError):
            found[digest] = of_all
        else:
            found[digest] = Missing(of_all[0], is_of_all_layers=True)
    long = {digest for digest, one in found.items() if isinstance(one, LongRehearsalError)}
    first = {digest: one for digest, one in estimates.items() if digest not in found or digest in long}
    return found | _drawn_on(first, rehearse, say)


def _drawn_on(estimates: Mapping[str, Estimate], rehearse: RehearseAll, say: Callable[[str], None]) -> Found:
    """What is drawn on to all layers from the first ones; why where these cannot be told."""
    found: Found = {}
    patterns: dict[str, tuple[int, ...]] = {}
    setups: dict[str, list[Setup]] = {}
    for digest, one in estimates.items():
        model = one.workload.model
        assert isinstance(model, ProbedModelFiles)
        try:
            pattern = layer_pattern(model)
            setups[digest] = [Setup(_of_layers(one, count)) for count in lengths(pattern, _num_first(one, pattern))]
        except VlmplanError as error:
            found[digest] = error
            continue
        patterns[digest] = pattern
    for digest, gaps in _gaps(setups, rehearse, say).items():
        if isinstance(gaps, VlmplanError):
            found[digest] = gaps
            continue
        pattern = patterns[digest]
        counts = lengths(pattern, _num_first(estimates[digest], pattern))
        by_count = dict(zip(counts, gaps, strict=True))
        drawn_on = {
            key: by_kind(pattern, {count: of_phases[key] for count, of_phases in by_count.items()}).of(pattern)
            for key in gaps[0]
        }
        found[digest] = Missing(drawn_on, is_of_all_layers=False)
    return found


@contextmanager
def _shown_on_a_terminal(estimates: Mapping[str, Estimate]) -> Generator[Callable[[str], None]]:
    """What takes the time, while it does; nothing where nobody watches. Gives what to call with what is done now."""
    if not can_draw(sys.stderr):
        yield lambda text: None
        return
    from rich.console import Console

    model_id = next(iter(estimates.values())).workload.model.id
    with Console(stderr=True).status(f"rehearsing {model_id}") as status:
        yield lambda text: status.update(f"rehearsing {model_id}, once for each setup: {text}")


def _num_first(found: Estimate, pattern: tuple[int, ...]) -> int:
    """Layers that are rehearsed in any case: what makes features that a shorter model does not take has no gradients
    there, and would seem to be a further layer's."""
    model = found.workload.model
    assert isinstance(model, ProbedModelFiles)
    least = min(max(LEAST_FIRST, num_first_layers(model)), len(pattern))
    if model.images is None or not found.workload.images_per_sample:
        return least
    return min(max(least, model.images.num_first_layers), len(pattern))


def _digest(found: Estimate) -> str:
    node, workload, model = found.cluster.node, found.workload, found.workload.model
    assert isinstance(model, ProbedModelFiles)
    asked = {
        "schema": SCHEMA,
        "versions": {name: installed_version(name) for name in PACKAGES},
        "config": dict(model.config),
        "layers": layers_json(model.rehearsed or UNCORRECTED),
        "recipe": _rehearsed_recipe(found).as_json(),
        "lengths": [workload.seq_len, workload.target_tokens],
        "images": [workload.images_per_sample, workload.image_width, workload.image_height, model.preprocessor],
        "gpu": [node.gpu.vendor.value, list(node.gpu.compute_capability or ())],
        "num_gpus": found.cluster.num_gpus,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(text: str | None) -> Missing | None:
    try:
        is_of_all_layers, rows = json.loads(text or "null")
        return Missing({(name, moment): int(num_bytes) for name, moment, num_bytes in rows}, bool(is_of_all_layers))
    except (TypeError, ValueError):
        return None


def _of_layers(found: Estimate, num_layers: int | None = None) -> Estimate:
    """The estimate of the same setup with so many layers, or with all, without what is not rehearsed."""
    model = found.workload.model
    short = described(model, model.config if num_layers is None else shortened(model.config, num_layers))
    assert isinstance(short, ProbedModelFiles)
    assert isinstance(model, ProbedModelFiles)
    short = replace(short, notes=(), rehearsed=model.rehearsed, images=model.images)
    return estimate(replace(found.workload, model=short), _rehearsed_recipe(found), found.cluster)


def _rehearsed_recipe(found: Estimate) -> Recipe:
    """The recipe without an evaluation, whose activations are not rehearsed, and with no more micro batches than
    differ."""
    accumulated = min(found.recipe.grad_accum, MOST_MICRO_BATCHES)
    return found.recipe.with_changes(evaluation=None, grad_accum=accumulated)


def _gaps(
    setups: Mapping[str, Sequence[Setup]], rehearse: RehearseAll, say: Callable[[str], None]
) -> dict[str, list[Gaps] | VlmplanError]:
    """Rehearsed bytes minus estimated ones of the setups of each, or the first reason why one of them is not known."""
    if not setups:
        return {}
    rehearsed = iter(rehearse([setup for of_one in setups.values() for setup in of_one], say))
    found: dict[str, list[Gaps] | VlmplanError] = {}
    for digest, of_one in setups.items():
        seen = list(islice(rehearsed, len(of_one)))
        errors = [peaks for peaks in seen if isinstance(peaks, VlmplanError)]
        gaps = [
            _gaps_of(setup.estimate, peaks)
            for setup, peaks in zip(of_one, seen, strict=True)
            if not isinstance(peaks, VlmplanError)
        ]
        found[digest] = errors[0] if errors else gaps
    return found


def _gaps_of(short: Estimate, seen: Peaks) -> Gaps:
    gaps: Gaps = {}
    for phase in short.timeline.phases:
        if phase.name in seen:
            resident, peak = seen[phase.name]
            gaps[phase.name, "resident"] = resident - phase.resident.total
            gaps[phase.name, "peak"] = peak - phase.peak.total
    return gaps


# -- correcting ------------------------------------------------------------------------------------------------------


def _corrected(found: Estimate, missing: Mapping[tuple[str, str], int]) -> Estimate:
    timeline = found.timeline._replace(phases=tuple(_with_missing(phase, missing) for phase in found.timeline.phases))
    change = timeline.peak.total - found.timeline.peak.total
    device = found.device._replace(
        allocated_bytes=timeline.peak.total,
        reserved_bytes=max(timeline.peak.total, found.device.reserved_bytes + change),
    )
    return replace(found, timeline=timeline, device=device)


def _with_missing(phase: Phase, missing: Mapping[tuple[str, str], int]) -> Phase:
    """``phase`` as it was rehearsed; one that was not (an evaluation) as it is."""
    if (phase.name, "peak") not in missing:
        return phase
    first = ACTIVATIONS if phase.name in OF_ACTIVATIONS else WEIGHTS
    return Phase(
        name=phase.name,
        resident=_more(phase.resident, missing[phase.name, "resident"], first),
        peak=_more(phase.peak, missing[phase.name, "peak"], first),
    )


def _more(moment: Components, num_bytes: int, first: str) -> Components:
    """``moment`` with so many more bytes of its component ``first``; or with fewer, of others too where it has not so
    many."""
    values = moment.as_json()
    for name in (first, *(name for name in values if name != first)):
        before = values[name]
        values[name] = max(0, before + num_bytes)
        num_bytes -= values[name] - before
        if not num_bytes:
            break
    return Components(**values)


def _with_notes(found: Estimate, notes: tuple[str, ...]) -> Estimate:
    model = replace(found.workload.model, notes=notes)
    return replace(found, workload=replace(found.workload, model=model))

"""Activations of a model that vlmplan does not describe: its first layers rehearsed, drawn on to all.

The generic tree (``architecture/generic.py``) knows weights, gradients and optimizer states exactly, and guesses what a
layer keeps. So the same setup is rehearsed with the first layer alone and with the first two, or up to each new kind of
layer (``prefixes``), and what the formulas miss there is added: once for the first layer and what stands around the
layers, and for every further layer what the one of its kind added. What was rehearsed once is kept for the installed
versions of the libraries.
"""

import hashlib
import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from vlmplan.architecture.generic import GENERIC_TERMS
from vlmplan.architecture.layer_bytes import UNCORRECTED
from vlmplan.architecture.layout import recurrent_classes
from vlmplan.engines.components import Components
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate, estimate
from vlmplan.memory.phases import Phase
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.phase_names import BACKWARD, FORWARD
from vlmplan.rehearsal.layers import Rehearse, layers_json, rehearsed_peaks
from vlmplan.rehearsal.prefixes import BytesByKind, by_kind, layer_pattern, lengths, num_first_layers, shortened
from vlmplan.step_bar import can_draw
from vlmplan.user_cache import keep_text, kept_text
from vlmplan.versions import installed_version

REHEARSED_TERMS = (
    "activations are rehearsed, with one layer and with two, and drawn on to all; FLOPs and time are those of a "
    "generic decoder"
)
CORRECTED_PHASES = (FORWARD, BACKWARD)
PACKAGES = ("torch", "transformers", "deepspeed", "peft")
SCHEMA = 4
"""Version of what is kept."""


def with_rehearsed_activations(found: Estimate, rehearse: Rehearse | None = None) -> Estimate:
    """``found`` with its activations rehearsed, where its model has no family here; others as they are.

    Where that cannot be, the generic ones stay and a note says why. Raises what rehearsing does for layers that nothing
    else tells of.
    """
    model = found.workload.model
    if not isinstance(model, ProbedModelFiles):
        return found
    try:
        pattern = layer_pattern(model)
        missing = _kept_missing(found, pattern, rehearse or rehearsed_peaks)
    except VlmplanError as error:
        if recurrent_classes(model.layout) and model.rehearsed is UNCORRECTED:
            raise
        return _noted(found, f"Its activations are not rehearsed: {str(error).rstrip(chr(46))}.")
    corrected = _corrected(found, {key: value.of(pattern) for key, value in missing.items()})
    notes = (note.replace(GENERIC_TERMS, REHEARSED_TERMS) if GENERIC_TERMS in note else note for note in model.notes)
    return _with_notes(corrected, tuple(notes))


# -- rehearsing ------------------------------------------------------------------------------------------------------


def _kept_missing(found: Estimate, pattern: tuple[int, ...], rehearse: Rehearse) -> dict[tuple[str, str], BytesByKind]:
    """What is missing by phase and moment (``resident``, ``peak``)."""
    place = ("activations", f"{_digest(found)}.json")
    kept = _read(kept_text(*place))
    if kept is not None:
        return kept
    counts = lengths(pattern, _num_first(found, pattern))
    with _shown_on_a_terminal(found.workload.model.id):
        gaps = {count: _gaps(_of_layers(found, count), rehearse) for count in counts}
    missing = {key: by_kind(pattern, {count: gaps[count][key] for count in counts}) for key in gaps[counts[0]]}
    content = [[*key, value.first, list(value.further.items()), value.num_first] for key, value in missing.items()]
    keep_text(json.dumps(content), *place)
    return missing


@contextmanager
def _shown_on_a_terminal(model_id: str) -> Generator[None]:
    """What takes the time, while it does; nothing where nobody watches."""
    if not can_draw(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"rehearsing the first layers of {model_id}, once for such a setup"):
        yield


def _num_first(found: Estimate, pattern: tuple[int, ...]) -> int:
    """Layers that are rehearsed in any case: what makes features that a shorter model does not take has no gradients
    there, and would seem to be a further layer's."""
    model = found.workload.model
    assert isinstance(model, ProbedModelFiles)
    least = num_first_layers(model)
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
        "recipe": found.recipe.with_changes(evaluation=None).as_json(),
        "seq_len": workload.seq_len,
        "images": [workload.images_per_sample, workload.image_width, workload.image_height, model.preprocessor],
        "gpu": [node.gpu.vendor.value, list(node.gpu.compute_capability or ())],
        "num_gpus": found.cluster.num_gpus,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(text: str | None) -> dict[tuple[str, str], BytesByKind] | None:
    try:
        return {
            (name, moment): BytesByKind(first, dict(further), num_first)
            for name, moment, first, further, num_first in json.loads(text or "null")
        }
    except (TypeError, ValueError):
        return None


def _of_layers(found: Estimate, num_layers: int) -> Estimate:
    """The estimate of the same setup with so many layers."""
    model = found.workload.model
    short = described(model, shortened(model.config, num_layers))
    assert isinstance(short, ProbedModelFiles)
    assert isinstance(model, ProbedModelFiles)
    short = replace(short, notes=(), rehearsed=model.rehearsed, images=model.images)
    trained = found.recipe.with_changes(evaluation=None)  # whose activations are not rehearsed
    return estimate(replace(found.workload, model=short), trained, found.cluster)


def _gaps(short: Estimate, rehearse: Rehearse) -> dict[tuple[str, str], int]:
    """Rehearsed bytes minus estimated ones."""
    seen = rehearse(short)
    gaps: dict[tuple[str, str], int] = {}
    for phase in short.timeline.phases:
        if phase.name in CORRECTED_PHASES:
            resident, peak = seen[phase.name]
            gaps[phase.name, "resident"] = resident - phase.resident.total
            gaps[phase.name, "peak"] = peak - phase.peak.total
    return gaps


# -- correcting ------------------------------------------------------------------------------------------------------


def _corrected(found: Estimate, missing: Mapping[tuple[str, str], int]) -> Estimate:
    phases = tuple(
        phase
        if phase.name not in CORRECTED_PHASES
        else Phase(
            name=phase.name,
            resident=_more(phase.resident, missing[phase.name, "resident"]),
            peak=_more(phase.peak, missing[phase.name, "peak"]),
        )
        for phase in found.timeline.phases
    )
    timeline = found.timeline._replace(phases=phases)
    change = timeline.peak.total - found.timeline.peak.total
    device = found.device._replace(
        allocated_bytes=timeline.peak.total,
        reserved_bytes=max(timeline.peak.total, found.device.reserved_bytes + change),
    )
    return replace(found, timeline=timeline, device=device)


def _more(moment: Components, num_bytes: int) -> Components:
    """``moment`` with so many more bytes of activations, or fewer: no more than there are."""
    return moment._replace(activations=max(0, moment.activations + num_bytes))


def _noted(found: Estimate, note: str) -> Estimate:
    return _with_notes(found, (*found.workload.model.notes, note))


def _with_notes(found: Estimate, notes: tuple[str, ...]) -> Estimate:
    model = replace(found.workload.model, notes=notes)
    return replace(found, workload=replace(found.workload, model=model))

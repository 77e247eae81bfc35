"""Activations of a model that vlmplan does not describe: rehearsed with one layer and with two, drawn on to all.

The generic tree (``architecture/generic.py``) knows weights, gradients and optimizer states exactly, and guesses what a
layer keeps. So the same setup is rehearsed with the first layer alone and with the first two, and what the formulas
miss there is added: once for the first layer and what stands around the layers, and for every further layer what the
second one added. What was rehearsed once is kept for the installed versions of the libraries.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, cast

from vlmplan.architecture.generic import GENERIC_TERMS
from vlmplan.engines.components import Components
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate, estimate
from vlmplan.json_reader import JsonDict
from vlmplan.memory.phases import Phase
from vlmplan.memory.timeline import Timeline
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.plan import plan_from_estimate
from vlmplan.user_cache import keep_text, kept_text

REHEARSED_TERMS = (
    "activations are rehearsed, with one layer and with two, and drawn on to all; FLOPs and time are those of a "
    "generic decoder"
)
NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configurations call the number of layers of the language model."""
CORRECTED_PHASES = ("forward", "backward")
PACKAGES = ("torch", "transformers", "deepspeed", "peft")
SCHEMA = 1
"""Version of what is kept."""

Peaks = Mapping[str, tuple[int, int]]
"""(resident, peak) bytes of a later step by phase."""
Rehearse = Callable[[Estimate], Peaks]


@dataclass(frozen=True, slots=True)
class UncountedBytes:
    """Bytes that the formulas miss in a phase, with one layer and for each further one; below 0: too many."""

    first: int
    further: int

    def of(self, num_layers: int) -> int:
        return self.first + (num_layers - 1) * self.further


def with_rehearsed_activations(found: Estimate, rehearse: Rehearse | None = None) -> Estimate:
    """``found`` with its activations rehearsed, where its model has no family here; others as they are.

    Where that cannot be, the generic ones stay and a note says why.
    """
    model = found.workload.model
    if not isinstance(model, ProbedModelFiles):
        return found
    num_layers = num_layers_of(model.config)
    if num_layers is None:
        return _noted(found, "Its activations are not rehearsed: config.json does not say how many layers it has.")
    try:
        missing = _kept_missing(found, rehearse or _rehearsed_peaks)
    except VlmplanError as error:
        return _noted(found, f"Its activations are not rehearsed: {str(error).rstrip(chr(46))}.")
    corrected = _corrected(found, {key: value.of(num_layers) for key, value in missing.items()})
    notes = (note.replace(GENERIC_TERMS, REHEARSED_TERMS) if GENERIC_TERMS in note else note for note in model.notes)
    return _with_notes(corrected, tuple(notes))


def num_layers_of(config: Mapping[str, Any]) -> int | None:
    """Layers of the language model that a config.json describes; None where it does not say."""
    key = _key_of(_text_section(config))
    return None if key is None else int(_text_section(config)[key])


def shortened(config: Mapping[str, Any], num_layers: int) -> JsonDict:
    """``config`` with the first ``num_layers`` layers of its language model; lists of one entry a layer are cut too."""
    values = deepcopy(dict(config))
    section = _text_section(values)
    key = _key_of(section)
    assert key is not None
    whole = section[key]
    for name, value in list(section.items()):
        if isinstance(value, list) and len(cast(list[Any], value)) == whole:
            section[name] = value[:num_layers]
    section[key] = num_layers
    return values


def _text_section(config: Mapping[str, Any]) -> JsonDict:
    section = config.get("text_config")
    return section if isinstance(section, dict) else config  # type: ignore[return-value]


def _key_of(section: Mapping[str, Any]) -> str | None:
    return next((key for key in NUM_LAYERS_KEYS if isinstance(section.get(key), int) and section[key] > 0), None)


# -- rehearsing ------------------------------------------------------------------------------------------------------


def _kept_missing(found: Estimate, rehearse: Rehearse) -> dict[tuple[str, str], UncountedBytes]:
    """What is missing by phase and moment (``resident``, ``peak``)."""
    place = ("activations", f"{_digest(found)}.json")
    kept = _read(kept_text(*place))
    if kept is not None:
        return kept
    one, two = (_gaps(_of_layers(found, count), rehearse) for count in (1, 2))
    missing = {key: UncountedBytes(one[key], two[key] - one[key]) for key in one}
    content = [[*key, value.first, value.further] for key, value in missing.items()]
    keep_text(json.dumps(content), *place)
    return missing


def _digest(found: Estimate) -> str:
    node = found.cluster.node
    asked = {
        "schema": SCHEMA,
        "versions": {name: version(name) for name in PACKAGES},
        "config": dict(found.workload.model.config),
        "recipe": found.recipe.with_changes(evaluation=None).as_json(),
        "seq_len": found.workload.seq_len,
        "gpu": [node.gpu.vendor.value, list(node.gpu.compute_capability or ())],
        "num_gpus": found.cluster.num_gpus,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(text: str | None) -> dict[tuple[str, str], UncountedBytes] | None:
    try:
        return {
            (name, moment): UncountedBytes(first, further)
            for name, moment, first, further in json.loads(text or "null")
        }
    except (TypeError, ValueError):
        return None


def _of_layers(found: Estimate, num_layers: int) -> Estimate:
    """The estimate of the same setup with so many layers."""
    model = found.workload.model
    short = replace(described(model, shortened(model.config, num_layers)), notes=())
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


def _rehearsed_peaks(short: Estimate) -> Peaks:
    """Of a later step, library workspaces included as the estimate has them."""
    from vlmplan.memory.overhead import workspace_bytes
    from vlmplan.rehearsal.process import run_rehearsal
    from vlmplan.rehearsal.request import fullest_rank_of, request_json

    plan = plan_from_estimate(short)
    request = request_json(plan, short, rank=fullest_rank_of(short))
    answer = run_rehearsal(request, plan, say=lambda text: None)
    workspaces = workspace_bytes(short.cluster.node.gpu)
    return {
        phase.name: (phase.resident_bytes + workspaces, phase.peak_bytes + workspaces) for phase in answer.last_phases
    }


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
    timeline = Timeline(phases=phases)
    change = timeline.peak.total - found.timeline.peak.total
    device = replace(
        found.device,
        allocated_bytes=timeline.peak.total,
        reserved_bytes=max(timeline.peak.total, found.device.reserved_bytes + change),
    )
    return replace(found, timeline=timeline, device=device)


def _more(moment: Components, num_bytes: int) -> Components:
    """``moment`` with so many more bytes of activations, or fewer: no more than there are."""
    return replace(moment, activations=max(0, moment.activations + num_bytes))


def _noted(found: Estimate, note: str) -> Estimate:
    return _with_notes(found, (*found.workload.model.notes, note))


def _with_notes(found: Estimate, notes: tuple[str, ...]) -> Estimate:
    model = replace(found.workload.model, notes=notes)
    return replace(found, workload=replace(found.workload, model=model))

"""A rehearsal as JSON, schema ``vlmplan.rehearsal/1``. Integers are bytes unless their name says otherwise; errors are
(estimated - rehearsed) / rehearsed, null where nothing was rehearsed."""

from typing import Any

from vlmplan.rehearsal.comparison import ComparedPhase, Comparison, relative_error

SCHEMA = "vlmplan.rehearsal/1"


def document(found: Comparison) -> dict[str, Any]:
    """Everything that was rehearsed, next to the estimate's."""
    rehearsed, estimate = found.rehearsed, found.estimate
    estimated = estimate.as_json()
    return {
        "schema": SCHEMA,
        "model": estimated["model"],
        "gpu": estimated["gpu"],
        "recipe": estimated["recipe"],
        "rank": rehearsed.rank,
        "num_ranks": rehearsed.num_ranks,
        "num_steps": rehearsed.num_steps,
        **peaks(found),
        "components_at_peak": found.peak.components.as_json(),
        "estimated_components_at_peak": found.estimated_peak.as_json(),
        "largest": [allocation.as_json() for allocation in found.largest],
        "phases": [_phase(phase) for phase in found.phases],
        "flops": rehearsed.flops_per_step,
        "estimated_flops": estimate.flops_per_step,
        "collective_bytes": collectives(found),
        "host_bytes": rehearsed.host_peak_bytes,
        "checkpoint_bytes": rehearsed.checkpoint_bytes,
        "seconds": rehearsed.seconds,
        "not_rehearsed": [{"what": one.what, "bytes": one.num_bytes} for one in found.not_rehearsed],
        "not_counted": estimated["not_counted"],
        "caveats": estimated["caveats"],
        "notes": estimated["notes"],
    }


def peaks(found: Comparison) -> dict[str, Any]:
    """Verdict and peaks with those of the estimate."""
    estimate, device = found.estimate, found.device
    return {
        "verdict": found.verdict.value,
        "estimated_verdict": estimate.verdict.value,
        "peak_phase": found.peak.name,
        "peak_step": found.peak.step,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": device.reserved_bytes,
        "peak_device_bytes": device.device_bytes,
        "estimated_peak_allocated_bytes": estimate.peak_allocated_bytes,
        "estimated_peak_reserved_bytes": estimate.device.reserved_bytes,
        "estimated_peak_device_bytes": estimate.device.device_bytes,
        "relative_error": found.relative_error,
    }


def collectives(found: Comparison) -> dict[str, Any]:
    """Bytes of one step's messages, and by kind with their number; the larger side of each on this rank."""
    kinds: dict[str, dict[str, int]] = {}
    for one in found.rehearsed.step_messages:
        kind = kinds.setdefault(one.kind, {"count": 0, "bytes": 0})
        kind["count"] += one.count
        kind["bytes"] += one.num_bytes
    return {"per_step": sum(kind["bytes"] for kind in kinds.values()), "by_kind": kinds}


def _phase(phase: ComparedPhase) -> dict[str, Any]:
    rehearsed, estimated, first = phase.rehearsed, phase.estimated, phase.first_step
    return {
        "name": phase.name,
        "resident_bytes": rehearsed.resident_bytes,
        "peak_bytes": rehearsed.peak_bytes,
        "reserved_bytes": phase.reserved_bytes,
        "estimated_resident_bytes": estimated.resident.total,
        "estimated_peak_bytes": estimated.peak.total,
        "relative_error": phase.peak_error,
        "components": rehearsed.components.as_json(),
        "estimated_components": estimated.peak.as_json(),
        "relative_error_by_component": {
            name: relative_error(num_bytes, getattr(rehearsed.components, name))
            for name, num_bytes in estimated.peak.as_json().items()
        },
        "first_step": None
        if first is None
        else {"resident_bytes": first.resident_bytes, "peak_bytes": first.peak_bytes},
        "host_resident_bytes": rehearsed.host_resident_bytes,
        "host_peak_bytes": rehearsed.host_peak_bytes,
        "flops": rehearsed.flops,
        "seconds": rehearsed.seconds,
    }

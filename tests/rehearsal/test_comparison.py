"""A recorded rehearsal beside its estimate: sums, errors, what is added, and when it does not fit."""

from dataclasses import replace

import pytest
from recorded_rehearsal import comparison, planned, recorded

from vlmplan.answers.rehearsal import document, phases_table
from vlmplan.memory.device import Verdict
from vlmplan.memory.overhead import CUBLAS_WORKSPACE_BYTES, CUDA_CONTEXT_BYTES, NUM_CUBLAS_HANDLES
from vlmplan.rehearsal.comparison import Comparison, relative_error
from vlmplan.units import MIB

WORKSPACES = CUBLAS_WORKSPACE_BYTES * NUM_CUBLAS_HANDLES


def test_error_is_of_what_was_rehearsed():
    assert relative_error(110, 100) == pytest.approx(0.1)
    assert relative_error(90, 100) == pytest.approx(-0.1)
    assert relative_error(90, 0) is None


def test_components_of_every_phase_add_up_to_its_peak_with_workspaces():
    for phase in comparison().phases:
        assert phase.rehearsed.components.total == phase.rehearsed.peak_bytes


def test_workspaces_are_added_from_the_first_forward_on():
    bare = {phase.name: phase for phase in recorded().last_phases}
    added = {p.name: p.rehearsed.peak_bytes - bare[p.name].peak_bytes for p in comparison().phases}
    assert added == {"load": 0, "init": 0} | dict.fromkeys(("forward", "backward", "step", "save"), WORKSPACES)
    resident = {p.name: p.rehearsed.resident_bytes - bare[p.name].resident_bytes for p in comparison().phases}
    assert resident == added


def test_peak_is_the_highest_moment_of_all_phases():
    found = comparison()
    assert found.peak_allocated_bytes == max(max(found.live_bytes), *(p.rehearsed.peak_bytes for p in found.phases))
    assert found.peak.components.total == found.peak_allocated_bytes


def test_a_phase_that_no_estimate_has_stands_without_figures_of_it():
    found = recorded()
    scored = replace(found.first("forward"), name="score", step=0)
    compared = Comparison(replace(found, phases=(*found.phases, scored)), comparison().estimate)
    assert compared.phases[-1].name == "score"
    assert document(compared)["phases"][-1]["estimated_peak_bytes"] is None
    assert [phase.name for phase in compared.phases[:-1]] == [phase.name for phase in comparison().phases]
    assert "score" in " ".join(row[0] for row in phases_table(compared).rows)


def test_estimate_of_the_peak_is_of_the_same_phase():
    found = comparison()
    phases = {phase.name: phase for phase in found.estimate.timeline.phases}
    assert found.estimated_peak == phases[found.peak.name].peak


def test_phases_have_the_estimate_of_their_name():
    for phase in comparison().phases:
        assert phase.estimated.name == phase.name
        assert phase.peak_error == relative_error(phase.estimated.peak.total, phase.rehearsed.peak_bytes)


def test_first_step_stands_beside_the_last():
    first = {phase.name: phase.first_step for phase in comparison().phases}
    assert first["load"] is first["init"] is first["save"] is None
    step = first["step"]
    assert step is not None
    assert step.peak_bytes == WORKSPACES + next(
        phase.peak_bytes for phase in recorded().phases if (phase.name, phase.step) == ("step", 1)
    )


def test_device_is_what_the_allocator_reserves_and_what_is_not_torchs():
    found = comparison()
    assert found.replay is not None
    assert found.device.reserved_bytes == found.replay.peak_reserved_bytes >= found.peak_allocated_bytes
    others = {one.what: one.num_bytes for one in found.not_rehearsed}
    nccl = others["NCCL's buffers"]
    assert nccl is not None
    assert found.device.device_bytes == found.device.reserved_bytes + CUDA_CONTEXT_BYTES + nccl
    assert others["cuBLAS workspaces"] == WORKSPACES


def test_growing_segments_are_replayed_as_such():
    growing, native = comparison(expandable_segments=True), comparison()
    assert growing.reserved_with_room_bytes % (2 * MIB) == native.reserved_with_room_bytes % (2 * MIB) == 0
    assert growing.reserved_with_room_bytes != native.reserved_with_room_bytes == native.device.reserved_bytes
    assert growing.peak_allocated_bytes == native.peak_allocated_bytes


def test_tensors_decide_what_fits_where_segments_grow_in_a_rehearsal_as_in_an_estimate():
    found = comparison(expandable_segments=True)
    assert found.peak_allocated_bytes <= found.device.reserved_bytes < found.peak_allocated_bytes + 2 * MIB
    assert found.device.reserved_bytes < found.reserved_with_room_bytes
    assert found.device.reserved_bytes == pytest.approx(found.estimate.device.reserved_bytes, rel=0.01)


def test_what_has_no_known_size_is_listed_and_not_added():
    unknown = [one.what for one in comparison().not_rehearsed if one.num_bytes is None]
    assert any("kernels" in what for what in unknown)
    assert any("streams" in what for what in unknown)
    alone = comparison(gpu="a100-sxm4-80gb:1", zero_stage="none")
    assert not any("streams" in one.what or "NCCL" in one.what for one in alone.not_rehearsed)


def test_on_a_cpu_nothing_caches_and_python_is_what_is_added():
    found = comparison(gpu="cpu:2", precision="fp32", expandable_segments=None)
    assert found.replay is None
    assert all(phase.reserved_bytes is None for phase in found.phases)
    assert [one.what for one in found.not_rehearsed] == ["Python and libraries"]
    assert found.peak_allocated_bytes == max(phase.peak_bytes for phase in recorded().phases)


def test_live_bytes_end_where_save_ends():
    found = comparison()
    assert found.live_bytes[-1] >= 0
    assert len(found.live_bytes) == len(recorded().events)
    save = recorded().marks[-1]
    assert found.live_bytes[save.end - 1] == found.phases[-1].rehearsed.resident_bytes


def test_more_tensors_than_the_card_has_do_not_fit(monkeypatch: pytest.MonkeyPatch):
    found = comparison()
    assert found.verdict is Verdict.FITS
    small = found.device.device_bytes - 1
    monkeypatch.setattr("vlmplan.hardware.Gpu.usable_bytes", small)
    assert comparison().verdict is Verdict.DOES_NOT_FIT


def test_flops_of_a_step_are_those_of_the_estimate():
    """Counted operation by operation there, layer by layer here."""
    assert recorded().flops_per_step == planned()[1].flops_per_step


def test_collectives_of_a_step_add_up_by_kind():
    messages = document(comparison())["collective_bytes"]
    assert messages["per_step"] == sum(kind["bytes"] for kind in messages["by_kind"].values()) > 0
    kinds = {one.kind for one in recorded().collectives if one.step == 3}
    assert set(messages["by_kind"]) == kinds
    sent = sum(one.count for one in recorded().collectives if one.step == 3)
    assert sum(kind["count"] for kind in messages["by_kind"].values()) == sent

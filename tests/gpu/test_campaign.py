"""The measurement campaign, as far as it needs no GPU: its list, its records, its report, and a run of CPU size."""

import fcntl
import json
import threading
import zipfile

import campaign
import pytest
from campaign_records import OF_OTHER_CARDS, RECORDS, add_record, records_in
from campaign_runs import NUM_STEPS, RUNS, CampaignRun, planned_run
from click.testing import CliRunner
from one_run import DRAWN_ONCE, STEPS_RUN, draws_little, locked
from report import TABLE, report, rows, section
from wheels import keeps, stripped

from vlmplan.memory.device import Verdict
from vlmplan.memory.reservation import Reservation
from vlmplan.units import GIB

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
ALONE = RUNS[4]
"""Whose name is in no other."""
HOST_BYTES = 128 * GIB
"""Of the machine around the card."""


def test_the_list_has_every_kind_of_run():
    values = {name: {run.options.get(name) for run in RUNS} for name in RUNS[0].options}
    assert len({run.name for run in RUNS}) == len(RUNS) >= 40
    assert values["model"] >= {
        "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen3-vl-4b", "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
        "gemma-3-4b",
    }  # fmt: skip
    assert values["method"] == {"full", "lora", "qlora"}
    assert values["zero_stage"] >= {"none", "1", "2", "3"}
    assert (min(values["seq_len"]), max(values["seq_len"])) == (512, 16384)
    assert (min(values["images_per_sample"]), max(values["images_per_sample"])) == (0, 4)
    said = {name: {run.options.get(name) for run in RUNS} for run in RUNS for name in run.options}
    assert said["precision"] >= {None, "fp16", "fp32", "bf16-pure"}
    assert said["attention"] >= {None, "flash_attention_2", "eager"}
    assert said["activation_checkpointing"] >= {None, False}
    assert said["loss"] >= {None, "full"}
    assert said["offload_optimizer"] >= {None, "cpu"}
    assert said["offload_params"] >= {None, "cpu"}
    assert sum(run.is_held_back for run in RUNS) == len(RUNS) // 2


@pytest.mark.one_in(11)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_fits_a_card_of_80_gb_and_a_slice(run):
    planned = planned_run(run)
    assert planned.estimate.verdict is Verdict.FITS
    assert planned.estimate.host.peak_bytes < HOST_BYTES
    assert planned.seconds < campaign.LIMIT_SECONDS


def test_a_dry_run_prints_planned_bytes_and_seconds():
    found = CliRunner().invoke(campaign.main, ["--dry-run", "--only", ALONE.name])
    assert found.exit_code == 0, found.output
    *_, line, last = found.output.splitlines()
    estimate = planned_run(ALONE).estimate
    assert line.split()[0] == ALONE.name
    assert float(line.split()[1]) == pytest.approx(estimate.device.device_bytes / GIB, abs=0.01)
    assert last.startswith("1 runs, ")


def test_kinds_of_evidence_add_up_and_the_last_of_each_counts(tmp_path):
    path = tmp_path / "records.jsonl"
    assert records_in(path) == {}
    add_record({"name": "a", "rehearsed": 1, "planned": 5}, path)
    add_record({"name": "b", "measured_error": "x"}, path)
    add_record({"name": "a", "measured": 2, "planned": 6}, path)
    assert records_in(path) == {
        "a": {"name": "a", "rehearsed": 1, "measured": 2, "planned": 6},
        "b": {"name": "b", "measured_error": "x"},
    }
    assert len(path.read_text().splitlines()) == 2


def test_what_is_recorded_is_not_run_again_and_a_missing_package_is_said(capsys):
    runs = [CampaignRun("done", {}), CampaignRun("failed", {}), CampaignRun("lacks", {}, "no_such_package")]
    known = {"done": {"measured": 1}, "failed": {"measured_error": "x"}}
    assert list(campaign.waiting(runs, known, "measured", again=False)) == []
    assert "lacks waits: no_such_package is not installed here" in capsys.readouterr().out
    assert [run.name for run in campaign.waiting(runs, known, "measured", again=True)] == ["failed"]
    assert [run.name for run in campaign.waiting(runs, known, "rehearsed", again=False)] == ["done", "failed", "lacks"]


def test_a_slice_without_room_for_the_next_run_starts_none(tmp_path):
    path = tmp_path / "records.jsonl"
    words = ["--gpu", "h100-sxm", "--slice-s", "5", "--records", str(path), "--only", ALONE.name]
    found = CliRunner().invoke(campaign.main, words)
    assert found.exit_code == 0, found.output
    assert "the slice ends before" in found.output
    assert "0 of 1 runs have a measured record; 1 are left" in found.output
    assert not path.exists()


def test_the_report_is_honest_without_measurements_and_compares_with_them():
    name = RUNS[0].name
    estimate = planned_run(RUNS[0]).estimate
    assert "No run on a GPU has been recorded yet" in section({})
    measured = {
        "peak_allocated_bytes": 2 * estimate.peak_allocated_bytes,
        "peak_device_bytes": 4 * estimate.device.device_bytes,
        "phases": {"step": {"peak_bytes": 1}, "backward": {"peak_bytes": 4 * estimate.timeline.phases[3].peak.total}},
        "step_seconds": [estimate.step_seconds, estimate.step_seconds / 2, estimate.step_seconds / 4],
    }
    planned = {"gpu": "h100-sxm"}
    records = {name: {"name": name, "planned": planned, "measured": measured}}
    (row,) = rows(records)
    assert row.phase_errors["backward"] == 1 / 4 - 1
    assert row.worst_phase == ("step", estimate.timeline.phases[4].peak.total - 1)
    assert row.calibrated_error is None
    assert (row.error, row.device_error, row.seconds_error) == (1 / 2 - 1, 1 / 4 - 1, 2 - 1)
    said = section(records)
    assert "No run on a GPU" not in said
    assert "allocated bytes 50.0% off, device bytes 75.0% off, seconds of a step 100.0% off" in said
    assert "with a calibration" not in said
    failed = {name: {"name": name, "planned": {"gpu": "h100-sxm"}, "measured_error": "out of memory"}}
    assert f"`{name}`: out of memory" in section(failed)


ODD_WIDTHS = {
    "qwen2.5-vl-3b-full-zero2-1024x1-1img-offload-optimizer-cpu": 0.0001,
    "qwen2-vl-2b-full-plain-2048x2-4img": 0.001,
    "qwen3-vl-4b-lora-zero3-2048x2-2img": 0.001,
    "internvl3-1b-full-plain-2048x4-1img": 0.0015,
}
"""Runs whose allocated bytes were measured most above their tensors; how near the allocator's replay, which leaves out
the smallest tensors, comes to what was measured."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ODD_WIDTHS)
def test_what_a_card_allocates_more_than_tensors_is_the_rest_of_their_blocks(name, monkeypatch):
    replays = []
    run_all = Reservation.run
    monkeypatch.setattr(Reservation, "run", lambda self: (run_all(self), replays.append(self.allocator)))
    record, run = records_in(RECORDS)[name], next(run for run in RUNS if run.name == name)
    planned = planned_run(run, record["planned"]["gpu"], calibration=False, uses_nvlink=False)
    measured = record["measured"]["peak_allocated_bytes"]
    assert planned.estimate.peak_allocated_bytes < 0.998 * measured
    assert replays[-1].peak_allocated_bytes == pytest.approx(measured, rel=ODD_WIDTHS[name])


EVEN_WIDTHS = [
    pytest.param(path, name, id=f"{path.stem}-{name}")
    for path in (RECORDS, *OF_OTHER_CARDS)
    for name, one in records_in(path).items()
    if "measured" in one and name.startswith("llama-3")
]
"""Measured runs of models whose weights fill their blocks."""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("path", "name"), EVEN_WIDTHS)
def test_the_phases_of_a_step_take_on_a_card_what_was_planned(path, name):
    record, run = records_in(path)[name], next(run for run in RUNS if run.name == name)
    estimate = planned_run(run, record["planned"]["gpu"], calibration=False, uses_nvlink=False).estimate
    planned = {phase.name: phase.peak.total for phase in estimate.timeline.phases}
    for phase in ("forward", "backward", "step"):
        measured = record["measured"]["phases"][phase]["peak_bytes"]
        assert -0.0015 < planned[phase] / measured - 1 < 0.006, phase  # casts of a layer's weights count early


@pytest.mark.sweep
def test_the_report_is_up_to_date():
    assert TABLE.read_text(encoding="utf-8") == report()


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{"method": "full"}, {"method": "lora"}, {"method": "full", "zero_stage": "2"}])
def test_a_run_of_cpu_size_measures_what_was_planned(options, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    sizes = {"model": str(tmp_path), "seq_len": 64, "micro_batch": 2, "precision": "fp32", "zero_stage": "none"}
    planned = planned_run(CampaignRun("small", {**sizes, **options}), "cpu:1")
    record = campaign.recorded(planned, lambda one: campaign.StartedRun(one).record(120))
    measured = record["measured"]
    assert set(measured["phases"]) == {"load", "init", "forward", "backward", "step"}
    for name, phase in measured["phases"].items():
        assert phase["peak_bytes"] == pytest.approx(record["planned"]["phases"][name], rel=0.1), name
    assert len(measured["losses"]) == NUM_STEPS
    assert measured["losses"][-1] < measured["losses"][0]
    assert len(measured["step_seconds"]) == NUM_STEPS - 4
    assert set(measured["seconds_by_part"]) == {"forward", "backward", "step"}
    assert sum(measured["seconds_by_part"].values()) > 0


@pytest.mark.long
@pytest.mark.sweep
def test_a_run_that_fails_says_why():
    run = CampaignRun("broken", {**RUNS[0].options, "seq_len": 64, "micro_batch": 1})
    record = campaign.StartedRun(planned_run(run)).record(300)  # planned for a GPU, of which there is none here
    assert list(record) == ["measured_error"]
    assert "finds no GPU" in record["measured_error"] or "CUDA" in record["measured_error"]


def test_a_model_is_not_made_while_steps_of_another_run_are_timed():
    import torch

    weight = torch.zeros(DRAWN_ONCE + 1)

    def make() -> None:
        with draws_little():
            weight.normal_()

    making = threading.Thread(target=make)
    with locked(STEPS_RUN, fcntl.LOCK_EX):
        making.start()
        making.join(0.1)
        assert not weight.any()
    making.join()
    assert weight.any()


def test_a_wheel_keeps_the_libraries_of_one_version_of_cuda(tmp_path):
    names = ["pkg/libbitsandbytes_cpu.so", "pkg/libbitsandbytes_cuda130.so", "pkg/libbitsandbytes_cuda118.so",
             "pkg/libbitsandbytes_rocm64.so", "pkg/code.py", "pkg.dist-info/RECORD"]  # fmt: skip
    path = tmp_path / "bitsandbytes-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names[:-1]:
            archive.writestr(name, name)
        archive.writestr(names[-1], "".join(f"{name},sha256=x,1\n" for name in names))
    stripped(path, lambda member: keeps(member, "130"))
    with zipfile.ZipFile(path) as archive:
        kept = [names[0], names[1], names[4], names[5]]
        assert archive.namelist() == kept
        assert archive.read(names[5]).decode() == "".join(f"{name},sha256=x,1\n" for name in kept)


@pytest.mark.sweep
def test_a_card_that_was_calibrated_has_the_seconds_of_its_calibration_too():
    run = ALONE
    plain = planned_run(run, "h200-sxm", calibration=False).estimate
    measured = {"peak_allocated_bytes": 1, "peak_device_bytes": 1, "step_seconds": [1.0], "date": "2026-11-27"}
    (row,) = rows({run.name: {"name": run.name, "planned": {"gpu": "h200-sxm"}, "measured": measured}})
    assert row.calibrated_seconds not in (None, plain.step_seconds)
    assert row.planned_seconds == plain.step_seconds

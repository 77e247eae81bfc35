"""Measuring on the CPU: every part gives what the planner's file takes, keeps its time, and says why it could not."""

import itertools
import json
import time
from dataclasses import replace
from datetime import date

import pytest
import torch
from torch.nn import functional

from cli_calls import call, isolate
from vlmplan.calibrating import calibration_of, operations
from vlmplan.calibration import QUANTITIES, read_calibration
from vlmplan.errors import InputError
from vlmplan.machine.cpu import cpu_gpu
from vlmplan_trainer.calibrate import compute, hooks, host
from vlmplan_trainer.calibrate.clock import (
    CALL_SECONDS,
    CLOCK_HERTZ,
    MOST_CALLS,
    Measured,
    inverted,
    measured,
    seconds_of,
)
from vlmplan_trainer.calibrate.hooks import CASES, hooks_of
from vlmplan_trainer.calibrate.links import rates
from vlmplan_trainer.calibrate.parts import BREAKS_OFF_AT, PARTS, Job, Part, run_parts

CPU = torch.device("cpu")
JOB = Job(device=CPU, num_ranks=1, operations={}, budget_seconds=1.0)


@pytest.fixture(autouse=True)
def _quick_to_break_off(monkeypatch):
    monkeypatch.setattr("vlmplan_trainer.calibrate.parts.LEAST_SECONDS", 0.0)


def found_by(run):
    return lambda job, limit: run(limit)


def test_what_is_measured_on_the_device_is_what_the_file_takes(monkeypatch):
    monkeypatch.setattr(compute, "CPU_TOKENS", (32,))
    monkeypatch.setattr(compute, "CPU_LAYERS", ((64, 64), (64, 128)))
    monkeypatch.setattr(compute, "CPU_ATTENTION", ((1, 2, 64, 16),))
    found = compute.matmuls(CPU, ["fp32"], 0.01) | compute.attention(CPU, ["fp32"], 0.01)
    found |= host.operations(CPU, operations(), 0.05)
    answer = {
        "device_name": "x",
        "num_ranks": 1,
        "versions": {},
        "values": {name: value.as_json() for name, value in found.items()},
        "not_measured": {},
    }
    read = calibration_of(answer, cpu_gpu(1), is_quick=True, on=date(2026, 11, 24))
    names = {name for name, _ in read.values}
    of_checkpoints = {"checkpoint_forward", "checkpoint_backward"}
    assert names == {"matmul_fp32", "matmul_ramp", "attention_sdpa_fp32", "operation_seconds", *of_checkpoints}
    assert all(value.value > 0 or name in of_checkpoints for name, value in read.values)


@pytest.mark.sweep
def test_checkpoints_cost_more_than_the_operations_that_they_run_again():
    """What they cost is a difference of two times, which a busy machine can hide: one of five tries has to show it."""

    def is_shown() -> bool:
        found = host.operations(CPU, operations(), 4.0)
        forward, backward = found["checkpoint_forward"].value, found["checkpoint_backward"].value
        return (
            0 < forward < 5 * found["operation_seconds"].value and 0 < backward < 10 * found["operation_seconds"].value
        )

    assert any(is_shown() for _ in range(5))


def test_an_answer_with_an_error_is_one_sentence():
    with pytest.raises(InputError, match="cannot be measured: torch finds no GPU here"):
        calibration_of({"error": "torch finds no GPU here"}, cpu_gpu(1), is_quick=True, on=date(2026, 11, 24))


def test_median_and_quartiles():
    assert measured([5.0, 1.0, 3.0, 2.0, 4.0]) == Measured(3.0, 2.0, 4.0, 5)
    assert measured([7.0]) == Measured(7.0, 7.0, 7.0, 1)
    assert inverted(Measured(2.0, 1.0, 4.0, 9), 8.0) == Measured(4.0, 2.0, 8.0, 9)


class FakeGpu:
    """A stream: what is asked of it, in order, and events that say how many calls lie between them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def event(self, enable_timing: bool):
        class Event:
            def record(self) -> None:
                gpu.asked.append("event")
                self.num_calls = gpu.asked.count("call")

            def elapsed_time(self, last: "Event") -> float:
                return 5e-3 * (last.num_calls - self.num_calls)

        gpu = self
        return Event()


def test_a_gpu_is_kept_busy_until_it_has_been_asked_for_all_calls_of_a_stretch(monkeypatch):
    """Its kernels take 5 us each, whatever the host takes to ask for them."""
    gpu = FakeGpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.asked.append(f"busy for {cycles / CLOCK_HERTZ:g} s"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: gpu.asked.append("wait"))
    took = seconds_of(lambda: gpu.asked.append("call"), torch.device("cuda"), 0.0)
    assert took.value == pytest.approx(5e-6)
    busy = f"busy for {MOST_CALLS * CALL_SECONDS:g} s"
    assert gpu.asked[-MOST_CALLS - 4 :] == [busy, "event", *["call"] * MOST_CALLS, "event", "wait"]


def test_seconds_are_those_of_one_call():
    took = seconds_of(lambda: time.sleep(0.004), CPU, 0.02)
    assert took.low >= 0.004
    assert took.repetitions >= 3


def test_a_causal_kernel_computes_half_of_seven_products():
    assert compute.causal_flops((2, 3, 5, 7)) == (2 + 5) * 2 * 2 * 3 * 5 * 5 * 7 / 2


def test_links_are_the_difference_of_two_messages():
    """Between two ranks half of S is sent, in an all-reduce all of it: 1 MB more take 0.5 ms, so 1 and 2 GB/s."""
    sizes = (1_000_000, 2_000_000)
    names = ("all_gather", "reduce_scatter", "all_reduce")
    seconds = {(name, size): [1e-4 + size * 0.5e-9] * 3 for name in names for size in sizes}
    found = rates(seconds, sizes, 2)
    assert found["ring_bandwidth"].value == pytest.approx(1e9)
    assert found["sum_bandwidth"].value == pytest.approx(2e9)


def test_hooks_are_what_they_add_to_the_module_itself():
    added = dict(zip(CASES, [(2, 3), (2, 5), (11, 13), (17, 19), (17, 41), (37, 19)], strict=True))
    assert hooks_of(added) == {
        "forward": 17 - 2, "forward_empty": 11, "backward": 19 - 3, "backward_empty": 13,
        "gather": 37 - 17, "gradient": (41 - 19) - (5 - 3),
    }  # fmt: skip


def test_hooks_are_told_apart_on_a_machine_whose_speed_drifts(monkeypatch):
    """A machine that is three times as slow in one sweep as in another, with steps that take a fixed time as well."""
    added = dict(zip(CASES, [(2, 3), (2, 5), (11, 13), (17, 19), (17, 41), (37, 19)], strict=True))
    slowness = itertools.cycle(speed for speed in (1.0, 3.0, 2.0) for _ in range(2 * len(CASES)))

    class Drifting:
        def __init__(self, kind, stage, threshold, *, count):
            name = next(name for name, case in CASES.items() if case == (kind, stage, threshold))
            self.took = [500 + count * seconds for seconds in added[name]]

        def seconds(self):
            slow = next(slowness)
            return tuple(slow * took for took in self.took)

    monkeypatch.setattr(hooks, "Step", Drifting)
    found = hooks.hook_seconds(0.0)
    assert {name: one.value for name, one in found.items()} == {
        name: pytest.approx(2 * value) for name, value in hooks_of(added).items()
    }
    assert all(one.repetitions == hooks.LEAST_SWEEPS for one in found.values())


def test_what_is_measured_without_deepspeed_has_torchs_own_linear(monkeypatch):
    torchs, others = functional.linear, []
    step = hooks.Step("frozen", None, hooks.WHOLE, count=2)
    monkeypatch.setattr(functional, "linear", lambda *given: others.append(given) or torchs(*given))
    assert all(seconds > 0 for seconds in step.seconds())
    assert not others
    assert functional.linear is not torchs


def test_a_part_that_takes_too_long_is_broken_off_and_the_next_runs():
    def endless(limit):
        while True:
            time.sleep(0.01)

    def broken(limit):
        raise RuntimeError("no such\nkernel")

    good = {"matmul_ramp": Measured(1.0, 1.0, 1.0, 1)}
    parts = (
        Part(name="slow", share=0.02, run=found_by(endless)),
        Part(name="broken", share=0.1, run=found_by(broken)),
        Part(name="absent", share=0.1, run=found_by(endless), prevented=lambda job: "it is not here"),
        Part(name="good", share=0.1, run=found_by(lambda limit: good)),
    )
    said: list[str] = []
    found, reasons = run_parts(JOB, said.append, parts)
    assert found == good
    assert said == ["slow", "broken", "good"]
    assert list(reasons) == ["slow", "broken", "absent"]
    assert reasons["broken"] == "RuntimeError: no such kernel"
    assert "it may take" in reasons["slow"]


def test_all_parts_together_keep_the_budget(monkeypatch):
    assert sum(BREAKS_OFF_AT * part.share for part in PARTS) <= 1.0
    monkeypatch.setattr("vlmplan_trainer.calibrate.parts.LEAST_SECONDS", 30.0)
    late = tuple(Part(name=name, share=0.1, run=found_by(lambda limit: time.sleep(30))) for name in ("a", "b"))
    start = time.monotonic()
    found, reasons = run_parts(replace(JOB, budget_seconds=0.2), lambda part: None, late)
    assert time.monotonic() - start < 5
    assert found == {}
    assert "it may take" in reasons["a"]
    assert "left no time" in reasons["b"]


def test_a_cpu_has_no_bus_and_one_rank_no_links():
    prevented = {part.name for part in PARTS if part.prevented(JOB)} & {"copies over the bus", "links between GPUs"}
    assert prevented == {"copies over the bus", "links between GPUs"}
    assert {part.name for part in PARTS if part.prevented(replace(JOB, num_ranks=2))} & {"links between GPUs"} == set()


@pytest.mark.long
@pytest.mark.sweep
def test_two_cpu_ranks_are_measured_and_estimates_of_them_have_seconds(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)  # DeepSpeed then prints its choice on standard output
    estimate = ("estimate", "--model", "qwen2.5-0.5b", "--gpu", "cpu:2", "--precision", "fp32", "--json")
    assert call(*estimate).document["step_seconds"] is None
    start = time.monotonic()
    done = call("calibrate", "--gpu", "cpu:2", "--quick", "--json")
    assert time.monotonic() - start < 120
    assert done.code == 0
    found = read_calibration("cpu")
    measured_names, late = {name for name, _ in found.values}, dict(found.not_measured)
    of_parts = {
        "fixed bytes": "process_bytes",
        "matrix products": "matmul_fp32",
        "operations": "operation_seconds",
        "ZeRO-3's hooks": "hook_gather",
        "links between GPUs": "ring_bandwidth",
    }
    for part, name in of_parts.items():  # a machine that is busy with something else has no time for some
        assert (name in measured_names) != ("it may take" in late.get(part, "") or "no time" in late.get(part, "")), (
            part
        )
    assert measured_names <= QUANTITIES.keys()
    assert found.num_ranks == (2 if "ring_bandwidth" in measured_names else 1)
    assert json.loads(done.out)["file"].endswith("cpu.json")
    has_seconds = {"matmul_fp32", "attention_sdpa_fp32", "memory_bandwidth", "ring_bandwidth"} <= measured_names
    assert (call(*estimate).document["step_seconds"] is not None) == has_seconds

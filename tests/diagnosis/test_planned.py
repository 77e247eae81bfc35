"""Beside a plan: what the samples must have been, whose fault it was, and a smallest change that holds."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from cli_calls import DONE, Call, call
from diagnosis.test_places import BACKWARD, CALL, EVALUATION, LOSS, STEP, TRAINER, traceback_of
from test_memory_messages import torch_2_1
from vlmplan.memory.overhead import reserve_bytes
from vlmplan.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("isolated")
SETUP = ("--model", "qwen2.5-0.5b", "--method", "lora", "--micro-batch", "2", "--loss", "full", "--seq-len", "1024")
CARD = ("--gpu", "rtx-4090")
TOTAL = round(23.65 * GIB)
VOCABULARY = 151_936


def diagnosed(
    message: str, *, frames: list[Any] | None = None, steps: int = 0, options: tuple[str, ...] = (*SETUP, *CARD)
) -> Call:
    log = f" 1%|  | {steps}/882 [0:01<0:02]\n"
    log += message if frames is None else traceback_of(frames).rpartition("torch.OutOf")[0] + message
    Path("train.log").write_text(log)
    return call("diagnose", "train.log", *options, "--json")


def message(
    requested: int, allocated: int, *, unused: int = 0, free: int = 20 * MIB, total: int = TOTAL, processes: str = ""
) -> str:
    return torch_2_1(requested, total, allocated, free, allocated + unused, capacity="capacity", processes=processes)


def planned_peak(phase: str, num_tokens: int = 1024) -> int:
    document = call("estimate", *SETUP[:-1], str(num_tokens), *CARD, "--json").document
    return next(one["peak_bytes"] for one in document["phases"] if one["name"] == phase)


@pytest.mark.sweep
def test_logits_say_how_long_the_samples_are_and_the_change_is_for_such():
    tokens = 2 * 7_000
    request = -(-tokens * VOCABULARY * 4 // (2 * MIB)) * 2 * MIB
    found = diagnosed(message(request, 20 * GIB), frames=[*TRAINER, STEP, CALL, *LOSS], steps=129).document
    assert (found["phase"], found["cause"], found["is_late"]) == ("loss", "true_need", True)
    longer = found["planned"]["longer_samples"]
    assert longer["tokens"] == pytest.approx(7_000, rel=0.001)
    assert longer["is_named"]
    assert (
        f"So this is a sample of {longer['tokens']:,} tokens, padding included; 1,024 are planned" in found["sentences"]
    )
    command = shlex.split(found["to_fit"]["command"])
    assert command[command.index("--seq-len") + 1] == str(longer["tokens"])
    again = call(*command[1:], "--json")
    assert again.code == DONE
    assert again.document["peak_reserved_bytes"] < 20 * GIB + request


@pytest.mark.sweep
def test_the_length_that_a_sum_of_bytes_needs_is_the_one_that_the_plan_has_it_with():
    needed = planned_peak("backward", 3000)
    found = diagnosed(message(500 * MIB, needed - 500 * MIB), frames=[*TRAINER, STEP, *BACKWARD], steps=9).document
    longer = found["planned"]["longer_samples"]
    assert longer["tokens"] == pytest.approx(3_000, rel=0.02)
    assert not longer["is_named"]


@pytest.mark.sweep
def test_without_a_phase_much_more_than_the_highest_is_said():
    """ms-swift#2010: 75.16 GiB in tensors and no traceback, where a plan without its images has 20."""
    needed = planned_peak("backward")
    more = diagnosed(message(500 * MIB, 2 * needed)).document["sentences"]
    said = [one for one in more if "backward, the highest phase, is planned with" in one]
    assert len(said) == 1
    as_planned = diagnosed(message(500 * MIB, needed - 500 * MIB)).document["sentences"]
    assert not any("the highest phase" in one for one in as_planned)


def test_what_is_planned_so_makes_no_sample_longer():
    needed = planned_peak("backward")
    found = diagnosed(message(500 * MIB, needed - 500 * MIB), frames=[*TRAINER, STEP, *BACKWARD]).document
    assert found["planned"]["longer_samples"] is None
    assert found["planned"]["planned_bytes"] == needed


def test_a_model_that_hears_sounds_alone_has_no_longer_prompts():
    hears = ("--model", "whisper-tiny", "--method", "lora", "--micro-batch", "2", *CARD)
    found = diagnosed(message(2 * 6000 * 51_865 * 4, 20 * GIB), frames=[*TRAINER, STEP, CALL, *LOSS], options=hears)
    assert found.code == DONE
    assert found.document["planned"]["longer_samples"] is None


def test_others_processes_leave_the_setup_as_it_is():
    processes = (
        "Process 7 has 18.00 GiB memory in use. Including non-PyTorch memory, this process has 4.50 GiB memory in use. "
    )
    found = diagnosed(message(2 * GIB, 3 * GIB, unused=GIB // 2, free=GIB, processes=processes))
    assert found.document["cause"] == "other_processes"
    assert found.document["to_fit"] is None
    assert "On a GPU of its own the setup fits by its plan: nothing of it has to change" in found.document["sentences"]


def test_fragmentation_is_mended_by_segments_that_grow():
    needed = planned_peak("backward")
    text = message(300 * MIB, needed - 300 * MIB, unused=TOTAL - needed - GIB, free=10 * MIB)
    found = diagnosed(text, frames=[*TRAINER, STEP, *BACKWARD], steps=40).document
    assert found["cause"] == "fragmentation"
    assert any("lengths that vary leave such gaps" in sentence for sentence in found["sentences"])
    assert found["to_fit"]["options"] == {"expandable_segments": True}


@pytest.mark.sweep
def test_a_smaller_card_than_planned_is_said():
    found = diagnosed(message(GIB, 9 * GIB, total=10 * GIB), frames=[*TRAINER, STEP, *BACKWARD]).document
    assert found["cause"] == "smaller_card"
    assert not any("\x1b" in sentence for sentence in found["sentences"])


@pytest.mark.sweep
def test_what_is_to_change_fits_the_smaller_card_with_its_reserve():
    card = round(4.5 * GIB)
    frames = [*TRAINER, STEP, *BACKWARD]
    options = (*SETUP, "--gpu", "a100-sxm4-80gb:2")
    run_out = message(300 * MIB, round(3.9 * GIB), total=card)
    found = diagnosed(run_out, frames=frames, options=options).document
    assert found["cause"] == "smaller_card"
    assert found["to_fit"]["usable_bytes"] == card
    assert found["to_fit"]["device_bytes"] + reserve_bytes(card) <= card
    said = call("diagnose", "train.log", *options).out
    assert "To fit on GPUs of 4.50 GiB, as the log has one" in said
    assert " of 4.50 GiB, the same results" in said
    assert "The command is for 2 x A100 SXM4 80GB" in said


@pytest.mark.sweep
def test_a_plan_file_is_the_whole_setup():
    assert call("recommend", "--model", "qwen2.5-0.5b", "--gpu", "rtx-4090", "--out", "plan").code == DONE
    found = diagnosed(message(GIB, 20 * GIB), options=("--plan", "plan/plan.json")).document
    assert found["planned"]["usable_bytes"] < TOTAL
    assert call("diagnose", "train.log", "--plan", "plan/plan.json", "--seq-len", "12").code != DONE


@pytest.mark.sweep
def test_the_hosts_memory_is_compared_with_the_hosts():
    text = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
    small = diagnosed(text, options=(*SETUP, *CARD, "--host-ram", "1")).document
    assert any(sentence == "The node has 1.00 GiB: less than planned" for sentence in small["sentences"])
    large = diagnosed(text, options=(*SETUP, *CARD, "--host-ram", "512")).document
    assert any("more than planned: something else takes it" in sentence for sentence in large["sentences"])


@pytest.mark.sweep
def test_evaluation_changes_nothing_of_how_it_trains():
    found = diagnosed(message(5 * GIB, 19 * GIB), frames=[*TRAINER, *EVALUATION], steps=100).document
    assert (found["phase"], found["part"], found["is_late"]) == ("evaluation", "gathered_logits", True)
    assert [change["options"] for change in found["to_fit"]["changes"]] == [{"eval_keeps": "predictions"}]
    assert any("evaluation takes the most" in sentence for sentence in found["sentences"])
    assert "the traceback gathers what metrics get, so all logits are planned to be kept" in found["planned"]["notes"]
    assert any("eval_accumulation_steps" in sentence for sentence in found["sentences"])
    assert not any("steps went well" in sentence for sentence in found["sentences"])


def test_a_host_that_the_message_tells_of_is_what_the_plan_has_to_fit():
    ray = "Memory on the node (IP: 1) was 3.90GB / 4.00GB (0.975000), which exceeds the memory usage threshold of 0.95"
    found = diagnosed(ray, options=(*SETUP, *CARD)).document
    assert found["cause"] == "host_memory"
    assert found["planned"]["host_bytes_per_node"] > 0
    assert any(sentence.startswith("The node has 4.00 GiB") for sentence in found["sentences"])

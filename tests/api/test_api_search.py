"""``vlmplan.recommend`` and ``vlmplan.advise`` answer what the commands do."""

import json
import pickle
from typing import Any

import pytest

import vlmplan
from cli_calls import call

LORA: dict[str, Any] = {"method": "lora", "micro_batch": 1, "zero_stage": "none", "activation_checkpointing": False}
LORA_WORDS = "--method lora --micro-batch 1 --zero-stage none --no-activation-checkpointing".split()
"""Nearly everything held fixed: there is little to search."""


def test_a_recommendation_is_that_of_the_command_line():
    words = ["--model", "gpt2", "--gpu", "rtx-4090:2", "--gpu", "t4", "--objective", "time", *LORA_WORDS]
    found = vlmplan.recommend("gpt2", ["rtx-4090:2", "t4"], objective="time", **LORA)
    assert json.dumps(found.as_dict(), indent=2) == call("recommend", *words, "--json").out.rstrip("\n")
    assert str(found) == call("recommend", *words).out
    assert pickle.loads(pickle.dumps(found)).plans == found.plans
    best = found.plan
    assert (best, best.rank, best.gpu, best.recipe["method"]) == (found.plans[0], 1, "rtx-4090", "lora")
    assert best.estimate.as_dict() == found.as_dict()["plans"][0]["estimate"]
    assert best.estimate.peak_device_bytes == sum((best.estimate.usable_bytes, -best.estimate.free_bytes))
    assert best.estimate.fits


@pytest.mark.sweep
def test_the_best_plan_is_written_as_the_command_line_writes_it():
    found = vlmplan.recommend("gpt2", "rtx-4090:2", **LORA)
    assert call("recommend", "--model", "gpt2", "--gpu", "rtx-4090:2", *LORA_WORDS, "--out", "theirs").code == 0
    files = found.write("mine")
    assert {file.name for file in files} >= {"plan.json", "launch.sh"}
    for file in files:
        assert file.read_bytes() == (file.parents[1] / "theirs" / file.name).read_bytes()
    assert found.save("plan.json").read_bytes() == (files[0].parent / "plan.json").read_bytes()


def test_where_nothing_fits_there_is_no_plan_and_what_to_do():
    fixed = {"method": "full", "zero_stage": "none", "optimizer": "adamw", "micro_batch": 1, "precision": "fp16"}
    found = vlmplan.recommend("llama-3.2-3b", "t4", **fixed)
    assert (found.fits, found.plans) == (False, ())
    assert found.rejected[0].gpu == "t4"
    assert found.rejected[0].reason
    with pytest.raises(vlmplan.DoesNotFitError):
        _ = found.plan
    assert "nothing fits" in repr(found)
    assert found.other_machine is not None
    assert found.other_machine.num_gpus >= 1
    assert found.other_machine.command.startswith("vlmplan recommend --model llama-3.2-3b --gpu ")


def test_advice_is_that_of_the_command_line():
    words = (
        "--model gpt2 --gpu t4 --method lora --micro-batch 1 --zero-stage none --no-activation-checkpointing".split()
    )
    fixed = {"method": "lora", "micro_batch": 1, "zero_stage": "none", "activation_checkpointing": False}
    found = vlmplan.advise("gpt2", "t4", **fixed)
    assert json.dumps(found.as_dict(), indent=2) == call("advise", *words, "--json").out.rstrip("\n")
    assert str(found) == call("advise", *words).out
    assert found.best in (None, *found.changes)
    assert {change.fits for change in found.changes} <= {True, False}

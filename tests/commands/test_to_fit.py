"""What is suggested where a setup does not fit: its command fits, none of its changes can be left out, nor the machine
be a wrong one. Each answer is held to what the same command line says then."""

import random
import shlex
from typing import Any

import pytest

from cli_calls import DOES_NOT_FIT, DONE, FEW_LAYERS, call, folder_of, option_words

SWEEP = pytest.mark.sweep
MODELS = ("qwen2.5-0.5b", "smollm2-1.7b", "qwen2-vl-2b", "llama-3.2-3b", "qwen2.5-vl-3b", "llama-3.1-8b", "qwen2-vl-7b")
GPUS = ("rtx-4060:1", "rtx-3080-10gb:1", "rtx-4090:1", "rtx-3080-10gb:2", "rtx-4090:2", "rtx-3080-10gb:4", "t4:1")


def setup(seed: int) -> dict[str, Any]:
    """Options of a setup that is too large, more often than not; None for those that are not given."""
    draw = random.Random(seed)
    gpu = draw.choice(GPUS)
    options: dict[str, Any] = {"model": draw.choice(MODELS), "gpu": gpu}
    options["method"] = draw.choice((None, "full", "lora", "qlora"))
    options["micro_batch"] = draw.choice((None, 2, 4, 6, 16))
    options["grad_accum"] = draw.choice((None, None, 3))
    options["seq_len"] = draw.choice((None, 2048, 5000))
    options["loss"] = draw.choice((None, "full"))
    options["attention"] = draw.choice((None, None, "eager"))
    options["precision"] = draw.choice((None, None, None, "fp32"))
    options["optimizer"] = draw.choice((None, None, "adamw-8bit", "sgd"))
    stages = (None, None, "none") if gpu.endswith(":1") else (None, "0", "1", "2", "3")
    options["zero_stage"] = draw.choice(stages)
    switches = {
        "activation-checkpointing": draw.choice((None, False)),
        "expandable-segments": draw.choice((None, True)),
    }
    return options | switches


def document(command: list[str]) -> tuple[int, dict[str, Any]]:
    found = call(*command, "--json")
    return found.code, found.document


def without(command: list[str], change: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The command with a change taken back: its options as they were given, or not at all."""
    names = {"fuses_optimizer": "fused-optimizer", "caches_casts": "cached-casts", "upcasts_frozen": "kbit-upcast"}
    flags = {f"--{names.get(name, name.replace('_', '-'))}" for name in change}
    flags |= {f"--no-{flag[2:]}" for flag in flags} | {"--foreach-optimizer"}
    left: list[str] = []
    skips = False
    for place, word in enumerate(command):
        if skips:
            skips = False
        elif word in flags:
            skips = place + 1 < len(command) and not command[place + 1].startswith("--")
        else:
            left.append(word)
    given = {name: value for name, value in before.items() if name.replace("-", "_") in change}
    return left + option_words(given)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (1, 2, 3))])
def test_what_is_suggested_fits_and_needs_all_of_its_changes(seed: int):
    options = setup(seed)
    asked = call("estimate", *option_words(options), "--json")
    if asked.code not in (DONE, DOES_NOT_FIT):
        return  # nothing that can be trained
    code, found = asked.code, asked.document
    if code == DONE:
        assert (found["to_fit"], found["other_machine"]) == (None, None)
        return
    assert code == DOES_NOT_FIT
    to_fit = found["to_fit"]
    if to_fit is not None:
        command = shlex.split(to_fit["command"])
        assert command[:2] == ["vlmplan", "estimate"]
        again_code, again = document(command[1:])
        assert (again_code, again["verdict"]) == (DONE, "fits")
        assert again["gpu"] | {"usable_bytes": 0} == found["gpu"] | {"usable_bytes": 0}
        for name in ("device_bytes", "step_seconds", "host_bytes_per_node"):
            assert to_fit[name] == again["peak_device_bytes" if name == "device_bytes" else name]
        for change in to_fit["changes"]:
            less = call(*without(command[1:], change["options"], options), "--json")
            assert less.code != DONE or less.document["verdict"] != "fits", change
    other = found["other_machine"]
    if other is not None:
        command = shlex.split(other["command"])
        again_code, again = document(command[1:])
        assert (again_code, again["verdict"]) == (DONE, "fits")
        assert (again["gpu"]["id"], again["gpu"]["count"]) == (other["gpu"], other["num_gpus"])
        assert (other["gpu"], other["num_gpus"]) != (found["gpu"]["id"], found["gpu"]["count"])
        assert other["usd"] > 0


# -- the other commands ----------------------------------------------------------------------------------------------

TOO_LARGE = ("--model", "llama-3.2-3b", "--method", "full", "--micro-batch", "8", "--no-activation-checkpointing")


def suggested(command: str, *more: str) -> dict[str, Any]:
    """``to_fit`` of a command that finds that nothing fits, and its code."""
    found = call(command, *TOO_LARGE, *more, "--json")
    return found.document | {"code": found.code}


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["recommend", pytest.param("advise", marks=pytest.mark.sweep)])
def test_a_search_that_finds_nothing_says_what_does_on_the_same_card(command: str):
    found = suggested(command, "--gpu", "rtx-4060:1", "--host-ram", "24")
    words = shlex.split(found["to_fit"]["command"])
    assert words[:2] == ["vlmplan", command]
    assert words[words.index("--gpu") + 1] == "rtx-4060:1"
    again = call(*words[1:], "--json")
    assert again.code == DONE
    plans = again.document["plans"] if command == "recommend" else [again.document["base"]]
    assert plans[0]["estimate"]["verdict"] == "fits"
    other = shlex.split(found["other_machine"]["command"])
    assert call(*other[1:], "--json").code == DONE


@pytest.mark.sweep
def test_a_search_that_leaves_the_micro_batch_open_keeps_the_samples_of_a_step():
    batch = ("--micro-batch", "32", "--loss", "full", "--no-activation-checkpointing")
    found = call("recommend", "--model", "smollm2-360m", "--gpu", "rtx-4060", "--method", "lora", *batch, "--json")
    to_fit = found.document["to_fit"]
    assert to_fit["keeps_results"]
    again = call(*shlex.split(to_fit["command"])[1:], "--json").document["plans"][0]
    assert again["recipe"]["micro_batch"] * again["recipe"]["grad_accum"] == 32


@pytest.mark.sweep
def test_what_is_suggested_for_samples_of_different_lengths_fits_those():
    model = str(folder_of("few", FEW_LAYERS))
    setup = ("--model", model, "--gpu", "rtx-4060", "--method", "lora", "--loss", "full", "--micro-batch", "7")
    lengths = ("--sample-lengths", "64-512")
    found = call("estimate", *setup, "--seq-len", "512", *lengths, "--json").document
    commands = [shlex.split(found[name]["command"]) for name in ("to_fit", "other_machine")]
    assert all(words[words.index("--sample-lengths") + 1] == "64-512" for words in commands)
    again = call(*commands[0][1:], "--json").document
    assert (again["verdict"], again["peak_device_bytes"]) == ("fits", found["to_fit"]["device_bytes"])


TRL_FILE = """\
model_name_or_path: qwen2.5-1.5b
use_peft: true
lora_target_modules: all-linear
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
bf16: true
max_length: 1024
"""


@pytest.mark.sweep
def test_a_search_of_a_configuration_changes_the_engine_before_the_results(tmp_path):
    path = tmp_path / "trl.yaml"
    path.write_text(TRL_FILE, encoding="utf-8")
    where = ("--config", str(path), "--gpu", "rtx-4060", "--json")
    searched, estimated = (call(command, *where).document["to_fit"] for command in ("recommend", "estimate"))
    assert searched["keeps_results"]
    assert searched["options"] == estimated["options"]
    again = call(*shlex.split(searched["command"])[1:], "--json").document["plans"][0]["estimate"]
    assert again["peak_device_bytes"] == searched["device_bytes"]
    assert again["recipe"]["global_batch"] == 16


@pytest.mark.sweep
def test_launch_ends_with_the_command_that_fits():
    run = ("--gpu", "rtx-4060:1", "--dummy-data", "32", "--output-dir", "out", "--dry-run")
    found = call("launch", *TOO_LARGE, *run)
    (line,) = (line for line in found.err.splitlines() if line.startswith("to fit: "))
    words = shlex.split(line.removeprefix("to fit: "))
    assert words[:2] == ["vlmplan", "launch"]
    assert words[words.index("--dummy-data") + 1] == "32"
    again = call(*words[1:], "--dry-run", "--json")
    assert again.document["plan"]["expected"]["verdict"] == "fits"
    assert again.document["to_fit"] is None


@pytest.mark.sweep
def test_a_host_that_is_too_small_is_not_told_to_hold_what_it_cannot():
    for gib in ("20", "200"):
        found = call("estimate", *TOO_LARGE, "--gpu", "rtx-4090:1", "--host-ram", gib, "--json").document["to_fit"]
        assert found["host_bytes_per_node"] <= int(gib) * 2**30
        assert ("cpu" in found["options"].values()) is (gib == "200")


@pytest.mark.sweep
def test_a_host_that_nothing_is_known_of_is_said_where_more_of_it_would_change_the_answer():
    """Full training fits on the card with 63 GiB of host memory, adapters with less."""
    command = ["estimate", "--model", "llama-3.2-3b", "--method", "full", "--gpu", "rtx-4060:1"]
    said = "The host is taken to have 20.95 GiB: --host-ram says what it has"
    for more, results, is_said in (([], "other results", True), (["--host-ram", "128"], "the same results", False)):
        printed = " ".join(call(*command, *more).out.split())
        assert (results in printed, said in printed) == (True, is_said)


@pytest.mark.sweep
def test_what_a_search_puts_on_a_host_of_unknown_memory_is_said_by_an_estimate_too():
    """A search plans full training with what the host is not known to have, and says so; an estimate proposes it."""
    words = ("--model", "llama-3.2-3b", "--method", "full", "--gpu", "rtx-a5500:1")
    plan = call("recommend", *words, "--json").document
    needed = plan["plans"][0]["estimate"]["host_bytes_per_node"]
    assert any(f"needs {needed / 2**30:.2f} GiB of host RAM" in note for note in plan["caveats"])
    estimated = call("estimate", *words, "--json").document
    more = estimated["with_more_host"]
    assert not estimated["to_fit"]["keeps_results"]
    assert more["keeps_results"]
    assert more["command"] in call("estimate", *words).out
    changed = call(*shlex.split(more["command"])[1:], "--json").document
    assert changed["verdict"] == "fits"
    assert changed["peak_device_bytes"] == more["device_bytes"]
    known = call("recommend", *words, "--host-ram", str(-(-needed // 2**30)), "--json").document
    assert known["plans"][0]["estimate"]["host_bytes_per_node"] <= -(-needed // 2**30) * 2**30
    assert not any("is taken to have" in note for note in known["caveats"])


@pytest.mark.sweep
def test_what_is_printed_has_both_commands_of_the_json():
    words = ("estimate", *TOO_LARGE, "--gpu", "rtx-4060:1")
    found, shown = call(*words, "--json").document, call(*words).out
    for name in ("to_fit", "other_machine"):
        assert found[name]["command"] in shown


FACTORY_FILE = """\
model_name_or_path: smollm2-1.7b
stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
max_steps: 100
bf16: true
disable_gradient_checkpointing: true
"""
"""Its launcher lets segments grow for several GPUs alone, and its steps are of as many samples as there are GPUs."""


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["estimate", *(pytest.param(one, marks=SWEEP) for one in ("recommend", "advise"))])
def test_the_other_machine_of_a_configuration_is_what_its_command_says(command: str, tmp_path):
    path = tmp_path / "factory.yaml"
    path.write_text(FACTORY_FILE, encoding="utf-8")
    other = call(command, "--config", str(path), "--gpu", "rtx-4060:2", "--json").document["other_machine"]
    assert other["num_gpus"] != 2
    again = call("recommend", *shlex.split(other["command"])[2:], "--json").document["plans"][0]
    assert (again["hours"], again["usd"]) == (other["hours"], other["usd"])
    assert again["estimate"]["peak_device_bytes"] == other["device_bytes"]


@pytest.mark.sweep
def test_every_row_of_a_configuration_is_what_recommend_finds_with_its_options(tmp_path):
    path = tmp_path / "factory.yaml"
    path.write_text(FACTORY_FILE, encoding="utf-8")
    for gpu in ("a100-sxm4-80gb:1", "rtx-4060:2"):  # where it fits, and where it does not
        where = ("--config", str(path), "--json")
        found = call("advise", *where, "--gpu", gpu).document
        rows = [row for row in found["changes"] if "--gpu" in row["options"] and row["fits"]]
        assert rows
        for row in rows:
            again = call("recommend", *where, *shlex.split(row["options"])).document["plans"][0]
            assert (again["hours"], again["usd"]) == (row["hours"], row["usd"]), row["change"]


SMALL_HOSTS_ARE_CHEAP = """\
offers:
- {gpu: a10, num_gpus: 1, provider: mine, sku: small, pricing: on_demand, usd_per_hour: 0.001, host_ram_gib: 16}
- {gpu: a10, num_gpus: 1, provider: mine, sku: large, pricing: on_demand, usd_per_hour: 0.09, host_ram_gib: 400}
- {gpu: rtx-a5000, num_gpus: 1, provider: mine, sku: box, pricing: on_demand, usd_per_hour: 0.002, host_ram_gib: 400}
"""


@pytest.mark.sweep
def test_the_other_machine_is_the_cheapest_one_that_has_the_host_memory(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL_HOSTS_ARE_CHEAP, encoding="utf-8")
    words = ("--model", "llama-3.2-3b", "--method", "full", "--zero-stage", "2", "--offload-optimizer", "cpu")
    found = call("estimate", *words, "--gpu", "rtx-4060", "--catalog", str(path), "--json").document["other_machine"]
    assert found["gpu"] == "rtx-a5000"
    dearer = call("recommend", *words, "--gpu", "a10", "--provider", "mine", "--catalog", str(path), "--json").document
    assert dearer["plans"][0]["offer"]["sku"] == "large"
    assert dearer["plans"][0]["usd"] > found["usd"]


def test_a_host_that_is_short_is_not_given_the_inputs_of_layers_to_see_what_helps():
    """With them it is short whatever else is changed; without the float32 copies alone it is not."""
    words = ("--model", "llama-3.2-3b", "--method", "qlora", "--zero-stage", "none", "--gpu", "rtx-4090:2")
    found = call("estimate", *words, "--seq-len", "8192", "--host-ram", "7.5", "--json").document["to_fit"]
    assert found["options"] == {"upcasts_frozen": False}
    assert call(*shlex.split(found["command"])[1:]).code == DONE


@pytest.mark.parametrize("objective", ["time", "vram"])
def test_the_cheapest_other_machine_is_the_cheapest_whatever_is_looked_for(objective: str):
    words = ("recommend", "--model", "llama-3.2-3b", "--gpu", "t4:1", "--method", "full", "--zero-stage", "0")
    cheapest, found = (call(*words, "--objective", one, "--json").document for one in ("cost", objective))
    machine, by_cost = found["other_machine"], cheapest["other_machine"]
    assert [machine[name] for name in ("gpu", "num_gpus")] == [by_cost[name] for name in ("gpu", "num_gpus")]
    first = call(*shlex.split(machine["command"])[1:], "--json").document["plans"][0]
    assert (machine["usd"], machine["hours"]) == (first["usd"], first["hours"])
    assert machine["device_bytes"] == first["estimate"]["peak_device_bytes"]

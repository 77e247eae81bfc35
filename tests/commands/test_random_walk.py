"""One random request through the commands that a user asks one after another: recommend, estimate of its first plan,
the files of ``--out``, diagnose and launch with them, and what buy rents.

A byte, a second or a price that one of them prints is the other's too.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, call, option_words, options_of
from vlmplan.units import gib_text

MODELS = ("smollm2-135m", "qwen3-0.6b", "gemma-3-1b", "lfm2-350m", "pythia-160m", "gpt2", "smolvlm-256m", "bloom-560m")
CARDS = ("l4", "a100-sxm4-80gb", "h100-sxm", "rtx-4090", "t4", "mi300x", "rtx-4060", "v100-sxm2-16gb", "b200")
DRAWN: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("seq_len", (700, 1300, 2048), 0.6),
    ("num_nodes", (2,), 0.15),
    ("method", ("full", "lora", "qlora", "lora-8bit"), 0.6),
    ("num_samples", (333, 100_000), 0.3),
    ("global_batch", (8, 24, 64), 0.3),
    ("precision", ("fp16", "fp32", "bf16-pure"), 0.2),
    ("optimizer", ("adamw-8bit", "sgd", "adafactor", "lion"), 0.2),
    ("zero_stage", ("none", "0", "1", "2", "3"), 0.3),
    ("host_ram", (16, 64, 200), 0.1),
    ("loss", ("full", "chunked"), 0.1),
    ("expandable_segments", (True, False), 0.2),
)
BESIDE_NUMBERS = (
    *("notes", "caveats", "freeze_vision", "to_fit", "with_more_host", "other_machine", "scaling"),
    "reserved_with_room_bytes",
)
OUT_OF_MEMORY = """\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.03 GiB of \
which 1.00 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by \
PyTorch but unallocated.
"""
IN_DS_CONFIG = ("--zero-stage", "--offload-optimizer", "--offload-params", "--micro-batch", "--grad-accum")
IN_DS_CONFIG_TOO = (*IN_DS_CONFIG, "--global-batch", "--precision")
WITHOUT_AUTOCAST = 21
"""Plain PyTorch without autocast, which caches no casts."""
SEEDS = (WITHOUT_AUTOCAST, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(24)))


def drawn(seed: int) -> dict[str, Any]:
    draw = Random(seed)
    options: dict[str, Any] = {"model": draw.choice(MODELS), "gpu": f"{draw.choice(CARDS)}:{draw.choice((1, 2, 4, 8))}"}
    options |= {name: draw.choice(values) for name, values, often in DRAWN if draw.random() < often}
    if seed == WITHOUT_AUTOCAST:
        options |= {"precision": "fp32", "zero_stage": "none"}
    return options


def numbers(found: dict[str, Any]) -> dict[str, Any]:
    """An estimate without sentences, and without what only a machine that is rented says of its host."""
    left = {name: value for name, value in found.items() if name not in BESIDE_NUMBERS}
    return left | {"gpu": {name: value for name, value in left["gpu"].items() if not name.startswith("host")}}


def without(words: list[str], flags: tuple[str, ...]) -> list[str]:
    """The words without these options and their values."""
    return [word for at, word in enumerate(words) if word not in flags and (at == 0 or words[at - 1] not in flags)]


def own_words(plan: dict[str, Any], options: dict[str, Any]) -> list[str]:
    words = list(options_of(plan))
    if plan["recipe"]["zero_stage"] is None:
        words[words.index("--zero-stage") + 1] = "none"
    return [*words, *option_words({"host_ram": options.get("host_ram")})]


@pytest.mark.parametrize("seed", SEEDS)
def test_commands_that_follow_one_another_say_the_same_of_a_random_request(seed: int, tmp_path: Path):
    options, out, log = drawn(seed), tmp_path / "plan", tmp_path / "run.log"
    log.write_text(OUT_OF_MEMORY)
    found = call("recommend", *option_words(options), "--out", str(out), "--json")
    if not found.out:
        assert found.code == MENDABLE
        return
    plans = found.document["plans"]
    if not plans:
        assert found.code == DOES_NOT_FIT
        assert call("estimate", *option_words(options)).code != DONE
        return
    plan, told = plans[0], plans[0]["estimate"]
    words = own_words(plan, options)
    assert numbers(call("estimate", *words, "--json").document) == numbers(told), words
    assert gib_text(told["peak_device_bytes"]) in call("estimate", *words).out
    if (file := out / "ds_config.json").exists():
        by_file = [*without(words, IN_DS_CONFIG_TOO), "--ds-config", str(file)]
        assert numbers(call("estimate", *by_file, "--json").document) == numbers(told), by_file
    planned = call("diagnose", str(log), "--plan", str(out), "--json").document["planned"]
    assert (planned["device_bytes"], planned["reserved_bytes"], planned["host_bytes_per_node"]) == (
        told["peak_device_bytes"],
        told["peak_reserved_bytes"],
        told["host_bytes_per_node"],
    )
    run = call("launch", "--plan", str(out), "--dummy-data", "100", "--dry-run", "--output-dir", str(tmp_path / "run"))
    assert "would write" in run.out, run.err
    check_rents(plan, options["gpu"])


def check_rents(plan: dict[str, Any], gpu: str) -> None:
    """What the plan is rented for is the cheapest of what ``buy`` rents that has the host memory."""
    if plan["usd_per_hour"] is None or plan["num_nodes"] > 1:
        return
    words = ("--hours-per-week", "20", "--price", "3000", "--json")
    rents = [rent["offer"] for rent in call("buy", "--gpu", gpu, *words).document["rents"]]
    assert rents[0]["usd_per_hour"] <= plan["usd_per_hour"]
    ram = rents[0]["host_ram_bytes"]
    if ram is not None and ram >= plan["estimate"]["host_bytes_per_node"]:
        assert rents[0]["usd_per_hour"] == plan["usd_per_hour"]

"""What Unsloth publishes of its own runs, beside what is planned of the same programs."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from unsloth_programs import SCRIPT
from vlmplan.other_trainers.unsloth.reading import (
    LEAST_OF_NOTEBOOKS,
    LEAST_TAKEN,
    MEDIAN_OF_NOTEBOOKS,
    MOST_OF_NOTEBOOKS,
    MOST_TAKEN,
    NUM_NOTEBOOKS,
)
from vlmplan.request import parse
from vlmplan.requested import requested_estimate
from vlmplan.units import GIB

LATER = Path(__file__).parents[2] / "measured/later.md"
FIGURES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
PUBLISHED: list[dict[str, Any]] = FIGURES["cases"]
KERNELS = {
    "gpu": ("a100-sxm4-80gb",),
    "zero_stage": "none",
    "seq_len": 4096,
    "method": "qlora",
    "precision": "bf16",
    "upcasts_frozen": False,
    "attention": "flash_attention_2",
    "activation_checkpointing": True,
    "loss": "liger",
    "lora_rank": 16,
    "lora_targets": "q_proj,k_proj,v_proj,o_proj",
    "lora_dropout": 0.1,
}
CHANGES = (
    ("r = 16", "r = 32"),
    ("per_device_train_batch_size = 2", "per_device_train_batch_size = 1"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "MODEL"),
    ("max_seq_length = 2048 ", "max_seq_length = TOKENS "),
)


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """Of what is planned, the part that the card of a published run has."""
    folder = tmp_path_factory.mktemp("unsloth")

    def part(case: dict[str, Any]) -> float:
        text = SCRIPT
        for one, other in CHANGES:
            assert one in text
            text = text.replace(one, other.replace("MODEL", case["model"]).replace("TOKENS", str(case["tokens"])))
        path = folder / "train.py"
        path.write_text(text, encoding="utf-8")
        found, _ = requested_estimate(parse({"config": path, "gpu": ("b200:1",)}), ())
        return case["card"] * GIB / found.device.device_bytes

    return part


def test_the_range_that_is_said_is_that_of_the_published_runs(taken):
    parts = [taken(case) for case in PUBLISHED]
    assert (round(min(parts), 2), round(max(parts), 2)) == (LEAST_TAKEN, MOST_TAKEN)


def test_what_is_said_of_notebooks_is_what_the_page_of_later_figures_has():
    rows = [line.split(" | ") for line in LATER.read_text(encoding="utf-8").splitlines() if "(Unsloth) | " in line]
    parts = [float(row[3]) / float(row[5]) for row in rows if row[2] == "reserved"]
    assert len(parts) == NUM_NOTEBOOKS
    found = (round(min(parts), 2), round(median(parts), 2), round(max(parts), 2))
    assert found == (LEAST_OF_NOTEBOOKS, MEDIAN_OF_NOTEBOOKS, MOST_OF_NOTEBOOKS)


@pytest.mark.sweep
def test_kernels_that_were_taken_out_of_unsloth_take_little_off_a_plan_without_them():
    parts: list[float] = []
    for case in FIGURES["kernels"]:
        found, _ = requested_estimate(parse({**KERNELS, **{key: case[key] for key in ("model", "micro_batch")}}), ())
        parts.append(case["gib"] * GIB / found.device.allocated_bytes)
    assert (round(min(parts), 2), round(max(parts), 2)) == (0.96, 0.98)

"""The GPUs that EasyR1's README lists, beside what is planned of its examples/config.yaml on them: the page's table."""

import re
from pathlib import Path

import pytest
from test_verl import EASYR1

from cli_calls import call, isolate
from vlmplan.units import GIB

PAGE = Path(__file__).parents[2] / "docs/tasks/verl.md"
CARDS = {12: "rtx-3060-12gb", 24: "rtx-4090", 32: "rtx-5090", 40: "a100-sxm4-40gb", 80: "a100-sxm4-80gb"}
LORA_RANK = 64
MOST_IN_A_MACHINE = 8
SPLITS_HEADS = {"7B": 4}
"""vLLM shares heads evenly: a model of 28 among four GPUs at the most."""
ROW = re.compile(r"\| (full|full in bf16|LoRA), ([\d.]+B): (\d+) x (\d+) GB \| ([^|]+) \| ([^|]*)\|")
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def planned(method: str, size: str, num_gpus: int, card: int, path: Path) -> str:
    """The cell of the table: the verdict and GiB a GPU."""
    text = EASYR1.replace("Qwen2.5-VL-7B", f"Qwen2.5-{size}")
    shared = min(num_gpus, SPLITS_HEADS.get(size, MOST_IN_A_MACHINE))
    text = text.replace("tensor_parallel_size: 2", f"tensor_parallel_size: {shared}")
    if method == "LoRA":
        text = text.replace("rank: 0", f"rank: {LORA_RANK}")
    if method == "full in bf16":
        narrow = "fsdp: {torch_dtype: bf16}\n    optim: {strategy: adamw_bf16}\n    offload: {offload_params"
        text = text.replace("offload: {offload_params", narrow)
    path.write_text(text, encoding="utf-8")
    in_machine = min(num_gpus, MOST_IN_A_MACHINE)
    machines = ("--gpu", f"{CARDS[card]}:{in_machine}", "--num-nodes", str(num_gpus // in_machine))
    found = call("estimate", "--config", str(path), *machines, "--json").document
    needed, usable = found["peak_device_bytes"] / GIB, found["gpu"]["usable_bytes"] / GIB
    verdict = {"fits": "fits", "tight": "tight", "does_not_fit": "does not"}[found["verdict"]]
    return f"{verdict}: {needed:.1f} of {usable:.1f} GiB"


@pytest.mark.sweep
@pytest.mark.parametrize(("method", "size", "num_gpus", "card", "cell", "of_half"), ROWS)
def test_the_page_says_what_is_planned_on_the_gpus_that_easyr1_lists(
    method, size, num_gpus, card, cell, of_half, tmp_path, monkeypatch
):
    isolate(monkeypatch, tmp_path)
    count = int(num_gpus)
    assert planned(method, size, count, int(card), tmp_path / "config.yaml") == cell.strip()
    if of_half.strip():
        half = planned(method, size, count // 2, int(card), tmp_path / "config.yaml")
        assert half.partition(" of ")[0] == of_half.strip()


def test_every_row_of_its_table_is_on_the_page():
    assert len(ROWS) == 13

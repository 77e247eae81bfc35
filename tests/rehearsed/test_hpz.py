"""Second copies of weights (hpZ): bytes and messages of the formulas beside a rehearsal on two nodes of two GPUs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from beside_rehearsal import assert_as_rehearsed
from rehearsed_cases import write_model

from cli_calls import call
from planned import shipped_gpus, shortened
from recipe_cases import cluster
from vlmplan.estimation import Estimate, estimate
from vlmplan.memory.allocator import LARGE_SEGMENT_BYTES
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import MIB
from vlmplan.workload import Workload

SMALL = ZeroSettings(
    reduce_bucket_size=2_000_000,
    stage3_prefetch_bucket_size=1_000_000,
    stage3_max_live_parameters=8_000_000,
    stage3_max_reuse_distance=8_000_000,
    stage3_param_persistence_threshold=1_000,
    overlap_comm=True,
)
SMALL_ATTENTION = replace(SMALL, stage3_param_persistence_threshold=200_000)
"""Where weights of keys and values stay whole, and have no second copy between two steps."""


def estimated(method: Method, hpz: int, **changes: Any) -> Estimate:
    recipe = Recipe(method=method, zero_stage=3, hpz=hpz, grad_accum=2, zero=SMALL).with_changes(**changes)
    files = shortened("smollm2-135m", num_hidden_layers=4)
    return estimate(Workload(model=files, seq_len=128), recipe, cluster(2, num_nodes=2))


@pytest.mark.sweep
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(
    "changes",
    [{}, {"grad_accum": 1}, {"evaluation": Evaluation(batch=4, samples=16)}, {"zero": SMALL_ATTENTION}],
    ids=["", "once", "evaluated", "small"],
)
def test_estimate_and_messages_are_those_of_a_rehearsal(method: Method, changes: dict[str, Any]):
    assert_as_rehearsed(estimated(method, 2, **changes))


def test_second_copies_take_the_weights_shared_among_neighbours():
    weights = 2 * estimated(Method.FULL, 1).num_params
    tied_head = 2 * 49_152 * 576  # until the engine is made it has a partition of its own, and a copy of that
    without, with_copies = (estimated(Method.FULL, hpz) for hpz in (1, 2))
    for before, after in zip(without.timeline.phases, with_copies.timeline.phases, strict=True):
        twice = tied_head / 2 if after.name == "load" else 0
        kept = 0 if after.name in ("step", "save") else weights / 2 + twice
        assert after.resident.total - before.resident.total == pytest.approx(kept, rel=0.01)
        peak = 0 if after.name == "save" else weights / 2 + twice
        assert after.peak.total - before.peak.total == pytest.approx(peak, rel=0.01)


def test_what_torch_reserves_grows_by_the_copies():
    def reserved(hpz: int) -> int:
        found = estimated(Method.FULL, hpz)
        recipe = found.recipe.with_changes(expandable_segments=False)
        return estimate(found.workload, recipe, found.cluster).device.reserved_bytes

    copies = 2 * estimated(Method.FULL, 1).num_params // 2
    assert copies <= reserved(2) - reserved(1) <= copies + LARGE_SEGMENT_BYTES


def test_weights_that_a_step_took_the_copies_of_are_gathered_apart_in_the_first_micro_batch_behind_it(tmp_path: Path):
    """Hunyuan 4B with two layers and LoRA on two nodes of two GPUs, two micro batches a step, as rehearsed: frozen
    weights alone take another buffer than with the adapters in the second, and neither fits where the other was."""
    write_model({"alias": "hunyuan-4b", "config": {"num_hidden_layers": 2}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:2", "--num-nodes", "2", "--zero-stage", "3", "--hpz", "2")
    words += ("--method", "lora", "--precision", "fp32", "--micro-batch", "3", "--grad-accum", "2", "--seq-len", "777")
    words += ("--lora-rank", "64", "--no-expandable-segments", "--json")
    assert call("estimate", *words).document["peak_reserved_bytes"] == 10_462_691_328


def test_partitions_of_weights_that_nothing_gathers_do_not_come_back_behind_the_first_step(tmp_path: Path):
    """InternVL3 1B with four layers of each tower, all trained, on samples without images, as rehearsed on two nodes of
    two GPUs: the first step frees the partitions of the vision encoder, and only small weights get theirs back."""
    shallow = {"num_hidden_layers": 4}
    write_model({"alias": "internvl3-1b", "config": {"text_config": shallow, "vision_config": shallow}}, tmp_path)
    found = tensor_mib(tmp_path, "--num-nodes", "2", "--grad-accum", "2")
    rehearsed = {"forward": 2571.997, "backward": 2348.063, "step": 2370.286}
    assert {name: found[name] for name in rehearsed} == pytest.approx(rehearsed, rel=0.0005)


def test_the_first_step_is_the_highest_where_partitions_go_behind_it_that_take_more_than_states(tmp_path: Path):
    """Qwen2.5-VL 3B with two layers of language and the whole vision encoder on eight nodes of two GPUs, with the
    optimizer on the host: backward of the first step had 3,016.8 MiB, of all later ones 2,711.0."""
    write_model({"alias": "qwen2.5-vl-3b", "config": {"num_hidden_layers": 2}}, tmp_path)
    options = ("--offload-optimizer", "cpu", "--seq-len", "128", "--micro-batch", "1")
    found = tensor_mib(tmp_path, "--num-nodes", "8", *options)
    assert max(found.values()) == pytest.approx(3016.795, rel=0.0005)


def tensor_mib(model: Path, *options: str) -> dict[str, float]:
    """The peak of each phase without workspaces: all is trained with hpZ on A100, on samples without images."""
    words = ("--model", str(model), "--gpu", "a100-sxm4-80gb:2", "--zero-stage", "3", "--hpz", "2", "--method", "full")
    words += ("--train-vision", "--images-per-sample", "0", *options, "--json")
    workspaces = workspace_bytes(shipped_gpus()["a100-sxm4-80gb"])
    return {
        phase["name"]: (phase["peak_bytes"] - workspaces) / MIB for phase in call("estimate", *words).document["phases"]
    }

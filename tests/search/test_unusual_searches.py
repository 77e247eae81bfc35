"""Searches with options that seldom meet: each is refused in a sentence, or its plan comes back from an estimate of
the plan's own options."""

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from neighbours import TODAY, catalog

from laws import law
from vlmplan.answers.estimate import document
from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.launch.plan_options import request_of
from vlmplan.plan import plan_from_estimate
from vlmplan.request import Request, parse
from vlmplan.requested import requested_estimate, searched_model
from vlmplan.search import RankedPlan, recommend
from vlmplan.search.options import search_query

MODELS = (
    *("qwen2.5-0.5b", "llama-3.2-1b", "internvl3-1b", "smolvlm-256m", "qwen3-30b-a3b", "gpt-oss-20b"),
    *("qwen3.5-9b", "gemma-4-e2b", "qwen2.5-vl-7b", "phi-4-multimodal"),
)
GPUS = ("rtx-4090", "l4", "a100-sxm4-80gb", "h100-sxm", "rtx-a5500", "mi300x", "t4")
UNUSUAL: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("method", ("full", "lora", "qlora"), 0.4),
    ("zero_stage", ("none", "0", "1", "2", "3"), 0.12),
    ("offload_optimizer", ("cpu", "nvme"), 0.06),
    ("offload_params", ("cpu",), 0.06),
    ("micro_batch", (1, 2, 3, 8), 0.08),
    ("grad_accum", (1, 3), 0.06),
    ("global_batch", (1, 6, 16, 64), 0.25),
    ("seq_len", (300, 2048, 8192), 0.4),
    ("batching", ("padding-free", "packed"), 0.12),
    ("attention", ("flash_attention_2", "eager"), 0.1),
    ("loss", ("model", "trl"), 0.08),
    ("optimizer", ("adamw-8bit", "muon", "adafactor"), 0.08),
    ("num_nodes", (2, 3), 0.1),
    ("host_ram", (8, 32, 128), 0.15),
    ("task", ("dpo", "grpo"), 0.25),
    ("fsdp", (True,), 0.1),
    ("sequence_parallel", (2,), 0.06),
    ("offload_activations", (True,), 0.05),
    ("precision", ("fp16", "fp32", "bf16-pure"), 0.08),
    ("expandable_segments", (False,), 0.06),
    ("eval_batch", (4,), 0.06),
    ("images_per_sample", (0, 3), 0.1),
    ("use_dora", (True,), 0.04),
    ("train_embeddings", (True,), 0.04),
    ("inter_node_gbit", (25, 3200), 0.5),
    ("lora_dropout", (0.1,), 0.1),
)
"""Options, what is drawn of them and how often."""
BESIDE = ("notes", "caveats", "freeze_vision", "saving", "recipe", "model", "reserved_with_room_bytes")
"""Of an estimate's document what depends on how it was asked for."""


def unusual_search(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    count = draw.choice((1, 1, 2, 3, 4, 8))
    options: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpu": (f"{draw.choice(GPUS)}:{count}",),
        "objective": draw.choice(("cost", "time", "vram")),
        "nvme_path": None,
    }
    options |= {name: draw.choice(values) for name, values, often in UNUSUAL if draw.random() < often}
    if "nvme" in options.values():
        options["nvme_path"] = "/nvme"
    return {name: value for name, value in options.items() if value is not None}


def own_request(found: RankedPlan, options: dict[str, Any]) -> Request:
    """What asks for the plan: its options, and the sizes of ZeRO's buckets in a file, which have none."""
    plan = plan_from_estimate(found.estimate)
    asked: dict[str, Any] = request_of(plan, model=options["model"], gpu=options["gpu"][0]).options()
    config = deepspeed_config(plan.recipe, num_gpus=plan.hardware.num_gpus)
    return parse(asked if config is None else asked | {"ds_config": config})


@pytest.mark.sweep
@law(st.integers(0, 1_000_000), quick=12, thorough=150)
def test_what_an_unusual_search_plans_comes_back_from_an_estimate(seed: int):
    options = unusual_search(seed)
    try:
        request = parse(options)
        found = recommend(search_query(request, catalog(), searched_model(request), TODAY))
    except (InputError, DoesNotFitError):
        return
    if not found.plans:
        assert all(one.reason for one in found.rejected)
        return
    plan = found.plans[0]
    estimated, _ = requested_estimate(own_request(plan, options), ())
    planned, again = (
        {name: value for name, value in document(one).items() if name not in BESIDE}
        for one in (plan.estimate, estimated)
    )
    assert again == planned, options

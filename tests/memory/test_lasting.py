"""Micro batches that are on the GPU together, as Hugging Face's Trainer has those of a step.

A micro batch is two samples of eight tokens: input_ids, labels and attention_mask of 8 bytes each. What it takes with
pixels is held to rehearsals (``tests/rehearsed``).
"""

from itertools import pairwise
from typing import Any

import pytest

from cli_calls import request_of_words
from planned import cluster, shortened
from vlmplan.cli.estimate import estimate as command
from vlmplan.estimation import Estimate, Estimator
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import BatchesOnGpu, Method
from vlmplan.requested import requested_estimate
from vlmplan.units import DType
from vlmplan.workload import ModelFiles, Workload

SIZES = {"vocab_size": 35, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
CONFIG = {"model_type": "llama", **SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16"}
BATCH_BYTES = 3 * 2 * 8 * 8


def peaks(zero_stage: int | None, **changes: Any) -> dict[str, int]:
    recipe = Recipe(zero_stage=zero_stage, micro_batch=2, **changes)
    estimator = Estimator(Workload(model=ModelFiles(id="tiny", config=CONFIG), seq_len=8), recipe)
    timeline = estimator.timeline(recipe, cluster(num_gpus=2))
    return {phase.name: phase.peak.total for phase in timeline.phases}


@pytest.mark.parametrize("zero_stage", [None, 2, 3])
def test_the_others_of_a_step_wait_beside_the_one_that_is_computed_and_all_stay_until_the_next_step(zero_stage):
    turn = peaks(zero_stage, grad_accum=5)
    step = peaks(zero_stage, grad_accum=5, batches_on_gpu=BatchesOnGpu.STEP)
    more = {name: step[name] - turn[name] for name in turn}
    assert more == {
        "load": 0,
        "init": 0,
        "forward": 4 * BATCH_BYTES,
        "backward": 4 * BATCH_BYTES,
        "step": 5 * BATCH_BYTES,
        "save": 5 * BATCH_BYTES,
    }


def estimated(words: str) -> Estimate:
    return requested_estimate(request_of_words(command, *words.split()), ())[0]


SEES = "--model smolvlm-256m --gpu rtx-3090:1 --micro-batch 2 --seq-len 1200 --image-size 448x448 --method lora"


@pytest.mark.sweep
@pytest.mark.parametrize("words", ["--zero-stage none", "--zero-stage 2", "--zero-stage 2 --no-expandable-segments"])
def test_more_accumulation_takes_more_where_a_step_is_there_at_once_and_nothing_where_it_is_not(words):
    def device(kind: str) -> list[int]:
        said = [f"{SEES} {words} --batches-on-gpu {kind} --grad-accum {count}" for count in (2, 4, 8)]
        return [estimated(one).device.device_bytes for one in said]

    assert len(set(device("turn"))) == 1
    for kind in ("step", "step-float32"):
        assert all(less < more for less, more in pairwise(device(kind)))


def test_deepspeed_has_float32_pixels_and_their_cast_and_plain_pytorch_what_the_model_gets():
    recipe = Recipe(batches_on_gpu=BatchesOnGpu.STEP_FLOAT32)
    assert recipe.pixel_dtypes == (DType.FLOAT32,)
    assert recipe.with_changes(zero_stage=2).pixel_dtypes == (DType.FLOAT32, DType.BFLOAT16)
    assert recipe.with_changes(batches_on_gpu=BatchesOnGpu.STEP).pixel_dtypes == (DType.BFLOAT16,)


@pytest.mark.parametrize(("zero_stage", "is_loaded"), [(None, False), (2, False), (3, True)])
def test_the_sound_tower_of_an_omni_model_has_its_table_of_positions_wherever_its_weights_are(zero_stage, is_loaded):
    """1,500 positions of its width in float32, which its file does not have."""
    files = shortened("qwen3-omni-30b-a3b", num_hidden_layers=1)
    recipe = Recipe(method=Method.LORA, zero_stage=zero_stage)
    estimator = Estimator(Workload(model=files, seq_len=64, images_per_sample=0), recipe)
    table_bytes = 1500 * 1280 * 4
    assert estimator.table.buffer_bytes == table_bytes
    tensors = {one.name: one for one in estimator.timeline_of_tensors(recipe, cluster(num_gpus=2)).phases}
    for phase in estimator.timeline(recipe, cluster(num_gpus=2)).phases:
        workspaces = 0 if phase.name in ("load", "init") else workspace_bytes(cluster().node.gpu)
        expected = table_bytes if phase.name != "load" or is_loaded else 0
        assert phase.resident.total - tensors[phase.name].resident.total == expected + workspaces, phase.name


@pytest.mark.parametrize(("model_type", "is_in_layers"), [("gpt_neo", True), ("gpt_bigcode", False)])
def test_fsdp2_brings_tables_of_layers_before_the_embeddings_are_whole_and_others_last(model_type, is_in_layers):
    """Masks of 1,024 by 1,024 positions, a byte each: of every layer, or one."""
    sizes = {"hidden_size": 256, "vocab_size": 50_000, "num_layers": 2, "n_embd": 256, "n_layer": 2, "n_head": 4}
    neo = {"num_heads": 4, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 1024}
    config = {"model_type": model_type, **sizes, **neo, "n_positions": 1024}
    recipe = Recipe(zero_stage=None, fsdp=True)
    estimator = Estimator(Workload(model=ModelFiles(id="small", config=config), seq_len=64), recipe)
    table_bytes = 2**20 * (2 if is_in_layers else 1)
    (tensors,), (init,) = (
        [phase for phase in timeline.phases if phase.name == "init"]
        for timeline in (
            estimator.timeline_of_tensors(recipe, cluster(num_gpus=4)),
            estimator.timeline(recipe, cluster(num_gpus=4)),
        )
    )
    assert tensors.peak.total > tensors.resident.total + table_bytes
    assert init.resident.total - tensors.resident.total == table_bytes
    assert init.peak.total - tensors.peak.total == (table_bytes if is_in_layers else 0)

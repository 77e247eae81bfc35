"""The timeline held to rehearsals of the real DeepSpeed 0.19.8 on fake tensors.

Qwen2-VL-2B (2.21 B parameters), full fine-tuning in bf16, 4 ranks, rank 0, one sample of 1,024 tokens with a 448x448
image, all logits at once, DeepSpeed's default sizes without overlap_comm, activation checkpointing: figures in GiB of
live storages, from a run of the real code under a dispatch mode. Under such a mode autograd sums all gradients out of
place, which a real run does not, so those peaks are compared with ``accumulates_in_place=False``.
"""

from typing import Any

import pytest

from planned import memory_timeline, model_files, rehearsed_timeline
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.choice import engine_of
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.peaks import MicroBatchReplay, PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import GIB

QWEN2_VL_2B = model_files("qwen2-vl-2b")


def rehearsed(stage: int, *, accumulates_in_place: bool = False, **sizes: int) -> Timeline:
    recipe = Recipe(zero_stage=stage, loss=LossKind.FULL, zero=ZeroSettings(**sizes))
    return rehearsed_timeline(QWEN2_VL_2B, recipe, num_ranks=4, accumulates_in_place=accumulates_in_place)


def peak_gib(timeline: Timeline, phase: str) -> float:
    return next(item.peak.total for item in timeline.phases if item.name == phase) / GIB


@pytest.mark.parametrize(("stage", "step_gib"), [(0, 41.146), (1, 14.404), (2, 14.404), (3, 12.248)])
def test_step_peaks_are_within_half_a_percent_of_the_rehearsal(stage, step_gib):
    assert peak_gib(rehearsed(stage), "step") == pytest.approx(step_gib, rel=0.005)


@pytest.mark.parametrize(("stage", "backward_gib"), [(1, 16.494), (2, 13.843), (3, 13.316)])
def test_backward_peaks_are_within_half_a_percent_of_the_rehearsal(stage, backward_gib):
    assert peak_gib(rehearsed(stage), "backward") == pytest.approx(backward_gib, rel=0.005)


def test_stage_3_forward_prefetches_as_rehearsed():
    assert peak_gib(rehearsed(3), "forward") == pytest.approx(12.661, rel=0.005)


@pytest.mark.parametrize(("phase", "gib"), [("forward", 9.902), ("backward", 10.481), ("step", 11.354)])
def test_stage_3_with_nothing_kept_and_small_buckets(phase, gib):
    lean = rehearsed(
        3,
        stage3_max_live_parameters=0,
        stage3_max_reuse_distance=0,
        stage3_prefetch_bucket_size=0,
        reduce_bucket_size=20_000_000,
    )
    assert peak_gib(lean, phase) == pytest.approx(gib, rel=0.005)


def test_stage_1_keeps_all_gradients_and_is_fullest_in_backward():
    first, second = rehearsed(1), rehearsed(2)
    assert first.peak_phase.name == "backward"
    assert peak_gib(first, "backward") > peak_gib(second, "backward")


def test_a_tenth_of_the_bucket_takes_five_sixths_of_a_gib_off_backward():
    default, small = rehearsed(2), rehearsed(2, reduce_bucket_size=50_000_000)
    assert peak_gib(default, "backward") - peak_gib(small, "backward") == pytest.approx(2 * 450e6 / GIB, rel=0.02)


def test_stage_0_is_fullest_at_init_and_step():
    timeline = rehearsed(0)
    assert peak_gib(timeline, "init") == pytest.approx(peak_gib(timeline, "step"), rel=0.002)
    assert timeline.peak.total == max(phase.peak.total for phase in timeline.phases)


def test_stage_1_keeps_its_two_buckets_between_the_micro_batches_of_a_step():
    zero = ZeroSettings(overlap_comm=True, reduce_bucket_size=50_000_000)
    one, two = (
        rehearsed_timeline(QWEN2_VL_2B, Recipe(zero_stage=1, zero=zero, grad_accum=steps), num_ranks=4).phases[2]
        for steps in (1, 2)
    )
    assert two.resident.communication_buffers - one.resident.communication_buffers == 2 * 50_000_000 * 2
    assert two.resident.gradients - one.resident.gradients == 2 * 2_208_985_600


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_gradients_of_a_tied_head_are_summed_out_of_place_in_a_real_run_as_in_a_rehearsal(stage):
    out_of_place, as_torch_does = rehearsed(stage), rehearsed(stage, accumulates_in_place=True)
    assert peak_gib(as_torch_does, "backward") == peak_gib(out_of_place, "backward")


@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_phases_follow_each_other_and_none_is_below_what_it_leaves(stage):
    num_ranks = 1 if stage is None else 4
    timeline = rehearsed_timeline(QWEN2_VL_2B, Recipe(zero_stage=stage), num_ranks=num_ranks)
    assert [phase.name for phase in timeline.phases] == ["load", "init", "forward", "backward", "step", "save"]
    for phase in timeline.phases:
        assert phase.peak.total >= phase.resident.total
        assert all(num_bytes >= 0 for parts in (phase.peak, phase.resident) for num_bytes in parts.as_json().values())


def loading(method: Method, **fields: Any) -> Phase:
    recipe = Recipe(method=method, zero_stage=None, **fields)
    return rehearsed_timeline(model_files("llama-3.1-8b"), recipe, num_ranks=1).phases[0]


LARGEST_LINEAR, VOCABULARY = 14_336 * 4096, 128_256 * 4096


def test_weights_of_16_bit_arrive_in_host_memory():
    assert loading(Method.LORA).peak.total == 0


def packed_bytes(numel: int) -> int:
    """4 bits, an 8-bit scale of 64 elements, a float32 scale of 256 such scales, and in blocks of 512 bytes each the 16
    values of 4 bits, the 256 of a scale and the mean of scales."""
    return numel // 2 + numel // 64 + 4 * -(-numel // (64 * 256)) + 512 + 1024 + 512


def test_a_4_bit_weight_arrives_whole_and_is_packed_in_the_order_of_names():
    """The last of the largest is layers.31.mlp.up_proj; after it come a norm, k, o, q and v, the last norm and the
    adapters, which are larger than what passes unless their rank is small."""
    load, more = loading(Method.QLORA, lora_rank=1), loading(Method.QLORA, lora_rank=2)
    adapters = more.resident.total - load.resident.total
    width, kv_width = 4096, 1024
    to_come = 2 * packed_bytes(width * width) + 2 * packed_bytes(width * kv_width) + 2 * 2 * width
    # 16 bits, and float32 scales as they are and less their mean, which are there until they are quantised too.
    passing = 2 * LARGEST_LINEAR + 2 * 4 * LARGEST_LINEAR // 64
    assert load.peak.total == load.resident.total - adapters - to_come + passing


def test_an_upcast_weight_is_there_in_both_types_for_a_moment():
    load = loading(Method.QLORA, upcasts_frozen=True)
    assert load.resident.total - loading(Method.QLORA).resident.total == pytest.approx(2 * 2 * VOCABULARY, rel=0.001)
    assert load.peak.total - load.resident.total == 2 * VOCABULARY


def test_gradients_after_a_plain_backward_are_gradients_and_not_activations():
    # Under autocast a weight's gradient comes out of the backward of its cast.
    backward = rehearsed_timeline(QWEN2_VL_2B, Recipe(zero_stage=None), num_ranks=1).phases[3]
    assert backward.resident.gradients == 4 * 2_208_985_600
    assert backward.resident.activations < 0.01 * GIB


WIDE_HEAD = {
    "model_type": "llama",
    "vocab_size": 30_000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}
"""Its head's gradient comes first in backward, before the most activations are there."""


def one_by_one(table: ParameterTable, trace: Trace, recipe: Recipe) -> int:
    """The highest moment of backward in any micro batch of a step, each after those before it."""
    tracker = PeakTracker()
    engine = engine_of(table, recipe, num_ranks=8, sink=tracker)
    engine.build()
    engine.step(is_first=True)
    engine.begin_step(trace)
    peaks: list[int] = []
    for number in range(recipe.grad_accum):
        tracker.forget_batch()
        engine.begin_micro_batch(accumulates=number > 0, is_last=number == recipe.grad_accum - 1)
        replay = MicroBatchReplay(engine, tracker, trace)
        replay.forward(lambda: None)
        tracker.start_phase()
        replay.backward()
        peaks.append(tracker.peak.total)
    return max(peaks)


@pytest.mark.parametrize("grad_accum", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", [{"zero_stage": 1}, {"zero_stage": 2}, {"fsdp": True, "sync_each_batch": False}])
def test_backward_is_that_of_the_micro_batch_which_takes_most(engine, grad_accum):
    """Stage 1 sends gradients in the last one alone: a head's is there through the backward of the others."""
    sizes = ZeroSettings(overlap_comm=True, reduce_bucket_size=4_000_000)
    recipe = Recipe(**engine, grad_accum=grad_accum, zero=sizes, attention=AttentionImplementation.EAGER)
    model = prepared_model(WIDE_HEAD, recipe)
    backend = AttentionBackend(implementation="eager")
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=1024), backend, loss=recipe.loss)
    table = ParameterTable(model)
    backward = memory_timeline(table, trace, recipe, num_ranks=8, rank=0).phases[3]
    assert backward.name == "backward"
    assert backward.peak.total == one_by_one(table, trace, recipe)

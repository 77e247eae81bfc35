"""What a frozen vision encoder saves: the numbers are those of the setup itself, and small ones are not told."""

from dataclasses import replace

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.answers.estimate import freezing_hints
from vlmplan.estimation import estimate, estimate_with_sizes
from vlmplan.freezing import NOTICEABLE_FRACTION, Freezing, freezing
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.units import GIB, gib_text

LORA = Recipe(method=Method.LORA)


def test_freezing_is_the_same_setup_with_its_vision_encoder_frozen():
    found = estimate(workload("qwen2-vl-2b"), LORA, cluster("rtx-4090"))
    saved = freezing(found)
    assert saved is not None
    again = estimate(workload("qwen2-vl-2b"), Recipe(method=Method.LORA, train_vision=False), cluster("rtx-4090"))
    assert saved.frozen.device == again.device
    assert saved.frozen.step_seconds == again.step_seconds
    assert saved.seconds_change == again.step_seconds / found.step_seconds - 1 < -NOTICEABLE_FRACTION
    (hint,) = freezing_hints(saved)
    assert gib_text(again.device.device_bytes) in hint
    assert f"({100 * saved.seconds_change:+.0f}%)" in hint


@pytest.mark.parametrize("chooses_sizes", [False, True])
def test_buckets_are_chosen_for_what_is_trained_then_unless_a_ds_config_says_them(chooses_sizes: bool):
    recipe = Recipe(zero_stage=2, micro_batch=16, activation_checkpointing=False)
    making = estimate_with_sizes if chooses_sizes else estimate
    found, again = (
        making(workload("qwen2-vl-2b"), recipe.with_changes(train_vision=trains), cluster("h100-sxm", 8))
        for trains in (True, False)
    )
    saved = freezing(found, chooses_sizes=chooses_sizes)
    assert saved is not None
    assert saved.frozen.recipe == again.recipe
    assert saved.frozen.device == again.device


@pytest.mark.parametrize(
    ("alias", "recipe", "changes"),
    [
        ("qwen2-vl-2b", Recipe(method=Method.LORA, train_vision=False), {}),
        ("llama-3.2-1b", LORA, {}),
        ("qwen2-vl-2b", Recipe(train_projector=False, train_language=False), {}),
        ("qwen2.5-vl-72b", LORA, {"seq_len": 8192, "images_per_sample": 0}),
    ],
    ids=["frozen already", "no encoder", "nothing else is trained", "no images"],
)
def test_nothing_is_said_where_nothing_is_saved(alias: str, recipe: Recipe, changes: dict[str, int]):
    assert freezing(estimate(workload(alias, **changes), recipe, cluster("b300"))) is None


@pytest.mark.parametrize(
    ("alias", "seq_len", "is_told"),
    [("qwen2.5-vl-7b", 1024, True), ("qwen2.5-vl-7b", 8192, False), ("internvl2.5-8b", 8192, False)],
)
@pytest.mark.parametrize("expandable_segments", [False, True])
def test_what_decides_by_the_tensors_alone_decides_as_the_whole_estimate(
    alias: str, seq_len: int, is_told: bool, expandable_segments: bool
):
    recipe = LORA.with_changes(expandable_segments=expandable_segments)
    found = estimate(workload(alias, seq_len=seq_len), recipe, cluster("b300"))
    frozen = estimate(found.workload, recipe.with_changes(train_vision=False), found.cluster)
    assert (freezing(found) is not None) is Freezing(trained=found, frozen=frozen).is_noticeable is is_told


@pytest.mark.parametrize(
    ("recipe", "num_gpus", "memory_gib", "seq_len", "is_told"),
    [
        (Recipe(zero_stage=2, micro_batch=8), 8, 75, 512, True),
        (
            Recipe(
                zero_stage=None, micro_batch=16, activation_checkpointing=True, vision_activation_checkpointing=True
            ),
            1,
            8,
            1024,
            True,
        ),
        (Recipe(zero_stage=2, micro_batch=2), 8, 75, 1024, False),
        (Recipe(zero_stage=2, micro_batch=2), 8, 2, 1024, False),  # which does not fit
        (Recipe(zero_stage=2, micro_batch=8), 8, 2, 512, True),
        (Recipe(method=Method.LORA, micro_batch=8), 1, 75, 512, False),
        (Recipe(method=Method.LORA, zero_stage=2, micro_batch=8), 2, 75, 512, False),
    ],
)
def test_where_tensors_save_much_the_allocator_decides_as_in_the_whole_estimate(
    recipe: Recipe, num_gpus: int, memory_gib: float, seq_len: int, is_told: bool
):
    whole, recipe = cluster("h100-sxm", num_gpus), recipe.with_changes(expandable_segments=False)
    gpu = replace(whole.node.gpu, cuda_visible_bytes=int(memory_gib * GIB))
    on = replace(whole, node=replace(whole.node, gpu=gpu))
    found = estimate_with_sizes(workload(of_few_layers("qwen2-vl-2b"), seq_len=seq_len), recipe, on)
    frozen = estimate_with_sizes(found.workload, recipe.with_changes(train_vision=False), on)
    least_bytes = frozen.peak_allocated_bytes + frozen.device.overhead_bytes
    assert least_bytes < (1 - NOTICEABLE_FRACTION) * found.device.device_bytes
    assert (freezing(found) is not None) is Freezing(trained=found, frozen=frozen).is_noticeable is is_told

"""Reentrant checkpoints run a layer again to its end, and keep its frozen weights whole under ZeRO-3."""

from dataclasses import replace

from cli_calls import TINY
from planned import cluster
from vlmplan.architecture.trace import Event, Release
from vlmplan.engines.profile import micro_batch_profile
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import CheckpointKind, LossKind, Method
from vlmplan.workload import ModelFiles, Workload

HIDDEN, INNER, HALF_HIDDEN = 64, 128, 64 // 2
LAYERS, SAMPLES, TOKENS, RANK = 5, 3, 11, 16
PLAIN = Recipe(method=Method.LORA, micro_batch=SAMPLES, activation_checkpointing=True, loss=LossKind.CHUNKED)
SHARDED = PLAIN.with_changes(zero_stage=3, micro_batch=1)
KINDS = (CheckpointKind.NON_REENTRANT, CheckpointKind.REENTRANT, CheckpointKind.REENTRANT_CALLS)


def estimator(recipe: Recipe) -> Estimator:
    config = TINY | {"num_hidden_layers": LAYERS}
    return Estimator(Workload(model=ModelFiles(id="tiny", config=config), seq_len=TOKENS), recipe)


def test_a_layers_output_is_held_until_its_backward_is_over():
    """What follows the last tensor that is saved, an addition, runs too; not reentrant ones end before it."""
    peaks = []
    for kind in KINDS:
        recipe = PLAIN.with_changes(checkpoint_kind=kind)
        peaks.append(micro_batch_profile(estimator(recipe).trace(recipe, (8, 0))).dropped_peak)
    usual, reentrant, calls = peaks
    assert reentrant - usual == 2 * SAMPLES * TOKENS * HIDDEN
    assert calls == reentrant


def frozen_releases(kind: CheckpointKind) -> list[list[int]]:
    """For each section that runs again, how many events of its backward come behind each release of frozen weights."""
    recipe = SHARDED.with_changes(checkpoint_kind=kind)
    sections = estimator(recipe).trace(recipe, (8, 0)).sections.values()
    return [
        [len(one.backward) - place for place, event in enumerate(one.backward, 1) if _lets_go_of_frozen(event)]
        for one in sections
        if one.recomputed_bytes
    ]


def _lets_go_of_frozen(event: Event) -> bool:
    return isinstance(event, Release) and not any(one.requires_grad for one in event.module.parameters_by_name.values())


def test_frozen_weights_go_with_their_layer_under_zero_3():
    """The layer's hooks are outside of the checkpoint (transformers 5.23): its seven matrices and two norms come last,
    which go one by one where the checkpoint is not reentrant."""
    for of_layer in frozen_releases(CheckpointKind.REENTRANT):
        assert sorted(of_layer) == list(range(7 + 2))
    assert max(max(of_layer) for of_layer in frozen_releases(CheckpointKind.NON_REENTRANT)) > 7 + 2


def test_frozen_weights_of_all_layers_stay_under_zero_3_where_hooks_are_inside():
    """Nothing is prefetched, kept for later uses or spared; beside them are the matrices of an adapter."""
    sizes = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "param_persistence_threshold")
    zero = replace(SHARDED.zero, **{f"stage3_{name}": 0 for name in sizes})
    recipe = SHARDED.with_changes(checkpoint_kind=CheckpointKind.REENTRANT_CALLS, zero=zero, lora_rank=RANK)
    phases = {one.name: one for one in estimator(recipe).timeline(recipe, cluster(num_gpus=2)).phases}
    layer = HIDDEN * HIDDEN * 2 + HIDDEN * HALF_HIDDEN * 2 + HIDDEN * INNER * 3 + HIDDEN * 2
    whole = phases["backward"].peak.weights - phases["step"].resident.weights
    assert whole == 2 * (LAYERS * layer + RANK * (HIDDEN + INNER))
    assert not any(frozen_releases(CheckpointKind.REENTRANT_CALLS))


def test_trained_weights_are_whole_no_longer():
    full = SHARDED.with_changes(method=Method.FULL)
    weights = []
    for kind in KINDS:
        recipe = full.with_changes(checkpoint_kind=kind)
        phases = {one.name: one for one in estimator(recipe).timeline(recipe, cluster(num_gpus=2)).phases}
        weights.append(phases["backward"].peak.weights)
    assert len(set(weights)) == 1

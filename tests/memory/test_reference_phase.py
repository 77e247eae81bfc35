"""DPO's micro batch: two rows a sample, answers alone scored, a reference that runs between forward and backward."""

from dataclasses import replace

import pytest

from planned import cluster, shortened
from task_phases import ANSWER, LAYERS, TOKENS, estimator, phases
from vlmplan.engines import engine_of
from vlmplan.engines.bounds import peak_bound, peak_floor
from vlmplan.engines.profile import micro_batch_profile
from vlmplan.engines.shards import Shards
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator, has_upper_bound, with_other_models
from vlmplan.estimation.references import beside_bytes
from vlmplan.memory.host import host_memory
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload, WeightDtype
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import KTOLoss, Reference, TaskKind, TaskTrainer
from vlmplan.request import parse
from vlmplan.requested import requested_estimate
from vlmplan.workload import Workload

WIDTH = 576
DPO = TrainingTask(kind=TaskKind.DPO, completion_tokens=ANSWER)
SFT = Recipe(loss=LossKind.TRL, zero_stage=2)


def for_dpo(reference: Reference | None = None, **changes: object) -> Recipe:
    return SFT.with_changes(
        task=TrainingTask(kind=TaskKind.DPO, completion_tokens=ANSWER, reference=reference), **changes
    )


def test_a_precomputed_reference_leaves_a_micro_batch_of_two_rows_a_pair():
    whole = TrainingTask(kind=TaskKind.DPO, reference=Reference.PRECOMPUTED)
    pairs = phases(SFT.with_changes(task=whole, micro_batch=3))
    assert pairs == phases(SFT.with_changes(micro_batch=2 * 3))


def test_a_second_model_is_there_from_the_beginning():
    without, found = phases(for_dpo(Reference.PRECOMPUTED)), phases(for_dpo(Reference.COPY))
    table = estimator().table
    for name in ("load", "init", "forward", "backward", "step", "save"):
        assert found[name].peak.total - without[name].peak.total == table.total_bytes, name
    assert found["reference"].peak.weights - without["forward"].peak.weights == table.total_bytes


def test_a_copy_of_adapters_is_there_from_when_the_trainer_is_made_and_runs_with_the_reference():
    for stage in (None, 2):
        off, copied = (
            phases(for_dpo(one, method=Method.LORA, zero_stage=stage))
            for one in (Reference.ADAPTER_OFF, Reference.ADAPTER_COPY)
        )
        trained = estimator(Method.LORA, stage).table.trained_bytes
        assert copied["load"] == off["load"]
        for name in ("init", "forward", "backward", "step", "save"):
            assert copied[name].peak.total - off[name].peak.total == trained, name
        assert copied["reference"].peak.total - off["reference"].peak.total > trained  # what adapters compute


def test_a_second_model_is_sharded_under_stage_3_alone():
    shards, small = Shards(estimator(Method.FULL, 3).table, SFT.with_changes(zero_stage=3), 4).weight_totals
    without, found = (phases(for_dpo(one, zero_stage=3), 4) for one in (Reference.PRECOMPUTED, Reference.COPY))
    assert found["step"].resident.total - without["step"].resident.total == shards + small


def test_the_engine_of_a_second_model_gathers_by_an_order_of_its_own():
    """The trained model prefetches for its backward while its forward ends, and not for the other model's forward."""
    zero = replace(SFT.zero, stage3_prefetch_bucket_size=WIDTH * WIDTH)
    shards, small = Shards(estimator(Method.FULL, 3).table, SFT.with_changes(zero_stage=3), 4).weight_totals
    without, found = (
        phases(for_dpo(one, zero_stage=3, zero=zero), 4) for one in (Reference.PRECOMPUTED, Reference.COPY)
    )
    for name in ("forward", "backward"):
        assert found[name].peak.weights - without[name].peak.weights == shards + small, name


def test_the_original_of_a_trained_head_is_gathered_with_it_once_the_reference_has_read_it():
    zero = replace(SFT.zero, stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=0)
    model = shortened("smollm2-135m", num_hidden_layers=LAYERS, tie_word_embeddings=False)
    recipe = Recipe(loss=LossKind.TRL, zero_stage=3, method=Method.LORA, train_embeddings=True, zero=zero)
    whole: dict[Reference, int] = {}
    for reference in (Reference.PRECOMPUTED, Reference.ADAPTER_OFF):
        task = replace(DPO, reference=reference)
        found = Estimator(Workload(model=model, seq_len=TOKENS), recipe.with_changes(task=task))
        peaks = found.timeline(recipe.with_changes(task=task), cluster(num_gpus=2)).phases
        forward, step = (next(one for one in peaks if one.name == name) for name in ("forward", "step"))
        whole[reference] = forward.peak.weights - step.resident.weights
    embedding = head = 2 * 49_152 * WIDTH
    gathered_together = 2 * head  # and copied out of one buffer
    assert whole == {Reference.PRECOMPUTED: head + embedding, Reference.ADAPTER_OFF: 2 * head + gathered_together}


def test_the_reference_runs_beside_what_the_first_forward_keeps():
    """Its hidden states of all tokens, its copy of those that are scored, and a tile of logits are the least."""
    recipe = for_dpo(Reference.ADAPTER_OFF, method=Method.LORA, micro_batch=3)
    found = phases(recipe)
    rows = 2 * 3
    tile = min(rows * ANSWER, 4096) * 32768 * 2
    hidden, scored = rows * TOKENS * WIDTH * 2, rows * ANSWER * WIDTH * 2
    assert found["reference"].peak.total - found["forward"].resident.total >= tile + scored
    assert found["reference"].peak.total - found["forward"].resident.total < tile + scored + 3 * hidden
    assert found["reference"].resident == found["forward"].resident


def test_only_answers_are_scored():
    """Fewer scored tokens are fewer rows of a tile of logits."""
    tasks = [TrainingTask(kind=TaskKind.DPO, completion_tokens=tokens) for tokens in (ANSWER, 2 * ANSWER)]
    short, long = (phases(SFT.with_changes(task=task))["reference"].peak.logits for task in tasks)
    assert long - short >= 2 * ANSWER * 32768 * 2


@pytest.mark.parametrize("kind", [TaskKind.DPO, TaskKind.KTO])
@pytest.mark.parametrize("stage", [None, 0, 2, 3])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_bounds_hold_the_timeline(method: Method, stage: int | None, kind: TaskKind):
    found, num_gpus = estimator(method, stage), 2
    task = TrainingTask(kind=kind, completion_tokens=ANSWER)
    recipe = SFT.with_changes(task=task, method=method, zero_stage=stage, micro_batch=2)
    engine = engine_of(found.table, recipe, num_ranks=num_gpus)
    states = with_other_models(engine.states(), found.table, recipe, num_gpus)
    profile = micro_batch_profile(found.trace(recipe, (8, 0)))
    peak = max(phase.peak.total for phase in found.timeline(recipe, cluster(num_gpus=num_gpus)).phases)
    workspaces = (
        phases(recipe)["step"].resident.total
        - found.timeline_of_tensors(recipe, cluster(num_gpus=num_gpus)).phases[-1].resident.total
        - states.other_models.total
    )
    assert peak_floor(states, profile, workspaces) <= peak
    assert peak - workspaces <= peak_bound(engine, states, profile, accumulates=False)


@pytest.mark.parametrize(
    ("checkpoints", "is_reentrant", "num_kept"), [(False, False, LAYERS), (True, True, LAYERS), (True, False, 1)]
)
def test_what_the_reference_has_run_too_stays_whole_in_backward(checkpoints: bool, is_reentrant: bool, num_kept: int):
    """Of adapters under stage 3, from its use to the end of backward: the head, which is the embedding, and the layers.
    One that runs again in a checkpoint that is not reentrant is released as in training on samples. What makes queries,
    keys and values of the first layer has no gradient to hand on, and is used again only where the layer runs again."""
    task = TrainingTask(kind=TaskKind.DPO, completion_tokens=8, reentrant_checkpoints=is_reentrant)
    zero = replace(
        SFT.zero, stage3_param_persistence_threshold=WIDTH * 64
    )  # adapters and norms, below 1% of the weights
    recipe = SFT.with_changes(task=task, method=Method.LORA, zero_stage=3, micro_batch=1, zero=zero)
    recipe = recipe.with_changes(activation_checkpointing=checkpoints)
    workload = Workload(model=shortened("smollm2-135m", num_hidden_layers=LAYERS), seq_len=16)
    found = Estimator(workload, recipe).timeline(recipe, cluster(num_gpus=2)).phases
    peaks = {phase.name: phase for phase in found}
    layer = 2 * WIDTH * WIDTH + 2 * WIDTH * 192 + 3 * WIDTH * 1536
    unused = 0 if checkpoints else WIDTH * WIDTH + 2 * WIDTH * 192
    whole = peaks["backward"].peak.weights - peaks["step"].resident.weights
    assert whole == pytest.approx(2 * (num_kept * layer - unused + 49_152 * WIDTH), rel=0.01)


def test_an_answer_leaves_room_for_a_prompt():
    recipe = SFT.with_changes(task=TrainingTask(kind=TaskKind.DPO, completion_tokens=TOKENS))
    with pytest.raises(InputError, match="--max-completion-tokens is 300, but a row"):
        estimator().trace(recipe, (8, 0))


def test_a_second_model_is_read_while_the_first_waits_on_the_host_for_deepspeed():
    loaded = {"weight_dtype": WeightDtype.FLOAT32}
    for stage, is_counted in ((None, False), (2, True), (3, False)):
        found, where = estimator(Method.FULL, stage), cluster(num_gpus=2)
        without, copied = (
            found.host(for_dpo(one, zero_stage=stage, **loaded), where).load_bytes
            for one in (Reference.PRECOMPUTED, Reference.COPY)
        )
        assert copied - without == (2 * found.table.num_params * 4 if is_counted else 0), stage


def test_what_no_closed_bound_holds_is_left_to_the_timeline():
    grpo = TrainingTask(kind=TaskKind.GRPO)
    lora = for_dpo(method=Method.LORA, zero_stage=3)
    assert [has_upper_bound(one) for one in (SFT, for_dpo(), for_dpo(zero_stage=3))] == [True, True, True]
    assert not has_upper_bound(lora)
    assert not has_upper_bound(SFT.with_changes(task=grpo))
    assert has_upper_bound(lora.with_changes(zero_stage=2))


def test_a_second_model_is_loaded_beside_the_first_where_no_engine_waits_for_it():
    """``Trainer.__init__`` has moved the first to the GPU by then."""
    found = estimator(stage=None)
    loaded = {phase.name: phase for phase in found.timeline(for_dpo(Reference.COPY, zero_stage=None), cluster()).phases}
    assert loaded["load"].peak.weights == 2 * found.table.total_bytes


def test_a_second_model_is_offloaded_as_the_first_is():
    found = estimator(Method.FULL, 3)
    table, recipe = found.table, for_dpo(Reference.COPY, zero_stage=3, offload_params=Offload.CPU)
    limit = recipe.zero.stage3_param_persistence_threshold
    small = [count * one.num_bytes for one, count in table.kinds if one.numel <= limit]
    assert beside_bytes(table, recipe, 1) == sum(small)  # norms, which stay whole once they are used
    without = recipe.with_changes(task=replace(DPO, reference=Reference.PRECOMPUTED))
    hosts = [host_memory(table, one, num_ranks=1, ranks_per_node=1).steady_bytes for one in (without, recipe)]
    assert hosts[1] - hosts[0] == table.total_bytes


def test_dpo_drops_out_only_in_trl_and_only_where_adapters_are_asked_to():
    """``disable_dropout_in_model`` of other trainers, and TRL's ``disable_dropout``, which is off for such adapters."""
    workload = estimator(Method.LORA, None).workload

    def backward(trainer: TaskTrainer, rate: float) -> int:
        task = replace(DPO, trainer=trainer)
        recipe = SFT.with_changes(task=task, zero_stage=None, method=Method.LORA, lora_dropout=rate)
        timeline = Estimator(workload, recipe).timeline(recipe, cluster())
        return next(phase.peak.total for phase in timeline.phases if phase.name == "backward")

    assert backward(TaskTrainer.AXOLOTL, 0.1) == backward(TaskTrainer.AXOLOTL, 0.0)
    assert backward(TaskTrainer.TRL, 0.1) > backward(TaskTrainer.TRL, 0.0)


GPT2 = {
    "model": "gpt2",
    "gpu": "rtx-4090",
    "task": "dpo",
    "micro_batch": 2,
    "seq_len": 256,
    "activation_checkpointing": False,
}


def test_dropout_of_the_model_itself_keeps_its_masks_where_it_is_left_on():
    """A mask of an element is a byte on CUDA; GPT-2 drops out embeddings, attention's results and both of a layer."""
    left_on, off = (
        requested_estimate(parse(GPT2 | {"disable_dropout": is_off}), ())[0].peak_allocated_bytes
        for is_off in (False, True)
    )
    assert left_on > off == requested_estimate(parse(GPT2), ())[0].peak_allocated_bytes


def test_kto_runs_both_models_over_answers_to_other_prompts_without_keeping_anything_of_it():
    """Forward and reference peak as with the loss that does without, but for the rows' own token ids."""
    losses = {
        loss: phases(SFT.with_changes(task=TrainingTask(kind=TaskKind.KTO, kto_loss=loss), micro_batch=4))
        for loss in KTOLoss
    }
    found, without = losses[KTOLoss.KTO], losses[KTOLoss.APO_ZERO]
    ids = 3 * 4 * TOKENS * 8
    for name in ("forward", "reference", "backward"):
        assert found[name].peak.total - without[name].peak.total == ids, name

"""What a search keeps of its setups is what each of them has by itself."""

import pytest

from planned import cluster, of_few_layers
from vlmplan.communication import step_collectives
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Precision
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.search.combined_traces import Switches
from vlmplan.search.memoized_estimates import MemoizedEstimates
from vlmplan.search.micro_batches import Speeds
from vlmplan.search.shared_traces import SharedTraces
from vlmplan.timing import besides_computing, gpu_rates
from vlmplan.workload import Workload

CLUSTERS = [
    *(cluster("l40s", num_gpus=2), cluster("a100-sxm4-80gb", num_gpus=2), cluster("t4", num_gpus=2)),
    *(cluster("a100-sxm4-80gb", num_gpus=8), cluster("l40s")),
]
"""Pairs of equal kernels, of equal numbers, and of neither."""
ANSWERS = TrainingTask(kind=TaskKind.GRPO, completion_tokens=100, num_generations=4)
SIZES = [(1, 4), (2, 4), (4, 1)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("task", [None, ANSWERS])
def test_a_step_takes_beside_its_micro_batches_what_it_takes_where_nothing_is_shared(
    task: TrainingTask | None, stage: int
):
    recipe = Recipe(zero_stage=stage, task=task, loss=LossKind.FULL if task is None else LossKind.TRL)
    workload = Workload(model=of_few_layers("smollm2-135m"), seq_len=300)
    models = MemoizedEstimates(workload, [Switches.of(recipe, has_others=False)], 4, SharedTraces())
    alone = Estimator(workload, recipe)
    for on in [*CLUSTERS, *reversed(CLUSTERS)]:
        for size in SIZES:
            batched = models.with_batch(recipe, size)
            trace = alone.trace(batched, on.node.gpu.kernel_capability)
            work = alone.rollout_work(batched, on.node.gpu.kernel_capability, num_ranks=on.num_gpus)
            sent = step_collectives(alone.table, batched, num_ranks=on.num_gpus, trace=trace) if on.num_gpus > 1 else ()
            for collectives, sends in (((), False), (sent, True)):
                whole = besides_computing(alone.table, tuple(collectives), batched, on, workload, work)
                assert models.besides_computing(recipe, on, size, sends=sends) == whole


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "t4"])
def test_rates_of_one_recipe_are_not_those_of_another(gpu: str):
    speeds, card = Speeds(), cluster(gpu).node.gpu
    recipes = [
        Recipe(),
        Recipe(offload_activations=True, activation_checkpointing=True),
        Recipe(precision=Precision.FP32),
        Recipe(attention=AttentionImplementation.EAGER),
    ]
    for recipe in (*recipes, *reversed(recipes)):
        found = speeds.of(recipe, card)
        assert (None if found is None else found.rates) == gpu_rates(card, recipe)

"""The phases of DPO, KTO and GRPO with a short model, for tests of what references and answers take."""

from functools import cache

from planned import cluster, shortened
from vlmplan.estimation import Estimator
from vlmplan.memory.phases import Phase
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.workload import Workload

TOKENS, ANSWER, LAYERS = 300, 70, 3


@cache
def estimator(method: Method = Method.FULL, stage: int | None = 2) -> Estimator:
    workload = Workload(model=shortened("smollm2-135m", num_hidden_layers=LAYERS), seq_len=TOKENS)
    return Estimator(workload, Recipe(method=method, zero_stage=stage))


def phases(recipe: Recipe, num_gpus: int = 2) -> dict[str, Phase]:
    found = estimator(recipe.method, recipe.zero_stage)
    return {phase.name: phase for phase in found.timeline(recipe, cluster(num_gpus=num_gpus)).phases}

"""Changes of GRPO that save memory: how many answers are generated at once, and what vLLM keeps beside the trainer."""

from vlmplan.changes.change import Change, Levels
from vlmplan.estimation import fewer_at_once, with_answers_of
from vlmplan.request.setup import RequestedSetup
from vlmplan.units import divisors


def answers_at_once(at: RequestedSetup) -> Levels:
    """GRPO: fewer micro batches whose answers are generated together, each time the next that makes whole groups."""
    levels: list[Change] = []
    recipe, num_gpus = at.recipe, at.cluster.num_gpus
    while (steps := fewer_at_once(recipe, num_gpus)) is not None:
        name = f"{steps * recipe.micro_batch} answers generated at once"
        levels.append(Change(name=name, options={"steps_per_generation": steps}))
        recipe = with_answers_of(recipe, steps)
    return tuple(levels)


def sleeping_vllm(at: RequestedSetup) -> Levels:
    """GRPO: vLLM gives its memory back while the trainer trains, and keeps none of it on the host: level 2, TRL's."""
    task = at.recipe.task
    if task is None or not task.uses_vllm_here or task.vllm_sleep_level == 2:
        return ()
    allocator = {"expandable_segments": False} if at.recipe.expandable_segments else {}
    return (Change(name="vLLM asleep in training (level 2)", options={"vllm_sleep_level": 2, **allocator}),)


def shared_vllm(at: RequestedSetup) -> Levels:
    """GRPO: more GPUs that share vLLM's weights, of those of a node."""
    task, per_node = at.recipe.task, at.cluster.node.num_gpus
    if task is None or not task.uses_vllm_here:
        return ()
    wider = [count for count in divisors(per_node) if count > task.vllm_tensor_parallel]
    return tuple(
        Change(name=f"vLLM's weights shared by {count} GPUs", options={"vllm_tensor_parallel": count}, is_larger=True)
        for count in wider
    )

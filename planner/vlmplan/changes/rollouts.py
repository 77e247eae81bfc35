"""Changes of GRPO that save memory: how many answers are generated at once, and what vLLM keeps beside the trainer."""

from vlmplan.changes.change import Change, Levels
from vlmplan.estimation import fewer_at_once, with_answers_of
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task_choices import IdleOffload, TaskTrainer
from vlmplan.request import Options
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
    if task is None or not task.uses_vllm_here or task.vllm_sleep_level == 2 or task.trainer is TaskTrainer.EASYR1:
        return ()  # EasyR1's sleeps at level 1 whatever is said
    allocator = {"expandable_segments": False} if at.recipe.expandable_segments and not task.is_of_verl else {}
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


def same_answers(recipe: Recipe, micro_batch: int) -> Options:
    """verl: what keeps the answers that are generated at once as many with another micro batch."""
    task = recipe.task
    if task is None or not task.is_of_verl or task.steps_per_generation is None:
        return {}
    return {"steps_per_generation": task.steps_per_generation * recipe.micro_batch // micro_batch}


def smaller_scoring(at: RequestedSetup) -> Levels:
    """verl, Unsloth: log-probabilities of half as many answers at once, and so on."""
    task = at.recipe.task
    if task is None or not task.reads("scoring_batch"):
        return ()
    sizes = [task.scoring_batch or at.recipe.micro_batch]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return tuple(
        Change(name=f"log-probabilities of {size} answers at once", options={"scoring_batch": size})
        for size in sizes[1:]
    )


def verls_kernels(at: RequestedSetup) -> Levels:
    """verl: ``use_fused_kernels``, which make no whole logits."""
    task = at.recipe.task
    if task is None or not task.has_entropies or at.recipe.loss is LossKind.VERL_FUSED:
        return ()
    return (Change(name="verl's fused kernels", options={"loss": LossKind.VERL_FUSED.value}),)


def idle_on_host(at: RequestedSetup) -> Levels:
    """verl: weights and optimizer states wait on the host while nothing computes with them."""
    task = at.recipe.task
    if task is None or not task.is_of_verl or task.idle_offload is IdleOffload.ALL:
        return ()
    options = {"idle_offload": IdleOffload.ALL.value}
    return (Change(name="idle weights and states on the host", options=options, is_larger=True),)

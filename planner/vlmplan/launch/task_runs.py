"""DPO, reward models, KTO and GRPO as the bundled trainer runs them, through TRL: what each needs, and what it cannot
do.

What no trainer of TRL's can do with a recipe is among the rules (``rules/tasks.py``); here is what this one does not
do, and what the user has to bring.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from vlmplan.notes import listed
from vlmplan.plan import Plan
from vlmplan.plan.task_problems import setup_problems
from vlmplan.recipe import Recipe
from vlmplan.recipe.task import DPO_BETA, GRPO_BETA, SFT, TrainingTask
from vlmplan.recipe.task_choices import Reference, TaskKind
from vlmplan.run.training import TrainerOptions, default_of, flag

OF_SFT = (
    *("dummy_data", "monitor", "group_by_length"),
    *("language", "speech_task"),
)
"""Options that only supervised fine-tuning has."""
OF_TASKS: Mapping[str, tuple[TaskKind, ...]] = {
    "rewards": (TaskKind.GRPO,),
    "temperature": (TaskKind.GRPO,),
    "beta": (TaskKind.GRPO, TaskKind.DPO, TaskKind.KTO),
    "desirable_weight": (TaskKind.KTO,),
    "undesirable_weight": (TaskKind.KTO,),
    "center_rewards_coefficient": (TaskKind.REWARD,),
}
"""Options that only the others have, and which."""


def beta_of(recipe: Recipe, given: float | None) -> float:
    """How much the reference counts in the loss."""
    task = recipe.task
    if task is None or recipe.reference is Reference.NONE:
        return 0.0
    return given if given is not None else GRPO_BETA if task.is_grpo else DPO_BETA


def task_problems(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """Why the plan's task cannot be run with these options; sentences."""
    task = plan.recipe.task
    kind = None if task is None else task.kind
    defaults = {item.name: default_of(item) for item in fields(options)}
    for name, kinds in OF_TASKS.items():
        if getattr(options, name) != defaults[name] and kind not in kinds:
            goes_with = listed([one.value for one in kinds], last="or")
            yield f"{flag(name)} goes with --task {goes_with}, but --task is {SFT if kind is None else kind.value}"
    if task is None:
        return
    for name in OF_SFT:
        if getattr(options, name) not in (None, (), False):
            yield f"{flag(name)} is for --task {SFT}, but --task is {task.kind.value}; leave it off"
    yield from setup_problems(plan.recipe, task, plan.hardware.num_gpus)
    yield from _beta_problems(plan.recipe, task, options)
    if task.is_grpo:
        yield from _rewards_problems(options)


def _beta_problems(recipe: Recipe, task: TrainingTask, options: TrainerOptions) -> Iterator[str]:
    if options.beta is None or task.is_reward:
        return
    if recipe.reference is Reference.NONE and options.beta:
        ways = listed([Reference.COPY.value, Reference.ADAPTER_COPY.value, Reference.ADAPTER_OFF.value], last="or")
        yield f"--beta is {options.beta:g}, but the plan has no reference; plan with --reference {ways}"
    if task.is_grpo and recipe.reference is not Reference.NONE and not options.beta:
        yield f"--beta is 0, but the plan has a reference ({recipe.reference.value}); plan with --reference none"


def reference_warnings(recipe: Recipe, options: TrainerOptions) -> Iterator[str]:
    """What a run that starts from an adapter is held to, where that is not what it starts from."""
    if options.adapter is None or recipe.reference in (Reference.NONE, Reference.ADAPTER_COPY):
        return
    yield (
        f"the reference is the model without adapters (--reference {recipe.reference.value}), not what the run starts "
        f"from; plan with --reference adapter-copy for that"
    )


def _rewards_problems(options: TrainerOptions) -> Iterator[str]:
    if options.rewards is None:
        yield "--task grpo needs --rewards FILE: a Python file of yours whose functions score answers"
    elif not options.rewards.is_file():
        yield f"--rewards {options.rewards} is no file; a Python file with reward functions is needed"

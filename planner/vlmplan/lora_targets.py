"""The words of ``--lora-targets``: layers, and weights of stacked experts.

transformers 5 holds all experts of a layer in two parameters, which are no layers. peft adapts them by
``target_parameters`` (0.21 ``tuners/lora/config.py``): a name with the module that holds them, such as
``experts.gate_up_proj``, by suffix.
"""

from vlmplan.recipe_choices import REGEX

EXPERTS = "experts"
"""What the module that holds stacked experts is called in every model of transformers 5 that has one."""


def listed_targets(targets: str) -> list[str]:
    """The names that stand between commas."""
    return [name.strip() for name in targets.split(",") if name.strip()]


def is_stacked(name: str) -> bool:
    """Whether ``name`` is that of a weight of stacked experts."""
    return name.rpartition(".")[0].rpartition(".")[2] == EXPERTS


def layer_targets(targets: str) -> str:
    """``targets`` without weights of stacked experts; empty where nothing else is adapted. A regular expression means
    layers alone."""
    if targets.startswith(REGEX):
        return targets
    return ",".join(name for name in listed_targets(targets) if not is_stacked(name))


def stacked_targets(targets: str) -> list[str]:
    """The weights of stacked experts among ``targets``."""
    if targets.startswith(REGEX):
        return []
    return [name for name in listed_targets(targets) if is_stacked(name)]

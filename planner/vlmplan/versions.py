"""The packages that training needs: which, in what versions the memory model was checked, and what is installed."""

from collections.abc import Collection

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.version import __version__
from vlmplan.workload import Workload

INSTALL = 'pip install "vlmplan[train]"'
INSTALL_TASKS = 'pip install "vlmplan[rl]"'
INSTALL_TORCHAO = 'pip install "vlmplan[torchao]"'
TORCHAO = "torchao"
TASK_PACKAGES = ("trl", "datasets")
"""What DPO, reward models and GRPO need besides."""
CHECKED_VERSIONS: dict[str, str] = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "deepspeed": "0.19.8",
    "peft": "0.21.2",
    "bitsandbytes": "0.50.2",
    "accelerate": "1.15.0",
    "torchao": "0.18.0",
}
"""As constraints.txt has them; ``checked_versions`` has those of a recipe."""
TASK_VERSIONS: dict[str, str] = {"trl": "1.16.0", "datasets": "5.2.0"}
"""Of ``TASK_PACKAGES``, as constraints-rl.txt has them."""
VLMPLAN_VERSION = __version__


def installed_version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    from importlib import metadata  # slow to import, and rarely asked

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def checked_versions(recipe: Recipe) -> dict[str, str]:
    """The versions that a plan of ``recipe`` is for."""
    torch, transformers = recipe.torch_version.checked, recipe.transformers_version.checked
    return {**CHECKED_VERSIONS, "torch": torch, "transformers": transformers}


def install_command(missing: Collection[str], recipe: Recipe) -> str:
    """What brings the packages that are missing."""
    if TORCHAO in missing:
        return INSTALL_TORCHAO
    return INSTALL if recipe.task is None else INSTALL_TASKS


def needed_packages(recipe: Recipe, workload: Workload) -> list[str]:
    """The packages without which the trainer cannot run what is planned."""
    names = ["torch", "transformers", "safetensors"]
    names += ["deepspeed"] if recipe.uses_deepspeed else []
    names += [*TASK_PACKAGES, "accelerate"] if recipe.task is not None else []
    names += ["peft"] if recipe.method is not Method.FULL else []
    is_quantized = recipe.method.packs_weights
    names += ["accelerate"] if is_quantized and recipe.task is None else []
    names += ["bitsandbytes"] if is_quantized or recipe.optimizer.is_bitsandbytes else []
    names += [TORCHAO] if recipe.optimizer.is_torchao else []
    names += ["pillow"] if workload.images_per_sample else []
    return names

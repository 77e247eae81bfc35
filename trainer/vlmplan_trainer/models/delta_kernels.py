"""The packages whose kernels a plan counts on for gated delta nets.

transformers 5.23 takes them by itself where they are installed, and its own operations where they are not
(``use_kernel_func_from_hub_with_fallback`` in ``integrations/hub_kernels.py``), which hold several times as much.
"""

from importlib.util import find_spec

from vlmplan.errors import MissingPackageError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LinearAttention

DISTRIBUTIONS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}
"""By the name of the module."""


def require_delta_kernels(recipe: Recipe) -> None:
    """Raises MissingPackageError where the recipe counts on a package that is not there."""
    if recipe.linear_attention is LinearAttention.TORCH:
        return
    missing = [name for module, name in DISTRIBUTIONS.items() if find_spec(module) is None]
    if missing:
        raise MissingPackageError(
            f"the plan counts on the kernels of {' and '.join(missing)} (--linear-attention fla), not installed here: "
            f"pip install {' '.join(missing)}"
        )

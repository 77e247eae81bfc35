"""The modules around a model that have no weights of their own, and prefetch weights all the same under ZeRO-3."""

from vlmplan.recipe import Recipe

WRAPPERS, _ADAPTER_WRAPPERS = 3, 2
"""Modules around the embedding that have no weights: the trainer's ``LossModule``, the model with its head and the one
without; peft's two around the model. Each prefetches before it runs, forward and backward. Where the model reads its
head (``ReadHead``), no ``LossModule`` is around it, it has a weight itself, and one of the three is inside of it."""


def num_wrappers(recipe: Recipe) -> int:
    """Modules without weights of their own around the first that has some."""
    return WRAPPERS + (_ADAPTER_WRAPPERS if recipe.trains_adapters else 0)

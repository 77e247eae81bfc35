"""How to train: a recipe of resolved settings, what may be chosen, and which of it a user has decided."""

from vlmplan.recipe.recipe import (
    PLAIN,
    Recipe,
    engine_name,
)

__all__ = [
    "PLAIN",
    "Recipe",
    "engine_name",
]

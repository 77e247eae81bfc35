"""How to train: a recipe of resolved settings, what may be chosen, and which of it a user has decided."""

# pyright: reportUnusedImport=false
from vlmplan.recipe.recipe import (
    PLAIN,
    Recipe,
    engine_name,
)

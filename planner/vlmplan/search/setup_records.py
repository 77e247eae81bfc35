"""A recipe in a search: a candidate with a floor of its seconds, and a setup with bounds of its bytes."""

from typing import NamedTuple

from vlmplan.recipe import Recipe
from vlmplan.search.choices import Engine


class BoundedSetup(NamedTuple):
    """A resolved recipe on a cluster, with the bytes that tensors take on one GPU at the most and at the least.

    ``fits``: it does by its bound. Otherwise it may, and the timeline has to say.
    """

    recipe: Recipe
    most_bytes: int
    least_bytes: int
    fits: bool = True


class RecipeCandidate(NamedTuple):
    """A recipe without sizes and batch, the engine that it belongs to, and seconds of a run that it cannot undercut."""

    least_seconds: float
    recipe: Recipe
    engine: Engine

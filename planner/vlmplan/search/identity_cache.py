"""Results by the identity of what they are of: recipes and clusters have many fields to hash and to compare."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe

Of = TypeVar("Of", bound=Recipe | Sequence[Recipe] | Cluster)
Result = TypeVar("Result")


class IdentityCache(Generic[Of, Result]):
    """What ``make`` makes of a recipe, an engine or a cluster, which has many fields to compare, by its identity; the
    object is kept alive."""

    __slots__ = ("_make", "_results")

    def __init__(self, make: Callable[..., Result]) -> None:
        self._make = make
        self._results: dict[tuple[int, Hashable], tuple[Of, Result]] = {}

    def get(self, of: Of, *given: Any) -> Result:
        """``make(of, *given)``, made once."""
        key = (id(of), given)
        known = self._results.get(key)
        if known is None:
            known = self._results[key] = of, self._make(of, *given)
        return known[1]

"""The modules around a model that have no weights of their own, and prefetch weights all the same under ZeRO-3. Those
inside of the model are in its trace (``Prefetch``).

DeepSpeed prefetches before each module runs, forward and backward, whatever weights it has
(``pre_sub_module_forward_function`` and ``pre_sub_module_backward_function`` in ``zero/parameter_offload.py``).
"""

from typing import NamedTuple

from vlmplan.engines.coordinator.module_order import Lost, loses_order_at
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind

OUTSIDE_HEAD, INSIDE_HEAD, OF_ADAPTERS = 2, 1, 2
"""The trainer's ``LossModule`` and the model with its head; the model without its head; peft's two around the model."""
LOSSES_INSIDE = (LossKind.CHUNKED, LossKind.LIGER)
"""They are made where the head is: what the model returns then is no tensor of the graph, and no backward goes through
the modules between ``LossModule`` and the head."""


class Wrappers(NamedTuple):
    """How many there are: in ``forward``, around the embedding; in backward, around the head (``outside``), and between
    it and the final norm (``inside``).

    ``lost``: from where on none of them prefetches.
    """

    forward: int = OUTSIDE_HEAD + INSIDE_HEAD
    outside: int = OUTSIDE_HEAD
    inside: int = INSIDE_HEAD
    more: int = 0
    lost: Lost = Lost.NEVER

    def around_reader(self, *, calls_head: bool) -> "Wrappers":
        """The wrappers of a model that reads its head (``ReadHead``): it has a weight itself then, and one of these is
        inside of it, so that ``more`` are all that are left. One that calls its head has ``LossModule`` around it as
        others have."""
        if calls_head:
            return self._replace(forward=self.forward - OUTSIDE_HEAD, outside=max(1, self.outside - 1))
        return Wrappers(forward=self.more, outside=self.more, inside=0, lost=self.lost)


WITHOUT_ADAPTERS = Wrappers()


def wrappers(recipe: Recipe, table: ParameterTable) -> Wrappers:
    """Modules without weights of their own around the model that the recipe trains."""
    more = OF_ADAPTERS if recipe.trains_adapters else 0
    outside = 1 if recipe.loss in LOSSES_INSIDE else OUTSIDE_HEAD + more
    inside = min(1, table.embedding_path.count(".") - table.head_path.count("."))
    lost = loses_order_at(recipe)
    return Wrappers(forward=OUTSIDE_HEAD + INSIDE_HEAD + more, outside=outside, inside=inside, more=more, lost=lost)

"""What peft takes while it makes an adapter out of the weight that it is for, where that weight is in shards.

``LoraLayer.update_layer`` (peft 0.21 ``tuners/lora/layer.py``) gathers the weight, and ``pissa_init`` or ``olora_init``
decomposes it in float32; what is left of it replaces it. Beside the results torch's solvers have workspaces of their
own, which are not planned.
"""

from collections.abc import Callable, Mapping, Sequence

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.dora_lengths import FACTORS
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OLORA, PISSA
from vlmplan.units import DType

BOUND_BYTES = 32
"""At most so many for each element of the weight: float32 copies of it, of what is taken out and of what is left (12),
two sides of the decomposition (8) with the numbers between them (4), and the adapter (8)."""


def bytes_for_start(
    entry: NamedParameter,
    adapted: Mapping[str, Sequence[Parameter]],
    recipe: Recipe,
    gathered: Callable[[Sequence[Parameter]], list[int]],
) -> list[int]:
    """Sizes of the tensors that are there at once while the adapter is made whose first factor is ``entry``; empty for
    any other weight. The adapter's own are among them, in float32."""
    if not recipe.changes_base or not entry.name.endswith(FACTORS[0]):
        return []
    first, second, weight, *_ = adapted[entry.name.removesuffix(FACTORS[0])]
    wide = DType.FLOAT32.num_bytes
    whole, smaller = weight.numel * wide, min(weight.shape)
    copy = [] if weight.dtype is DType.FLOAT32 else [whole]
    factors = [first.numel * wide, second.numel * wide]
    sides = [side * smaller * wide for side in weight.shape]
    if recipe.lora_init == OLORA:
        scaled = factors[1]
        return [*gathered([weight]), *copy, *sides, *factors, scaled, whole]
    if recipe.lora_init != PISSA:
        smaller, sides = first.shape[0], factors  # randomised, of as many columns
    return [*gathered([weight]), *copy, *sides, smaller * wide, *factors, whole, whole]

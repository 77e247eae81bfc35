"""What peft takes while it makes DoRA's vector of lengths for an adapter, where the weight is in shards.

``DoraLinearLayer.update_layer`` (peft 0.21 ``tuners/lora/dora.py``) gathers the base layer, multiplies the adapter's
factors, scales the product and adds it to the weight: four tensors of the weight's size at once. Of float16 the factors
are cast to float32 first and the product back, no more than that beside the factors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.parameter import Parameter
from vlmplan.units import DType

LENGTHS = ".lora_magnitude_vector.weight"
FACTORS = (".lora_A.weight", ".lora_B.weight")
"""What the names of an adapter's matrices end with."""


def adapted_weights(entries: Iterable[NamedParameter]) -> Mapping[str, Sequence[Parameter]]:
    """The factors, and behind them the base layer's weights, of each adapted module by its path."""
    found: dict[str, list[Parameter]] = {}
    for suffixes in (FACTORS, (".base_layer.weight", ".base_layer.bias")):
        for entry in entries:
            for suffix in suffixes:
                if entry.name.endswith(suffix):
                    found.setdefault(entry.name.removesuffix(suffix), []).append(entry.parameter)
    return found


def bytes_for_lengths(
    entry: NamedParameter,
    adapted: Mapping[str, Sequence[Parameter]],
    gathered: Callable[[Sequence[Parameter]], list[int]],
) -> list[int]:
    """Sizes of the tensors that are there at once while the vector ``entry`` is made; empty for any other weight."""
    if not entry.name.endswith(LENGTHS):
        return []
    first, second, weight, *bias = adapted[entry.name.removesuffix(LENGTHS)]
    casts: list[int] = []
    if first.dtype is DType.FLOAT16:
        casts = [factor.numel * DType.FLOAT32.num_bytes for factor in (first, second)]
    product = weight.numel * first.dtype.num_bytes
    return [*casts, *gathered([weight, *bias]), product, product, product]

"""What loading takes of weights that do not stay as they arrive: those that bitsandbytes packs."""

import re
from collections.abc import Sequence

from vlmplan.architecture.packed_weight import NF4_BLOCK, nf4_sizes
from vlmplan.architecture.parameter import Parameter
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.units import DType

MAGNITUDE = ".lora_magnitude_vector."
"""Between the names of a layer and of its magnitude in DoRA."""


def base_layer_name(name: str) -> str:
    """The weight beside which an adapter's is: of the layer that it adapts."""
    return re.sub(r"\.lora_\w+\.", ".base_layer.", name)


def halves_bytes(parameter: Parameter, recipe: Recipe) -> int:
    """The float16 weight that one of 8 bits is made of, which comes from the host whatever type has arrived
    (``Bnb8bitQuantize`` of transformers, ``Int8Params._quantize`` of bitsandbytes)."""
    return parameter.numel * DType.FLOAT16.num_bytes if recipe.method is Method.LORA_8BIT else 0


def wide_scale_bytes(parameter: Parameter, recipe: Recipe) -> int:
    """Scales of a 4-bit weight that are quantised too are in float32 until that is done, as they are and, another
    tensor, less their mean (``quantize_4bit`` of bitsandbytes)."""
    if recipe.method is not Method.QLORA or not recipe.use_double_quant:
        return 0
    return -(-parameter.numel // NF4_BLOCK) * DType.FLOAT32.num_bytes


def scale_sizes(parameter: Parameter, recipe: Recipe) -> Sequence[int]:
    """What stays beside the elements of a packed weight, tensor by tensor."""
    num_bytes = parameter.num_bytes - parameter.packed_bytes
    if recipe.method is not Method.QLORA:
        return [num_bytes]
    sizes = nf4_sizes(parameter.numel, double_quantises=recipe.use_double_quant)[1:]
    return sizes if sum(sizes) == num_bytes else [num_bytes]


MEASURING_BOUND_BYTES = 4 * DType.FLOAT32.num_bytes
"""Of an element of the weight, at least what ``measuring_sizes`` are together."""


def measuring_sizes(packed: Parameter, recipe: Recipe) -> Sequence[Sequence[int]]:
    """What DoRA takes to find the lengths of a packed weight's rows, one time after another: four tensors as large as
    the whole, which itself, the adapter's product, that scaled, and the sum are (``DoraLinearLayer.update_layer`` of
    peft). A 4-bit weight is copied first, its scales with it and with its layer (``Params4bit.__deepcopy__``), and
    scales that are quantised are made wide for the whole; one of 8 bits becomes float32; one that is not packed is
    there."""
    if packed.stored_bytes is None:
        return ([packed.numel * packed.dtype.num_bytes] * 3,)
    if recipe.method is Method.LORA_8BIT:
        return ([packed.numel * DType.FLOAT32.num_bytes] * 4,)
    whole, scales = packed.numel * packed.dtype.num_bytes, scale_sizes(packed, recipe)
    copied = [*scales, packed.packed_bytes, *scales]
    return [*copied, wide_scale_bytes(packed, recipe), whole], [*copied, *[whole] * 4]

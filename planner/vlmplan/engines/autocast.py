"""What ``torch.autocast`` keeps beside the tape, under every engine."""

from vlmplan.architecture.model import NamedParameter, Part
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.units import DType


def cached_casts(table: ParameterTable, recipe: Recipe, *, with_vectors: bool = False) -> list[int]:
    """Bytes of 16-bit copies of float32 weights that autocast keeps until forward ends and the tape does not hold.

    Those of layers that are run again in backward, and of weights in layers that multiply what has no gradient
    (``KeptCast`` says when each comes, where they run); elsewhere the graph keeps the copies, and they are on the tape.
    ``with_vectors``: biases too, and at most as much as norms would take.
    Source: ``cached_cast`` in ``aten/src/ATen/autocast_mode.cpp``: casts of leaves that need a gradient are cached.
    """
    if recipe.autocast is None or not recipe.caches_casts:
        return []
    width = recipe.autocast.num_bytes
    stacks = tuple(f"{path}." for path in table.stacks_by_label.values())
    language, others = recipe.activation_checkpointing, recipe.vision_activation_checkpointing

    def runs_again(entry: NamedParameter) -> bool:
        return entry.name.startswith(stacks) and (language if entry.part is Part.LANGUAGE else others)

    return [
        entry.parameter.numel * width
        for ordinal, entry in enumerate(table.trained_entries)
        if entry.parameter.dtype is DType.FLOAT32
        and (with_vectors or len(entry.parameter.shape) > 1)
        and entry.parameter.meets_autocast
        and (runs_again(entry) or (entry.parameter.reads_constants and ordinal not in table.idle))
    ]

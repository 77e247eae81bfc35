"""What stops FSDP1 without original parameters in forward: modules are asked for their type, and have no parameter.

A module's weights are plain tensors then, which ``parameters()`` does not give (``_use_unsharded_views`` in torch 2.13
``distributed/fsdp/_flat_param.py``): of a module it gives the flat parameters of the units inside, which outside of
their own forward are shards. Seen in rehearsals: StopIteration, and in SmolVLM masked_scatter of two types.
"""

from vlmplan.engines.flat_units import flat_units
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.model_types.asked_types import ASKED_TOWERS, IN_TYPE_OF_MODEL
from vlmplan.recipe import Recipe
from vlmplan.workload import Workload

SAID = "give --orig-params, or --flat-parameters none for FSDP2"


def refuse_asked_types(workload: Workload, recipe: Recipe, table: ParameterTable) -> None:
    """Raise InputError where forward would ask a module in vain, or get another type than that of the computation."""
    if not recipe.is_flat or recipe.uses_orig_params or not workload.images_per_sample:
        return
    model_type = str(workload.model.config.get("model_type", ""))
    units = flat_units(table, recipe, 1)
    inside = [unit for unit in units.all if unit is not units.root]
    tower = ASKED_TOWERS.get(model_type)
    if tower is not None and not any(f".{tower}." in entry.name for unit in inside for entry in unit.weights):
        raise InputError(
            f"--no-orig-params does not go with --shard-units {recipe.shard_units.value} of {workload.model.id}: its "
            f"forward asks the vision tower for its type, in which no layer is a unit and FSDP1 leaves no parameter; "
            f"{SAID}"
        )
    first = units[0]
    if model_type in IN_TYPE_OF_MODEL and first.held != first.computed:
        raise InputError(
            f"--no-orig-params does not go with {workload.model.id} in shards of another type than that of the "
            f"computation: it casts images to the type of its first parameter, which FSDP1 has as a shard; {SAID}"
        )

"""The two groups of parameters that DeepSpeed's Muon makes: what it orthogonalises, and what AdamW updates.

Source: ``_muon_param_groups`` in ``runtime/engine.py`` and ``MuonWithAuxAdam`` in ``runtime/zero/muon`` (0.19.8).
"""

from collections.abc import Sequence

from vlmplan.engines.parameter_groups import OptimizerGroup
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.recipe.muon import is_orthogonalised


def muon_groups(table: ParameterTable, *, is_sorted: bool) -> Sequence[OptimizerGroup]:
    """Muon's group and AdamW's, without one that has no parameters.

    ``is_sorted``: Muon's have their largest shapes first, where they are whole when the optimizer is made: under stages
    1 and 2, and adapters under stage 3, which has sharded other weights by then.
    """
    key = (muon_groups, is_sorted)
    if key not in table.memo:
        table.memo[key] = _groups(table, is_sorted=is_sorted)
    return table.memo[key]


def _groups(table: ParameterTable, *, is_sorted: bool) -> Sequence[OptimizerGroup]:
    ordinals: dict[bool, list[int]] = {True: [], False: []}
    for ordinal, entry in enumerate(table.trained_entries):
        num_axes = entry.parameter.num_axes
        if is_orthogonalised(entry.name, num_axes) and num_axes == 4:
            raise InputError(
                f"--optimizer muon cannot update {entry.name}: of a convolution's weight DeepSpeed 0.19.8 makes a "
                f"matrix that it cannot put back (muon_update); freeze what it belongs to, or give another optimizer"
            )
        ordinals[is_orthogonalised(entry.name, num_axes)].append(ordinal)
    if is_sorted:
        ordinals[True].sort(key=lambda ordinal: table.trained_shapes[ordinal], reverse=True)
    return [OptimizerGroup(table, found, uses_muon=uses) for uses, found in ordinals.items() if found]

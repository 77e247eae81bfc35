"""The parameter groups that the trainer gives a torch optimizer: one, or with LoRA+ two, with a learning rate each.

torch updates one group after the other (the loop over ``param_groups`` of ``step`` in ``torch/optim/adamw.py``), so
that what an update allocates is of one group at a time. Stages 1 and 2 flatten each group by itself
(``stage_1_and_2.py``), and DeepSpeed's sub-groups of stage 3 end where a group ends
(``_create_fp16_partitions_with_defragmentation`` in ``stage3.py``). Muon's groups are in ``muon_groups``.
"""

from collections.abc import Iterable, Sequence

from vlmplan.engines.parameters import FlatBuffer, ParameterTable
from vlmplan.recipe import Recipe


class OptimizerGroup(FlatBuffer):
    """Trained parameters that share a flat buffer, in its order. Not empty."""

    def __init__(self, table: ParameterTable, ordinals: Sequence[int], *, uses_muon: bool = False) -> None:
        self.ordinals, self.uses_muon = ordinals, uses_muon
        self.numels = [table.numels[ordinal] for ordinal in ordinals]
        self.shapes = [table.trained_shapes[ordinal] for ordinal in ordinals]
        self.position = {ordinal: at for at, ordinal in enumerate(ordinals)}

    @property
    def numel(self) -> int:
        return self.ends[-1]


def flat_order(ordinals: Sequence[int], recipe: Recipe, num_ranks: int) -> Sequence[int]:
    """A group's parameters as its flat buffer has them: with ``round_robin_gradients`` every rank's in turn, by
    ``_round_robin_reorder`` of ``stage_1_and_2.py``.

    >>> flat_order(range(5), Recipe(zero=ZeroSettings(round_robin_gradients=True)), 2)
    [0, 2, 4, 1, 3]
    """
    if not recipe.zero.round_robin_gradients:
        return ordinals
    return [ordinal for first in range(num_ranks) for ordinal in ordinals[first::num_ranks]]


def parameter_groups(table: ParameterTable, recipe: Recipe) -> Sequence[Sequence[int]]:
    """Ordinals of the trained parameters of each group, none of them empty.

    LoRA+ gives ``lora_B`` and vectors the larger rate (peft's ``create_loraplus_optimizer``), in the second group.
    """
    if recipe.loraplus_lr_ratio is None:
        return [range(len(table.numels))]
    if parameter_groups not in table.memo:
        groups: dict[bool, list[int]] = {False: [], True: []}
        for ordinal, entry in enumerate(table.trained_entries):
            groups["lora_B" in entry.name or len(entry.parameter.shape) == 1].append(ordinal)
        table.memo[parameter_groups] = [group for group in groups.values() if group]
    return table.memo[parameter_groups]


def chosen_of_groups(table: ParameterTable, recipe: Recipe, ordinals: Iterable[int]) -> list[list[int]]:
    """The ``ordinals`` that each group has, in the group's order."""
    chosen = set(ordinals)
    return [[ordinal for ordinal in group if ordinal in chosen] for group in parameter_groups(table, recipe)]

"""The parameter groups that the trainer gives a torch optimizer: one, or with LoRA+ two, with a learning rate each.

torch updates one group after the other (the loop over ``param_groups`` of ``step`` in ``torch/optim/adamw.py``), so
that what an update allocates is of one group at a time. DeepSpeed's sub-groups of stage 3 end where a group ends
(``_create_fp16_partitions_with_defragmentation`` in ``stage3.py``). Muon's groups are in ``muon_groups``.
"""

from collections.abc import Iterable, Sequence

from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe


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
    """Those of ``ordinals`` that each group has, in the group's order."""
    chosen = set(ordinals)
    return [[ordinal for ordinal in group if ordinal in chosen] for group in parameter_groups(table, recipe)]

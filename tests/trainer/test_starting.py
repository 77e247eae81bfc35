"""Checkpoints that this number of ranks cannot read are refused before a model is loaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipe_cases import plan
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind
from vlmplan_trainer.starting import UNIVERSAL_OPTIMIZERS, refuse_unreadable_states


def written_by(num_ranks: int) -> Any:
    return SimpleNamespace(place=Path("step-00000002"), manifest=SimpleNamespace(num_ranks=num_ranks))


@pytest.mark.parametrize("optimizer", [kind for kind in OptimizerKind if kind.value not in UNIVERSAL_OPTIMIZERS])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_states_that_are_not_adams_go_to_as_many_ranks(optimizer: OptimizerKind, zero_stage: int):
    """DeepSpeed's conversion ended with ``KeyError: 'exp_avg'`` or ``'exp_avg_sq'``."""
    made = plan(Recipe(zero_stage=zero_stage, optimizer=optimizer), 1)
    with pytest.raises(InputError, match=f"written by 2 GPUs, and DeepSpeed hands the states of .*{optimizer.value} "):
        refuse_unreadable_states(written_by(2), made)
    refuse_unreadable_states(written_by(1), made)


@pytest.mark.parametrize("changes", [{"zero_stage": 2}, {"zero_stage": None, "optimizer": OptimizerKind.SGD}])
def test_adams_states_and_whole_ones_are_read_by_any_number(changes: dict[str, Any]):
    refuse_unreadable_states(written_by(2), plan(Recipe(**changes), 1))


def test_each_rank_of_fsdp_reads_its_own_part():
    made = plan(Recipe(zero_stage=None, fsdp=True), 2)
    with pytest.raises(InputError, match="written by 4 GPUs, and under --fsdp each reads its own part"):
        refuse_unreadable_states(written_by(4), made)

"""What other trainers pack in 4 bits, where a model in training changes the weights of some Linears itself."""

import pytest

from model_table import packaged_config
from vlmplan.other_trainers.writing import Tool, objection
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.workload import ModelFiles

GEMMA_3N, GEMMA_3 = (ModelFiles(id=name, config=packaged_config(name)) for name in ("gemma-3n-e2b", "gemma-3-4b"))


@pytest.mark.parametrize("tool", Tool)
def test_no_tool_packs_linears_that_gemma_3n_clamps(tool):
    packed = Recipe(method=Method.QLORA, zero_stage=None)
    assert "clamps the weights of some while it trains" in (objection(tool, packed, GEMMA_3N) or "")
    assert "clamps" not in (objection(tool, packed, GEMMA_3) or "")
    assert "clamps" not in (objection(tool, packed.with_changes(method=Method.LORA), GEMMA_3N) or "")

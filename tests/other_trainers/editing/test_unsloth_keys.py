"""Which keywords of an Unsloth program change for another recipe."""

from typing import Any

import pytest

from vlmplan.models import find_model
from vlmplan.other_trainers.editing.unsloth_keys import unsloth_changes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method
from vlmplan.workload import Workload

WIDE = Recipe(zero_stage=None, method=Method.LORA, adapter_dtype=AdapterDtype.FLOAT32, activation_checkpointing=True)
WORKLOAD = Workload(model=find_model("qwen2.5-0.5b"))


def changes(values: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return unsloth_changes(values, (WIDE, WORKLOAD), (WIDE.with_changes(**fields), WORKLOAD))


@pytest.mark.parametrize("said", [{}, {"load_in_16bit": True}])
def test_weights_are_packed_by_one_keyword_alone(said: dict[str, Any]):
    """Unsloth loads in 4 or in 16 bits, 'not a combination'."""
    found = changes({"load_in_4bit": False, **said}, method=Method.QLORA)
    assert found == {"load_in_4bit": True, **dict.fromkeys(said, False)}


@pytest.mark.parametrize("said", [{}, {"gradient_checkpointing": True}, {"gradient_checkpointing": False}])
def test_checkpoints_that_the_arguments_ask_for_are_switched_off_there_too(said: dict[str, Any]):
    found = changes({"use_gradient_checkpointing": True, **said}, activation_checkpointing=False)
    is_on = said.get("gradient_checkpointing", False)
    assert found == {"use_gradient_checkpointing": False, **({"gradient_checkpointing": False} if is_on else {})}

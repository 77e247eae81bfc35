"""Casts of a plan beside those that torch dispatches: they take the host less than other operations."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planned import workload
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import LossKind
from vlmplan.workload import ModelFiles

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
NUM_TOKENS = 16
FROM_IDS = 4
"""Casts beside layers that are not counted: of token ids and of the loss."""


class Casts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten._to_copy and args[0].dtype is not result.dtype:
            self.count += 1
        return result


def test_as_many_casts_are_counted_in_forward_and_backward_as_autocast_and_norms_make():
    from vlmplan_trainer.probe import configuration, model_class

    recipe = Recipe(loss=LossKind.MODEL, activation_checkpointing=False)
    described = workload(ModelFiles(id="a small llama", config=CONFIG), seq_len=NUM_TOKENS)
    forward, _, backward = Estimator(described, recipe).trace(recipe, (9, 0)).works()
    config = configuration(CONFIG)
    model = model_class(config)(config)
    ids = torch.ones(1, NUM_TOKENS, dtype=torch.long)
    with Casts() as there, torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    with Casts() as back:
        loss.backward()
    assert 0 < forward.num_casts < forward.num_kernels
    assert there.count == pytest.approx(forward.num_casts, abs=FROM_IDS)
    assert back.count == pytest.approx(backward.num_casts, abs=FROM_IDS)

"""Adapters without autocast, with dropout, and weights in other types: trained by the real loop, and what torch and
DeepSpeed do to the combinations that are refused."""

import pytest
import torch
from tiny_plans import tiny_plan
from torch import nn

from planned import BUNDLED_LOSSES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method, WeightDtype
from vlmplan_trainer.engines.make import make_engine
from vlmplan_trainer.models.load import load_model
from vlmplan_trainer.models.tiny import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("llama"), "llama", ties_weights=False)


def trained_once(folder, recipe):
    """The trained weights of one step, with their gradients' types."""
    plan = tiny_plan(folder, recipe)
    engine = make_engine(load_model(plan).model, plan, device=torch.device("cpu"), weight_decay=0.0)
    ids = torch.arange(20, 36).reshape(1, 16)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    loss = engine.forward(batch, 16)
    engine.backward(loss)
    types = {name: p.grad.dtype for name, p in engine.model.named_parameters() if p.grad is not None}
    engine.step(1e-3)
    assert torch.isfinite(loss)
    return types


@pytest.mark.one_in(7)
@pytest.mark.parametrize("loss", BUNDLED_LOSSES)
@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
@pytest.mark.parametrize(
    "changes",
    [
        {"uses_autocast": False},
        {"uses_autocast": False, "lora_dropout": 0.1, "train_embeddings": True},
        {"uses_autocast": False, "adapter_dtype": AdapterDtype.MODEL},
        {"adapter_dtype": AdapterDtype.FLOAT32, "train_embeddings": True},
        {"adapter_dtype": AdapterDtype.MODEL, "train_embeddings": True, "lora_dropout": 0.1},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_every_way_trains_and_gradients_are_of_the_type_of_what_is_trained(folder, method, changes, loss):
    recipe = Recipe(method=method, loss=loss, **changes)
    types = trained_once(folder, recipe)
    copy, adapter = (getattr(torch, dtype.torch_name) for dtype in (recipe.copy_dtype, recipe.trained_dtype))
    assert {dtype for name, dtype in types.items() if "lora_" in name} == {adapter}
    copies = {dtype for name, dtype in types.items() if "modules_to_save" in name}
    assert copies == ({copy} if recipe.train_embeddings else set())


@pytest.mark.parametrize("loss", BUNDLED_LOSSES)
@pytest.mark.parametrize(
    ("weight_dtype", "expected"), [(WeightDtype.MODEL, torch.bfloat16), (WeightDtype.FLOAT32, torch.float32)]
)
def test_all_weights_train_in_the_type_that_they_are_held_in(folder, weight_dtype, expected, loss):
    types = trained_once(folder, Recipe(weight_dtype=weight_dtype, loss=loss))
    assert set(types.values()) == {expected}


def test_torch_refuses_products_of_two_types_outside_autocast():
    with pytest.raises(RuntimeError, match="dtype"):
        nn.Linear(4, 4)(torch.ones(1, 4, dtype=torch.bfloat16))


def test_torch_refuses_to_unscale_float16_gradients():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    weight.grad = torch.ones_like(weight)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([weight]))

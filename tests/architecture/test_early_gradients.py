"""Gradients that backward makes before it asks for the first tensor of a checkpointed layer, beside torch and peft."""

from typing import Any
from unittest.mock import patch

import pytest

from model_table import packaged_config
from tape_probe import predicted_step
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.early_gradients import run_early
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage import Storage
from vlmplan.units import DType

pytest.importorskip("peft")

BATCH = Batch(micro_batch=4, num_tokens=512)
RANK = 4
CONFIG = packaged_config(
    "llama-3.2-1b",
    num_hidden_layers=2,
    vocab_size=512,
    hidden_size=256,
    intermediate_size=384,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
)
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "vocab_size": 100,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 0,
}
TARGETS = ("down_proj", "all-linear", "q_proj,v_proj")


def adapted(config, targets, dtype, *, use_dora):
    """The tree as peft prepares it: 16-bit weights frozen, adapters of ``dtype``."""
    tree = build_model(config)
    base = {id(entry.parameter) for entry in tree.parameters()}
    for entry in tree.parameters():
        entry.parameter.requires_grad = False
    add_lora(tree, AdapterSettings(rank=RANK, use_dora=use_dora), targets=targets)
    for entry in tree.parameters():
        if id(entry.parameter) not in base:
            entry.parameter.requires_grad, entry.parameter.dtype = True, dtype
    return tree


def real_adapted(config, targets, dtype, *, use_dora):
    import peft
    import torch

    from family_checks import real_model, switch_checkpointing

    layers = targets if targets == "all-linear" else targets.split(",")
    with patch.object(torch.nn.Module, "to", lambda self, *args, **kwargs: self):  # fake tensors cannot be moved
        adapters = peft.LoraConfig(target_modules=layers, r=RANK, use_dora=use_dora)
        model = peft.get_peft_model(real_model(config), adapters)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    switch_checkpointing(model.base_model.model, on=True)
    return model


def assert_backward_matches(config, targets, dtype, *, use_dora=False):
    import torch

    from family_checks import text_inputs
    from torch_probe import measured_step

    kind = getattr(torch, dtype.value[0])
    measured = measured_step(lambda: real_adapted(config, targets, kind, use_dora=use_dora), text_inputs(BATCH))
    predicted = predicted_step(adapted(config, targets, dtype, use_dora=use_dora), BATCH, checkpoints=True)
    assert predicted.end_live == 0
    assert predicted.backward_peak == pytest.approx(measured.backward_peak, rel=0.001)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=["float32 adapters", "bf16 adapters"])
@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
def test_they_are_alive_while_the_layer_runs_again(targets: str, dtype: DType, use_dora: bool):
    """Of adapters in float32 the cast of the sum, that of the base layer's part, and the product with the scale."""
    assert_backward_matches(CONFIG, targets, dtype, use_dora=use_dora)


@pytest.mark.sweep
def test_a_layer_that_ends_with_a_saved_scalar_runs_again_before_there_are_any(monkeypatch: pytest.MonkeyPatch):
    """Behind the last norm of Gemma 4's layers, which casts to float32 and back, is the product with a tensor."""
    found: list[list[Storage]] = []

    def listed(*args: Any) -> list[Storage]:
        found.append(run_early(*args))
        return [*found[-1]]

    monkeypatch.setattr("vlmplan.architecture.checkpointing.run_early", listed)
    assert_backward_matches(GEMMA4, "all-linear", DType.BFLOAT16)
    assert found
    assert not any(found)

"""Gradients that backward makes before it asks for the first tensor of a checkpointed layer, beside torch and peft."""

from unittest.mock import patch

import pytest

from model_table import packaged_config
from tape_probe import predicted_step
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
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
TARGETS = ("down_proj", "all-linear", "q_proj,v_proj")


def adapted(targets, dtype, *, use_dora):
    """The tree as peft prepares it: 16-bit weights frozen, adapters of ``dtype``."""
    tree = build_model(CONFIG)
    base = {id(entry.parameter) for entry in tree.parameters()}
    for entry in tree.parameters():
        entry.parameter.requires_grad = False
    add_lora(tree, AdapterSettings(rank=RANK, use_dora=use_dora), targets=targets)
    for entry in tree.parameters():
        if id(entry.parameter) not in base:
            entry.parameter.requires_grad, entry.parameter.dtype = True, dtype
    return tree


def real_adapted(targets, dtype, *, use_dora):
    import peft
    import torch

    from family_checks import real_model, switch_checkpointing

    layers = targets if targets == "all-linear" else targets.split(",")
    with patch.object(torch.nn.Module, "to", lambda self, *args, **kwargs: self):  # fake tensors cannot be moved
        adapters = peft.LoraConfig(target_modules=layers, r=RANK, use_dora=use_dora)
        model = peft.get_peft_model(real_model(CONFIG), adapters)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    switch_checkpointing(model.base_model.model, on=True)
    return model


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=["float32 adapters", "bf16 adapters"])
@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
def test_they_are_alive_while_the_layer_runs_again(targets: str, dtype: DType, use_dora: bool):
    """Of adapters in float32 the cast of the sum, that of the base layer's part, and the product with the scale."""
    import torch

    from family_checks import text_inputs
    from torch_probe import measured_step

    kind = getattr(torch, dtype.value[0])
    measured = measured_step(lambda: real_adapted(targets, kind, use_dora=use_dora), text_inputs(BATCH))
    predicted = predicted_step(adapted(targets, dtype, use_dora=use_dora), BATCH, checkpoints=True)
    assert predicted.end_live == 0
    assert predicted.backward_peak == pytest.approx(measured.backward_peak, rel=0.001)

"""What adapters that start from the weights take while they are made, against peft's own code without data."""

import pytest

pytest.importorskip("peft")

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear, LoraLayer

from torch_probe import FAKE_MODE, ByteCounter
from vlmplan.architecture.model import NamedParameter, Part
from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.adapter_starts import BOUND_BYTES, bytes_for_start
from vlmplan.engines.dora_lengths import adapted_weights
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.units import DType

RANK = 48
INITS = ["pissa", "pissa_niter_4", "olora"]


def entries_of(rows: int, columns: int, dtype: DType) -> list[NamedParameter]:
    shapes = {"base_layer.weight": (rows, columns), "lora_A.weight": (RANK, columns), "lora_B.weight": (rows, RANK)}
    entries = [NamedParameter(f"q_proj.{name}", Parameter(*shape), 0, Part.LANGUAGE) for name, shape in shapes.items()]
    entries[0].parameter.dtype = dtype
    return entries


def planned(init: str, entries: list[NamedParameter]) -> list[list[int]]:
    recipe = Recipe(method=Method.LORA, zero_stage=3, lora_init=init)
    adapted = adapted_weights(entries)
    return [bytes_for_start(entry, adapted, recipe, lambda some: [one.num_bytes for one in some]) for entry in entries]


@pytest.mark.parametrize(("rows", "columns"), [(768, 1024), (1024, 768)])
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("init", INITS)
def test_it_takes_what_peft_takes_beside_what_is_there(init, dtype, rows, columns, monkeypatch):
    # The cast to the weight's type, behind that, is nothing that fake tensors can do to a module.
    monkeypatch.setattr(LoraLayer, "_move_adapter_to_device_of_base_layer", lambda self, name: None)
    _, sizes, _ = planned(init, entries_of(rows, columns, dtype))
    with FAKE_MODE, ByteCounter(FAKE_MODE) as counter, torch.no_grad():
        before = counter.live_bytes
        base = torch.nn.Linear(columns, rows, bias=False, dtype=getattr(torch, dtype.name.lower()))
        counter.reset_peak()
        Linear(base, "default", LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights=init), r=RANK, lora_alpha=RANK)
        assert counter.peak_bytes - before == pytest.approx(sum(sizes), rel=0.002)
    assert sum(sizes[1:]) <= BOUND_BYTES * rows * columns


@pytest.mark.parametrize("init", ["default", "gaussian", *INITS])
def test_other_weights_and_other_starts_take_nothing(init):
    found = planned(init, entries_of(64, 32, DType.BFLOAT16))
    assert [bool(sizes) for sizes in found] == [False, init in INITS, False]

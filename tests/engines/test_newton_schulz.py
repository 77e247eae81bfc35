"""What Muon's update is said to allocate and compute beside DeepSpeed's own function, run on tensors without data."""

import pytest

pytest.importorskip("deepspeed")

import torch
from torch.utils.flop_counter import FlopCounterMode

from storages import Live
from vlmplan.engines.newton_schulz import COMPUTE, muon_update, peak_bytes, update_flops
from vlmplan.units import DType

SHAPES = [(48, 48), (96, 40), (40, 96), (5, 24, 16), (3, 16, 16), (2, 3, 16, 24, 5)]
TYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16, DType.FLOAT32: torch.float32}


@pytest.fixture
def update(monkeypatch):
    """DeepSpeed's function as it is, computing in the type that a GPU has."""
    from deepspeed.runtime.zero.muon import original_muon

    monkeypatch.setattr(original_muon, "ns_compute_dtype", lambda ns_method="gram": TYPES[COMPUTE])
    torch.compiler.set_stance("force_eager")
    yield original_muon.muon_update
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_has_the_bytes_of_deepspeeds(update, shape: tuple[int, ...], dtype: DType):
    gradient, momentum = (torch.empty(shape, dtype=TYPES[dtype], device="meta") for _ in range(2))
    with Live((gradient, momentum)) as live:
        result = update(gradient, momentum)
    flag_bytes = 1  # whether all is finite
    assert result.shape == gradient.shape
    assert live.most == peak_bytes(shape, dtype, COMPUTE) + flag_bytes
    assert muon_update(shape, dtype, COMPUTE)[-2].num_bytes == result.numel() * result.element_size()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_makes_as_many_tensors_of_each_size_as_deepspeeds(update, shape: tuple[int, ...], dtype: DType):
    """But for numbers: the norm of a matrix and the flag of its being finite."""
    gradient, momentum = (torch.empty(shape, dtype=TYPES[dtype], device="meta") for _ in range(2))
    with Live((gradient, momentum)) as live:
        update(gradient, momentum)
    planned = sorted(num_bytes for _, num_bytes in muon_update(shape, dtype, COMPUTE) if num_bytes)
    assert planned == sorted(num_bytes for num_bytes in live.made if num_bytes >= planned[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_has_the_products_of_deepspeeds(update, shape: tuple[int, ...]):
    gradient, momentum = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        update(gradient, momentum)
    assert update_flops(shape) == counter.get_total_flops()


def test_a_convolution_of_four_dimensions_is_what_deepspeed_cannot_update(update):
    gradient, momentum = (torch.zeros(4, 3, 2, 2, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(RuntimeError, match="must match the size"):
        update(gradient, momentum)

"""Weights that a meter counts without having seen them made."""

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from vlmplan.phase_names import EVALUATION
from vlmplan_trainer.measure import Meter

NUM_RANKS, ROWS, WIDTH = 4, 8, 16


def test_of_a_weight_that_fsdp2_has_sharded_a_rank_has_its_part():
    """The storage of what stands for the whole says that it is as large, and has nothing."""
    init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    try:
        mesh = init_device_mesh("cpu", (NUM_RANKS,))
        part = torch.ones(ROWS, WIDTH)
        model = nn.Module()
        model.weight = nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)], run_check=False))
        assert model.weight.shape == (NUM_RANKS * ROWS, WIDTH)
        meter = Meter(torch.device("cpu"))
        meter.count(model)
        with meter.phase(EVALUATION):
            pass
        assert meter.memory[EVALUATION].resident_bytes == part.numel() * part.element_size()
    finally:
        destroy_process_group()

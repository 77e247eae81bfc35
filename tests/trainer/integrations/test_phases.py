"""Where phases begin among the hooks of a model."""

import pytest
import torch

from vlmplan_trainer.integrations.trainer_phases import TrainerPhases
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.trl_training.phases import TaskPhases


@pytest.mark.parametrize("name", ["forward", "reference"])
def test_a_phase_has_begun_before_what_an_engine_hooked_earlier_does(name: str):
    """DeepSpeed gathers the weights that the model itself uses in such a hook."""
    meter, model, seen = Meter(torch.device("cpu")), torch.nn.Linear(2, 2), []
    model.register_forward_pre_hook(lambda *_: seen.append(meter.in_progress))
    if name == "forward":
        TrainerPhases(meter).begin_training(model, torch.optim.SGD(model.parameters()))
    else:
        TaskPhases(meter).follow_reference(model)
    model(torch.ones(1, 2))
    assert seen == [name]

"""Launchers, as their own parsers read them: what runs on each rank, and with which variables."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan_trainer.script_rehearsal.launchers import World, understood

EIGHT = World(rank=3, gpus_per_node=8, num_nodes=1)
ZERO_3 = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true, offload_optimizer_device: cpu}
mixed_precision: bf16
num_machines: 1
num_processes: 8
machine_rank: 0
"""


@pytest.mark.sweep
def test_a_configuration_of_accelerate_decides_what_is_launched(tmp_path: Path):
    file = tmp_path / "zero3.yaml"
    file.write_text(ZERO_3)
    words = ["accelerate", "launch", "--config_file", str(file), "train.py", "--lr", "1"]
    launch = understood(words, EIGHT)
    assert (launch.script, launch.arguments) == ("train.py", ["--lr", "1"])
    variables = launch.environment
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert variables["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    assert "mixed_precision" in variables["ACCELERATE_CONFIG_DS_FIELDS"].split(",")
    with pytest.raises(InputError, match="num_processes of the configuration is 8, but --gpu gives 4"):
        understood(words, World(rank=0, gpus_per_node=4, num_nodes=1))


@pytest.mark.sweep
def test_accelerate_without_a_configuration_launches_ddp_on_several_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", "/nowhere/default_config.yaml")
    launch = understood(["accelerate", "launch", "train.py"], EIGHT)
    assert launch.script == "train.py"
    assert "ACCELERATE_USE_DEEPSPEED" not in launch.environment

"""The schedule of a ds_config.json against DeepSpeed, which makes it: what stops there is refused here."""

import inspect
from types import SimpleNamespace

import pytest

from vlmplan.deepspeed_config import settings_from_ds_config
from vlmplan.deepspeed_config.auto import OPTION_OF_AUTO
from vlmplan.deepspeed_config.schedules import OF_TORCH, PARAMETERS
from vlmplan.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

STEPS = {"total_num_steps": 90}
CYCLE = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3}
TAKEN = [
    {"type": "WarmupLR", "params": {}},
    {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 7}},
    {"type": "WarmupDecayLR", "params": STEPS | {"warmup_type": "linear"}},
    {"type": "WarmupCosineLR", "params": STEPS | {"cos_min_ratio": 0.1}},
    {"type": "OneCycle", "params": CYCLE},
    {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 9}},
    {"type": "ExponentialLR", "params": {"gamma": 0.9}},
    {"type": None},
    {"params": {"warmup_num_steps": 0}},
]
REFUSED = {
    "CosineLR": {"type": "CosineLR", "params": {}},
    "did you mean 'WarmupLR'": {"type": "warmuplr", "params": {}},
    "without scheduler.params": {"type": "WarmupLR"},
    "total_num_steps is missing": {"type": "WarmupDecayLR", "params": {}},
    "cycle_max_lr is missing": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}},
    "'warmup_ratio'": {"type": "WarmupLR", "params": {"warmup_ratio": 0.1}},
    "warmup_min_lr": {"type": "WarmupCosineLR", "params": STEPS | {"warmup_min_lr": 0}},
    "warmup_num_steps is 0": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}},
    "warmup_num_steps is 100.0": {"type": "WarmupLR", "params": {"warmup_num_steps": 1e2}},
    "lr_range_test_step_size is 0": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}},
}


def made_by_deepspeed(scheduler: dict) -> object:
    from deepspeed.runtime.config import get_scheduler_name, get_scheduler_params
    from deepspeed.runtime.engine import DeepSpeedEngine

    file = {"scheduler": scheduler}
    engine = SimpleNamespace(
        scheduler_name=lambda: get_scheduler_name(file), scheduler_params=lambda: get_scheduler_params(file)
    )
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-3)
    return DeepSpeedEngine._scheduler_from_config(engine, optimizer)


@pytest.mark.parametrize("scheduler", TAKEN, ids=str)
def test_what_deepspeed_makes_is_taken(scheduler):
    made_by_deepspeed(scheduler)
    assert settings_from_ds_config({"scheduler": scheduler}).scheduler.get("type") == scheduler.get("type")


@pytest.mark.parametrize("words", REFUSED)
def test_what_stops_deepspeed_is_refused_by_name(words):
    with pytest.raises((AssertionError, TypeError, ValueError)):
        made_by_deepspeed(REFUSED[words])
    with pytest.raises(InputError) as caught:
        settings_from_ds_config({"scheduler": REFUSED[words]}, name="my.json")
    assert words in str(caught.value)
    assert "my.json" in str(caught.value)


def test_all_of_a_files_mistakes_are_named_together():
    file = {"zero_optimization": {"stage": 7}, "scheduler": {"type": "OneCycle", "params": {"warmup_num_steps": 3}}}
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(file)
    for words in ("has 4 mistakes", "stage is 7", "cycle_min_lr", "cycle_max_lr", "warmup_num_steps"):
        assert words in str(caught.value)


def test_the_schedules_are_deepspeeds_and_torchs_with_their_parameters():
    from deepspeed.runtime import lr_schedules

    assert set(PARAMETERS) == set(lr_schedules.VALID_LR_SCHEDULES)
    assert set(OF_TORCH) == set(torch.optim.lr_scheduler.__all__)
    for name, (needed, others) in PARAMETERS.items():
        _, *theirs = inspect.signature(getattr(lr_schedules, name)).parameters.values()
        assert {one.name for one in theirs} == {*needed.split(), *others.split()}
        assert {one.name for one in theirs if one.default is one.empty} == set(needed.split())


def test_auto_is_taken_where_transformers_fills_it_in_and_nowhere_else():
    names = [path.rpartition(".")[2] for path in OPTION_OF_AUTO if path.startswith("scheduler.params")]
    file = {"type": "WarmupDecayLR", "params": dict.fromkeys(names, "auto")}
    assert settings_from_ds_config({"scheduler": file}).scheduler == file
    with pytest.raises(InputError, match='warmup_min_ratio is "auto"'):
        settings_from_ds_config(
            {"scheduler": {"type": "WarmupCosineLR", "params": STEPS | {"warmup_min_ratio": "auto"}}}
        )

"""A run does not train with another optimizer than the ds_config.json says."""

from pathlib import Path

import pytest

from vlmplan.deepspeed_config import settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.launch.optimizer_settings import refuse_other_settings
from vlmplan.run.training import TrainerOptions


def options(**changes: object) -> TrainerOptions:
    return TrainerOptions(output_dir=Path("out"), dummy_data=1, **changes)


def file(**params: object):
    return settings_from_ds_config({"optimizer": {"type": "AdamW", "params": params}}, name="my.json")


@pytest.mark.parametrize(
    ("params", "given", "words"),
    [
        ({"lr": 3e-5}, {}, ["optimizer.params.lr is 3e-05", "add --learning-rate 3e-05"]),
        ({"lr": 3e-5}, {"learning_rate": 1e-3}, ["3e-05", "--learning-rate is 0.001"]),
        ({"weight_decay": 0.1}, {}, ["--weight-decay is 0.0", "add --weight-decay 0.1"]),
        ({"betas": [0.8, 0.999]}, {}, ["[0.8, 0.999]", "[0.9, 0.999]"]),
        ({"eps": 1e-6, "lr": 1}, {}, ["eps is 1e-06", "1e-08", "--learning-rate 1"]),
    ],
)
def test_another_setting_is_refused_with_both_values(params, given, words):
    with pytest.raises(InputError) as caught:
        refuse_other_settings(file(**params), options(**given))
    for word in ["my.json", *words]:
        assert word in str(caught.value)


def test_the_same_settings_and_auto_are_taken():
    refuse_other_settings(file(lr=1e-3, weight_decay=0.0, eps=1e-8, betas=[0.9, 0.999]), options(learning_rate=1e-3))
    refuse_other_settings(file(lr="auto", weight_decay="auto", betas="auto", eps="auto"), options(learning_rate=7.0))

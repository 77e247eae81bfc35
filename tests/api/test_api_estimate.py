"""``vlmplan.estimate`` answers what ``vlmplan estimate`` does."""

import json
import pickle
from pathlib import Path

import pytest

import vlmplan
from cli_calls import call

CONFIG = Path(vlmplan.__file__).parent / "data/models/qwen2-vl-2b/config.json"


def test_an_estimate_is_that_of_the_command_line():
    words = "--model qwen2-vl-2b --gpu rtx-4090:2 --method lora --lora-targets q_proj,v_proj --freeze-vision"
    found = vlmplan.estimate(
        "qwen2-vl-2b", "rtx-4090:2", method="lora", lora_targets=["q_proj", "v_proj"], train_vision=False
    )
    assert found.as_dict() == call("estimate", *words.split(), "--json").document
    assert str(found) == call("estimate", *words.split()).out
    assert found.command == f"vlmplan estimate {words}"
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_configuration_as_a_mapping_is_planned_as_the_model_that_it_is_of():
    config = json.loads(CONFIG.read_text())
    named = vlmplan.estimate("qwen2-vl-2b", "rtx-4090:2", method="lora")
    given = vlmplan.estimate(config, "rtx-4090:2", method="lora")
    assert given.model == "qwen2_vl"
    assert given.phases == named.phases
    assert vlmplan.estimate({**config, "_name_or_path": "me/mine"}, "rtx-4090:2").model == "me/mine"


def test_a_mapping_that_no_config_json_can_be_is_refused():
    with pytest.raises(vlmplan.InputError, match=r"the model.s configuration holds what no config\.json can"):
        vlmplan.estimate({"model_type": "llama", "dtype": object()}, "rtx-4090")
    with pytest.raises(vlmplan.InputError, match="has no model_type"):
        vlmplan.estimate({}, "rtx-4090")


def test_errors_name_arguments(capsys):
    with pytest.raises(vlmplan.InputError, match=r"^seq_len is -3; 1 or more is needed$"):
        vlmplan.estimate("qwen2-vl-2b", "rtx-4090", seq_len=-3)
    with pytest.raises(vlmplan.InputError, match="unknown argument 'seq_length'; did you mean 'seq_len'"):
        vlmplan.estimate("qwen2-vl-2b", "rtx-4090", seq_length=3)
    assert capsys.readouterr() == ("", "")

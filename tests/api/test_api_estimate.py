"""``vlmplan.estimate`` answers what ``vlmplan estimate`` does."""

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import vlmplan
from cli_calls import call

CONFIG = Path(vlmplan.__file__).parent / "data/models/gpt2/config.json"
SETUPS: dict[str, dict[str, Any]] = {
    "": {},
    "--method lora --lora-rank 8 --lora-targets c_attn,c_proj": {
        "method": "lora",
        "lora_rank": 8,
        "lora_targets": ["c_attn", "c_proj"],
    },
    "--method qlora --lora-dropout 0.1": {"method": "qlora", "lora_dropout": 0.1},
    "--zero-stage 3 --offload-optimizer cpu --host-ram 64 --num-nodes 2": {
        "zero_stage": 3,
        "offload_optimizer": "cpu",
        "host_ram": 64,
        "num_nodes": 2,
    },
    "--zero-stage none --precision fp16 --optimizer adamw-8bit": {
        "zero_stage": "none",
        "precision": "fp16",
        "optimizer": "adamw-8bit",
    },
    "--no-autocast --no-activation-checkpointing --attention eager --loss full": {
        "autocast": False,
        "activation_checkpointing": False,
        "attention": "eager",
        "loss": "full",
    },
    "--zero-stage none --weight-dtype float32 --expandable-segments --fused-optimizer": {
        "zero_stage": "none",
        "weight_dtype": "float32",
        "expandable_segments": True,
        "fused_optimizer": True,
    },
    "--micro-batch 4 --global-batch 16 --epochs 2 --num-samples 500": {
        "micro_batch": 4,
        "global_batch": 16,
        "epochs": 2,
        "num_samples": 500,
    },
    "--micro-batch 2048": {"micro_batch": 2048},
    "--scaling": {"scaling": True},
    "--sample-lengths 100-900": {"sample_lengths": "100-900"},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", SETUPS)
def test_an_estimate_is_that_of_the_command_line(words: str):
    asked = ["--model", "gpt2", "--gpu", "rtx-4090:2", *words.split()]
    found = vlmplan.estimate("gpt2", "rtx-4090:2", **SETUPS[words])
    assert json.dumps(found.as_dict(), indent=2) == call("estimate", *asked, "--json").out.rstrip("\n")
    assert str(found) == call("estimate", *asked).out


@pytest.mark.sweep
def test_images_and_parts_are_those_of_the_command_line():
    words = "--freeze-vision --images-per-sample 2 --image-size 336x448 --vision-activation-checkpointing"
    found = vlmplan.estimate(
        "qwen2-vl-2b",
        "rtx-4090",
        train_vision=False,
        images_per_sample=2,
        image_size=(336, 448),
        vision_activation_checkpointing=True,
    )
    assert (
        found.as_dict()
        == call("estimate", "--model", "qwen2-vl-2b", "--gpu", "rtx-4090", *words.split(), "--json").document
    )


def test_attributes_are_what_the_document_says():
    found = vlmplan.estimate("gpt2", "rtx-4090:2", num_nodes=2, num_samples=1000, epochs=3, micro_batch=2)
    document = found.as_dict()
    assert (found.verdict, found.fits, found.model) == ("fits", True, "gpt2")
    assert (found.gpu, found.num_gpus) == ("rtx-4090", 2 * 2)
    assert found.free_bytes == document["gpu"]["usable_bytes"] - document["peak_device_bytes"]
    assert found.peak_allocated_bytes == sum(found.components_at_peak.values())
    assert [phase.name for phase in found.phases] == ["load", "init", "forward", "backward", "step", "save"]
    assert [phase.peak_bytes for phase in found.phases] == [phase["peak_bytes"] for phase in document["phases"]]
    assert all(sum(phase.components_at_peak.values()) == phase.peak_bytes for phase in found.phases)
    assert found.num_steps == -(-1000 * 3 // (2 * 2 * 2))
    assert found.run_seconds == found.num_steps * document["step_seconds"]
    assert found.ds_config is not None
    assert found.ds_config["train_micro_batch_size_per_gpu"] == 2
    assert found.command == (
        "vlmplan estimate --model gpt2 --gpu rtx-4090:2 --num-nodes 2 --num-samples 1000 --epochs 3 --micro-batch 2"
    )
    assert any("network between nodes" in note for note in found.notes)


def test_what_to_change_to_fit_can_be_asked_for_as_it_stands():
    mine = {"micro_batch": 512, "seq_len": 1024}
    found = vlmplan.estimate("gpt2", "rtx-4060", **mine)
    assert (found.fits, found.verdict) == (False, "does_not_fit")
    assert found.to_fit is not None
    changed = vlmplan.estimate("gpt2", "rtx-4060", **{**mine, **found.to_fit.options})
    assert changed.fits
    assert changed.peak_device_bytes == found.to_fit.peak_device_bytes
    assert call(*found.to_fit.command.split()[1:], "--json").document == changed.as_dict()
    assert found.other_machine is None or found.other_machine.command.startswith("vlmplan estimate --model gpt2")


def test_a_result_stays_as_it_is():
    found, again = (vlmplan.estimate("gpt2", "rtx-4090") for _ in range(2))
    other = vlmplan.estimate("gpt2", "rtx-4090", seq_len=512)
    assert found == again
    assert hash(found) == hash(again)
    assert found != other
    assert len({found, again, other}) == 2
    copy = pickle.loads(pickle.dumps(found))
    assert (copy, str(copy), copy.phases, copy._repr_html_()) == (
        *(found, str(found), found.phases),
        found._repr_html_(),
    )
    found.as_dict()["phases"].clear()
    found.components_at_peak.clear()
    assert found == again
    with pytest.raises(AttributeError, match="frozen"):
        found.verdict = "fits"
    with pytest.raises(AttributeError):
        found.anything = 1


def test_a_plan_is_written_that_the_command_line_takes():
    found = vlmplan.estimate("gpt2", "cpu:2", zero_stage=2)
    path = found.save("plan.json")
    assert call("rehearse", "--plan", str(path), "--help").code == 0
    assert json.loads(path.read_text())["ds_config"] == found.ds_config
    with pytest.raises(vlmplan.InputError, match=r"^plan\.json exists already; force=True overwrites it$"):
        found.save(path)
    assert found.save(Path("plan.json"), force=True) == path
    assert {file.name for file in found.write("out")} >= {"plan.json", "ds_config.json", "launch.sh"}


def test_a_setup_that_lacks_a_folder_for_nvme_is_estimated_and_says_so_where_a_plan_is_asked_for():
    found = vlmplan.estimate("gpt2", "rtx-4090", zero_stage=3, offload_optimizer="nvme")
    assert any("--nvme-path DIR" in note for note in found.notes)
    with pytest.raises(vlmplan.InputError, match="nvme_path"):
        found.save("plan.json")


def test_a_configuration_as_a_mapping_is_planned_as_the_model_that_it_is_of():
    config = json.loads(CONFIG.read_text())
    named, given = vlmplan.estimate("gpt2", "rtx-4090:2"), vlmplan.estimate(config, "rtx-4090:2")
    assert given.phases == named.phases
    assert vlmplan.estimate({**config, "_name_or_path": "me/mine"}, "rtx-4090:2").model == "me/mine"
    Path("mine").mkdir()
    Path("mine/config.json").write_text(json.dumps(config))
    assert vlmplan.estimate(Path("mine"), "rtx-4090:2").phases == named.phases


def test_a_ds_config_is_a_file_or_what_it_holds():
    content = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": "auto"}}
    Path("ds.json").write_text(json.dumps(content))
    found, given = (vlmplan.estimate("gpt2", "rtx-4090:2", ds_config=one) for one in ("ds.json", content))
    assert (given.phases, given.ds_config) == (found.phases, found.ds_config)
    assert given.recipe["zero_stage"] == 3
    with pytest.raises(vlmplan.InputError, match="ds_config: DeepSpeed knows no key 'zero_optimisation'"):
        vlmplan.estimate("gpt2", "rtx-4090:2", ds_config={"zero_optimisation": {}})
    with pytest.raises(vlmplan.InputError, match="ds_config holds what no JSON can"):
        vlmplan.estimate("gpt2", "rtx-4090:2", ds_config={"zero_optimization": {"stage": object()}})


@pytest.mark.sweep
def test_what_transformers_has_as_a_configuration_is_taken_as_it_is():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(CONFIG.parent)
    assert vlmplan.estimate(config.to_dict(), "rtx-4090").phases == vlmplan.estimate("gpt2", "rtx-4090").phases


def test_a_mapping_that_no_config_json_can_be_is_refused():
    with pytest.raises(vlmplan.InputError, match="the model's configuration holds what no JSON can"):
        vlmplan.estimate({"model_type": "llama", "dtype": object()}, "rtx-4090")
    with pytest.raises(vlmplan.InputError, match="has no model_type"):
        vlmplan.estimate({}, "rtx-4090")


def test_what_other_threads_print_is_not_taken_for_an_answer(capsys):
    done = threading.Event()

    def print_on() -> None:
        while not done.is_set():
            print("other")

    other = threading.Thread(target=print_on)
    other.start()
    try:
        found = [vlmplan.estimate("gpt2", "rtx-4090") for _ in range(3)]
    finally:
        done.set()
        other.join()
    assert not any("other" in str(one) for one in found)
    assert set(capsys.readouterr().out.splitlines()) == {"other"}

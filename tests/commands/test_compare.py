"""``vlmplan estimate --compare``: every row is the estimate of its own options, and what is refused says why."""

import json
from pathlib import Path

import pytest

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, call, option_words

SETUP = ("--model", "smollm2-135m", "--gpu", "rtx-4060:2", "--micro-batch", "2")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["zero", "method", "precision", "optimizer", "checkpointing"])
def test_every_variant_is_the_estimate_of_its_options(name: str):
    found = call("estimate", *SETUP, "--compare", name, "--json")
    document = found.document
    assert (found.code, document["schema"], document["compare"]) == (DONE, "vlmplan.comparison/1", name)
    for variant in document["variants"]:
        alone = call("estimate", *SETUP, *option_words(variant["options"]), "--json")
        if variant["estimate"] is None:
            assert variant["verdict"] == "refused"
            assert alone.code == MENDABLE
            assert variant["reason"] in alone.err
        else:
            assert variant["estimate"] == {key: alone.document[key] for key in variant["estimate"]}


@pytest.mark.sweep
def test_a_note_on_all_variants_is_printed_once_and_one_on_some_with_their_names():
    words = (*SETUP, "--precision", "fp16")
    (note,) = call("estimate", *words, "--json").document["notes"]
    for name, lead in (("method", "note"), ("precision", "note on fp16")):
        shown = " ".join(call("estimate", *words, "--compare", name).out.split())
        assert shown.count(note) == 1
        assert f" {lead}: {note}" in shown


@pytest.mark.sweep
def test_stages_are_all_there_and_the_one_that_was_asked_for_is_marked():
    variants = call("estimate", *SETUP, "--zero-stage", "3", "--compare", "zero", "--json").document["variants"]
    assert [one["options"]["zero_stage"] for one in variants][:5] == ["none", "0", "1", "2", "3"]
    assert [one["name"] for one in variants if one["is_present"]] == ["ZeRO-3"]
    assert variants[0]["name"] == "DDP"


def test_fsdp2_is_among_the_engines_of_several_gpus_without_what_belongs_to_the_one_that_was_asked_for():
    setup = ("--model", "smollm2-135m", "--gpu", "rtx-4060:2")
    found = call("estimate", *setup, "--zero-stage", "3", "--hpz", "2", "--compare", "zero", "--json")
    (sharded,) = (one for one in found.document["variants"] if one["name"] == "FSDP2")
    assert sharded["options"] == {"fsdp": True, "hpz": None, "zero_stage": None}
    alone = call("estimate", *setup, "--fsdp", "--json").document["peak_device_bytes"]
    assert sharded["estimate"]["peak_device_bytes"] == alone
    one_gpu = call("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4060", "--compare", "zero", "--json")
    assert "FSDP2" not in [one["name"] for one in one_gpu.document["variants"]]


@pytest.mark.sweep
def test_an_engine_that_is_none_of_the_usual_ones_is_beside_them_when_it_is_asked_for(tmp_path: Path):
    drive = ("--zero-stage", "3", "--offload-optimizer", "nvme", "--offload-params", "cpu")
    host = ("--zero-stage", "1", "--offload-optimizer", "cpu")
    file = tmp_path / "ds.json"
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    file.write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}), encoding="utf-8")
    for words, title in (
        (host, "ZeRO-1, optimizer on the host"),
        (("--ds-config", str(file)), "ZeRO-1, optimizer on the host"),
        (drive, "ZeRO-3, weights on the host, optimizer on a drive"),
    ):
        variants = call("estimate", *SETUP, *words, "--compare", "zero", "--json").document["variants"]
        assert [one["name"] for one in variants].count(title) == 1
        (present,) = (one for one in variants if one["is_present"])
        assert present["name"] == title
        alone = call("estimate", *SETUP, *words, "--json").document
        assert present["estimate"]["peak_device_bytes"] == alone["peak_device_bytes"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "present"), [(("--fsdp",), "FSDP2"), (("--zero-stage", "3", "--hpz", "2"), "ZeRO-3")], ids=str
)
def test_engines_are_compared_without_what_belongs_to_the_one_that_was_asked_for(words: tuple[str, ...], present: str):
    setup = ("--model", "smollm2-135m", "--gpu", "rtx-4060:4")
    variants = call("estimate", *setup, *words, "--compare", "zero", "--json").document["variants"]
    assert [one["name"] for one in variants if one["is_present"]] == [present]
    assert not [one["name"] for one in variants if one["estimate"] is None]
    asked = call("estimate", *setup, *words, "--json").document["peak_device_bytes"]
    assert [one["estimate"]["peak_device_bytes"] for one in variants if one["is_present"]] == [asked]
    alone = call("estimate", *setup, "--zero-stage", "2", "--json").document["peak_device_bytes"]
    assert [one["estimate"]["peak_device_bytes"] for one in variants if one["name"] == "ZeRO-2"] == [alone]


@pytest.mark.sweep
def test_engines_that_a_deepspeed_file_does_not_decide_are_compared_without_it(tmp_path: Path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}), encoding="utf-8")
    setup = ("--model", "smollm2-135m", "--gpu", "rtx-4060:2")
    found = call("estimate", *setup, "--ds-config", str(file), "--compare", "zero", "--json").document["variants"]
    assert [one["name"] for one in found if one["is_present"]] == ["ZeRO-2"]
    for one in found:
        words = ("--ds-config", str(file)) if one["is_present"] else option_words(one["options"])
        alone = call("estimate", *setup, *words, "--json").document
        assert one["estimate"]["peak_device_bytes"] == alone["peak_device_bytes"], one["name"]


def test_methods_are_compared_without_the_options_of_adapters_where_there_are_none():
    lora = ("--method", "lora", "--lora-rank", "8", "--use-rslora")
    variants = call("estimate", *SETUP, *lora, "--compare", "method", "--json").document["variants"]
    full, adapters, *_ = variants
    assert (full["options"], adapters["options"]) == (
        {"method": "full", "lora_rank": None, "use_rslora": None},
        {"method": "lora"},
    )
    alone = call("estimate", *SETUP, "--method", "full", "--json").document["peak_device_bytes"]
    assert full["estimate"]["peak_device_bytes"] == alone
    assert adapters["is_present"]


@pytest.mark.sweep
def test_rows_keep_to_80_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("estimate", "--model", "llama-3.1-70b", "--gpu", "a100-sxm4-80gb:8", "--compare", "zero")
    assert max(map(len, shown.out.splitlines())) <= 80
    (present,) = (line for line in shown.out.splitlines() if line.startswith("ZeRO-2 *"))
    assert present.endswith("no")


@pytest.mark.sweep
def test_where_no_variant_fits_the_code_says_so_and_a_mistake_stays_one_sentence():
    large = ("--model", "llama-3.1-70b", "--gpu", "rtx-4060")
    assert call("estimate", *large, "--compare", "optimizer").code == DOES_NOT_FIT
    wrong = call("estimate", *SETUP, "--lora-rank", "8", "--compare", "precision")
    assert wrong.code == MENDABLE
    assert "--lora-rank" in wrong.err

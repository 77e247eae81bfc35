"""The configurations that LLaMA-Factory, ms-swift, TRL and axolotl ship."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from shipped import KEPT, outcome, reading, shipped, write_all

from vlmplan.deepspeed_config import DsConfig
from vlmplan.errors import VlmplanError
from vlmplan.other_trainers.axolotl.shipped import SHIPPED_DEEPSPEED as OF_AXOLOTL
from vlmplan.other_trainers.llama_factory.shipped import SHIPPED_DEEPSPEED

FILES = shipped()
RUNS = [file for file in FILES if file.is_run]
KEPT_OUTCOMES = json.loads(KEPT.read_text(encoding="utf-8"))
READ = [file for file in RUNS if KEPT_OUTCOMES[f"{file.trainer}/{file.path}"] == "read"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    laid_out = tmp_path_factory.mktemp("shipped")
    write_all(FILES, laid_out)
    return laid_out


def test_each_is_read_or_refused_in_the_sentence_that_is_kept(folder):
    assert {f"{file.trainer}/{file.path}": outcome(file, folder) for file in RUNS} == KEPT_OUTCOMES


def test_every_run_whose_technique_is_known_is_read():
    read = Counter(file.trainer for file in READ)
    assert read == {"llamafactory": 21, "swift": 132, "trl": 3, "axolotl": 124}
    others = [sentence for sentence in KEPT_OUTCOMES.values() if "unknown key" in sentence]
    of_no_release = ("use_ray", "'context_parapllel_size'")
    assert not [sentence for sentence in others if not any(key in sentence for key in of_no_release)]


@pytest.mark.parametrize("file", READ, ids=lambda file: file.path)
def test_what_is_read_names_its_model_and_its_batch(file, folder):
    config = reading(folder / file.trainer / file.path)
    assert {"model", "micro_batch", "method", "precision"} <= config.options.keys()
    assert not {setting.key for setting in config.said} & set(config.idle)


def test_a_deepspeed_file_that_is_named_is_found_from_the_root_of_the_repository(folder):
    config = reading(folder / "llamafactory/examples/train_full/qwen3_full_sft.yaml")
    assert config.ds_config is not None
    assert config.ds_config.source.endswith("llamafactory/examples/deepspeed/ds_z3_config.json")
    assert config.ds_config.zero_stage == 3


OF_A_CHECKOUT = [
    *(("llamafactory", f"examples/deepspeed/{name}") for name in sorted(SHIPPED_DEEPSPEED.files)),
    *(("axolotl", f"deepspeed_configs/{name}") for name in sorted(OF_AXOLOTL.files)),
]
BEFORE = {
    "llamafactory": "stage: sft\nfinetuning_type: full\nbf16: true\n",
    "axolotl": "base_model: m\nsequence_len: 512\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n",
}


@pytest.mark.parametrize(("trainer", "name"), OF_A_CHECKOUT)
def test_a_deepspeed_file_that_only_the_checkout_has_is_planned_as_that(trainer, name, folder, tmp_path):
    """It is here in one folder and not in the other; how fp16 scales its loss is not written out."""
    text = f"{BEFORE[trainer]}deepspeed: {name}\n"
    found: list[DsConfig] = []
    for place in (folder / trainer, tmp_path):
        (place / "mine.yaml").write_text(text, encoding="utf-8")
        config = reading(place / "mine.yaml")
        assert config.ds_config is not None
        notes = [note for note in config.notes if "is no file from here: " in note]
        assert len(notes) == (place == tmp_path)
        content = {key: value for key, value in config.ds_config.content.items() if key != "fp16"}
        found.append(replace(config.ds_config, source="", notes=(), content=content))
    assert found[0] == found[1]


def test_a_deepspeed_file_that_is_nowhere_is_named(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("stage: sft\nfinetuning_type: full\nbf16: true\ndeepspeed: gone/zero.json\n", encoding="utf-8")
    with pytest.raises(VlmplanError, match=r"deepspeed is gone/zero\.json, which is no file from here") as caught:
        reading(file)
    assert "--ds-config" in str(caught.value)

"""Which files a path means: those of one split, whatever wrote them."""

import json
from pathlib import Path

import pytest

from chat_files import jsonl
from vlmplan.chats.data_files import data_files, num_samples_in
from vlmplan.chats.samples import read_chats
from vlmplan.errors import InputError, UnavailableError

SAMPLE = {"instruction": "Say it.", "output": "It."}


def names(path: Path) -> list[str]:
    return [file.path.name for file in data_files(path)]


def test_shards_of_a_folder_are_read_one_after_the_other(tmp_path: Path):
    for shard in (1, 0):
        jsonl(tmp_path, *[{**SAMPLE, "output": f"{shard}"}] * 2, name=f"train-0000{shard}-of-00002.jsonl")
    samples, report = read_chats(tmp_path, skips_bad=False)
    assert [sample.turns[-1].text for sample in samples] == ["0", "0", "1", "1"]
    assert report.num_samples == num_samples_in(tmp_path) == 4


def test_a_pattern_names_the_files_of_one_split(tmp_path: Path):
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        jsonl(tmp_path, SAMPLE, name=name)
    with pytest.raises(InputError, match=r"several splits, test-0.jsonl, train-0.jsonl; .*: '.*/\*train\*.jsonl'"):
        data_files(tmp_path)
    assert names(tmp_path / "*train*.jsonl") == ["train-0.jsonl", "train-1.jsonl"]
    with pytest.raises(UnavailableError, match=r"no file is as .*valid-\*"):
        data_files(tmp_path / "valid-*")


def test_a_data_set_of_the_hub_has_its_files_in_a_folder_called_data(tmp_path: Path):
    (tmp_path / "README.md").write_text("a card")
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data", SAMPLE, name="train-00000-of-00001.jsonl")
    assert names(tmp_path) == ["train-00000-of-00001.jsonl"]


def test_what_datasets_saved_is_read_in_its_order(tmp_path: Path):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}, "citation": ""}))
    listed = [{"filename": "data-00001-of-00002.arrow"}, {"filename": "data-00000-of-00002.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": "train"}))
    assert names(folder) == ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    with pytest.raises(InputError, match=r"has splits, train; give one of them, as .*/train$"):
        data_files(tmp_path)


def test_a_saved_data_set_names_no_file_elsewhere(tmp_path: Path):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../other.arrow"}]}))
    with pytest.raises(InputError, match=r"state.json: filename is '../other.arrow'; the name of a file beside it"):
        data_files(tmp_path)


def test_columns_of_other_names_are_those_of_dataset_info(tmp_path: Path):
    (tmp_path / "a.csv").write_text("Question,Response\nHow?,So.\n")
    columns = {"prompt": "Question", "response": "Response"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"a": {"file_name": "a.csv", "columns": columns}}))
    [sample], _ = read_chats(tmp_path, skips_bad=False)
    assert [turn.text for turn in sample.turns] == ["How?", "So."]


@pytest.mark.parametrize("name", ["photo.jpg", "PHOTO.PNG"])
def test_an_image_alone_is_told_from_a_file_of_samples(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(b"\xff\xd8")
    with pytest.raises(InputError, match=f"{name} is an image; a file of samples that name it is needed"):
        data_files(tmp_path / name)

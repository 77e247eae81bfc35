"""Samples with videos, as LLaMA-Factory takes them; elsewhere they are refused by name."""

import json
from pathlib import Path

import pytest

from chat_files import jsonl, png_header
from cli_calls import call
from video_headers import mp4_header
from vlmplan.chats.video_files import VideoHeader
from vlmplan.data_rules import VideoRules
from vlmplan.dataset.videos import frame_pairs
from vlmplan.errors import InputError
from vlmplan.request import parse

TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
FILE = (
    "model_name_or_path: {model}\nstage: sft\nfinetuning_type: lora\ntemplate: qwen2_vl\ndataset: a\nbf16: true\n"
    "per_device_train_batch_size: 1\ncutoff_len: 16384\n"
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("one.mp4").write_bytes(mp4_header(640, 360, 243))
    Path("cat.png").write_bytes(png_header(280, 280))
    columns = {"messages": "messages", "images": "images", "videos": "videos"}
    info = {"a": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": columns, "tags": TAGS}}
    Path("dataset_info.json").write_text(json.dumps(info))


def chats(*shown: dict) -> None:
    rows = []
    for one in shown:
        tags = "<image>" * len(one.get("images", [])) + "<video>" * len(one.get("videos", []))
        turns = [{"role": "user", "content": tags + "xyz"}, {"role": "assistant", "content": "y"}]
        rows.append({"messages": turns, **one})
    jsonl(Path(), *rows)


def found(text: str = "", model: str = "qwen2.5-vl-3b"):
    Path("train.yaml").write_text(FILE.format(model=model) + text)
    return parse({"config": Path("train.yaml"), "data": Path()}).from_data.source


def test_a_video_is_an_image_for_each_two_of_its_frames():
    chats({"videos": ["one.mp4"]}, {"images": ["cat.png"], "videos": ["one.mp4", "one.mp4"]}, {})
    # 9.72 s x 2 a second are 19 frames, and one more to be even; 341 x 192 pixels are 12 x 7 tokens of 28 pixels
    alone, both, none = found().found.shapes
    assert (alone.image_tokens, alone.patches, alone.num_images) == (20 // 2 * 12 * 7, 20 // 2 * 24 * 14, 20 // 2)
    assert (both.image_tokens, both.num_images) == (2 * alone.image_tokens + 10 * 10, 2 * 20 // 2 + 1)
    assert none.image_tokens == 0


def test_frames_of_a_list_are_all_taken_and_one_more_where_they_are_odd():
    for index in range(5):
        Path(f"{index}.png").write_bytes(png_header(640, 360))
    chats({"videos": [[f"{index}.png" for index in range(5)]]})
    [shape] = found("video_maxlen: 2\n").found.shapes
    assert shape.num_images == (5 + 1) // 2


def test_keys_of_the_file_say_how_many_frames_and_how_large():
    chats({"videos": ["one.mp4"]})
    [few] = found("video_maxlen: 5\nvideo_fps: 1\nvideo_max_pixels: 3136\n").found.shapes
    assert few.num_images == (5 + 1) // 2
    assert few.patches == few.num_images * (74 // 28 + 1) * 2 * 2 * 2  # 74 x 41 pixels are 3 x 1 tokens, 6 x 2 patches


def test_frames_are_no_smaller_than_a_token_and_no_longer_than_the_processor_takes():
    rules = VideoRules(max_pixels=10_000)
    thin = VideoHeader(width=10_000, height=10, num_frames=50, seconds=2.0)
    assert frame_pairs(thin, rules) == [(3162, 28)] * 2
    assert frame_pairs(thin, VideoRules(max_pixels=100_000)) == [(180 * 28, 28)] * 2
    assert rules.num_frames(of=3, seconds=100.0) == 4
    assert rules.num_frames(of=100, seconds=0.1) == 2


@pytest.mark.parametrize("model", ["qwen3-vl-4b", "qwen2.5-0.5b"])
def test_other_models_videos_are_refused_by_name(model: str):
    chats({"videos": ["one.mp4"]})
    with pytest.raises(InputError, match="has videos; vlmplan has no memory model of videos"):
        found(model=model)


def test_videos_and_tags_have_to_be_as_many_and_a_file_has_to_be_one():
    chats({}, {"videos": ["two.mp4"]}, {"videos": ["cat.mp4"]})
    Path("cat.mp4").write_bytes(Path("cat.png").read_bytes())
    path = Path("chats.jsonl")
    path.write_text(
        path.read_text() + json.dumps({**json.loads(path.read_text().splitlines()[1]), "videos": []}) + "\n"
    )
    source = found()
    assert (len(source.found.shapes), source.dataset.num_bad) == (1, 3)
    assert "is no file in" in source.dataset.sentences[0]
    assert "cannot be read as a video" in source.dataset.sentences[1]
    assert "1 <video> tag, but 0 videos" in source.dataset.sentences[2]


@pytest.mark.long
@pytest.mark.sweep
def test_the_answer_says_what_the_videos_are_and_is_the_same_again():
    chats({"videos": ["one.mp4"]}, {})
    Path("train.yaml").write_text(FILE.format(model="qwen2.5-vl-3b"))
    words = ("check", "train.yaml", "--gpu", "a100-sxm4-80gb", "--data", ".")
    first = call(*words).out
    assert "videos: 1 video of 9.7 s on average; of each 20 frames in the middle, 20 at the most" in first
    assert call(*words).out == first
    assert call(*words, "--json").document["estimate"]["data"]["num_videos"] == 1
    own = call("estimate", "--model", "qwen2.5-vl-3b", "--gpu", "a100-sxm4-80gb", "--data", "chats.jsonl").out
    assert "videos: 1 video of 9.7 s on average; of each 18 frames in the middle, 18 at the most" in own

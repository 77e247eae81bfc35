"""Files of chats: every line becomes a sample or a sentence with its number, before anything is trained."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_files import ANSWER, as_base64, asked, jsonl, png, text
from vlmplan.chats.samples import ImagePart, TextPart, read_chats
from vlmplan.errors import InputError, UnavailableError
from vlmplan_trainer.data.images import opened

GOOD = asked("What?")


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(png(13, 7))


# What is read


def test_a_sample_knows_its_line_its_turns_and_the_size_of_its_images(tmp_path: Path):
    files(tmp_path, "a.png")
    path = jsonl(tmp_path, GOOD, "", asked({"type": "image", "path": "a.png"}, text("What?")))
    [first, second], report = read_chats(path, skips_bad=False)
    assert (first.source, second.source) == (f"{path}:1", f"{path}:3")
    assert [turn.role for turn in second.turns] == ["user", "assistant"]
    image = ImagePart(source=tmp_path / "a.png", width=13, height=7)
    assert second.turns[0].content == (image, TextPart(text="What?"))
    assert (second.images, first.images) == ((image,), ())
    assert (report.num_samples, report.num_bad, report.sentences) == (2, 0, ())


def test_images_are_looked_for_in_the_image_root_and_beside_the_file(tmp_path: Path):
    files(tmp_path, "root/a.png", "chats/b.png")
    path = jsonl(tmp_path / "chats", asked("<image><image>", images=["a.png", "b.png"]))
    [sample], _ = read_chats(path, skips_bad=False, image_root=tmp_path / "root")
    assert [image.source for image in sample.images] == [tmp_path / "root/a.png", tmp_path / "chats/b.png"]


def test_images_in_base64_stay_in_the_file_until_they_are_opened(tmp_path: Path):
    files(tmp_path, "a.png")
    colours = ["red", "lime", "blue"]
    data = [as_base64(png(colour=colour)) for colour in colours]
    parts = [
        {"type": "image", "base64": data[0]},
        {"type": "image", "path": "a.png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data[1]}"}},
        {"type": "image"},
    ]
    path = jsonl(tmp_path, "\ufeff" + json.dumps(GOOD), asked(*parts, image=data[2]))
    _, sample = read_chats(path, skips_bad=False)[0]
    seen = [opened(image.source, name="it").getpixel((0, 0)) for image in sample.images]
    assert seen == [(255, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)]
    assert not any(isinstance(image.source, bytes) for image in sample.images)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda said: "<image>" not in said))
def test_any_text_comes_through_a_file_unchanged(tmp_path_factory: pytest.TempPathFactory, said: str):
    path = jsonl(tmp_path_factory.getbasetemp(), {"messages": [{"role": "user", "content": said}, ANSWER]})
    [sample], _ = read_chats(path, skips_bad=False)
    assert sample.turns[0].text == said


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1), st.data())
def test_a_list_has_the_samples_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
):
    """Whatever is in them, however they are laid out, and where images in base64 stay in the file."""
    folder = tmp_path_factory.getbasetemp()
    values = [asked({"type": "image", "base64": as_base64(png(index + 1, 2))}, text(said))
              for index, said in enumerate(texts)]  # fmt: skip
    lines, report = read_chats(jsonl(folder, *values), skips_bad=False)
    path = folder / "chats.json"
    layout = {"indent": data.draw(st.sampled_from([None, 1, "\t"])), "ensure_ascii": data.draw(st.booleans())}
    mark = data.draw(st.sampled_from(["", "\ufeff", " \n"]))
    path.write_text(mark + json.dumps(values, **layout) + "\n", encoding="utf-8")
    listed, of_list = read_chats(path, skips_bad=False)
    assert [sample.source for sample in listed] == [f"{path}[{index}]" for index in range(len(texts))]
    assert of_list == report
    for one, other in zip(lines, listed, strict=True):
        assert [turn.text for turn in one.turns] == [turn.text for turn in other.turns]
        [seen], [expected] = other.images, one.images
        assert opened(seen.source, name="it").size == opened(expected.source, name="it").size == (seen.width, 2)


def test_every_form_may_be_in_one_file_and_is_counted(tmp_path: Path):
    samples = [
        GOOD,
        {"conversations": LLAVA, "id": "000", "model": ""},
        {"instruction": "Say x.", "input": "", "output": "x"},
        {"prompt": "x", "completion": " y"},
        {"prompt": [{"role": "user", "content": "x"}], "completion": [ANSWER]},
    ]
    (tmp_path / "all.json").write_text(json.dumps(samples))
    _, report = read_chats(tmp_path / "all.json", skips_bad=False)
    assert report.forms == dict.fromkeys(
        [
            "messages",
            "conversations (LLaVA)",
            "instruction, output (Alpaca)",
            "prompt, completion (TRL, texts)",
            "prompt, completion (TRL, messages)",
        ],
        1,
    )


# What is refused

LLAVA = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]
BAD = {
    "not JSON": '{"messages": [}',
    "a list": "[]]",
    "neither form": "{}",
    "an unknown role": {"messages": [{"role": "robot", "content": "x"}, ANSWER]},
    "no turn of the assistant": {"messages": [{"role": "user", "content": "x"}]},
    "a tag without an image": asked("<image>"),
    "an image without a tag": {"conversations": LLAVA, "image": "a.png"},
    "no completion": {"prompt": "x"},
    "no output": {"instruction": "x"},
    "an image that is not there": asked("<image>", image="none.png"),
    "a URL": asked("<image>", image="https://example.com/a.png"),
    "an image that is none": asked("<image>", image="text.png"),
    "broken base64": asked({"type": "image", "base64": "!"}),
    "base64 that is no image": asked({"type": "image", "base64": as_base64(b"hello")}),
    "a folder": asked("<image>", image="."),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_stops_with_its_number_or_is_left_out_and_reported(name: str, tmp_path: Path):
    files(tmp_path, "a.png")
    (tmp_path / "text.png").write_text("no image")
    path = jsonl(tmp_path, GOOD, BAD[name], GOOD)
    with pytest.raises(InputError, match=rf"^{path}:2.*\(--skip-bad-samples leaves such samples out\)$"):
        read_chats(path, skips_bad=False)
    samples, report = read_chats(path, skips_bad=True)
    assert [sample.source for sample in samples] == [f"{path}:1", f"{path}:3"]
    assert (report.num_samples, report.num_bad) == (2, 1)
    [sentence] = report.sentences
    assert sentence.startswith(f"{path}:2")


def test_a_bad_sample_of_a_list_is_left_out_but_a_broken_list_is_not_read(tmp_path: Path):
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([GOOD, {"messages": []}, 5, GOOD]))
    samples, report = read_chats(path, skips_bad=True)
    assert [sample.source for sample in samples] == [f"{path}[0]", f"{path}[3]"]
    assert [sentence.partition("]")[0] for sentence in report.sentences] == [f"{path}[1", f"{path}[2"]
    good = json.dumps(GOOD)
    for content, sentence in {
        f"[{good},\n{{'messages': 1}}]": r"chats.json\[1\] is not JSON: .* in line 2, column 2",
        f"[{good}\n{good}]": r"chats.json is not JSON: , or \] is missing after \[0\] in line 2",
        f"[{good},]": r"chats.json\[1\] is not JSON",
        f"[{good}": r"chats.json is not JSON: , or \] is missing after \[0\] in line 1",
        "[" * 100_000: r"chats.json\[0\] is nested too deeply",
    }.items():
        path.write_text(content)
        with pytest.raises(InputError, match=sentence):
            read_chats(path, skips_bad=True)


def test_bytes_that_are_no_text_are_a_bad_line_among_good_ones(tmp_path: Path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    samples, report = read_chats(path, skips_bad=True)
    assert (len(samples), report.sentences) == (1, (f"{path}:2 is not text in UTF-8",))


def test_many_bad_lines_are_counted_and_the_first_are_quoted(tmp_path: Path):
    path = jsonl(tmp_path, GOOD, *["{}"] * 50)
    _, report = read_chats(path, skips_bad=True)
    assert (report.num_samples, report.num_bad, len(report.sentences)) == (1, 50, 20)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "has no sample to train on$"),
        ([" ", ""], "has no sample to train on$"),
        (
            ["{}", "{}"],
            "has no sample to train on; all of its 2 are bad, the first: .*:1: the sample has none of messages",
        ),
        (["{}"], "has no sample to train on; its only one is bad: .*:1: the sample has none of messages"),
        (["[]"], "has no sample to train on$"),
        (["[", json.dumps(GOOD), "]", "{}"], "goes on after its list, in line 4; one list, or one object a line$"),
    ],
)
def test_a_file_without_a_sample_is_refused_even_if_bad_lines_are_left_out(
    lines: list[str], sentence: str, tmp_path: Path
):
    path = jsonl(tmp_path, *lines)
    with pytest.raises(InputError, match=f"^{path} {sentence}"):
        read_chats(path, skips_bad=True)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path):
    with pytest.raises(UnavailableError, match=r"none.jsonl does not exist"):
        read_chats(tmp_path / "none.jsonl", skips_bad=True)
    with pytest.raises(InputError, match=r"has no dataset_info\.json and no file of samples"):
        read_chats(tmp_path, skips_bad=True)

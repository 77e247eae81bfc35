"""Samples with videos as the bundled trainer takes them: by the rule of the model's own processor."""

import json
from math import ceil
from pathlib import Path

import pytest

from chat_files import ANSWER, jsonl, png_header, text
from cli_calls import call
from video_headers import mp4_header
from vlmplan.data_plan.lengths import NO_BLANKS, NOTHING
from vlmplan.errors import InputError
from vlmplan.request import parse

LONG_SECONDS = 1000 * 512 / 12800
"""Of 1,000 frames as ``mp4_header`` times them, 25 a second."""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("long.mp4").write_bytes(mp4_header(640, 360, 1000))
    Path("short.mp4").write_bytes(mp4_header(640, 360, 100))
    Path("small.mp4").write_bytes(mp4_header(160, 96, 1000))
    Path("one.mp4").write_bytes(mp4_header(640, 360, 1))
    Path("cat.png").write_bytes(png_header(280, 280))


def chats(*shown: str) -> Path:
    rows = []
    for names in shown:
        kinds = {".mp4": "video", ".png": "image"}
        parts = [{"type": kinds[Path(name).suffix], "path": name} for name in names.split()]
        rows.append({"messages": [{"role": "user", "content": [*parts, text("What?")]}, ANSWER]})
    return jsonl(Path(), *rows)


def asked(model: str = "qwen2.5-vl-3b", **options):
    return parse({"model": model, "data": "chats.jsonl", **options})


def shapes(model: str = "qwen2.5-vl-3b", **options):
    return asked(model, **options).from_data.source.found.shapes


def test_two_frames_a_second_of_qwen2_5_vl_are_an_image_for_each_two_of_them():
    chats("long.mp4", "short.mp4")
    long, short = shapes()
    num_frames = int(LONG_SECONDS * 2)  # of 644 x 364 pixels: 23 x 13 tokens, each of 2 x 2 patches
    assert (long.num_images, long.image_tokens) == (num_frames // 2, num_frames // 2 * 23 * 13)
    assert long.patches == 4 * long.image_tokens
    assert short.num_images == int(LONG_SECONDS * 2 / 10) // 2


def test_what_qwen3_vl_writes_between_frames_counts_as_text():
    """Tokens that say when, between two that begin and end a row of frames."""
    chats("long.mp4", "long.mp4 long.mp4", "short.mp4")
    one, two, short = shapes("qwen3-vl-4b")
    num_rows = int(LONG_SECONDS * 2) // 2
    assert one.image_tokens == num_rows * 20 * 11  # 640 x 352 pixels, 32 x 32 each
    assert one.tokens - one.image_tokens > short.tokens - short.image_tokens + 5 * (num_rows - num_rows // 10)
    assert (two.image_tokens, two.patches) == (2 * one.image_tokens, 2 * one.patches)


def test_frames_smaller_than_an_image_may_be_are_planned_side_by_side():
    """Qwen3-VL's images have 65,536 pixels or more, the frames of a video share theirs."""
    chats("small.mp4")
    [shape] = shapes("qwen3-vl-4b")
    num_rows, at_once = int(LONG_SECONDS * 2) // 2, -(-65_536 // (160 * 96))
    assert shape.image_tokens == num_rows * 5 * 3
    assert shape.num_images == -(-num_rows // at_once)
    workload = asked("qwen3-vl-4b").workload
    assert (workload.images_per_sample, workload.image_size) == (shape.num_images, (160, 96 * at_once))


def test_frames_that_are_no_images_to_the_model_are_planned_as_frames():
    """SmolVLM takes a frame a second, 64 at the most; LLaVA-OneVision as many of each as are asked for."""
    chats("long.mp4", "short.mp4", "cat.png")
    long, short, image = shapes("smolvlm2-2.2b")
    assert (long.image_tokens, short.image_tokens) == (int(LONG_SECONDS) * 84, round(LONG_SECONDS / 10) * 84)
    assert (long.patches, image.patches) == (int(LONG_SECONDS) * 729, 17 * 729)
    planned = asked("smolvlm2-2.2b").with_room_for_images().workload
    assert (planned.images_per_sample, planned.clip_frames) == (1, int(LONG_SECONDS))
    long, short, image = shapes("llava-onevision-7b", video_frames=8)
    assert long.image_tokens == short.image_tokens == 8 * 14 * 14 + 1
    room = asked("llava-onevision-7b", video_frames=8).with_room_for_images().workload
    blanks = 2  # tiles of an image, for micro batches of videos alone
    assert (room.images_per_sample, room.clip_frames, room.image_size) == (1, 8 + blanks, (384, 384))
    chats("long.mp4 short.mp4", "short.mp4")
    workload = asked("llava-onevision-7b", video_frames=8).workload
    assert (workload.images_per_sample, workload.clip_frames) == (2, 8)


def frames_of(num_frames: int) -> list[str]:
    for index in range(num_frames):
        Path(f"{index}.png").write_bytes(png_header(640, 360))
    return [f"{index}.png" for index in range(num_frames)]


def listed(*videos: list[str]) -> None:
    turns = [{"role": "user", "content": "<video>" * len(videos) + "What?"}, ANSWER]
    jsonl(Path(), {"messages": turns, "videos": [*videos]})


@pytest.mark.parametrize(("num_frames", "num_rows"), [(1, 1), (2, 1), (5, 3), (900, 768 // 2)])
def test_all_frames_of_a_list_are_taken_up_to_those_of_a_video(num_frames: int, num_rows: int):
    listed(frames_of(num_frames))
    [shape] = shapes(seq_len=120_000)
    assert (shape.num_images, shape.image_tokens) == (num_rows, num_rows * 23 * 13)
    [few] = shapes(video_frames=2)
    assert few.num_images == 1
    [shape] = shapes("smolvlm2-2.2b")
    assert shape.patches == min(num_frames, 64) * 27**2


def test_frames_of_a_list_are_of_one_size_and_files():
    frames = frames_of(3)
    Path("2.png").write_bytes(png_header(640, 352))
    listed(frames)
    with pytest.raises(InputError, match=r"2\.png has 640x352 pixels, and the first of its video 640x360; all have"):
        shapes()
    listed(["0.png", "7.png"])
    with pytest.raises(InputError, match=r'the frame "7.png" is no file in'):
        shapes()


def test_a_sample_with_images_and_videos_is_none_of_smolvlms():
    chats("short.mp4", "short.mp4 cat.png")
    source = asked("smolvlm2-2.2b").from_data.source
    assert (len(source.found.shapes), source.found.num_refused) == (1, 1)
    assert "keeps the videos alone" in source.found.sentences[0]


def test_a_video_with_fewer_frames_than_llava_onevision_takes_is_one_bad_sample():
    chats("one.mp4", "short.mp4")
    source = asked("llava-onevision-7b", video_frames=8).from_data.source
    assert (len(source.found.shapes), source.dataset.num_bad) == (1, 1)
    assert "it has 1 frame, and 8 of every video are taken" in source.dataset.sentences[0]


def test_options_say_how_many_frames_are_taken_at_the_most():
    chats("long.mp4")
    [few] = shapes(video_frames=16)
    assert few.num_images == 16 // 2
    [slow] = shapes(video_fps=0.5)
    assert slow.num_images == int(LONG_SECONDS * 0.5) // 2
    [both] = shapes(video_fps=0.5, video_frames=6)
    assert both.num_images == 6 // 2
    request = asked(video_fps=0.5, video_frames=6)
    assert (request.workload.video_fps, request.workload.video_frames) == (0.5, 6)
    assert parse(request.options()).workload == request.workload


def test_a_size_is_that_of_the_largest_frames():
    """A quarter of the pixels, of the frame's own shape; smaller frames stay as they are."""
    chats("long.mp4", "small.mp4")
    long, small = shapes(video_size="360x160")
    assert long.image_tokens == int(LONG_SECONDS * 2) // 2 * round(320 / 28) * round(180 / 28)
    assert small == shapes()[1]
    request = asked(video_size="360x160")
    assert request.workload.video_pixels == 360 * 160
    assert parse(request.options()).workload == request.workload


@pytest.mark.long
@pytest.mark.sweep
def test_every_command_plans_the_same_samples():
    chats("long.mp4", "short.mp4")
    words = ("--model", "qwen2.5-vl-3b", "--gpu", "a100-sxm4-80gb", "--data", "chats.jsonl", "--json")
    estimate, found = call("estimate", *words).document, call("recommend", *words).document
    for key in ("tokens", "images_per_sample", "num_videos", "num_trained"):
        assert estimate["data"][key] == found["data"][key]
    assert estimate["data"]["num_videos"] == 2


def test_a_plan_to_launch_has_room_for_the_patches_of_all_samples():
    chats("long.mp4", "short.mp4", "cat.png", "cat.png cat.png cat.png")
    request = asked()
    source, room = request.from_data.source, request.with_room_for_images().workload
    per_image = source.amounts.shape(room.image_size, 1)
    assert room.images_per_sample * per_image.num_patches >= max(shape.patches for shape in source.found.shapes)
    assert per_image.num_patches >= source.amounts.shape((280, 280), 1).num_patches
    assert room.images_per_sample >= 3
    assert room.seq_len < 1.05 * source.found.longest


def test_frames_of_gemma_4_and_its_pictures_count_with_the_patches_that_fill_them_up():
    chats("long.mp4", "cat.png", "long.mp4 cat.png")
    long, picture, both = shapes("gemma-4-e2b")
    assert long.image_tokens == 32 * (6 * 11 + 2)  # of 48 pixels: 7 rows of 360 pixels are more than 70 features hold
    assert (long.patches, picture.patches) == (32 * 70 * 9, 280 * 9)
    assert both.patches == long.patches + picture.patches
    workload = asked("gemma-4-e2b").workload  # a micro batch that shows both kinds gets no blank one
    assert workload.images_per_sample == 2
    assert workload.clip_frames == ceil(both.patches / (2 * 70 * 9))
    [few, *_] = shapes("gemma-4-e2b", video_frames=8)
    assert few.patches == 8 * 70 * 9


def test_frames_of_minicpm_v_are_cut_as_its_images_are_and_planned_with_the_patches_of_all():
    """Of 640x360 pixels: the whole of 600 x 336, nearly, and two slices side by side, of about as many pixels each."""
    chats("long.mp4", "short.mp4", "cat.png", "long.mp4 short.mp4")
    long, short, picture, both = shapes("minicpm-v-4.6")
    assert long.patches == 10 * short.patches
    assert both.patches == 11 * short.patches
    assert picture.patches == 32 * 32
    source = asked("minicpm-v-4.6").from_data.source
    frame = short.patches // 4
    assert source.amounts.shape((640, 360), 1).num_patches == frame
    workload = asked("minicpm-v-4.6").with_room_for_images().workload
    assert workload.images_per_sample == 2
    blank = 32 * 32  # of an image, for micro batches of videos alone
    assert workload.clip_frames == ceil((both.patches + blank) / (2 * frame))
    [few, *_] = shapes("minicpm-v-4.6", video_frames=8)
    assert few.patches == 8 * frame


def test_a_video_without_enough_frames_is_one_bad_sample():
    chats("one.mp4", "short.mp4", "https://a.b/c.mp4")
    source = asked().from_data.source
    assert (len(source.found.shapes), source.dataset.num_bad) == (1, 2)
    assert "one.mp4: it has 1 frame in" in " ".join(source.dataset.sentences)
    assert "never from the net" in " ".join(source.dataset.sentences)


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("llava-1.5-7b", {}, "videos are not read for models of type llava; they are for those of qwen2_vl"),
        (
            "minicpm-v-4.6",
            {"video_fps": 2},
            "--video-fps is 2, but the processor of MiniCPM-V goes by a video's length",
        ),
        ("qwen2.5-0.5b", {}, "videos are not read for models of type qwen2; they are"),
        ("qwen2.5-vl-3b", {"images_per_sample": 2}, "--images-per-sample is 2, but the samples have videos"),
        ("qwen2.5-vl-3b", {"videos_per_sample": 2}, "--videos-per-sample does not go with --data"),
        ("internvl3-1b", {"video_fps": 1, "video_size": "64x64"}, "whose size the model's processor chooses itself"),
        ("smolvlm2-2.2b", {"video_size": "64x64"}, "whose size the model's processor chooses itself; leave it off"),
        ("gemma-4-12b", {"video_size": "64x64"}, "whose size the model's processor chooses itself; leave it off"),
        ("gemma-4-12b", {"video_fps": 1}, "--video-fps is 1, but Gemma 4 takes videos of as many frames each"),
        ("qwen2.5-vl-3b", {"video_size": "64x64", "made_for": "trl"}, "--video-size with --data says"),
        ("qwen2.5-vl-3b", {"video_frames": 8, "made_for": "trl"}, "--video-frames with --data says"),
        ("glm-4.6v-flash", {"video_fps": 2}, "goes by a video's length; leave it off"),
        ("internvl3-1b", {}, "says no frames a second; give --video-fps"),
    ],
)
def test_what_does_not_go_with_videos_is_refused_in_a_sentence(model: str, options: dict, sentence: str):
    chats("short.mp4")
    with pytest.raises(InputError, match=sentence):
        asked(model, **options)


def test_images_and_videos_are_planned_together_where_they_are_one_tensor():
    """GLM-4V sees both as images, so that no micro batch needs a blank one of the other kind."""
    chats("short.mp4 cat.png", "short.mp4", "cat.png")
    source = asked("glm-4.1v-9b").from_data.source
    both, video, image = source.found.shapes
    assert both.patches == video.patches + image.patches
    assert source.found.blanks == NO_BLANKS


def test_a_scan_that_was_kept_is_of_the_same_rule():
    chats("long.mp4")
    first = shapes()
    assert shapes(video_frames=8) != first
    assert shapes() == first
    assert json.loads(json.dumps(first[0])) == list(first[0])


def test_more_pixels_than_are_decoded_are_refused():
    Path("huge.mp4").write_bytes(mp4_header(8192, 4320, 1000))
    chats("huge.mp4", "short.mp4")
    [sentence] = asked().from_data.source.dataset.sentences
    assert f"80 frames of 8192x4320 are {80 * 8192 * 4320:,} pixels, and at most" in sentence


def test_a_micro_batch_gets_a_blank_one_of_the_kinds_that_it_lacks_alone():
    chats("short.mp4 cat.png", "short.mp4", "cat.png")
    source = asked("gemma-4-e2b").from_data.source
    both, video, picture = source.found.shapes
    blanks = source.found.blanks
    assert min(blanks.picture.patches, blanks.video.patches) > 0
    assert blanks.beside(both) == NOTHING
    assert (blanks.beside(video).patches, blanks.beside(picture).patches) == (
        blanks.picture.patches,
        blanks.video.patches,
    )
    assert source.found.heaviest.patches == max(
        both.patches, video.patches + blanks.picture.patches, picture.patches + blanks.video.patches
    )

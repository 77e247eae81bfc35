"""Samples with videos: the frames that are planned are those that the model gets, as many tokens and patches."""

import importlib.util
import json
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("av")

import torch
from chat_cases import learned
from published_folders import FAMILIES, write_published
from sound_folders import HEARING, write_hearing
from test_batches_of_families import loss_sum
from video_folders import OF_VIDEOS

from chat_files import jsonl, png, text
from small_sounds import wav
from small_videos import shade, write_video
from vlmplan.chats.samples import Sample, VideoPart, read_chats
from vlmplan.chats.video_files import VideoHeader, video_header
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import OwnVideoRules, rules_of
from vlmplan.dataset import dataset
from vlmplan.dataset.images import ImageAmounts
from vlmplan.dataset.media import media_reading
from vlmplan.dataset.videos import VideoAmounts
from vlmplan.errors import InputError, MissingPackageError
from vlmplan.models import find_model
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches, collated, with_blank
from vlmplan_trainer.data.encode import Encoder, PlannedSamples, TooLongError
from vlmplan_trainer.data.flat_batches import FlatBatches
from vlmplan_trainer.data.flat_rows import for_the_model
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.data.sounds import PlannedSounds
from vlmplan_trainer.data.videos import VideoLimits, VideoMeter, frames_of, refuse_videos_without_packages
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.models.processors import load_processor

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="processors of videos need torchvision"
)
HAS_NUM2WORDS = importlib.util.find_spec("num2words") is not None
VIDEO = {
    "qwen2_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen2_5_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_5": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen2_5_omni_thinker": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_omni_moe_thinker": "<|vision_start|><|video_pad|><|vision_end|>",
    "glm4v": "<|begin_of_video|><|video|><|end_of_video|>",
    "internvl": "<video>",
    "smolvlm": "<video>",
    "llava_onevision": "<video>",
    "gemma4": "<|video|>",
    "minicpmv4_6": "<|video_pad|>",
    "minicpmv4_7": "<|video_pad|>",
    "exaone4_5": "<|vision_start|><|video_pad|><|vision_end|>",
    "lfm3_vl": "<|video_pad|>",
}
"""By family, what its chat template writes for a video."""
OMNI = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
CLIPS = ("smolvlm", "llava_onevision", "gemma4")
PER_TILE = {"internvl": 4, "smolvlm": 4, "llava_onevision": 4}
"""Patches of a tile of 28 pixels."""
PUBLISHED = {**FAMILIES, "gemma4": HEARING["gemma4"], **OF_VIDEOS}
PATCH_SIDE = 14
"""Of MiniCPM-V, whose patches are side by side in one row."""
WITHOUT_PADDING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", *OMNI, *CLIPS, "exaone4_5")
ONE_INPUT = ("internvl", "smolvlm", "glm4v")
"""Which are given images and videos as one tensor."""
FAMILY_CASES = [
    pytest.param(family, marks=pytest.mark.skipif(family == "smolvlm" and not HAS_NUM2WORDS, reason="num2words"))
    for family in VIDEO
]
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}
{{- 'IMAGE' if part.type == 'image' else 'VIDEO' if part.type == 'video' else part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


# -- frames ----------------------------------------------------------------------------------------------------------


def part_of(path: Path) -> VideoPart:
    return VideoPart(source=path, header=video_header(path, name="the video"))


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mov", "clip.avi"])
def test_frames_are_those_of_their_places_and_as_large_as_the_header_says(tmp_path: Path, name: str):
    part = part_of(write_video(tmp_path / name, num_frames=30))
    places = [0, 7, 7, 15, 29]
    found = frames_of(part, places, name="video 1")
    assert found.shape == (5, 3, 64, 96)
    assert found.dtype == torch.uint8
    for frame, place in zip(found, places, strict=True):
        assert float(frame.float().mean()) == pytest.approx(shade(place, 30), abs=4)


@pytest.mark.parametrize(("matrix", "turns"), [((0, 1, -1, 0), 1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 3)])
def test_a_video_is_turned_as_its_header_says(tmp_path: Path, matrix: tuple[int, ...], turns: int):
    """A matrix of MP4 turns by so many quarters clockwise; FFmpeg counts degrees the other way round."""
    import av

    plain = part_of(write_video(tmp_path / "plain.mp4"))
    content = bytearray((tmp_path / "plain.mp4").read_bytes())
    place = content.index(b"tkhd") + 4 + 40
    cosine, sine, other, last = (65536 * value for value in matrix)
    content[place : place + 36] = struct.pack(">9i", cosine, sine, 0, other, last, 0, 0, 0, 1 << 30)
    (tmp_path / "turned.mp4").write_bytes(content)
    turned = part_of(tmp_path / "turned.mp4")
    assert turned.header.quarter_turns == turns
    assert turned.header.shown_size == ((64, 96) if turns % 2 else (96, 64))
    frames = frames_of(turned, [20], name="video 1")
    assert torch.equal(frames, torch.rot90(frames_of(plain, [20], name="video 1"), -turns, dims=(2, 3)))
    with av.open(str(tmp_path / "turned.mp4")) as container:
        assert next(container.decode(video=0)).rotation % 360 == -90 * turns % 360


def test_a_video_that_is_cut_off_or_broken_is_one_sentence(tmp_path: Path):
    whole = write_video(tmp_path / "whole.avi", num_frames=200, size=(320, 240))
    part = part_of(whole)
    content = whole.read_bytes()
    cut = tmp_path / "cut.avi"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"^x: video 1, .*cut.avi, is cut off: the first 200 of its 200 frames are"):
        frames_of(VideoPart(source=cut, header=part.header), [0, 199], name="x: video 1")
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(b"\0\0\0\x18ftypisom" + bytes(500))
    with pytest.raises(InputError, match="cannot be read as a video"):
        frames_of(VideoPart(source=noise, header=part.header), [0], name="video 1")


def test_no_playlist_is_opened_in_place_of_a_video(tmp_path: Path):
    clip = write_video(tmp_path / "clip.mp4")
    listed = tmp_path / "list.mp4"
    listed.write_text(f"ffconcat version 1.0\nfile {clip.name}\n")
    with pytest.raises(InputError, match="cannot be read as a video"):
        frames_of(VideoPart(source=listed, header=part_of(clip).header), [0], name="video 1")


# -- samples ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, video in VIDEO.items():
        if family == "smolvlm" and not HAS_NUM2WORDS:
            continue
        folder = write_published(tmp_path_factory.mktemp("models") / family, family, PUBLISHED[family])
        written = TEMPLATE.replace("IMAGE", PUBLISHED[family].image).replace("VIDEO", video)
        (folder / "chat_template.jinja").write_text(written)
        if family in ("internvl", "llava_onevision"):  # whose files say nowhere how many
            settings = folder / "preprocessor_config.json"
            settings.write_text(json.dumps({**json.loads(settings.read_text()), "num_frames": 5}))
        if family == "gemma4":
            name = "video_preprocessor_config.json"
            (folder / name).write_text(json.dumps({**find_model("gemma-4-e2b").video_settings, "num_frames": 5}))
        made[family] = folder
    return made


def question(*shown: dict[str, str], answer: str = "A cat.") -> dict[str, Any]:
    turns = [
        {"role": "user", "content": [*shown, text("What is it?")]},
        {"role": "assistant", "content": [text(answer)]},
    ]
    return {"messages": turns}


CLIP, LONG, IMAGE = (
    {"type": "video", "video": "clip.mp4"},
    {"type": "video", "path": "long.mp4"},
    {"type": "image", "path": "a.png"},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_video(tmp_path / "clip.mp4", num_frames=31, fps=10, size=(96, 64))
    write_video(tmp_path / "long.mp4", num_frames=127, fps=12, size=(48, 128))
    (tmp_path / "a.png").write_bytes(png(60, 50))
    rows = [
        question(CLIP),
        question(LONG, answer="Two dogs."),
        question(answer="Nothing."),
        question(IMAGE, CLIP, answer="Both."),
        question(CLIP, text("and then"), LONG, answer="Two."),
    ]
    return jsonl(tmp_path, *rows)


def encoder_of(folder: Path, *, skips_bad: bool = False, **more: Any) -> Encoder:
    family = find_model(str(folder)).model_type
    planned = PlannedSamples(**{"seq_len": 100_000, **more})
    return Encoder(load_processor(str(folder), is_vision=True), planned, model_type=family, skips_bad=skips_bad)


def samples_of(path: Path) -> list[Sample]:
    return read_chats(path, skips_bad=False, no_videos=None)[0]


def takes_both(sample: Sample, family: str) -> bool:
    """SmolVLM's processor keeps one kind of a sample."""
    return not (family == "smolvlm" and sample.images and sample.videos)


@needs_torchvision
@pytest.mark.parametrize("family", FAMILY_CASES)
def test_the_model_gets_the_tokens_and_patches_that_are_planned(family: str, folders, path: Path):
    model, made = find_model(str(folders[family])), encoder_of(folders[family])
    found = dataset(path, model, media=media_reading(model, rules_of(None)))
    assert (found.is_exact, found.num_bad) == (True, 0)
    seen = sample_shapes(found, model, rules_of(None))
    assert len(seen.sentences) == (family == "smolvlm")
    shapes = seen.shapes
    samples = [sample for sample in samples_of(path) if takes_both(sample, family)]
    scan = scanned(made, samples)
    assert scan.lengths == [shape.tokens for shape in shapes]
    assert family == "smolvlm" or found.learnt_tokens == scan.num_learnt  # plans one sample more
    labels = [made.encode(sample)["labels"] for sample in samples]
    assert scan.num_learnt == sum(int((one != IGNORED_LABEL).sum()) for one in labels)
    for sample, shape in zip(samples, shapes, strict=True):
        encoded = made.encode(sample)
        assert encoded["input_ids"].shape[1] == shape.tokens
        assert num_patches(encoded, family) == shape.patches
        assert learned(made, encoded) == ended(sample, family)
        name = "pixel_values" if family in ONE_INPUT else "pixel_values_videos"
        assert name in encoded or not sample.videos


def num_patches(encoded: dict[str, Any], family: str) -> int:
    """Without those that only fill up, but for Gemma 4's, which its tower computes."""
    pixels = [encoded[name] for name in ("pixel_values", "pixel_values_videos") if name in encoded]
    if family.startswith("minicpmv"):
        return sum(one.shape[-1] // PATCH_SIDE for one in pixels)
    if family == "gemma4":
        return sum(one.shape[0] * one.shape[1] for one in pixels)
    rows = [one.flatten(0, 1) if family in CLIPS else one for one in pixels]
    return sum(bool(row.any()) for one in rows for row in one) * PER_TILE.get(family, 1)


def ended(sample: Sample, family: str) -> str:
    """The answer with the token that ends it, in the template of chats with videos where there is one."""
    is_own = family == "smolvlm" and sample.videos
    return f" {sample.turns[1].text}<end_of_utterance>" if is_own else f"{sample.turns[1].text}<|im_end|>"


@needs_torchvision
@pytest.mark.parametrize("family", FAMILY_CASES)
def test_a_batch_with_videos_gives_the_losses_of_its_samples(family: str, folders, path: Path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folders[family], dtype=torch.float32).train()
    made = encoder_of(folders[family])
    samples = [sample for sample in samples_of(path) if takes_both(sample, family)]
    rows = [made.encode(sample) for sample in samples]
    with torch.no_grad():
        alone = [loss_sum(model, for_the_model(model, row)) for row in rows]
        batch = collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=100_000)
        together = loss_sum(model, for_the_model(model, batch))
    assert together == pytest.approx(sum(alone), rel=1e-4)


@needs_torchvision
@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "glm4v", "llava_onevision"])
def test_every_micro_batch_shows_what_the_data_shows_so_that_all_ranks_run_the_tower_as_often(
    family: str, folders, path: Path
):
    made = encoder_of(folders[family])
    samples = samples_of(path)
    kinds = {"pixel_values"} if family in ONE_INPUT else {"pixel_values", "pixel_values_videos"}
    for shown, names in ((samples, kinds), (samples[:3], {max(kinds)})):
        batches = list(Batches(shown, made, Shares(micro_batch=1, num_ranks=1, rank=0)))
        assert len(batches) == len(shown)
        for batch in batches:
            assert {name for name in batch if name.startswith("pixel_values")} == names


@needs_torchvision
@pytest.mark.parametrize("family", FAMILY_CASES)
def test_a_blank_video_changes_no_loss(family: str, folders, path: Path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folders[family], dtype=torch.float32).train()
    made = encoder_of(folders[family])
    row = made.encode(samples_of(path)[2])
    with torch.no_grad():
        assert loss_sum(model, with_blank(row, made, made.blank_video)) == pytest.approx(loss_sum(model, row), rel=1e-4)


@needs_torchvision
@pytest.mark.parametrize("family", FAMILY_CASES)
def test_a_list_of_frames_is_what_the_processor_makes_of_them(family: str, folders, tmp_path: Path):
    names = [f"{index}.png" for index in range(7)]
    for index, name in enumerate(names):
        (tmp_path / name).write_bytes(png(96, 64, (30 * index,) * 3))
    data = jsonl(tmp_path, question({"type": "video", "video": names, "sample_fps": 4}))
    model, made = find_model(str(folders[family])), encoder_of(folders[family])
    [sample] = samples_of(data)
    [part] = sample.videos
    indices = made.video_meter.rule.indices(part.header)
    of_five = {"llava_onevision": [0, 1, 2, 4, 5], "gemma4": [0, 2, 3, 4, 6]}
    assert indices == of_five.get(family, [*range(7)])
    frames = frames_of(part, indices, name="video 1")
    assert [int(frame.float().mean()) for frame in frames] == [30 * index for index in indices]
    found = dataset(data, model, media=media_reading(model, rules_of(None)))
    [shape] = sample_shapes(found, model, rules_of(None)).shapes
    assert made.encode(sample)["input_ids"].shape[1] == shape.tokens == scanned(made, [sample]).lengths[0]


@needs_torchvision
def test_a_cut_keeps_whole_videos_and_leaves_out_what_has_no_room(folders, path: Path):
    samples = samples_of(path)
    whole = scanned(encoder_of(folders["qwen2_5_vl"]), samples).lengths
    scan = scanned(encoder_of(folders["qwen2_5_vl"], seq_len=whole[0] - 2), samples)
    assert scan.truncated == {samples[0].source}
    assert "the videos do not fit into --seq-len" in scan.sentences[0]
    small = encoder_of(folders["qwen2_5_vl"], image_size=(56, 56), images_per_sample=2)
    scan = scanned(small, samples)
    assert samples[2] in scan.samples
    assert "the sample's videos have more patches than the images that the plan has room for" in scan.sentences[0]


@needs_torchvision
@pytest.mark.parametrize("family", FAMILY_CASES)
def test_the_scan_leaves_out_and_cuts_what_encoding_does(family: str, folders, path: Path):
    """At lengths around the end of the videos and of the sample, SmolVLM's words of a video among them."""
    sample, processor = samples_of(path)[4], load_processor(str(folders[family]), is_vision=True)
    [whole] = scanned(encoder_of(folders[family]), [sample]).lengths
    outcomes = set()
    for seq_len in (*range(whole - 40, whole, 6), whole - 1, whole):
        made = Encoder(
            processor, PlannedSamples(seq_len=seq_len), model_type=find_model(str(folders[family])).model_type
        )
        scan = scanned(made, [sample])
        try:
            num_tokens = made.encode(sample)["input_ids"].shape[1]
        except TooLongError:
            outcomes.add("left out")
            assert "the videos do not fit" in scan.sentences[0]
            continue
        outcomes.add("cut" if seq_len < whole else "whole")
        assert num_tokens == min(whole, seq_len)
        assert scan.lengths in ([num_tokens], [])
        assert not scan.sentences or "first word comes after" in scan.sentences[0]
    assert outcomes >= {"cut", "whole"}


@needs_torchvision
def test_limits_of_frames_are_those_of_the_plan(folders, path: Path):
    model = find_model(str(folders["qwen3_vl"]))
    rules = replace(rules_of(None), videos=OwnVideoRules(fps=4.0, most_frames=6))
    found = dataset(path, model, media=media_reading(model, rules))
    shapes = sample_shapes(found, model, rules).shapes
    made = encoder_of(folders["qwen3_vl"], videos=VideoLimits(fps=4.0, most_frames=6))
    for sample, shape in zip(samples_of(path), shapes, strict=True):
        encoded = made.encode(sample)
        assert encoded["input_ids"].shape[1] == shape.tokens
        if len(sample.videos) == 1:
            assert int(encoded["video_grid_thw"][0, 0]) == 6 // 2


@needs_torchvision
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_frames_are_no_larger_than_the_plan_has_them(family: str, folders, path: Path):
    names = [f"{index}.png" for index in range(4)]
    for name in names:
        (path.parent / name).write_bytes(png(96, 64))
    jsonl(path.parent, question(CLIP), question(LONG), question({"type": "video", "video": names}))
    model, pixels = find_model(str(folders[family])), 64 * 40
    rules = replace(rules_of(None), videos=OwnVideoRules(max_pixels=pixels))
    found = dataset(path, model, media=media_reading(model, rules))
    shapes = sample_shapes(found, model, rules).shapes
    made, samples = encoder_of(folders[family], videos=VideoLimits(max_pixels=pixels)), samples_of(path)
    assert scanned(made, samples).lengths == [shape.tokens for shape in shapes]
    for sample, shape in zip(samples, shapes, strict=True):
        [part] = map(made.video_meter.fitted, sample.videos)
        frames = frames_of(part, [0], name="video 1")
        assert frames.shape[2] * frames.shape[3] <= pixels
        encoded = made.encode(sample)
        name = "pixel_values" if family in ONE_INPUT else "pixel_values_videos"
        assert (encoded["input_ids"].shape[1], len(encoded[name])) == (shape.tokens, shape.patches)


@needs_torchvision
def test_a_video_that_is_broken_is_found_before_training(folders, path: Path):
    clip = path.parent / "long.mp4"
    content = clip.read_bytes()
    clip.write_bytes(content[:100] + bytes(len(content) // 2) + content[100 + len(content) // 2 :])
    samples = samples_of(path)
    with pytest.raises(
        InputError, match=r"chats.jsonl:2: the video, .*long.mp4, cannot be read as a video .*leaves such samples out"
    ):
        scanned(encoder_of(folders["qwen2_5_vl"]), samples)
    scan = scanned(encoder_of(folders["qwen2_5_vl"], skips_bad=True), samples)
    assert scan.skipped == {samples[1].source, samples[4].source}


def test_samples_with_videos_need_packages_of_their_own(monkeypatch: pytest.MonkeyPatch, path: Path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    samples = samples_of(path)
    refuse_videos_without_packages(samples[2:3], "qwen2_vl")
    with pytest.raises(MissingPackageError, match=r"chats.jsonl:1: .* need av and torchvision, .*'vlmplan\[video\]'"):
        refuse_videos_without_packages(samples, "qwen2_vl")
    with pytest.raises(MissingPackageError, match="need av and torchvision and num2words, not installed here"):
        refuse_videos_without_packages(samples, "smolvlm")


@needs_torchvision
def test_a_video_of_glm4v_is_the_images_that_its_model_makes_of_it(folders, path: Path, monkeypatch):
    """The loss of what its processor makes, and of the same rows of patches as images."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folders["glm4v"], dtype=torch.float32).train()
    made = encoder_of(folders["glm4v"])
    samples = [sample for sample in samples_of(path) if sample.videos and not sample.images]
    as_images = [made.encode(sample) for sample in samples]
    monkeypatch.setattr(made.video_meter, "makes_images", False)
    with torch.no_grad():
        for sample, row in zip(samples, as_images, strict=True):
            own = made.encode(sample)
            assert "pixel_values_videos" in own
            assert torch.equal(row["pixel_values"], own["pixel_values_videos"])
            assert loss_sum(model, row) == pytest.approx(loss_sum(model, own), rel=1e-6)


@needs_torchvision
@pytest.mark.parametrize("family", [case for case in FAMILY_CASES if case.values[0] in WITHOUT_PADDING])
def test_samples_with_videos_one_behind_the_other_have_their_own_positions(family: str, folders, path: Path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folders[family], dtype=torch.float32).train()
    model.config.use_cache = model.config.text_config.use_cache = False  # with a cache samples are not told apart
    made, samples = encoder_of(folders[family]), [one for one in samples_of(path) if takes_both(one, family)]
    [flat] = FlatBatches(samples, made, Shares(micro_batch=len(samples), num_ranks=1, rank=0))
    with torch.no_grad():
        alone = [loss_sum(model, for_the_model(model, made.encode(sample))) for sample in samples]
        assert loss_sum(model, for_the_model(model, flat)) == pytest.approx(sum(alone), rel=1e-4)


@needs_torchvision
@pytest.mark.parametrize("family", OMNI)
def test_a_thinker_is_given_the_positions_that_it_finds_with_the_mask_and_by_true_seconds(family, folders, path: Path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folders[family], dtype=torch.float32).train()
    made, samples = encoder_of(folders[family]), samples_of(path)
    rows = [made.encode(sample) for sample in samples]
    seconds = [31 / 10 / 6 * 2, 127 / 12 / 20 * 2]  # of two of six and of twenty frames
    assert rows[4]["video_second_per_grid"].tolist() == pytest.approx(seconds)
    batch = collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=100_000)
    given = for_the_model(model, batch)["position_ids"]
    found, _ = model.model.get_rope_index(
        batch["input_ids"],
        batch["image_grid_thw"],
        batch["video_grid_thw"],
        batch["attention_mask"],
        second_per_grids=batch["video_second_per_grid"],
    )
    assert torch.equal(given, found)
    places = (batch["input_ids"][1] == model.config.video_token_id).nonzero()[:, 0]
    times = given[0, 1, places].unique()
    assert len(times) == 20 / 2
    assert float(times[-1] - times[0]) == pytest.approx(9 * seconds[1] * model.config.position_id_per_seconds, abs=1)
    with torch.no_grad():
        by_itself = [float(model(**row, return_dict=True).loss) * num_learned(row) for row in rows]
        ours = [loss_sum(model, for_the_model(model, row)) for row in rows]
    assert ours == pytest.approx(by_itself, rel=1e-4)


@needs_torchvision
@pytest.mark.parametrize("family", OMNI)
def test_a_thinker_hears_sounds_beside_the_frames_of_videos(family: str, tmp_path: Path):
    from transformers import AutoModelForImageTextToText

    folder = write_hearing(tmp_path / family, family)
    template = folder / "chat_template.jinja"
    shown = f"else '{VIDEO[family]}' if part.type == 'video' else part.text"
    template.write_text(template.read_text().replace("else part.text", shown))
    write_video(tmp_path / "clip.mp4", num_frames=31, fps=10, size=(96, 64))
    (tmp_path / "a.png").write_bytes(png(60, 50))
    (tmp_path / "dog.wav").write_bytes(wav(1.5))
    sound = {"type": "audio", "audio": "dog.wav"}
    orders = ((CLIP, sound), (sound, text("and"), CLIP, IMAGE), (), (IMAGE, sound, CLIP, sound))
    data = jsonl(tmp_path, *(question(*order) for order in orders))
    files = find_model(str(folder))
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).train()
    model.config.use_cache = model.config.text_config.use_cache = False
    made = encoder_of(folder, sounds=PlannedSounds(model=files))
    samples = read_chats(data, skips_bad=False, no_videos=None, no_sounds=None)[0]
    rows = [made.encode(sample) for sample in samples]
    found = dataset(data, files, media=media_reading(files, rules_of(None)))
    shapes = sample_shapes(found, files, rules_of(None)).shapes
    assert [shape.tokens for shape in shapes] == [row["input_ids"].shape[1] for row in rows]
    [flat] = FlatBatches(samples, made, Shares(micro_batch=len(samples), num_ranks=1, rank=0))
    batch = collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=100_000)
    with torch.no_grad():
        by_itself = sum(float(model(**row).loss) * num_learned(row) for row in rows)
        for ours in (batch, flat):
            assert loss_sum(model, for_the_model(model, ours)) == pytest.approx(by_itself, rel=1e-5)


def num_learned(row: dict[str, Any]) -> int:
    return int((row["labels"][:, 1:] >= 0).sum())


# -- published settings ----------------------------------------------------------------------------------------------

CLASSES = {
    "qwen2-vl-2b": "Qwen2VLVideoProcessor",
    "qwen2.5-vl-7b": "Qwen2VLVideoProcessor",
    "qwen3-vl-4b": "Qwen3VLVideoProcessor",
    "qwen3.5-9b": "Qwen3VLVideoProcessor",
    "glm-4.1v-9b": "Glm4vVideoProcessor",
    "glm-4.6v": "Glm46VVideoProcessor",
}
HEADERS = [
    VideoHeader(width=width, height=height, num_frames=num_frames, seconds=num_frames / fps, quarter_turns=turns)
    for width, height, num_frames, fps, turns in (
        (1920, 1080, 900, 30, 0), (1080, 1920, 901, 29.97, 1), (320, 240, 75, 25, 2), (64, 48, 36_000, 60, 3),
        (640, 360, 9, 24, 0), (1280, 720, 30_000, 24, 0),
    )
]  # fmt: skip


@needs_torchvision
@pytest.mark.parametrize("alias", CLASSES)
def test_planner_and_trainer_have_one_rule_of_every_published_processor(alias: str):
    import transformers

    model, rules = find_model(alias), rules_of(None)
    amounts = VideoAmounts(model, rules, ImageAmounts(model, rules))
    part = getattr(transformers, CLASSES[alias])(**(model.video_settings or {}))
    meter = VideoMeter(SimpleNamespace(video_processor=part))
    assert meter.rule == media_reading(model, rules).frames
    for header in HEADERS:
        assert amounts.num_frames(header) == len(meter.rule.indices(header))
        assert amounts.seen(header).num_patches == meter.num_patches(header)

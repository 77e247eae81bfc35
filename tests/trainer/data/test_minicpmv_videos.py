"""Videos of MiniCPM-V 4.6 and 4.7: what is planned of them is what their processors make, with the published sizes."""

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("processors of videos need torchvision", allow_module_level=True)

import torch
from published_folders import write_published
from video_folders import OF_VIDEOS

from chat_files import jsonl, png, text
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.chats.samples import read_chats
from vlmplan.chats.video_files import VideoHeader
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset
from vlmplan.dataset.images import ImageAmounts
from vlmplan.dataset.videos import VideoAmounts
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.data.videos import VideoLimits, VideoMeter, frame_rule_of
from vlmplan_trainer.models.processors import load_processor

NUM_RUN, NUM_MEASURED = 8, 400
SIDES = (20, 2000)


@pytest.fixture(scope="module", params=["minicpmv4_6", "minicpmv4_7"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    said = OF_VIDEOS[request.param]
    settings = {**said.settings, "scale_resolution": 448}
    return write_published(
        tmp_path_factory.mktemp("m") / request.param, request.param, replace(said, settings=settings)
    )


def processor_of(folder: Path) -> Any:
    return load_processor(str(folder), is_vision=True)


def random_header(chance: random.Random, most_side: int = SIDES[1]) -> VideoHeader:
    fps = chance.choice((10, 23.976, 25, 29.97, 60))
    num_frames = chance.choice((1, 5, 240, 1000, 9000, 30_000)) + chance.randrange(50)
    sides = [round(SIDES[0] * (most_side / SIDES[0]) ** chance.random()) for _ in range(2)]
    return VideoHeader(width=sides[0], height=sides[1], num_frames=num_frames, seconds=num_frames / fps)


def test_a_video_becomes_the_tokens_and_sequences_that_the_processor_makes(folder: Path):
    model, processor, chance = find_model(str(folder)), processor_of(folder), random.Random(5)
    for number in range(NUM_RUN):
        header, num_frames = random_header(chance, 1200), 1 + number % 3
        frames = torch.zeros(num_frames, 3, header.height, header.width, dtype=torch.uint8)
        metadata = {"total_num_frames": num_frames, "fps": 1.0, "frames_indices": [*range(num_frames)]}
        made = processor(
            text=[processor.video_token],
            videos=[frames],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
        )
        shape = clip_shape(
            model.config,
            model.preprocessor,
            model.video_settings,
            num_frames=num_frames,
            size=(header.width, header.height),
        )
        assert made["input_ids"].shape[1] == shape.num_tokens, header
        assert int((made["input_ids"] == processor.video_token_id).sum()) == shape.num_placeholder_tokens
        assert made["target_sizes_videos"].shape[0] == shape.num_vision_sequences
        assert int(made["target_sizes_videos"].prod(dim=1).sum()) == shape.num_patches
        assert made["pixel_values_videos"].shape[-1] == 14 * shape.num_patches


def test_planner_and_trainer_count_the_same_of_random_videos(folder: Path):
    model, rules, chance = find_model(str(folder)), rules_of(None), random.Random(7)
    amounts = VideoAmounts(model, rules, ImageAmounts(model, rules))
    meter = VideoMeter(processor_of(folder))
    for _ in range(NUM_MEASURED):
        header = random_header(chance)
        seen = amounts.seen(header)
        assert amounts.num_frames(header) == len(meter.rule.indices(header)), header
        assert (seen.num_tokens, seen.num_patches) == (meter.num_tokens(header), meter.num_patches(header)), header
        assert meter.num_patches_of(amounts.num_frames(header), seen.size) == seen.num_patches


def test_pictures_put_together_of_the_frames_of_a_second_are_refused(folder: Path):
    processor = processor_of(folder)
    processor.video_processor.stack_frames = 5
    with pytest.raises(InputError, match="has stack_frames 5: pictures put together of the frames of a second"):
        frame_rule_of(processor, VideoLimits())


def test_images_from_the_eleventh_on_have_numbers_of_two_digits(folder: Path, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png(60, 50))
    shown = [{"type": "image", "path": "a.png"}] * 13
    answer = {"role": "assistant", "content": [text("Many.")]}
    data = jsonl(tmp_path, {"messages": [{"role": "user", "content": [*shown, text("What?")]}, answer]})
    model = find_model(str(folder))
    encoder = Encoder(processor_of(folder), PlannedSamples(seq_len=100_000), model_type=model.model_type)
    [sample] = read_chats(data, skips_bad=False)[0]
    num_tokens = encoder.encode(sample)["input_ids"].shape[1]
    [shape] = sample_shapes(dataset(data, model), model, rules_of(None)).shapes
    assert [num_tokens] == scanned(encoder, [sample]).lengths
    assert shape.tokens == num_tokens

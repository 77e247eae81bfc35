"""Videos of samples: images from the request on, so that every command means the same bytes."""

from dataclasses import replace

import pytest

from planned import model_files
from vlmplan.chats.samplers import no_videos
from vlmplan.errors import InputError
from vlmplan.request import Request, parse
from vlmplan.request.parts import VideoRequest
from vlmplan.request.samples import workload_of
from vlmplan.sample_images import image_tokens
from vlmplan.workload import DEFAULT_SEQ_LEN

QWEN = {"model": "qwen2.5-vl-7b"}
VIDEO = {**QWEN, "video_frames": 16, "video_size": "640x360"}
AS_IMAGES = {**QWEN, "images_per_sample": 8, "image_size": "644x364"}
PAIR_TOKENS = 23 * 13
"""Of 644 x 364 pixels, 28 x 28 each."""


def as_images(request: Request) -> Request:
    """Without what is said of the videos."""
    return replace(request, video_notes=(), workload=replace(request.workload, video_frames=None))


def test_videos_are_asked_for_as_the_images_that_they_are():
    told, plain = parse({**VIDEO, "seq_len": 4096}), parse({**AS_IMAGES, "seq_len": 4096})
    assert told.workload.video_frames == 16  # which the trainer keeps to
    assert as_images(told) == plain
    assert told.options() == plain.options()
    assert told.videos == VideoRequest()
    [planned, trainer] = told.config_notes
    assert planned.startswith("1 video of 16 frames of 640x360 in each sample is planned as 8 images of 644x364")
    assert "at most 16 of a video" in trainer


def test_seconds_are_the_frames_that_the_processor_takes_of_them():
    by_length = parse({**QWEN, "video_seconds": 8, "video_size": "640x360", "seq_len": 4096})
    frames = parse({**VIDEO, "seq_len": 4096})
    assert replace(by_length, video_notes=()) == replace(frames, video_notes=())
    assert by_length.video_notes[0].startswith("1 video of 8 s, 16 frames of 640x360 in each sample is planned as 8 im")
    thin = parse({**QWEN, "video_seconds": 8, "video_fps": 1, "video_size": "640x360"})
    assert thin.workload.images_per_sample == 8 // 2


@pytest.mark.parametrize("model", ["smolvlm2-2.2b", "llava-onevision-0.5b"])
def test_frames_that_are_no_images_to_the_model_stay_frames(model: str):
    request = parse({"model": model, "video_frames": 16, "videos_per_sample": 2})
    asked = request.workload
    assert (asked.images_per_sample, asked.clip_frames, asked.video_frames) == (2, 16, 16)
    per_video = 16 * (81 + 3) if model.startswith("smolvlm") else 16 * 14 * 14 + 1
    assert image_tokens(workload_of(request.model_files, asked)) == 2 * per_video
    assert request.video_notes[0].endswith(
        "planned as 32 frames of 384x384, which the model sees otherwise than images"
    )
    again = {name: value for name, value in request.options().items() if value is not None}
    assert parse(again).workload == asked
    with pytest.raises(InputError, match="becomes one of 384x384; leave it off"):
        parse({"model": model, "video_frames": 16, "image_size": "64x64"})


def test_seconds_of_smolvlm_are_a_frame_each_and_64_at_the_most():
    long, short = (parse({"model": "smolvlm2-2.2b", "video_seconds": seconds}) for seconds in (100, 40.6))
    assert (long.workload.clip_frames, short.workload.clip_frames) == (64, 41)


@pytest.mark.parametrize(("model", "side"), [("qwen2.5-omni-7b", 28), ("qwen3-omni-30b-a3b", 32)])
def test_videos_of_the_omni_models_are_images_within_the_limits_that_their_processors_give(model: str, side: int):
    """Of 128 to 768 tokens a frame, where images of theirs have up to 16,384."""
    few, many = (parse({"model": model, "video_frames": 8, "video_size": size}) for size in ("200x100", "1920x1080"))
    for request, least, most in ((few, 128, 160), (many, 700, 768)):
        width, height = request.workload.image_size or (0, 0)
        assert least <= width * height // side**2 <= most
        assert request.workload.images_per_sample == 8 // 2


def test_several_videos_and_odd_frames_are_counted():
    request = parse({**VIDEO, "video_frames": 17, "videos_per_sample": 3})
    assert request.workload.images_per_sample == 3 * (17 + 1) // 2
    tokens = 3 * 9 * PAIR_TOKENS
    assert image_tokens(workload_of(request.model_files, request.workload)) == tokens
    assert request.workload.seq_len == -(-(tokens + 256) // 256) * 256
    assert any(f"take {tokens:,} tokens" in note for note in request.video_notes)
    assert request.config_notes[0].startswith(
        "3 videos of 17 frames of 640x360 in each sample are planned as 27 images"
    )


def test_a_length_with_room_stays_the_default():
    request = parse({**QWEN, "video_frames": 2})
    assert request.workload.seq_len is None
    assert workload_of(request.model_files, request.workload).seq_len == DEFAULT_SEQ_LEN


def test_a_length_that_videos_pass_is_refused_by_their_options():
    with pytest.raises(InputError) as caught:
        parse({**VIDEO, "seq_len": 8 * PAIR_TOKENS - 1})
    assert f"1 video of 16 frames of 640x360 take {8 * PAIR_TOKENS} tokens" in str(caught.value)
    assert "--video-frames" in str(caught.value)
    assert "image" not in str(caught.value)
    assert parse({**VIDEO, "seq_len": 8 * PAIR_TOKENS}).workload.seq_len == 8 * PAIR_TOKENS


def test_a_length_that_the_said_size_of_images_passes_is_refused_with_that_size():
    options = {"model": "qwen2-vl-2b", "video_frames": 16, "image_size": "896x896", "seq_len": 4096}
    with pytest.raises(
        InputError, match=r"16 frames of 448x448 \(planned as images of 896x896, as --image-size says\)"
    ):
        parse(options)


def test_a_smaller_size_of_images_that_is_proposed_can_be_given_beside():
    request = parse({**VIDEO, "image_size": "322x182", "seq_len": 2048})
    expected = parse({**AS_IMAGES, "image_size": "322x182", "seq_len": 2048})
    assert as_images(request) == expected
    assert "as --image-size says" in request.video_notes[0]


def test_frames_that_no_image_is_as_small_as_name_what_can_be_planned():
    """An image of Qwen3-VL has 65,536 pixels at the least, a video of eight frames 4,096 together."""
    small = {"model": "qwen3-vl-4b", "video_frames": 8, "video_size": "224x224"}
    with pytest.raises(InputError, match=r"frames of 224x224.*--image-size 256x256"):
        parse(small)
    assert parse({**small, "image_size": "256x256"}).workload.image_size == (256, 256)


def test_a_given_model_takes_the_defaults_of_its_processor():
    given = replace(model_files("qwen3-vl-4b"), id="given", video_settings=None)
    request = parse({"video_frames": 2, "video_size": "2000x1000"}, given)
    width, height = request.workload.image_size or (0, 0)
    assert 2 * width * height <= 768 * 32 * 32
    assert parse({**VIDEO, "model": "qwen3-vl-4b"}).workload.image_size == (640, 352)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "tinyllama-1.1b", "video_frames": 4}, ["--video-frames", "tinyllama-1.1b", "llama", "qwen3_vl"]),
        ({**QWEN, "video_size": "64x64"}, ["--video-size", "--video-frames"]),
        ({**QWEN, "videos_per_sample": 2}, ["--videos-per-sample", "--video-frames"]),
        ({**QWEN, "video_frames": 0}, ["--video-frames is 0", "1 or more"]),
        ({**VIDEO, "videos_per_sample": 0}, ["--videos-per-sample is 0", "1 or more"]),
        ({**VIDEO, "video_frames": 769}, ["--video-frames is 769", "1 to 768"]),
        ({**VIDEO, "video_size": "640"}, ["--video-size is '640'", "WIDTHxHEIGHT"]),
        ({**VIDEO, "images_per_sample": 2}, ["--video-frames", "--images-per-sample"]),
        ({**VIDEO, "videos_per_sample": 2, "data": "samples.json"}, ["--video-size", "--data samples.json"]),
        ({"video_frames": 4, "config": "sft.yaml"}, ["--video-frames", "--config sft.yaml"]),
        ({"video_frames": 4}, ["--video-frames", "--model"]),
        ({"video_seconds": 4}, ["--video-seconds", "--model"]),
        ({**QWEN, "video_fps": 1}, ["--video-fps", "--video-frames", "--video-seconds"]),
        ({**VIDEO, "video_seconds": 9}, ["--video-frames", "--video-seconds", "leave one off"]),
        ({**VIDEO, "video_fps": 1}, ["--video-frames", "--video-fps", "leave one off"]),
        ({**QWEN, "video_seconds": 0}, ["--video-seconds is 0", "above 0"]),
        ({**QWEN, "video_seconds": 9, "video_fps": 500}, ["--video-fps is 500", "at most 240"]),
        ({**QWEN, "video_seconds": 9, "data": "samples.json"}, ["--video-seconds", "--data samples.json"]),
        ({"model": "glm-4.6v-flash", "video_seconds": 9, "video_fps": 1}, ["--video-fps is 1", "GLM-4.6V", "leave it"]),
        ({"model": "internvl3-1b", "video_seconds": 9}, ["give --video-fps"]),
        ({"model": "llava-onevision-0.5b", "video_seconds": 9}, ["no number of frames", "give --video-frames"]),
        (
            {"model": "llava-onevision-0.5b", "video_seconds": 9, "video_fps": 1},
            ["--video-fps is 1", "as many frames each", "give --video-frames"],
        ),
        ({"model": "smolvlm2-2.2b", "video_frames": 9, "made_for": "trl"}, ["own trainer alone", "for trl"]),
        (
            {"model": "minicpm-v-4.6", "video_frames": 9, "image_size": "100x100"},
            ["--image-size is 100x100", "no images to minicpm-v-4.6", "--video-size says how large they are"],
        ),
        ({"model": "minicpm-v-4.6", "video_seconds": 9, "video_fps": 1}, ["processor of MiniCPM-V", "leave it off"]),
        ({"model": "tinyllama-1.1b", "video_seconds": 9}, ["--video-seconds is 9", "tinyllama-1.1b", "qwen3_vl"]),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_options(options, named):
    with pytest.raises(InputError) as caught:
        parse(options)
    assert all(word in str(caught.value) for word in named), str(caught.value)


def test_a_model_that_sees_videos_and_has_no_family_is_refused_with_the_reason():
    sentence = no_videos("minimax_m3_vl")
    assert sentence.startswith(
        "videos are not read for models of type minimax_m3_vl (it sees videos, but there is no memory model of what "
        "it makes of frames); they are for those of qwen2_vl"
    )
    assert "sees videos" not in no_videos("llava")


def test_seconds_of_minicpm_v_are_as_many_frames_up_to_128():
    """A frame of 320x240 is a whole of 512 x 392 pixels: 9 x 7 tokens of 56 pixels, and one on either side."""
    frame, number = 9 * 7 + 2, 3
    for seconds, num_frames in ((9.5, 10), (300, 128)):
        options = {"model": "minicpm-v-4.6", "video_seconds": seconds, "video_size": "320x240"}
        request = parse(options)
        assert (request.workload.images_per_sample, request.workload.clip_frames) == (1, num_frames)
        with pytest.raises(InputError, match=f"take {num_frames * frame + number} tokens of minicpm-v-4.6"):
            parse({**options, "seq_len": 64})


def test_samples_that_are_said_to_have_no_images_may_have_videos():
    assert parse({**VIDEO, "images_per_sample": 0}).workload.images_per_sample == 8


@pytest.mark.parametrize(
    ("tool", "words"),
    [("llamafactory", ["video_maxlen: 16", f"video_max_pixels: {640 * 360}"]), ("ms-swift", ["ms-swift", "videos"])],
)
def test_another_trainer_has_limits_of_its_own(tool, words):
    note = parse({**VIDEO, "made_for": tool}).video_notes[1]
    assert all(word in note for word in words)


def test_without_videos_nothing_is_said():
    assert parse(QWEN) == Request().with_options(QWEN)

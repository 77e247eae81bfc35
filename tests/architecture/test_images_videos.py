"""What a video is in memory: its images by the processors' own resizing, and their bytes by the models' own steps."""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from model_table import packaged_config
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.video_sampling import frame_rule, sampled_frames
from vlmplan.architecture.images.videos import VIDEO_MODEL_TYPES, VideoImages, video_images
from vlmplan.chats.samplers import NOT_READ, SAMPLERS
from vlmplan.chats.video_files import VideoHeader
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.models import find_model

TORCHVISION = (
    *("torchvision", "torchvision.transforms"),
    *("torchvision.transforms.v2", "torchvision.transforms.v2.functional"),
)
PROCESSORS = {
    "qwen2-vl-2b": "qwen2_vl/Qwen2VLVideoProcessor",
    "qwen2.5-vl-7b": "qwen2_vl/Qwen2VLVideoProcessor",
    "qwen3-vl-4b": "qwen3_vl/Qwen3VLVideoProcessor",
    "qwen3.5-9b": "qwen3_vl/Qwen3VLVideoProcessor",
    "glm-4.1v-9b": "glm4v/Glm4vVideoProcessor",
    "glm-4.6v": "glm46v/Glm46VVideoProcessor",
}
OF_TILES = {
    "internvl3-1b": "internvl/InternVLVideoProcessor",
    "smolvlm2-2.2b": "smolvlm/SmolVLMVideoProcessor",
    "llava-onevision-7b": "llava_onevision/LlavaOnevisionVideoProcessor",
    "minicpm-v-4.6": "minicpmv4_6/MiniCPMV4_6VideoProcessor",
}
"""Which make a tile of a frame, or what they make of an image."""
OMNI = {
    "qwen2.5-omni-7b": "qwen2_5_omni/Qwen2_5OmniProcessor",
    "qwen3-omni-30b-a3b": "qwen3_omni_moe/Qwen3OmniMoeProcessor",
}
SETTINGS = {"smolvlm2-2.2b": {"num_frames": 64, "fps": 1}, "llava-onevision-7b": {"num_frames": 32, "fps": None}}
"""What the first's class makes of ``video_sampling``, and a number that the other's files leave to the user."""
SIZES = ((640, 360), (1920, 1080), (224, 224), (90, 3000), (31, 17), (3840, 2160), (427, 240))


def images_of(alias: str, num_frames: int, size: tuple[int, int], **settings: object) -> VideoImages:
    model = find_model(alias)
    settings = {**(model.video_settings or {}), **settings}
    return video_images(model.config, settings, num_frames=num_frames, width=size[0], height=size[1])


# -- the rules -------------------------------------------------------------------------------------------------------


def test_two_frames_of_qwen2_vl_are_an_image_of_a_frames_own_size():
    # 640 / 28 = 22.9 and 360 / 28 = 12.9 patches, rounded; of seventeen frames the last stands there twice
    assert images_of("qwen2-vl-2b", 16, (640, 360)) == VideoImages(
        num_images=16 // 2, width=23 * 28, height=13 * 28, frames_per_image=2
    )
    assert images_of("qwen2-vl-2b", 17, (640, 360)).num_images == (17 + 1) // 2


def test_frames_of_qwen3_vl_share_the_pixels_of_a_video():
    """24 x 1024 x 1024 pixels for 768 frames are 32 x 1024 a frame, less than its own."""
    found = images_of("qwen3-vl-4b", 768, (640, 360))
    share = (24 * 1024 * 1024 // 768 / (640 * 360)) ** 0.5
    assert (found.width, found.height) == (int(640 * share / 32) * 32, int(360 * share / 32) * 32)
    assert images_of("qwen3-vl-4b", 64, (640, 360)).width == 640


def test_a_frame_of_internvl_is_a_tile_whatever_its_size():
    for size in SIZES:
        found = images_of("internvl3-8b", 5, size)
        assert (found.num_images, found.width, found.height) == (5, 448, 448)
    config = packaged_config("internvl3-8b")
    tile = image_shape(config, find_model("internvl3-8b").preprocessor, width=448, height=448)
    assert tile.num_vision_sequences == 1


def test_more_frames_than_a_processor_samples_and_fewer_than_it_takes_are_refused():
    limits = {"qwen2-vl-2b": (1, 768), "qwen3-vl-4b": (2, 768), "glm-4.1v-9b": (2, 600), "glm-4.6v": (2, 640)}
    for alias, (least, most) in limits.items():
        for num_frames in (least, most):
            images_of(alias, num_frames, (640, 360))
        for num_frames in (least - 1, most + 1):
            with pytest.raises(InputError, match=f"--video-frames is {num_frames}; {least} to {most} are needed"):
                images_of(alias, num_frames, (640, 360))
    assert images_of("qwen3-vl-4b", 40, (640, 360), max_frames=40).num_images == 20
    with pytest.raises(InputError, match="2 to 40"):
        images_of("qwen3-vl-4b", 41, (640, 360), max_frames=40)


def test_what_no_rule_is_known_of_is_refused():
    with pytest.raises(UnknownNameError, match="llava"):
        video_images({"model_type": "llava"}, None, num_frames=2, width=9, height=9)
    with pytest.raises(InputError, match="do_resize is False"):
        images_of("qwen2-vl-2b", 2, (64, 64), do_resize=False)
    with pytest.raises(InputError, match="aspect ratio"):
        images_of("qwen2-vl-2b", 2, (28 * 201, 28))
    assert {packaged_config(alias)["model_type"] for alias in PROCESSORS} < set(VIDEO_MODEL_TYPES)


def test_every_model_that_transformers_shows_videos_has_a_rule_or_a_reason():
    auto = pytest.importorskip("transformers.models.auto.video_processing_auto")
    omni = {"qwen2_5_omni", "qwen3_omni_moe"}
    shown = {f"{name}_thinker" if name in omni else name for name in auto.VIDEO_PROCESSOR_MAPPING_NAMES}
    shown -= {"instructblip"}  # whose files the processor of InstructBLIP-Video reads too
    classes = pytest.importorskip("transformers.models.auto.modeling_auto")
    trained = {f"{name}_thinker" for name in omni} | {*classes.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    assert shown & trained == ({*SAMPLERS} | {*NOT_READ}) - {"glm4v_moe"}  # which reads those of glm4v
    assert not {*SAMPLERS} & {*NOT_READ}


# -- transformers' own processors ------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A processor of transformers with settings, without torchvision, which need not be there."""
    pytest.importorskip("transformers.video_processing_utils")
    if importlib.util.find_spec("torchvision") is None:
        modules = {name: ModuleType(name) for name in TORCHVISION}
        modules["torchvision.transforms.v2"].__dict__["functional"] = modules["torchvision.transforms.v2.functional"]
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def make(name: str, settings: dict[str, Any]) -> Any:
        folder, kind = name.split("/")
        module = importlib.import_module(f"transformers.models.{folder}.video_processing_{folder}")
        processor = object.__new__(getattr(module, kind))
        processor.__dict__ |= settings
        return processor

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:  # what was imported beside a stand-in
        if "video_processing_" in name:
            del sys.modules[name]


@pytest.fixture
def resized_by(made: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(width, height) that a processor's ``resize`` asks torchvision for."""
    base = pytest.importorskip("transformers.video_processing_utils").BaseVideoProcessor
    monkeypatch.setattr(base, "resize", lambda self, image, size, resample: (size.width, size.height), raising=False)

    def resized(name: str, num_frames: int, size: tuple[int, int], settings: dict[str, Any]) -> tuple[int, int]:
        processor = made(name, settings)
        cls = type(processor)
        edges = settings.get("size", cls.size)
        edges = {
            "shortest_edge": settings.get("min_pixels", edges["shortest_edge"]),
            "longest_edge": settings.get("max_pixels", edges["longest_edge"]),
        }
        factor = settings.get("patch_size", cls.patch_size) * settings.get("merge_size", cls.merge_size)
        return processor.resize(
            SimpleNamespace(shape=(1, num_frames, 3, size[1], size[0])),
            SimpleNamespace(**edges),
            None,
            factor=factor,
            temporal_factor=settings.get("temporal_patch_size", cls.temporal_patch_size),
            cap_pixels_per_frame=settings.get("cap_pixels_per_frame"),
        )

    return resized


CHANGES = (
    {},
    {"cap_pixels_per_frame": True},
    {"cap_pixels_per_frame": True, "max_video_tokens": 300},
    {"size": {"shortest_edge": 300_000, "longest_edge": 1_000_000}},
)


@pytest.mark.parametrize("alias", PROCESSORS)
def test_frames_are_as_large_as_transformers_makes_them(alias: str, resized_by: Any):
    own, num_compared = dict(find_model(alias).video_settings or {}), 0
    for change, size, num_frames in itertools.product(CHANGES, SIZES, (2, 3, 5, 16, 63, 600)):
        settings = {**own, **change}
        if "size" in change:
            settings = {key: value for key, value in settings.items() if not key.endswith("_pixels")}
        try:
            expected = resized_by(PROCESSORS[alias], num_frames, size, settings)
        except ValueError:  # a processor's own limits of a rounded aspect ratio
            continue
        config = find_model(alias).config
        found = video_images(config, settings, num_frames=num_frames, width=size[0], height=size[1])
        assert (found.width, found.height) == expected, (change, size, num_frames)
        num_compared += 1
    assert num_compared >= 100


@pytest.mark.parametrize(("alias", "kind"), OMNI.items())
def test_frames_of_the_omni_models_have_the_limits_that_their_processors_give(alias: str, kind: str, resized_by: Any):
    """Whatever the files say of pixels, those of images among them."""
    folder, name = kind.split("/")
    module = pytest.importorskip(f"transformers.models.{folder}.processing_{folder}")
    model, num_compared = find_model(alias), 0
    own = {key: value for key, value in (model.video_settings or {}).items() if not key.endswith("_pixels")}
    given = {**own, "size": getattr(module, name).videos_kwargs["size"]}
    changes = ({}, {"cap_pixels_per_frame": True}, {"cap_pixels_per_frame": True, "max_video_tokens": 300})
    for change, size, num_frames in itertools.product(changes, SIZES, (1, 2, 3, 5, 16, 63, 768)):
        expected = resized_by("qwen2_vl/Qwen2VLVideoProcessor", num_frames, size, {**given, **change})
        found = images_of(alias, num_frames, size, **change)
        assert (found.width, found.height) == expected, (change, size, num_frames)
        assert found.num_images == (num_frames + 1) // 2
        num_compared += 1
    assert num_compared >= 100


SOURCE_FPS = 24
BY_LENGTH = ("glm-4.6v", "minicpm-v-4.6")
"""Whose processors have no use for frames a second."""
LENGTHS_SECONDS = (1, 2.5, 3, 7.5, 10, 29, 30, 31, 99.5, 299, 300, 301, 400, 2400, 3000)


@pytest.mark.parametrize("alias", [*PROCESSORS, *OF_TILES])
def test_frames_are_as_many_as_transformers_takes(alias: str, made: Any):
    name = {**PROCESSORS, **OF_TILES}[alias]
    found = find_model(alias)
    settings = {**(found.video_settings or {}), **SETTINGS.get(alias, {})}
    goes_by_length = alias in BY_LENGTH or alias == "llava-onevision-7b"
    for seconds, fps in itertools.product(LENGTHS_SECONDS, (None,) if goes_by_length else (0.5, 1.0, 2.0, 3.0)):
        metadata = metadata_of(int(seconds * SOURCE_FPS), SOURCE_FPS, seconds)
        if alias == "llava-onevision-7b" and metadata.total_num_frames < SETTINGS[alias]["num_frames"]:
            continue
        if fps is not None and seconds * fps < 1:
            continue  # InternVL's divides by the frames that there are
        processor = made(name, {"num_frames": None, **settings})
        expected = len(processor.sample_frames(metadata, fps=fps))
        assert sampled_frames(found.config, settings, seconds=seconds, fps=fps) == expected, (seconds, fps)


NUMS_OF_FRAMES = (2, 3, 5, 8, 17, 29, 48, 100, 243, 719, 720, 901, 5_000, 18_000)
RATES = (10, 23.976, 24, 25, 29.97, 60)


def metadata_of(num_frames: int, fps: float, seconds: float) -> Any:
    return pytest.importorskip("transformers.video_utils").VideoMetadata(
        total_num_frames=num_frames, fps=fps, duration=seconds
    )


@pytest.mark.parametrize("alias", [*PROCESSORS, *OF_TILES])
def test_frames_are_those_that_transformers_takes(alias: str, made: Any):
    name = {**PROCESSORS, **OF_TILES}[alias]
    found, num_compared = find_model(alias), 0
    settings = {**(found.video_settings or {}), **SETTINGS.get(alias, {})}
    for num_frames, source_fps, fps in itertools.product(NUMS_OF_FRAMES, RATES, (None, 0.7, 2.0)):
        seconds = num_frames / source_fps
        if (alias in BY_LENGTH or alias == "llava-onevision-7b") and fps is not None:
            continue
        header = VideoHeader(width=64, height=64, num_frames=num_frames, seconds=seconds)
        metadata = metadata_of(num_frames, header.fps, seconds)
        own = fps or (2.0 if "qwen2_vl" in name or "internvl" in name else None)
        try:
            expected = [
                int(index) for index in made(name, {"num_frames": None, **settings}).sample_frames(metadata, fps=own)
            ]
        except (ValueError, ZeroDivisionError, RuntimeError):  # more frames than there are, or none
            continue
        rule = frame_rule(found.config, settings, fps=own if "internvl" in name else fps)
        if len(expected) < rule.merged_frames:
            with pytest.raises(InputError, match=f"{num_frames} frames? in"):
                rule.indices(header)
            continue
        taken = rule.indices(header)
        if "Qwen2VL" in name and len(expected) == len(taken) + 1:  # its last index is one behind the video
            assert expected.pop() == num_frames
        assert taken == expected, (num_frames, source_fps, fps)
        num_compared += 1
    assert num_compared >= 48


@pytest.mark.parametrize("max_frames", [640, 8])
def test_frames_of_glm_ga_are_those_that_transformers_takes(max_frames: int, made: Any):
    config, settings, num_compared = {"model_type": "glmga"}, {"max_frames": max_frames}, 0
    for num_frames, source_fps, fps in itertools.product(NUMS_OF_FRAMES, RATES, (None, 0.7, 2.0, 7.0)):
        header = VideoHeader(width=64, height=64, num_frames=num_frames, seconds=num_frames / source_fps)
        metadata = metadata_of(num_frames, header.fps, header.seconds)
        expected = made("glmga/GlmgaVideoProcessor", dict(settings)).sample_frames(metadata, fps=fps).tolist()
        rule = frame_rule(config, settings, fps=fps)
        if not expected:
            with pytest.raises(InputError, match=f"{num_frames} frames? in"):
                rule.indices(header)
            continue
        assert rule.indices(header) == expected, (num_frames, source_fps, fps)
        num_compared += 1
    assert num_compared >= 100


def test_frames_of_glm_ga_are_resized_as_by_its_processor(resized_by: Any):
    for expand, size, num_frames in itertools.product((1, 2), SIZES, (2, 5, 64, 640)):
        settings = {"patch_expand_factor": expand, "size": {"shortest_edge": 12_544, "longest_edge": 20_000_000}}
        found = video_images({"model_type": "glmga"}, settings, num_frames=num_frames, width=size[0], height=size[1])
        whole = {**settings, "patch_size": 14 * expand}  # the fixture multiplies this side by that of merged patches
        expected = resized_by("glmga/GlmgaVideoProcessor", num_frames, size, whole)
        assert (found.width, found.height, found.num_images) == (*expected, (num_frames + 1) // 2)


def test_a_rate_that_nothing_says_has_to_be_given():
    found = find_model("internvl3-1b")
    with pytest.raises(InputError, match="give --video-fps"):
        sampled_frames(found.config, {}, seconds=10, fps=None)
    assert sampled_frames(found.config, {"num_frames": 12}, seconds=10, fps=None) == 12
    assert sampled_frames(found.config, {"num_frames": 12}, seconds=10, fps=2) == 20
    with pytest.raises(UnknownNameError):
        sampled_frames({"model_type": "llama"}, {}, seconds=10, fps=1)


# -- their bytes -----------------------------------------------------------------------------------------------------

STEPS = {
    "qwen2-vl-2b": ({}, False),
    "qwen2.5-vl-3b": ({"fullatt_block_indexes": [1]}, True),
    "qwen3-vl-2b": ({"deepstack_visual_indexes": [1, 3]}, False),
    "qwen3.5-0.8b": ({}, True),
    "glm-4.1v-9b": ({}, False),
}
"""Two frames are an image."""
NUM_SAMPLES, NUM_PAIRS, GRID_ROW_BYTES = 2, 4, 3 * 8


@pytest.mark.sweep
@pytest.mark.parametrize("alias", STEPS)
def test_a_step_with_a_video_takes_what_images_of_its_frames_take(alias: str):
    """All but the grid of sizes: it has a row for a video, where each image has one."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from patch_batches import IMAGE_TOKEN, TOKENS, cut, step

    from family_checks import real_model, switch_checkpointing
    from torch_probe import measured_step

    vision, checkpoints = STEPS[alias]
    config = cut(alias, num_layers=2, vision=vision)
    made = step(config, alias, (480, 330), micro_batch=NUM_SAMPLES, images_per_sample=NUM_PAIRS)

    def build() -> Any:
        return switch_checkpointing(real_model(config), on=checkpoints)

    inputs, ids = dict(made.inputs), made.inputs["input_ids"]
    grid = inputs.pop("image_grid_thw")
    if not alias.startswith("glm"):  # which writes frames with the token of images
        ids = torch.where(ids == IMAGE_TOKEN, TOKENS["video_token_id"], ids)
    inputs |= {
        "input_ids": ids,
        "mm_token_type_ids": 2 * inputs["mm_token_type_ids"],
        "video_grid_thw": torch.tensor([[NUM_PAIRS, *grid[0, 1:].tolist()]] * NUM_SAMPLES),
    }
    images = measured_step(build, dict(made.inputs), floats=dict(made.floats))
    video = measured_step(build, inputs, floats={"pixel_values_videos": made.floats["pixel_values"]})
    fewer_rows = NUM_SAMPLES * (NUM_PAIRS - 1) * GRID_ROW_BYTES
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(images, name) - getattr(video, name) == fewer_rows

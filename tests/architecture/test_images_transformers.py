"""Image shapes against the processors of transformers themselves.

Every processor is built from the packaged files and a tokenizer of bytes that knows the special tokens and,
as the published ones do, the double newline. It gets a black picture and the model's image token, and what it
returns is counted. The planner does not need ``transformers``: without it these tests are skipped.
"""

import importlib
import importlib.util
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vlmplan
from vlmplan.architecture.images import ImageShape, image_shape
from vlmplan.architecture.images.anyres import best_resolution
from vlmplan.architecture.images.dynamic_tiles import closest_grid, covering_grid, grids
from vlmplan.architecture.images.mllama import canvas_grid
from vlmplan.architecture.images.shape import Image
from vlmplan.errors import InputError

pytest.importorskip("torch")
pytest.importorskip("transformers")
pictures = pytest.importorskip("PIL.Image")
tokenizers = pytest.importorskip("tokenizers")
np = pytest.importorskip("numpy")

MODELS = Path(vlmplan.__file__).parent / "data" / "models"
SIZES = ((448, 448), (1024, 1024), (1040, 1536), (640, 333), (97, 1201), (1500, 211), (57, 31), (1920, 1080))
TEXT_TOKENS = """
    <image> <fake_token_around_image> <global-img> <end_of_utterance> <video> <img> </img> <IMG_CONTEXT>
    <|image_pad|> <|video_pad|> <|image|> <|video|> <|python_tag|> <start_of_image> <end_of_image>
    <image_soft_token> [IMG] [IMG_BREAK] [IMG_END]
    <IMG_START> <IMG_ATOM> <IMG_GRID> <IMG_COL> <IMG_ROW> <IMG_END>
"""
TILE_TOKENS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
# A CLIP or SigLIP processor that is not packaged with its model, at the size of the model's tower.
SQUARE_224 = {"size": {"height": 224, "width": 224}}
CLIP_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
NO_CLASS_TOKEN = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How the processor of one model is built. ``folder/Class`` pairs name things of transformers.models."""

    alias: str
    processor: str
    image_processor: str
    placeholder: str = "<image>"  # the token that is repeated
    prompt: str = ""  # what a user writes; the placeholder where empty
    arguments: dict[str, Any] = field(default_factory=dict)  # of the processor
    settings: dict[str, Any] = field(default_factory=dict)  # of the image processor, not in the packaged file
    named_tokens: dict[str, str] = field(default_factory=dict)  # attributes of the tokenizer
    num_video_processors: int = 0
    num_other_tokens: int = 0  # what the processor adds once per text, not per image

    def image_config(self) -> dict[str, Any]:
        path = MODELS / self.alias / "preprocessor_config.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def shape(self, width: int, height: int) -> ImageShape:
        config = json.loads((MODELS / self.alias / "config.json").read_text(encoding="utf-8"))
        return image_shape(config, self.image_config() or None, width=width, height=height)


def qwen(alias: str, processor: str) -> Case:
    return Case(
        alias=alias,
        processor=processor,
        image_processor="qwen2_vl/Qwen2VLImageProcessorPil",
        placeholder="<|image_pad|>",
        num_video_processors=1,
    )


def internvl(alias: str, **settings: Any) -> Case:
    return Case(
        alias=alias,
        processor="internvl/InternVLProcessor",
        image_processor="got_ocr2/GotOcr2ImageProcessorPil",
        placeholder="<IMG_CONTEXT>",
        settings=settings,
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        num_video_processors=1,
    )


def pixtral(alias: str, patch_size: int, merge_size: int) -> Case:
    return Case(
        alias=alias,
        processor="pixtral/PixtralProcessor",
        image_processor="pixtral/PixtralImageProcessorPil",
        placeholder="[IMG]",
        arguments={"patch_size": patch_size, "spatial_merge_size": merge_size},
    )


def idefics3(alias: str, num_features: int, **settings: Any) -> Case:
    return Case(
        alias=alias,
        processor="idefics3/Idefics3Processor",
        image_processor="idefics3/Idefics3ImageProcessorPil",
        arguments={"image_seq_len": num_features},
        settings=settings,
    )


MINICPMV_MARKS = {
    f"{name}_token": f"<{name}>" for name in ("image_start", "image_end", "slice_start", "slice_end", "image_id_start")
}
MINICPMV = Case(
    alias="minicpm-v-4.6",
    processor="minicpmv4_6/MiniCPMV4_6Processor",
    image_processor="minicpmv4_6/MiniCPMV4_6ImageProcessorPil",
    placeholder="<image>",
    named_tokens={
        **MINICPMV_MARKS,
        "image_id_end_token": "<image_id_end>",
        "image_token": "<image>",
        "video_token": "<video>",
    },
)
MINICPMV_VIDEOS = SimpleNamespace(slice_mode=True, downsample_mode="16x")
"""What its processor asks the one of videos for."""
CASES = [
    qwen("qwen2-vl-2b", "qwen2_vl/Qwen2VLProcessor"),
    qwen("qwen2.5-vl-7b", "qwen2_5_vl/Qwen2_5_VLProcessor"),
    qwen("qwen3-vl-4b", "qwen3_vl/Qwen3VLProcessor"),
    Case(
        alias="glm-4.1v-9b",
        processor="glm4v/Glm4vProcessor",
        image_processor="glm4v/Glm4vImageProcessorPil",
        placeholder="<|image|>",
        num_video_processors=1,
    ),
    internvl("internvl3-1b"),
    internvl("internvl2.5-1b", size={"height": 448, "width": 448}),
    Case(
        alias="ovis2-1b",
        processor="ovis2/Ovis2Processor",
        image_processor="ovis2/Ovis2ImageProcessorPil",
        placeholder="<IMG_ATOM>",
        prompt="<image>",
    ),
    Case(
        alias="gemma-3-4b",
        processor="gemma3/Gemma3Processor",
        image_processor="gemma3/Gemma3ImageProcessorPil",
        placeholder="<image_soft_token>",
        prompt="<start_of_image>",
        settings={"do_pan_and_scan": True},  # has no effect, see gemma3_shape
        named_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    Case(
        alias="idefics2-8b",
        processor="idefics2/Idefics2Processor",
        image_processor="idefics2/Idefics2ImageProcessorPil",
    ),
    idefics3("idefics3-8b", 169),
    idefics3("smolvlm-2.2b", 81),
    idefics3("smolvlm-256m", 64),
    Case(
        alias="smolvlm2-500m",
        processor="smolvlm/SmolVLMProcessor",
        image_processor="smolvlm/SmolVLMImageProcessorPil",
        arguments={"image_seq_len": 64},
        num_video_processors=1,
    ),
    Case(
        alias="llama-3.2-11b-vision",
        processor="mllama/MllamaProcessor",
        image_processor="mllama/MllamaImageProcessorPil",
        placeholder="<|image|>",
        num_other_tokens=1,  # <s>
    ),
    Case(
        alias="llava-1.5-7b",
        processor="llava/LlavaProcessor",
        image_processor="clip/CLIPImageProcessorPil",
        arguments=NO_CLASS_TOKEN,
    ),
    Case(
        alias="llava-v1.6-mistral-7b",
        processor="llava_next/LlavaNextProcessor",
        image_processor="llava_next/LlavaNextImageProcessorPil",
        arguments=NO_CLASS_TOKEN,
        settings=CLIP_336,
    ),
    Case(
        alias="llava-onevision-7b",
        processor="llava_onevision/LlavaOnevisionProcessor",
        image_processor="llava_onevision/LlavaOnevisionImageProcessorPil",
        arguments={"num_image_tokens": 27 * 27, "vision_feature_select_strategy": "full"},
        num_video_processors=1,
    ),
    pixtral("mistral-small-3.1-24b", 14, 2),
    pixtral("pixtral-12b", 16, 1),
    Case(
        alias="paligemma-3b",
        processor="paligemma/PaliGemmaProcessor",
        image_processor="siglip/SiglipImageProcessorPil",
        settings={**SQUARE_224, "image_seq_length": 256},
        num_other_tokens=2,  # <s> and "\n"
    ),
    Case(
        alias="blip2-opt-2.7b",
        processor="blip_2/Blip2Processor",
        image_processor="blip/BlipImageProcessorPil",
        prompt=" ",
        arguments={"num_query_tokens": 32},
        settings=SQUARE_224,
        num_other_tokens=1,  # the space of the prompt
    ),
    Case(
        alias="instructblip-vicuna-7b",
        processor="instructblip/InstructBlipProcessor",
        image_processor="blip/BlipImageProcessorPil",
        prompt=" ",
        arguments={"num_query_tokens": 32},
        num_other_tokens=1,
    ),
]
BY_ALIAS = {case.alias: case for case in CASES}


def named(module: str, path: str) -> Any:
    """``module`` is the prefix of the file's name: the class ``Class`` of ``folder/Class``."""
    folder, name = path.split("/")
    return getattr(importlib.import_module(f"transformers.models.{folder}.{module}_{folder}"), name)


def byte_tokenizer(named_tokens: dict[str, str]) -> Any:
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    newline = "\u010a"  # the byte alphabet's letter for "\n"
    vocabulary[newline * 2] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[(newline, newline)]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrapped = fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", extra_special_tokens=named_tokens)
    wrapped.add_special_tokens({"additional_special_tokens": [*TEXT_TOKENS.split(), *TILE_TOKENS]})
    return wrapped


def image_processor_of(case: Case) -> Any:
    settings = {**case.image_config(), **case.settings}
    settings = {k: v for k, v in settings.items() if k not in ("image_processor_type", "processor_class")}
    # The values of the pixels do not matter here: the nearest ones, untouched, are the quickest.
    settings.update(do_rescale=False, do_normalize=False, resample=0)
    return named("image_processing_pil", case.image_processor)(**settings)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], Any]:
    """Builds the processor of a case, without the packages that only videos need."""
    mixin = importlib.import_module("transformers.processing_utils").ProcessorMixin
    monkeypatch.setattr(mixin, "check_argument_for_proper_class", lambda self, name, argument: None)

    def built(case: Case) -> Any:
        if case.processor.startswith("pixtral"):
            _stand_in_for_torchvision(monkeypatch)
        if case.processor.startswith("smolvlm"):
            module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
            monkeypatch.setattr(module, "num2words", str, raising=False)
        parts = [image_processor_of(case), byte_tokenizer(case.named_tokens)]
        if case.processor.startswith("instructblip"):
            parts.append(byte_tokenizer({}))
        parts += [None] * case.num_video_processors
        return named("processing", case.processor)(*parts, **case.arguments)

    return built


def _stand_in_for_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """processing_pixtral.py wants one function of a file that needs torchvision; the PIL file has it too."""
    if importlib.util.find_spec("torchvision") is None:
        pil = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
        stand_in = ModuleType("image_processing_pixtral")
        stand_in.__dict__["get_resize_output_image_size"] = pil.get_resize_output_image_size
        monkeypatch.setitem(sys.modules, "transformers.models.pixtral.image_processing_pixtral", stand_in)


def black(width: int, height: int) -> Any:
    return pictures.new("RGB", (width, height))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alias)
def test_processor_inserts_the_tokens_and_cuts_the_tiles(case: Case, build: Callable[[Case], Any]):
    processor = build(case)
    for width, height in SIZES:
        shape = case.shape(width, height)
        output = processor(images=black(width, height), text=case.prompt or case.placeholder, return_tensors="pt")
        ids = output["input_ids"].flatten().tolist()
        assert len(ids) == shape.num_tokens + case.num_other_tokens, (width, height)
        num_placeholders = ids.count(processor.tokenizer.convert_tokens_to_ids(case.placeholder))
        # mllama's marker is no placeholder: nothing is scattered into it.
        assert num_placeholders == shape.num_placeholder_tokens + bool(shape.num_cross_attention_states)
        assert encoded_shape(case, output) == (
            shape.num_vision_sequences,
            shape.num_patch_rows,
            shape.num_patch_columns,
        )
        if "image_grid_thw" not in output:
            pixels = output["pixel_values"].shape[-2:]
            assert tuple(pixels) == (
                shape.resized_height // shape.num_tile_rows,
                shape.resized_width // shape.num_tile_columns,
            )


def encoded_shape(case: Case, output: Any) -> tuple[int, int, int]:
    """(sequences, patch rows, patch columns) of the vision encoder's input."""
    if "image_grid_thw" in output:
        (grid,) = output["image_grid_thw"].tolist()
        assert output["pixel_values"].shape[0] == grid[0] * grid[1] * grid[2]
        return grid[0], grid[1], grid[2]
    config = json.loads((MODELS / case.alias / "config.json").read_text(encoding="utf-8"))
    patch_size = config["vision_config"].get("patch_size", 14)
    if isinstance(patch_size, list):
        patch_size = patch_size[0]
    *batch, _, height, width = output["pixel_values"].shape
    return int(np.prod(batch)), height // patch_size, width // patch_size


def random_sizes(count: int, least: int = 1, most: int = 4000) -> list[tuple[int, int]]:
    """Sizes over all magnitudes, evenly by logarithm, and some squares and simple ratios."""
    rng = random.Random(20240801)
    sides = [int(least * (most / least) ** rng.random()) for _ in range(2 * count)]
    sizes = list(zip(sides[:count], sides[count:], strict=True))
    return sizes + [(a * s, b * s) for s in (least, 112, 336, 448, 560) for a in (1, 2, 3) for b in (1, 2, 3, 4)]


@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-7b", "qwen3-vl-4b", "glm-4.1v-9b"])
def test_smart_resize_over_random_sizes(alias: str):
    processor = image_processor_of(BY_ALIAS[alias])
    for width, height in random_sizes(400, most=20_000):
        if is_too_thin(processor, width, height):
            with pytest.raises(InputError, match="aspect ratio"):
                BY_ALIAS[alias].shape(width, height)
        else:
            expected = processor.get_number_of_image_patches(height, width)
            assert BY_ALIAS[alias].shape(width, height).num_patches == expected, (width, height)


def is_too_thin(processor: Any, width: int, height: int) -> bool:
    try:
        processor.get_number_of_image_patches(height, width)
    except ValueError as error:
        return "aspect ratio" in str(error)
    return False


@pytest.mark.parametrize(
    ("alias", "width", "height"),
    [("pixtral-12b", 2049, 1), ("mistral-small-3.1-24b", 1, 3081), ("idefics2-8b", 100, 1)],
)
def test_images_of_which_nothing_is_left_fail_there_too(alias: str, width: int, height: int):
    with pytest.raises((ValueError, ZeroDivisionError)):
        image_processor_of(BY_ALIAS[alias])(black(width, height))
    with pytest.raises(InputError):
        BY_ALIAS[alias].shape(width, height)


@pytest.mark.parametrize(
    "alias", ["llava-v1.6-mistral-7b", "llava-onevision-7b", "mistral-small-3.1-24b", "pixtral-12b"]
)
def test_placeholders_over_random_sizes(alias: str, build: Callable[[Case], Any]):
    processor = build(BY_ALIAS[alias])
    for width, height in random_sizes(400, least=21):
        (expected,) = processor._get_num_multimodal_tokens(image_sizes=[(height, width)]).num_image_tokens
        assert BY_ALIAS[alias].shape(width, height).num_tokens == expected, (width, height)


def test_internvl_grids_over_random_sizes():
    module = importlib.import_module("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    for limits in ((1, 12), (1, 6), (4, 9)):
        assert grids(*limits) == module.get_all_supported_aspect_ratios(*limits)
        for width, height in random_sizes(300):
            image = Image(config={}, width=width, height=height)
            expected = module.get_optimal_tiled_canvas((height, width), (448, 448), *limits)
            assert closest_grid(image, tile=448, min_tiles=limits[0], max_tiles=limits[1]) == expected


def test_ovis2_grids_over_random_sizes():
    module = importlib.import_module("transformers.models.ovis2.image_processing_pil_ovis2")
    for max_tiles in (12, 9, 2):
        for width, height in random_sizes(150):
            image = Image(config={}, width=width, height=height)
            expected = module.get_min_tile_covering_grid((height, width), 448, max_tiles)
            assert covering_grid(image, tile=448, max_tiles=max_tiles) == expected, (width, height)


def test_ovis2_reports_the_transposed_grid():
    output = image_processor_of(BY_ALIAS["ovis2-1b"])(black(640, 333))
    shape = BY_ALIAS["ovis2-1b"].shape(640, 333)
    assert list(output["grids"][0]) == [shape.num_tile_rows, shape.num_tile_columns] == [2, 1]


def test_mllama_canvas_over_random_sizes():
    module = importlib.import_module("transformers.models.mllama.image_processing_pil_mllama")
    for max_tiles in (4, 6):
        for width, height in random_sizes(300):
            height_width = module.get_optimal_tiled_canvas(height, width, max_tiles, 560)
            image = Image(config={}, width=width, height=height)
            assert canvas_grid(image, tile=560, max_tiles=max_tiles) == tuple(int(e) // 560 for e in height_width)


def test_best_resolution_over_random_sizes():
    module = importlib.import_module("transformers.image_processing_utils")
    for alias in ("llava-v1.6-mistral-7b", "llava-onevision-7b"):
        pinpoints = [tuple(pair) for pair in image_processor_of(BY_ALIAS[alias]).image_grid_pinpoints]
        for width, height in random_sizes(300):
            image = Image(config={}, width=width, height=height)
            assert best_resolution(image, pinpoints) == module.select_best_resolution((height, width), pinpoints)


@pytest.mark.parametrize("alias", ["idefics3-8b", "smolvlm-2.2b", "smolvlm2-500m"])
def test_idefics3_grid_over_random_sizes(alias: str):
    # With whole tiles on the longest edge the shortcut and the pixels agree; see _idefics3_grid.
    processor = image_processor_of(BY_ALIAS[alias])
    for width, height in random_sizes(300):
        _, rows, columns = processor.get_number_of_image_patches(height, width)
        shape = BY_ALIAS[alias].shape(width, height)
        assert (shape.num_tile_rows, shape.num_tile_columns) == (rows, columns), (width, height)


def test_idefics3_follows_the_pixels_where_the_shortcut_does_not():
    # 1000 is no multiple of 364: the pixels are scaled to 3 * 364 before the height is rounded up.
    case = idefics3("idefics3-8b", 169, size={"longest_edge": 1000})
    processor = image_processor_of(case)
    config = json.loads((MODELS / case.alias / "config.json").read_text(encoding="utf-8"))
    differences = 0
    for width, height in ((1000, 700), (1000, 350), (640, 480), (350, 1000), (1000, 720)):
        shape = image_shape(config, case.settings, width=width, height=height)
        output = processor(black(width, height), return_row_col_info=True)
        assert (shape.num_tile_rows, shape.num_tile_columns) == (output["rows"][0][0], output["cols"][0][0])
        assert len(output["pixel_values"][0]) == shape.num_vision_sequences
        differences += processor.get_number_of_image_patches(height, width)[0] != shape.num_vision_sequences
    assert differences


@pytest.mark.parametrize(("width", "height"), [(1024, 1024), (640, 333), (97, 1201), (2, 3)])
def test_idefics2_unsplit(width: int, height: int):
    case = BY_ALIAS["idefics2-8b"]
    processor = image_processor_of(case)
    output = processor(black(width, height), do_image_splitting=False)
    config = json.loads((MODELS / case.alias / "config.json").read_text(encoding="utf-8"))
    shape = image_shape(config, None, width=width, height=height)
    assert output["pixel_values"][0].shape == (1, 3, shape.resized_height, shape.resized_width)


def test_onevision_does_not_tile_the_images_of_a_sample_with_several(build: Callable[[Case], Any]):
    case = BY_ALIAS["llava-onevision-7b"]
    config = json.loads((MODELS / case.alias / "config.json").read_text(encoding="utf-8"))
    shape = image_shape(config, case.image_config(), width=1024, height=700, num_images_per_sample=2)
    images = [[black(1024, 700), black(1024, 700)]]
    output = build(case)(images=images, text="<image><image>", return_tensors="pt")
    assert output["input_ids"].shape[-1] == 2 * shape.num_tokens
    assert output["pixel_values"].shape[:2] == (2, shape.num_vision_sequences)


def test_minicpmv_writes_tokens_around_the_whole_image_and_its_slices(monkeypatch: pytest.MonkeyPatch):
    mixin = importlib.import_module("transformers.processing_utils").ProcessorMixin
    monkeypatch.setattr(mixin, "check_argument_for_proper_class", lambda self, name, argument: None)
    parts = (image_processor_of(MINICPMV), MINICPMV_VIDEOS, byte_tokenizer(MINICPMV.named_tokens))
    processor = named("processing", MINICPMV.processor)(*parts)
    token = processor.tokenizer.convert_tokens_to_ids(MINICPMV.placeholder)
    for width, height in SIZES:
        shape = MINICPMV.shape(width, height)
        output = processor(images=black(width, height), text=[MINICPMV.placeholder], padding=False, return_tensors="pt")
        ids = output["input_ids"].flatten().tolist()
        assert (len(ids), ids.count(token)) == (shape.num_tokens, shape.num_placeholder_tokens), (width, height)
        sizes = [[shape.num_patch_rows, shape.num_patch_columns]] * shape.num_vision_sequences
        if shape.num_overview_rows:
            sizes[0] = [shape.num_overview_rows, shape.num_overview_columns]
        assert output["target_sizes"].tolist() == sizes
        assert tuple(output["pixel_values"].shape) == (1, 3, 14, 14 * shape.num_patches)


def test_minicpmv_slices_over_random_sizes():
    processor = image_processor_of(MINICPMV)
    ways = {"scale_resolution": 448, "patch_size": 14, "downsample_mode": "16x"}
    for width, height in random_sizes(400):
        shape, size = MINICPMV.shape(width, height), (height, width)
        grid = processor.get_sliced_grid(size, 9, 448)
        whole = processor.find_best_resize(size, **ways, allow_upscale=grid is None)
        refined = whole if grid is None else processor.get_refine_size(size, grid, **ways, allow_upscale=True)
        assert (shape.resized_height, shape.resized_width) == refined, size
        assert [shape.num_tile_rows, shape.num_tile_columns] == (grid or [1, 1]), size
        if grid is not None:
            assert (14 * shape.num_overview_rows, 14 * shape.num_overview_columns) == whole, size

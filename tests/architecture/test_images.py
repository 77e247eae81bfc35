"""Image shapes against the published table, the laws they obey, and what is refused.

Where numbers come from: tests/data/models_table.csv and the arithmetic of the processors of transformers 5.23
(test_images_transformers.py runs those processors themselves).
"""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import vlmplan
from model_table import packaged_config
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, ImageShape, image_shape
from vlmplan.errors import InputError, UnknownNameError

MODELS = Path(vlmplan.__file__).parent / "data" / "models"
TABLE = Path(__file__).parents[1] / "data" / "models_table.csv"
SIDES = st.integers(min_value=1, max_value=5000)

QWEN2 = ((448 // 28) * (448 // 28), (1036 // 28) * (1036 // 28))  # 1024 rounds up to 37 * 28
QWEN3 = ((448 // 32) * (448 // 32), (1024 // 32) * (1024 // 32))
INTERNVL = ((448 // 14 // 2) ** 2, (3 * 3 + 1) * (448 // 14 // 2) ** 2)
ONEVISION = (27 * 27 + 54 * (54 + 1), 27 * 27 + 81 * (81 + 1))  # 2 x 2 and 3 x 3 tiles of 384 // 14 = 27
SMOLVLM_512 = ((4 * 4 + 1) * (512 // 16 // 4) ** 2,) * 2
SMOLVLM_384 = ((4 * 4 + 1) * (384 // 14 // 3) ** 2,) * 2
GEMMA3 = ((896 // 14 // 4) ** 2,) * 2
TABLE_TOKENS = {
    "aya-vision-8b": (13 * 13, (3 * 3 + 1) * 13 * 13),
    "blip2-opt-2.7b": (32, 32),
    **dict.fromkeys(("gemma-3n-e2b", "gemma-3n-e4b"), (256, 256)),
    **dict.fromkeys(
        ("gemma-4-12b", "gemma-4-26b-a4b", "gemma-4-31b", "gemma-4-e2b", "gemma-4-e4b"), (16 * 16, 16 * 16)
    ),
    "gemma-3-4b": GEMMA3,
    "gemma-3-12b": GEMMA3,
    "gemma-3-27b": GEMMA3,
    **dict.fromkeys(("glm-4.1v-9b", "glm-4.5v", "glm-4.6v", "glm-4.6v-flash", "glm-ocr"), QWEN2),
    "exaone-4.5-33b": QWEN2,
    **dict.fromkeys(("fastvlm-0.5b", "fastvlm-1.5b", "fastvlm-7b"), ((1024 // 64) ** 2,) * 2),
    "idefics2-8b": ((4 + 1) * 64,) * 2,
    "idefics3-8b": ((4 * 4 + 1) * (364 // 14 // 2) ** 2,) * 2,
    "instructblip-vicuna-7b": (32, 32),
    "internvl2.5-1b": INTERNVL,
    "internvl2.5-2b": INTERNVL,
    "internvl2.5-8b": INTERNVL,
    "internvl3-1b": INTERNVL,
    "internvl3-2b": INTERNVL,
    "internvl3-8b": INTERNVL,
    "internvl3-14b": INTERNVL,
    "internvl3-38b": INTERNVL,
    **dict.fromkeys((f"internvl3.5-{size}" for size in ("1b", "2b", "4b", "8b", "14b", "30b-a3b", "38b")), INTERNVL),
    # an image alone, and 2 x 2 tiles with the whole image
    **dict.fromkeys(("lfm2-vl-450m", "lfm2-vl-1.6b", "lfm2-vl-3b"), (14 * 14, (2 * 2 + 1) * 16 * 16)),
    "kimi-k2.5": QWEN2,
    "lighton-ocr-1b": QWEN2,
    "llama-3.2-11b-vision": (1 * (40 * 40 + 1), 2 * 2 * (40 * 40 + 1)),
    # 2 x 2 and 4 x 4 tiles and the whole image
    **dict.fromkeys(("llama-4-scout", "llama-4-maverick"), ((4 + 1) * 144, (16 + 1) * 144)),
    "llava-1.5-7b": ((336 // 14) ** 2,) * 2,
    "llava-1.5-13b": ((336 // 14) ** 2,) * 2,
    "llava-onevision-0.5b": ONEVISION,
    "llava-onevision-7b": ONEVISION,
    "llava-onevision-72b": ONEVISION,
    **dict.fromkeys(
        ("llava-v1.6-mistral-7b", "llava-v1.6-vicuna-7b", "llava-v1.6-vicuna-13b", "llava-v1.6-34b"),
        (24 * 24 + 48 * (48 + 1),) * 2,
    ),
    # an image alone, and 2 x 3 slices with the whole image
    "minicpm-v-4.6": (8 * 8, 8 * 8 + 2 * 3 * 6 * 10),
    **dict.fromkeys(("ministral-3-3b", "ministral-3-8b", "ministral-3-14b", "mistral-small-3.1-24b"), QWEN2),
    **dict.fromkeys(("devstral-small-2-24b", "mistral-small-4-119b", "mistral-medium-3.5-128b"), QWEN2),
    "molmo2-4b": (14 * 14 + 23 * 23,) * 2,  # the whole image, and 2 x 2 crops of 19 x 19 patches more each
    "ovis2-1b": INTERNVL,
    "ovis2-2b": INTERNVL,
    "paligemma-3b": ((224 // 14) ** 2,) * 2,
    **dict.fromkeys(("paligemma2-3b", "paligemma2-10b", "paligemma2-28b"), ((224 // 14) ** 2,) * 2),
    "paddleocr-vl": QWEN2,
    "paddleocr-vl-1.5": (16 * 16, 35 * 35),  # 1003520 pixels at most
    "phi-4-multimodal": (16 * 17 + 1 + 16 * 17, 16 * 17 + 1 + 48 * 49),
    "pixtral-12b": ((448 // 16) ** 2, (1024 // 16) ** 2),
    "qwen-vl-chat": (256, 256),
    "qwen2-vl-2b": QWEN2,
    "qwen2-vl-7b": QWEN2,
    "qwen2-vl-72b": QWEN2,
    "qwen2.5-omni-3b": QWEN2,
    "qwen2.5-omni-7b": QWEN2,
    "qwen2.5-vl-3b": QWEN2,
    "qwen2.5-vl-7b": QWEN2,
    "qwen2.5-vl-32b": QWEN2,
    "qwen2.5-vl-72b": QWEN2,
    "qwen3-omni-30b-a3b": QWEN3,
    "qwen3-vl-2b": QWEN3,
    "qwen3-vl-4b": QWEN3,
    "qwen3-vl-8b": QWEN3,
    "qwen3-vl-30b-a3b": QWEN3,
    "qwen3-vl-32b": QWEN3,
    "qwen3-vl-235b-a22b": QWEN3,
    "qwen3.5-0.8b": QWEN3,
    "qwen3.5-2b": QWEN3,
    "qwen3.5-4b": QWEN3,
    "qwen3.5-9b": QWEN3,
    "qwen3.5-27b": QWEN3,
    "qwen3.5-35b-a3b": QWEN3,
    "qwen3.5-122b-a10b": QWEN3,
    "qwen3.5-397b-a17b": QWEN3,
    "qwen3.8-flash-next": QWEN3,
    "smolvlm-256m": SMOLVLM_512,
    "smolvlm-500m": SMOLVLM_512,
    "smolvlm-2.2b": SMOLVLM_384,
    "smolvlm2-256m": SMOLVLM_512,
    "smolvlm2-500m": SMOLVLM_512,
    "smolvlm2-2.2b": SMOLVLM_384,
}
FIXED = (
    "blip2-opt-2.7b",
    "instructblip-vicuna-7b",
    "gemma-3-4b",
    "paligemma-3b",
    "llava-1.5-7b",
    "qwen-vl-chat",
)
NATIVE_RESOLUTION = (
    "qwen2-vl-2b",
    "qwen2.5-vl-7b",
    "qwen3-vl-4b",
    "glm-4.1v-9b",
    "mistral-small-3.1-24b",
    "pixtral-12b",
)
TILED = (
    "internvl3-1b",
    "ovis2-1b",
    "idefics2-8b",
    "idefics3-8b",
    "smolvlm2-500m",
    "llava-v1.6-mistral-7b",
    "llava-onevision-7b",
    "llama-3.2-11b-vision",
)
ONE_OF_EACH = FIXED + NATIVE_RESOLUTION + TILED


@cache
def read(alias: str, name: str) -> dict[str, Any] | None:
    path = MODELS / alias / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def config_of(alias: str) -> dict[str, Any]:
    return packaged_config(alias)


def shape_of(alias: str, width: int, height: int, **changes: Any) -> ImageShape:
    """The shape under the packaged files; ``changes`` overrule keys of preprocessor_config.json."""
    preprocessor = read(alias, "preprocessor_config.json")
    if changes:
        preprocessor = {**(preprocessor or {}), **changes}
    return image_shape(config_of(alias), preprocessor, width=width, height=height)


def table_tokens(shape: ImageShape) -> int:
    """What the image_tokens columns of the table mean: features, without the text tokens around them.

    For mllama they are the cross-attention states that are not masked, for all others the placeholders.
    """
    if shape.num_cross_attention_states:
        return shape.num_tile_columns * shape.num_tile_rows * (shape.num_patches_per_sequence + 1)
    return shape.num_placeholder_tokens


def test_table_is_covered_row_by_row():
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = {row["short_name"]: row for row in csv.DictReader(file) if row["image_tokens_448"]}
    known = {alias: row for alias, row in rows.items() if row["model_type"] in IMAGE_MODEL_TYPES}
    published = {a: (int(r["image_tokens_448"]), int(r["image_tokens_1024"])) for a, r in known.items()}
    assert published == TABLE_TOKENS
    assert all(
        not r["native_class_in_transformers_5.23"].startswith("none") for a, r in known.items() if a != "qwen-vl-chat"
    )
    remote = {row["model_type"] for alias, row in rows.items() if alias not in known}
    assert remote == {"deepseek_vl_v2", "minicpmv", "molmo"}


@pytest.mark.parametrize("alias", TABLE_TOKENS)
def test_square_images_have_the_tokens_of_the_table(alias: str):
    assert tuple(table_tokens(shape_of(alias, side, side)) for side in (448, 1024)) == TABLE_TOKENS[alias]


@pytest.mark.parametrize(
    ("alias", "num_text_tokens"),
    [
        ("blip2-opt-2.7b", 0),
        ("gemma-3-4b", 1 + 1 + 1 + 1),  # "\n\n", start, end, "\n\n"
        ("glm-4.1v-9b", 0),
        ("idefics2-8b", 5 + 1),  # one before each of five pictures and one after the last
        ("idefics3-8b", 16 * 2 + 4 + 3),  # two per tile, a newline per row, fake + global + fake
        ("internvl3-1b", 2),
        ("llava-1.5-7b", 0),
        ("llava-onevision-7b", 0),  # newline features are placeholders
        ("llava-v1.6-mistral-7b", 0),
        ("llama-3.2-11b-vision", 1),
        ("mistral-small-3.1-24b", 37),  # one [IMG_BREAK] per row, [IMG_END] in place of the last
        ("ovis2-1b", 3 + (3 * 3 - 1)),
        ("paligemma-3b", 0),
        ("pixtral-12b", 64),
        ("qwen-vl-chat", 2),  # <img> and </img>; the path's bytes share the 256 positions of the queries
        ("qwen2.5-vl-7b", 0),  # <|vision_start|> and <|vision_end|> are the chat template's
        ("smolvlm2-2.2b", 16 * 2 + 4 + 3),
    ],
)
def test_text_tokens_around_a_1024_pixel_square(alias: str, num_text_tokens: int):
    shape = shape_of(alias, 1024, 1024)
    assert shape.num_tokens - shape.num_placeholder_tokens == num_text_tokens


def test_patches_and_tiles_of_a_full_hd_frame():
    qwen = shape_of("qwen2.5-vl-7b", 1920, 1080)
    assert (qwen.resized_width, qwen.resized_height) == (69 * 28, 39 * 28)
    assert (qwen.num_patch_columns, qwen.num_patch_rows) == (69 * 2, 39 * 2)
    assert qwen.num_tokens == 69 * 39
    internvl = shape_of("internvl3-1b", 1920, 1080)
    assert (internvl.num_tile_columns, internvl.num_tile_rows) == (4, 2)
    assert internvl.num_vision_sequences == 4 * 2 + 1
    assert internvl.num_patches == (4 * 2 + 1) * (448 // 14) ** 2


def test_padded_tiles_of_mllama_are_computed_like_real_ones():
    small, large = (shape_of("llama-3.2-11b-vision", side, side) for side in (448, 1024))
    assert small.num_tile_columns * small.num_tile_rows == 1
    assert large.num_tile_columns * large.num_tile_rows == 4
    assert small.num_cross_attention_states == large.num_cross_attention_states == 4 * (40 * 40 + 1)
    assert small.num_patches == large.num_patches == 4 * 40 * 40
    assert small.num_placeholder_tokens == 0


def test_idefics2_splits_only_where_the_file_says_so():
    config = config_of("idefics2-8b")
    whole = image_shape(config, None, width=1024, height=1024)
    assert (whole.num_vision_sequences, whole.num_placeholder_tokens, whole.num_tokens) == (1, 64, 64 + 2)
    split = image_shape(config, {"do_image_splitting": True}, width=1024, height=1024)
    assert (split.num_vision_sequences, split.num_placeholder_tokens) == (5, 5 * 64)
    # The quarters, 512 pixels wide, are padded to the image, which is shrunk to 980.
    assert split.num_patches_per_sequence == whole.num_patches_per_sequence == (980 // 14) ** 2


def test_processor_defaults_overrule_the_files_of_internvl_and_gemma3():
    assert (read("internvl3-1b", "preprocessor_config.json") or {})["crop_to_patches"] is False
    assert shape_of("internvl3-1b", 1024, 1024).num_vision_sequences == 10
    assert shape_of("gemma-3-4b", 3000, 500, do_pan_and_scan=True) == shape_of("gemma-3-4b", 448, 448)


def test_ovis2_tiles_only_where_the_file_says_so():
    assert image_shape(config_of("ovis2-1b"), None, width=1024, height=1024).num_vision_sequences == 1


def test_ovis2_lays_a_landscape_out_as_a_portrait():
    # Ovis2ImageProcessor searches the grid as (rows, columns) and uses it as (columns, rows).
    shape = shape_of("ovis2-1b", 640, 333)
    assert (shape.num_tile_columns, shape.num_tile_rows) == (1, 2)
    by_ratio = shape_of("ovis2-1b", 640, 333, use_covering_area_grid=False)
    assert (by_ratio.num_tile_columns, by_ratio.num_tile_rows) == (2, 1)


def test_onevision_tiles_the_image_of_a_sample_with_one():
    files = config_of("llava-onevision-7b"), read("llava-onevision-7b", "preprocessor_config.json")
    one = image_shape(*files, width=1024, height=1024, num_images_per_sample=1)
    two = image_shape(*files, width=1024, height=1024, num_images_per_sample=2)
    assert (one.num_vision_sequences, one.num_tokens) == (3 * 3 + 1, 27 * 27 + 81 * (81 + 1))
    assert (two.num_vision_sequences, two.num_tokens) == (1, 27 * 27 + 1)


def test_llava_keeps_the_class_token_with_the_full_strategy():
    config = config_of("llava-1.5-7b")
    full = image_shape({**config, "vision_feature_select_strategy": "full"}, None, width=9, height=9)
    assert full.num_tokens == 24 * 24 + 1
    siglip = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}
    config = {**config, "vision_config": siglip, "vision_feature_select_strategy": "full"}
    assert image_shape(config, None, width=9, height=9).num_tokens == 27 * 27


def test_pixel_budget_reads_old_and_new_keys():
    config = config_of("qwen2-vl-2b")
    old = {"min_pixels": 56 * 56, "max_pixels": 280 * 280}
    new = {"size": {"shortest_edge": 56 * 56, "longest_edge": 280 * 280}}
    both = {"size": {"shortest_edge": 1, "longest_edge": 10**9}, **old}
    shapes = {image_shape(config, p, width=1000, height=1000) for p in (old, new, both)}
    assert {shape.num_tokens for shape in shapes} == {10 * 10}


def test_missing_preprocessor_takes_the_class_budget_and_the_towers_patches():
    # Qwen2VLImageProcessor: at most 28 * 28 * 1280 pixels, less than 1036 * 1036; the files: 16,384 tokens.
    assert image_shape(config_of("qwen2-vl-2b"), None, width=1024, height=1024).num_tokens == 35 * 35
    assert shape_of("qwen2-vl-2b", 1024, 1024).num_tokens == 37 * 37
    qwen3 = image_shape(config_of("qwen3-vl-4b"), {}, width=448, height=448)
    assert qwen3.num_patch_columns == 448 // 16
    assert image_shape(config_of("internvl3-1b"), {}, width=448, height=448).resized_width == 448


def test_glm_counts_an_image_as_two_frames():
    budget = {"size": {"shortest_edge": 112 * 112, "longest_edge": 2 * 280 * 280}}
    assert image_shape(config_of("glm-4.1v-9b"), budget, width=1000, height=1000).num_tokens == 10 * 10


@pytest.mark.parametrize("alias", FIXED)
@settings(deadline=None)
@given(width=SIDES, height=SIDES)
def test_fixed_models_do_not_look_at_the_size(alias: str, width: int, height: int):
    assert shape_of(alias, width, height) == shape_of(alias, 448, 448)


@pytest.mark.parametrize("alias", ONE_OF_EACH)
@settings(deadline=None)
@given(width=SIDES, height=SIDES)
def test_parts_of_a_shape_agree(alias: str, width: int, height: int):
    assume(max(width, height) <= 200 * min(width, height) and min(width, height) >= 8)
    shape = shape_of(alias, width, height)
    assert shape.num_tokens >= shape.num_placeholder_tokens
    assert shape.resized_width % shape.num_tile_columns == 0
    assert shape.resized_height % shape.num_tile_rows == 0
    assert shape.num_vision_sequences >= shape.num_tile_columns * shape.num_tile_rows
    assert shape.num_patches == shape.num_vision_sequences * shape.num_patch_columns * shape.num_patch_rows
    patch_width = shape.resized_width / shape.num_tile_columns / shape.num_patch_columns
    patch_height = shape.resized_height / shape.num_tile_rows / shape.num_patch_rows
    # 384 // 14 leaves 6 pixels over; idefics2 pads to any width.
    assert 14 <= patch_width < 17
    assert 14 <= patch_height < 17


MAX_TABLE_TOKENS = {
    "qwen2-vl-2b": 12845056 // (28 * 28),
    "qwen2.5-vl-7b": 12845056 // (28 * 28),
    "qwen3-vl-4b": 16777216 // (32 * 32),
    "glm-4.1v-9b": 9633792 // 2 // (28 * 28),
    "mistral-small-3.1-24b": (1540 // 28) ** 2,
    "pixtral-12b": (1024 // 16) ** 2,
    "internvl3-1b": (12 + 1) * 256,
    "ovis2-1b": (12 + 1) * 256,
    "idefics2-8b": 5 * 64,
    "idefics3-8b": (4 * 4 + 1) * 169,
    "smolvlm2-500m": (4 * 4 + 1) * 64,
    "llava-v1.6-mistral-7b": 24 * 24 + 48 * (48 + 1),
    # Shrunk above 1.1 times the side of nine tiles; each row adds a newline, and six tiles have 162 rows.
    "llava-onevision-7b": 27 * 27 + int(1.1**2 * 9 * 27 * 27) + 6 * 27,
    "llama-3.2-11b-vision": 4 * (40 * 40 + 1),
}


@pytest.mark.parametrize("alias", MAX_TABLE_TOKENS)
@settings(deadline=None)
@given(width=SIDES, height=SIDES)
def test_tokens_stay_within_what_the_files_allow(alias: str, width: int, height: int):
    assume(max(width, height) <= 200 * min(width, height) and min(width, height) >= 8)
    assert table_tokens(shape_of(alias, width, height)) <= MAX_TABLE_TOKENS[alias]


@pytest.mark.parametrize("alias", MAX_TABLE_TOKENS)
def test_large_images_come_close_to_what_the_files_allow(alias: str):
    # 1040 x 1536: hardly a picture is larger before llava_onevision shrinks it to nine tiles.
    sizes = ((4800, 4800), (4800, 3600), (1500, 4500), (1040, 1536))
    most = max(table_tokens(shape_of(alias, width, height)) for width, height in sizes)
    assert most >= 0.98 * MAX_TABLE_TOKENS[alias]


@pytest.mark.parametrize("alias", [a for a in NATIVE_RESOLUTION if a.startswith(("qwen", "glm"))])
@settings(deadline=None)
@given(width=SIDES, height=SIDES, more_width=SIDES, more_height=SIDES)
def test_bigger_image_has_no_fewer_tokens_within_the_budget(
    alias: str, width: int, height: int, more_width: int, more_height: int
):
    # Beyond the budget the aspect ratio decides how much is lost to whole patches, and the law ends.
    big_width, big_height = max(width, more_width), max(height, more_height)
    assume(min(width, height) >= 256 and big_width * big_height <= 4_000_000)
    assume(max(big_width, big_height, width, height) <= 200 * min(width, height))
    assert shape_of(alias, big_width, big_height).num_tokens >= shape_of(alias, width, height).num_tokens


@pytest.mark.parametrize("alias", [*NATIVE_RESOLUTION, "llama-3.2-11b-vision", *FIXED])
@settings(deadline=None)
@given(width=SIDES, height=SIDES)
def test_turning_the_image_turns_the_shape(alias: str, width: int, height: int):
    assume(max(width, height) <= 200 * min(width, height) and min(width, height) >= 8)
    upright, turned = shape_of(alias, width, height), shape_of(alias, height, width)
    assert upright.num_patches == turned.num_patches
    assert upright.num_placeholder_tokens == turned.num_placeholder_tokens
    assert upright.num_patch_columns == turned.num_patch_rows
    if width != height:  # a square may go either way where two canvases are equally good
        assert (upright.num_tile_columns, upright.num_tile_rows) == (
            turned.num_tile_rows,
            turned.num_tile_columns,
        )


@pytest.mark.parametrize("alias", ONE_OF_EACH)
@pytest.mark.parametrize(("width", "height"), [(0, 448), (448, 0), (-1, 448), (448, -448)])
def test_sizes_below_one_pixel_are_refused(alias: str, width: int, height: int):
    with pytest.raises(InputError, match=r"image (width|height) is (0|-1|-448); a whole number of pixels"):
        shape_of(alias, width, height)


@pytest.mark.parametrize("value", [448.0, "448", True, None])
def test_sizes_that_are_no_whole_numbers_are_refused(value: Any):
    with pytest.raises(InputError, match="image width is"):
        shape_of("qwen2-vl-2b", value, 448)


@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-7b", "qwen3-vl-4b", "glm-4.1v-9b"])
def test_aspect_ratios_above_two_hundred_are_refused(alias: str):
    assert shape_of(alias, 200 * 56, 56).num_tokens > 0
    with pytest.raises(InputError, match=r"image 11201x56 has an aspect ratio of 200\S*; up to 200 is allowed"):
        shape_of(alias, 200 * 56 + 1, 56)


@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-7b", "qwen3-vl-4b", "glm-4.1v-9b"])
def test_images_below_one_merged_patch_are_enlarged(alias: str):
    shape = shape_of(alias, 3, 2)
    assert min(shape.resized_width, shape.resized_height) >= 28
    assert shape.num_tokens >= 4


@pytest.mark.parametrize(
    ("alias", "width", "height"),
    [("pixtral-12b", 2049, 1), ("mistral-small-3.1-24b", 1, 3081), ("idefics2-8b", 1, 100)],
)
def test_images_of_which_nothing_is_left_are_refused(alias: str, width: int, height: int):
    with pytest.raises(InputError, match=f"image {width}x{height} "):
        shape_of(alias, width, height)


@pytest.mark.parametrize(
    ("alias", "changes", "message"),
    [
        ("qwen2-vl-2b", {"min_pixels": None, "size": {"longest_edge": 9}}, "size.shortest_edge is missing"),
        ("qwen2-vl-2b", {"max_pixels": 0}, "max_pixels is 0; a whole number of 1 or more is needed"),
        ("qwen2-vl-2b", {"patch_size": "14"}, 'patch_size is "14"; a whole number of 1 or more is needed'),
        ("glm-4.1v-9b", {"size": 448}, "size is 448; an object {...} is needed"),
        ("glm-4.1v-9b", {"size": {"shortest_edge": 9}}, "size.longest_edge is missing"),
        ("idefics2-8b", {"size": {"longest_edge": 980}}, "size.shortest_edge is missing"),
        ("idefics2-8b", {"do_image_splitting": 1}, "do_image_splitting is 1; true or false is needed"),
        ("idefics3-8b", {"size": {"longest_edge": 7 * 364}}, "a grid of 7 x 7, and 6 x 6 is the largest"),
        ("internvl3-1b", {"size": {"height": 448, "width": 224}}, "size is .*; a square is needed"),
        ("internvl3-1b", {"size": [448]}, "size is .448.; one whole number or .height, width. is needed"),
        ("internvl3-1b", {"min_patches": 13}, "min_patches is 13; at most max_patches, 12, is allowed"),
        ("llava-v1.6-mistral-7b", {"image_grid_pinpoints": [[336]]}, "a list of pairs of pixels"),
        ("llava-v1.6-mistral-7b", {"image_grid_pinpoints": "all"}, "a list of pairs of pixels"),
        ("llava-v1.6-mistral-7b", {"crop_size": [336, 224]}, "only square tiles are supported"),
        ("llava-1.5-7b", {"do_resize": False}, "images that are not resized are not supported"),
        ("llama-3.2-11b-vision", {"max_image_tiles": -4}, "max_image_tiles is -4"),
    ],
)
def test_settings_that_no_processor_takes_are_refused(alias: str, changes: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        shape_of(alias, 448, 448, **changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type is None"),
        ({"model_type": "qwen2_v"}, "unknown model type with images 'qwen2_v'; did you mean 'qwen2_vl'"),
        ({"model_type": "gpt2"}, "unknown model type with images 'gpt2'"),
        ({"model_type": "qwen2_vl", "vision_config": 1}, "vision_config is 1; an object {...} is needed"),
        ({"model_type": "llava", "vision_config": {"model_type": "dinov2"}}, "unknown vision tower 'dinov2'"),
        ({"model_type": "llava", "vision_feature_select_strategy": "cls"}, "known: default, full"),
        ({"model_type": "llava_onevision", "vision_aspect_ratio": "square"}, "'anyres_max_' and a number"),
        ({"model_type": "internvl", "downsample_ratio": 2}, "downsample_ratio is 2"),
    ],
)
def test_configs_that_are_not_understood_are_refused(config: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        image_shape(config, None, width=448, height=448)


def test_unknown_types_raise_the_error_for_unknown_names():
    with pytest.raises(UnknownNameError):
        image_shape({"model_type": "molmo"}, None, width=448, height=448)

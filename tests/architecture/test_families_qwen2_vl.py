"""Qwen2-VL and Qwen2.5-VL against the published checkpoints and against transformers."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.qwen2_5_vl import window_lengths
from vlmplan.architecture.images import ImageShape, image_shape
from vlmplan.architecture.model import Batch

ALIASES = [
    "qwen2-vl-2b",
    "qwen2-vl-7b",
    "qwen2-vl-72b",
    "qwen2.5-vl-3b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-32b",
    "qwen2.5-vl-72b",
]
TOWER = ["model.visual"]
DECODER = ["model.language_model", "lm_head"]
BLOCKS = {"depth": 5, "fullatt_block_indexes": [2, 4]}


def nested(alias: str, text: object = (), vision: object = (), **changes: object) -> dict[str, object]:
    """The flat file of ``alias`` as newer files are: a text configuration of its own."""
    config = packaged_config(alias, **changes)
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    config["text_config"] = {**{key: config.pop(key) for key in keys}, "num_hidden_layers": 2, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "depth": 3, **dict(vision)}
    return config


ALTERED = {
    "qwen2 nested, tied by its text": nested(
        "qwen2-vl-7b", {"tie_word_embeddings": True, "hidden_size": 1024, "num_attention_heads": 8}
    ),
    "qwen2 wide tower": nested("qwen2-vl-2b", vision={"embed_dim": 640, "num_heads": 8, "mlp_ratio": 3}),
    "qwen2.5 all blocks full": nested("qwen2.5-vl-3b", vision={"fullatt_block_indexes": [0, 1, 2]}),
    "qwen2.5 all blocks windowed": nested("qwen2.5-vl-7b", {"num_key_value_heads": 28}, {"fullatt_block_indexes": []}),
    "qwen2.5 untied": nested(
        "qwen2.5-vl-3b",
        vision={"hidden_size": 320, "num_heads": 4, "patch_size": 16, "spatial_merge_size": 4, "out_hidden_size": 2048},
        tie_word_embeddings=False,
    ),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", [*map(packaged_config, ALIASES), *ALTERED.values()], ids=[*ALIASES, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-3b"])
def test_a_step_keeps_and_peaks_as_in_transformers(alias, attention, frozen):
    assert_step(alias, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-3b"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(alias, frozen):
    # Integers of a few bytes a token (positions, shifted labels) show where so little is kept.
    assert_step(alias, checkpoints=True, frozen=frozen, tolerance=0.003)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [(), TOWER], ids=["all", "no tower"])
@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-3b"])
def test_peaks_inside_the_vision_tower_are_those_of_transformers(alias, frozen, checkpoints):
    from patch_batches import TINY_DECODER

    vision = {"out_hidden_size": 128, **BLOCKS} if "2.5" in alias else {"hidden_size": 128, "depth": 4}
    scaling = {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
    options = {"checkpoints": checkpoints, "frozen": frozen, "images_per_sample": 3, "tolerance": 0.005}
    assert_step(alias, text=TINY_DECODER | scaling, vision=vision, **options)


@pytest.mark.parametrize("size", [(28, 28), (56, 700), (448, 448), (450, 1000), (1230, 333)])
def test_one_image_is_cut_into_the_windows_of_transformers(size):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.vision_utils")
    image = image_shape({"model_type": "qwen2_5_vl"}, None, width=size[0], height=size[1])
    grid = torch.tensor([[1, image.num_patch_rows, image.num_patch_columns]])
    _, bounds = utils.get_vision_window_index(grid, spatial_merge_size=2, window_size=112, patch_size=14)
    windows = window_lengths(image, merge_size=2, merged_per_side=4)
    assert [length for length, count in windows for _ in range(count)] == bounds.diff().tolist()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flash_attention_2"])
def test_windowed_blocks_compute_the_pairs_within_their_windows(implementation):
    config = nested("qwen2.5-vl-3b", vision=BLOCKS)
    # 3 x 5 windows of 4 x 4 merged tokens, and one row and column of narrower ones.
    image = image_shape(config, None, width=28 * (4 * 5 + 3), height=28 * (4 * 3 + 1))
    assert isinstance(image, ImageShape)
    batch = Batch(micro_batch=2, num_tokens=700, images_per_sample=1, image=image)
    trace = predicted_step(config, batch, implementation=implementation).trace
    assert trace is not None
    squares = 15 * 64**2 + 5 * 16**2 + 3 * (4 * 12) ** 2 + 12**2
    windowed, full = (2 * 2 * 2 * 16 * 80 * pairs for pairs in (squares, image.num_patches**2))
    for key, pair_flops in (("vision.0", windowed), ("vision.1", full)):
        work = trace.sections[key].forward_work
        linear_flops = 2 * 2 * image.num_patches * 1280 * (4 * 1280 + 3 * 3420)
        assert work.flops - linear_flops == pair_flops


def test_flash_attention_keeps_what_sdpa_keeps():
    config = nested("qwen2.5-vl-3b", vision=BLOCKS)
    image = image_shape(config, None, width=500, height=400)
    batch = Batch(micro_batch=1, num_tokens=400, images_per_sample=1, image=image)
    sdpa, flash = (predicted_step(config, batch, implementation=name) for name in ("sdpa", "flash_attention_2"))
    # Without a list of windows nothing has to be put together again; what backward needs is the same.
    assert flash.forward_live < sdpa.forward_live
    num_joined = BLOCKS["depth"] * image.num_patches * 1280 * 2
    assert sdpa.forward_live - flash.forward_live == num_joined


def test_text_alone_runs_through_the_decoder_only():
    trace = predicted_step(nested("qwen2.5-vl-3b"), Batch(micro_batch=1, num_tokens=64)).trace
    assert trace is not None
    assert not [key for key in trace.sections if key.startswith(("vision", "scatter"))]


def test_old_and_new_files_say_tied_at_either_level():
    assert build_model(ALTERED["qwen2 nested, tied by its text"]).ties_weights
    assert not build_model(ALTERED["qwen2.5 untied"]).ties_weights


def assert_step(alias, *, text=(), vision=(), size=(480, 330), images_per_sample=1, **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    vision = vision or (BLOCKS if "2.5" in alias else {"depth": 4})
    made = step(cut(alias, text=text, vision=vision), alias, size, images_per_sample=images_per_sample)
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

"""Ovis 2 against the published checkpoints and against transformers."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.ovis2 import indicator_counts
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

ALIASES = ["ovis2-1b", "ovis2-2b"]
TOWER = ["model.vision_tower"]
PROJECTOR = ["model.visual_embeddings_table"]
DECODER = ["model.language_model", "lm_head"]
ONE_TILE, TWO_TILES, MANY_TILES = (448, 448), (900, 450), (1400, 1000)


def altered(text: object = (), vision: object = (), **changes: object) -> dict[str, object]:
    config = packaged_config("ovis2-1b", **changes)
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 5, **dict(vision)}
    del config["text_config"]["layer_types"]
    return config


ALTERED = {
    "untied, biases": altered(vision={"qkv_bias": True, "mlp_bias": True}, tie_word_embeddings=False),
    "a head of fewer words than there are embeddings": altered({"vocab_size": 153_000}, tie_word_embeddings=False),
    "llama, no squares": altered({"model_type": "llama"}, {"hidden_stride": 1, "num_visual_indicator_tokens": 7}),
    "other tower": altered(vision={"hidden_size": 512, "vocab_size": 1024, "image_size": 224, "patch_size": 16}),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", [*map(packaged_config, ALIASES), *ALTERED.values()], ids=[*ALIASES, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "frozen",
    [(), TOWER, TOWER + PROJECTOR, DECODER, PROJECTOR],
    ids=["all", "no tower", "decoder only", "no decoder", "no table"],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, frozen):
    assert_step(attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(frozen):
    assert_step(checkpoints=True, frozen=frozen, tolerance=0.003)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("vocab_size", [1024, 65536])
@pytest.mark.parametrize("frozen", [(), TOWER], ids=["all", "no tower"])
def test_peaks_inside_the_vision_tower_are_those_of_transformers(frozen, vocab_size, checkpoints):
    from patch_batches import TINY_DECODER

    options = {"frozen": frozen, "checkpoints": checkpoints, "tolerance": 0.002}
    assert_step(text=TINY_DECODER, vision={"vocab_size": vocab_size}, **options)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [ONE_TILE, MANY_TILES])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_one_tile_and_many_run_as_in_transformers(size, micro_batch):
    assert_step(size=size, micro_batch=micro_batch, tolerance=0.001)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("vision", [{"qkv_bias": True, "mlp_bias": True}, {"hidden_stride": 1}, {"hidden_stride": 4}])
def test_variants_of_the_tower_run_as_in_transformers(vision):
    assert_step(vision=vision, tolerance=0.001)


@pytest.mark.parametrize(("size", "counts"), [(ONE_TILE, (1, 1, 1)), (TWO_TILES, (1, 1, 1, 1)), (MANY_TILES, None)])
def test_visual_indicators_are_the_text_tokens_of_an_image(size, counts):
    from image_batches import packaged_preprocessor

    image = image_shape(packaged_config("ovis2-1b"), packaged_preprocessor("ovis2-1b"), width=size[0], height=size[1])
    assert sum(indicator_counts(image)) == image.num_tokens - image.num_placeholder_tokens
    assert counts is None or indicator_counts(image) == counts


def test_another_way_to_choose_visual_words_is_refused():
    with pytest.raises(InputError, match='tokenize_function is "st_argmax"; softmax is needed'):
        build_model(altered(vision={"tokenize_function": "st_argmax"}))


def test_patches_that_leave_a_remainder_are_refused():
    config = altered(vision={"hidden_stride": 3})
    image = image_shape(config, {"size": {"height": 448, "width": 448}}, width=448, height=448)
    with pytest.raises(InputError, match="3x3 patches of square tiles; 1024 patches are no such square"):
        predicted_step(config, Batch(micro_batch=1, num_tokens=400, images_per_sample=1, image=image))


def assert_step(*, text=(), vision=(), size=TWO_TILES, micro_batch=2, **options):
    pytest.importorskip("transformers")
    from patch_batches import cut, step

    from family_checks import assert_step_matches

    made = step(cut("ovis2-1b", text=text, vision=vision), "ovis2-1b", size, micro_batch=micro_batch)
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)

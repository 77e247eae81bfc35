"""PaliGemma, PaliGemma 2 and Gemma 3 with vision against the published checkpoints and against transformers."""

from typing import Any

import pytest

import text_steps
from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch

ALIASES = ["paligemma-3b", "paligemma2-3b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"]
TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]


def altered(alias: str, text: Any = (), vision: Any = (), **changes: object) -> dict[str, Any]:
    config = packaged_config(alias, **changes)
    config["text_config"] = {**config["text_config"], "num_hidden_layers": 3, **dict(text)}
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 2, **dict(vision)}
    return config


ALTERED = {
    "paligemma untied with head": altered(
        "paligemma-3b", {"head_dim": 128, "vocab_size": 3000}, {"vision_use_head": True}, tie_word_embeddings=False
    ),
    "paligemma small": altered("paligemma-3b", {"hidden_size": 512}, {"hidden_size": 288}, projection_dim=512),
    "paligemma2 biases": altered("paligemma2-3b", {"attention_bias": True, "vocab_size": 3000}, projection_dim=640),
    "gemma3 untied": altered("gemma-3-4b", {"attention_bias": True, "head_dim": 64}, tie_word_embeddings=False),
    "gemma3 few tokens": altered("gemma-3-4b", {"hidden_size": 512}, {"image_size": 448}, mm_tokens_per_image=64),
}


def attention_of(config: dict[str, Any]) -> str:
    # Gemma 2 refuses sdpa when asked for it; transformers' default for it is eager.
    return "eager" if config["text_config"]["model_type"] == "gemma2" else "sdpa"


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize(
    "config", [*(packaged_config(alias) for alias in ALIASES), *ALTERED.values()], ids=[*ALIASES, *ALTERED]
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention=attention_of(config))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER, TOWER + DECODER], ids=["all", "no tower", "no decoder", "none"])
@pytest.mark.parametrize(
    ("alias", "attention"),
    [
        ("paligemma-3b", "sdpa"),
        ("paligemma-3b", "eager"),
        ("paligemma2-3b", "eager"),
        ("gemma-3-4b", "sdpa"),
        ("gemma-3-4b", "eager"),
    ],
)
def test_a_step_keeps_and_peaks_as_in_transformers(alias, attention, frozen):
    assert_step(alias, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
@pytest.mark.parametrize("alias", ["paligemma-3b", "paligemma2-3b", "gemma-3-4b"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(alias, frozen):
    # A slim MLP: eager layers without a graph hold their attention weights to their end, which a wide one would show.
    text = {"intermediate_size": 4096} if alias == "paligemma2-3b" else {}
    attention = "eager" if alias == "paligemma2-3b" else "sdpa"
    assert_step(alias, attention=attention, checkpoints=True, frozen=frozen, text=text, tolerance=0.003)


@pytest.mark.sweep
@pytest.mark.parametrize("images", [1, 2])
def test_windows_shorter_than_the_sequence_change_nothing_where_images_build_the_masks(images):
    text = {"sliding_window": 128, "num_key_value_heads": 2}
    assert_step("gemma-3-4b", attention="sdpa", text=text, images=images, tolerance=0.001)


def test_several_key_heads_are_written_out_under_a_prefix_mask():
    assert_step("paligemma-3b", attention="sdpa", text={"num_key_value_heads": 2}, images=2, tolerance=0.001)


@pytest.mark.parametrize("alias", ["paligemma-3b", "gemma-3-4b"])
def test_a_step_without_images_builds_no_masks_as_in_transformers(alias):
    text_steps.assert_step(altered(alias, {"vocab_size": 1000}))


def test_only_the_decoder_of_paligemma_2_caps_logits():
    assert build_model(altered("paligemma2-3b")).caps_logits
    assert not build_model(altered("paligemma-3b")).caps_logits
    assert not build_model(altered("gemma-3-4b")).caps_logits


def test_a_prefix_makes_every_pair_of_tokens_count():
    # Neither a kernel with a mask nor flash_attention_2 on a decoder that is not causal skips what lies ahead.
    for implementation in ("sdpa", "flash_attention_2"):
        work = forward_work(altered("paligemma-3b"), implementation)
        assert work.attention_flops > 0
        assert work.causal_attention_flops == 0
    assert forward_work(altered("gemma-3-4b"), "flash_attention_2").causal_attention_flops > 0


def test_a_file_that_says_the_prefix_is_seen_means_the_same():
    explicit = altered("paligemma-3b", {"use_bidirectional_attention": True})
    assert forward_work(explicit, "sdpa") == forward_work(altered("paligemma-3b"), "sdpa")


def forward_work(config: dict[str, Any], implementation: str) -> Any:
    shape = image_shape(config, None, width=448, height=448)
    batch = Batch(micro_batch=1, num_tokens=shape.num_tokens + 50, images_per_sample=1, image=shape)
    trace = predicted_step(config, batch, implementation=implementation).trace
    assert trace is not None
    return trace.sections["layers.0"].forward_work


def assert_step(alias, *, images=1, text=(), **options):
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from image_batches import cut_config, image_step, packaged_preprocessor

    # Gemma 3 repeats its kinds of layers every six.
    config = cut_config(alias, num_layers=7 if alias.startswith("gemma-3") else 4, text=text)
    micro_batch = 1 if alias.startswith("gemma-3") else 2
    step = image_step(
        config, packaged_preprocessor(alias), (500, 400), micro_batch=micro_batch, images_per_sample=images
    )
    assert_step_matches(step.config, step.batch, step.inputs, step.floats, **options)

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from planned import workload
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.recipe.choices import LossKind
from vlmplan.sample_images import sample_image
from vlmplan.units import DType

ALIASES = ["blip2-opt-2.7b", "instructblip-vicuna-7b"]
VOCAB_SIZE = 2000


def changed(alias, *, text=None, vision=None, qformer=None, **changes):
    config = packaged_config(alias, **changes)
    config.pop("image_token_index", None)
    for name, values in (("text_config", text), ("vision_config", vision), ("qformer_config", qformer)):
        config[name] = {**config[name], **(values or {})}
    return config


def small(alias, *, vocab_size=VOCAB_SIZE, attention_dropout=0.0, is_slim=False):
    """Few layers, a small vocabulary, and no dropout of attention weights unless a test asks for it.

    torch's kernel for CPU has no such dropout: with it sdpa writes all scores out there, which CUDA's kernels do not.
    Under checkpointing eager layers hold their attention weights to their end, which shows where a wide MLP makes the
    peak of the forward; the peak of the backward, which counts, does not see it. So ``is_slim`` makes MLPs narrow.
    """
    width = {"intermediate_size": 1024, "ffn_dim": 1024} if is_slim else {}
    return changed(
        alias,
        text={"num_hidden_layers": 2, "vocab_size": vocab_size, "pad_token_id": 1, **width},
        vision={"num_hidden_layers": 3, **width},
        qformer={"num_hidden_layers": 5, "attention_probs_dropout_prob": attention_dropout},
        image_token_id=vocab_size - 1,
    )


ALTERED = {
    "blip-2 untied, no qkv bias, fewer cross-attention layers": changed(
        "blip2-opt-2.7b",
        text={"num_hidden_layers": 2, "tie_word_embeddings": False, "word_embed_proj_dim": 512},
        vision={"num_hidden_layers": 2, "qkv_bias": False, "image_size": 364},
        qformer={"cross_attention_frequency": 3, "num_hidden_layers": 7, "use_qformer_text_input": True},
        num_query_tokens=16,
    ),
    "blip-2 with a llama decoder": {
        "model_type": "blip-2",
        "text_config": {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8},
        "vision_config": {"num_hidden_layers": 2, "hidden_size": 704},
    },
    "instructblip tied, small": changed(
        "instructblip-vicuna-7b",
        text={"num_hidden_layers": 2, "tie_word_embeddings": True, "attention_bias": True},
        vision={"num_hidden_layers": 2, "hidden_size": 704, "num_attention_heads": 8},
        qformer={"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1024, "vocab_size": 1000},
    ),
    "instructblip with class defaults": {
        "model_type": "instructblip",
        "text_config": {"model_type": "opt"},
        "vision_config": {"num_hidden_layers": 2},
    },
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", [*map(packaged_config, ALIASES), *ALTERED.values()], ids=[*ALIASES, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def batch_of(config, *, micro_batch, num_text_tokens):
    shape = image_shape(config, None, width=640, height=480)
    num_tokens = shape.num_placeholder_tokens + num_text_tokens
    return Batch(micro_batch=micro_batch, num_tokens=num_tokens, images_per_sample=1, image=shape)


def assert_step(config, *, micro_batch=4, num_text_tokens=60, tolerance=0.002, **options):
    pytest.importorskip("transformers")
    import torch

    from family_checks import assert_step_matches, text_inputs

    batch = batch_of(config, micro_batch=micro_batch, num_text_tokens=num_text_tokens)
    inputs = text_inputs(batch)
    inputs["input_ids"][:, : batch.image.num_placeholder_tokens] = config["image_token_id"]
    if config["model_type"] == "instructblip":
        inputs["qformer_input_ids"] = inputs["input_ids"][:, -num_text_tokens:].clone()
        inputs["qformer_attention_mask"] = torch.ones_like(inputs["qformer_input_ids"])
    floats = {"pixel_values": (micro_batch, 3, 224, 224)}
    assert_step_matches(config, batch, inputs, floats, tolerance=tolerance, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_step_keeps_and_peaks_as_in_transformers(alias, checkpoints):
    assert_step(small(alias), checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", ALIASES)
def test_eager_attention_keeps_scores_in_the_models_type_and_what_dropout_left_of_them(alias, checkpoints):
    # Beside such narrow MLPs the peak of OPT's backward lies in its eager attention, 0.7 % above the real one.
    config = small(alias, attention_dropout=0.1, is_slim=checkpoints)
    assert_step(config, attention="eager", checkpoints=checkpoints, micro_batch=8, tolerance=0.01)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_frozen_tower_keeps_what_transformers_keeps(alias, attention, checkpoints):
    config = small(alias, is_slim=checkpoints)
    assert_step(config, frozen=("vision_model.",), attention=attention, checkpoints=checkpoints)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("alias", ALIASES)
def test_training_the_q_former_alone_keeps_what_transformers_keeps(alias):
    """The decoder's last hidden state, one part in a hundred of the logits, is gone before BLIP-2 makes its loss."""
    config = small(alias, vocab_size=50304)
    assert_step(config, frozen=("vision_model.", "language_model."), num_text_tokens=20)


def test_the_q_former_reads_all_of_the_text():
    config = small("instructblip-vicuna-7b")
    model = build_model(config)
    tokens = [
        model.more_inputs(batch_of(config, micro_batch=1, num_text_tokens=number))[0][0][1] for number in (7, 511, 512)
    ]
    assert tokens == [7, 511, 512]


def test_a_text_for_which_the_q_former_has_no_positions_is_refused():
    config = small("instructblip-vicuna-7b")
    with pytest.raises(InputError, match=r"--seq-len is 545, .*max_position_embeddings.* at most 544"):
        predicted_step(config, batch_of(config, micro_batch=1, num_text_tokens=513))
    assert_step(config, micro_batch=1, num_text_tokens=512)


def test_flash_attention_is_refused_where_transformers_refuses_it():
    config = small("blip2-opt-2.7b")
    batch = batch_of(config, micro_batch=1, num_text_tokens=20)
    with pytest.raises(InputError, match="flash_attention_2"):
        predicted_step(config, batch, implementation="flash_attention_2")
    predicted_step(small("instructblip-vicuna-7b"), batch, implementation="flash_attention_2")


def test_an_encoder_decoder_is_refused():
    with pytest.raises(UnknownNameError, match="t5"):
        build_model({"model_type": "blip-2", "text_config": {"model_type": "t5"}})


@pytest.mark.parametrize("alias", ["blip2-opt-2.7b", "instructblip-vicuna-7b"])
def test_a_sample_has_one_image(alias: str):
    """The processors write the tokens of one, however many there are."""
    with pytest.raises(InputError, match=r"--images-per-sample is 2, .* of one image into a sample; give 1"):
        sample_image(workload(alias, images_per_sample=2))


@pytest.mark.parametrize("alias", ALIASES)
def test_an_evaluation_has_no_hidden_state_beside_the_loss_which_the_decoder_held(alias, monkeypatch):
    """``self.language_model`` has made the logits, and has returned."""
    config = small(alias, vocab_size=50304)
    batch = batch_of(config, micro_batch=2, num_text_tokens=60)

    def peak() -> int:
        model, tape = build_model(config), Tape(is_evaluating=True)
        trace = evaluation_pass(model, tape, batch, AttentionBackend(), loss=LossKind.MODEL).trace
        return max(one.peak_bytes for one in trace.sections["head"].forward if isinstance(one, Span))

    without = peak()
    model = build_model(config)
    monkeypatch.setattr(type(model), "calls_head_inside", False)
    assert peak() - without == 2 * batch.num_tokens * model.head.weight.shape[1] * DType.BFLOAT16.num_bytes

"""BERT, RoBERTa, ELECTRA and their kin against transformers."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.held_weights import HoldingContext
from vlmplan.architecture.model import Batch
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

SIZES = {"vocab_size": 2048, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
SIZES |= {"intermediate_size": 1024}
TYPES = ("bert", "camembert", "data2vec-text", "ernie", "roberta", "xlm-roberta")
CONFIGS = {
    **{model_type: {"model_type": model_type, **SIZES} for model_type in TYPES},
    "bert as a decoder": {"model_type": "bert", **SIZES, "is_decoder": True},
    "roberta as a decoder, without dropout": {
        "model_type": "roberta",
        **SIZES,
        "is_decoder": True,
        "hidden_dropout_prob": 0.0,
    },
}
ELECTRA = {"model_type": "electra", **SIZES, "embedding_size": 256}
CONFIGS |= {
    "roberta-prelayernorm": {"model_type": "roberta-prelayernorm", **SIZES},
    "xlm-roberta-xl as a decoder": {"model_type": "xlm-roberta-xl", **SIZES, "is_decoder": True},
    "electra": ELECTRA,
    "electra as a decoder, as wide as its embeddings, with a head of its own": {
        **ELECTRA,
        "is_decoder": True,
        "embedding_size": 512,
        "tie_word_embeddings": False,
    },
}
CONFIGS |= {
    "bert-generation": {"model_type": "bert-generation", **SIZES},
    "megatron-bert as a decoder": {"model_type": "megatron-bert", **SIZES, "is_decoder": True},
}
CONFIGS |= {
    "rembert": {"model_type": "rembert", **SIZES, "input_embedding_size": 128, "output_embedding_size": 640},
    "roc_bert": {"model_type": "roc_bert", **SIZES},
    "roformer as a decoder": {
        "model_type": "roformer",
        **SIZES,
        "embedding_size": 256,
        "is_decoder": True,
        "rotary_value": True,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    if config["model_type"] in ("megatron-bert", "rembert", "roformer"):  # whose classes have no other
        attention = "eager"
    if attention == "sdpa":  # with dropout in the attention it takes another kernel on CPU than on CUDA
        config = {**config, "attention_probs_dropout_prob": 0.0}
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("model_type", ["bert", "megatron-bert"])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_keys_and_values_are_kept_while_text_is_generated_where_tokens_see_each_other_too(model_type, is_decoder):
    """transformers hands its cache to every layer, and a layer adds to what it gets, whatever ``use_cache`` is."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = {"model_type": model_type, **SIZES, "is_decoder": is_decoder}
    own = transformers.AutoConfig.for_model(**config)
    real = transformers.AutoModelForCausalLM.from_config(own, dtype=torch.bfloat16).eval()
    cache = transformers.DynamicCache(config=own)
    with torch.no_grad():
        real(input_ids=torch.zeros(2, 96, dtype=torch.long), past_key_values=cache, use_cache=True)
    tape = Tape(follows_weights=False, is_evaluating=True)
    found = generation_pass(build_model(config), tape, Batch(micro_batch=2, num_tokens=96), AttentionBackend())
    assert found.cache_bytes == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) > 0


def test_frozen_layers_hand_on_weights_that_the_model_holds():
    config = CONFIGS["megatron-bert as a decoder"]
    assert_step(config, attention="eager", frozen=["bert.embeddings", "bert.encoder.layer"])


def test_the_model_alone_holds_weights_that_are_dropped_in_another_type_than_autocasts():
    for autocast, dropout, is_held in (
        (DType.BFLOAT16, 0.1, True),
        (DType.BFLOAT16, 0.0, False),
        (DType.FLOAT32, 0.1, False),
        (None, 0.1, False),
    ):
        tape = Tape(autocast=autocast)
        context = HoldingContext(AttentionBackend(), None)
        x = ops.linear(tape.tensor((2, 3, 5), DType.FLOAT32), Parameter(7, 5))
        context.hold(tape.tensor((2, 3, 11, 13), DType.FLOAT32), dropout=dropout)
        assert (context.held(x) is not None) is is_held


def test_what_cannot_be_is_refused():
    bert, roberta = CONFIGS["bert"], CONFIGS["roberta"]
    for config, changes, words in (
        (bert, {"add_cross_attention": True}, "add_cross_attention"),
        (CONFIGS["ernie"], {"use_task_id": True}, "use_task_id"),
        (CONFIGS["roc_bert"], {"enable_shape": False}, "enable_shape"),
        (roberta, {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ):
        with pytest.raises(InputError, match=words):
            build_model({**config, **changes})


def test_the_first_rows_of_robertas_table_are_of_padding():
    longest = Batch(micro_batch=1, num_tokens=512)
    build_model(CONFIGS["bert"]).run(Tape(), longest, AttentionBackend(), loss=LossKind.FULL)
    with pytest.raises(InputError, match="positions for 510 tokens"):
        build_model(CONFIGS["roberta"]).run(Tape(), longest, AttentionBackend(), loss=LossKind.FULL)

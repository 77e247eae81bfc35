"""The first GPT against transformers."""

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Kind, Span
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType
from vlmplan.workload import ModelFiles

GPT = {"model_type": "openai-gpt", "vocab_size": 2048, "n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 512}
CONFIGS = {
    "with dropout": GPT,
    "without, silu, untied": {
        **GPT,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "afn": "silu",
        "tie_word_embeddings": False,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(2)
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, attention="eager")


@pytest.mark.one_in(2)
@EACH
def test_a_step_of_frozen_blocks_keeps_what_transformers_keeps(config):
    assert_step(config, attention="eager", frozen=["transformer.tokens_embed", "transformer.h"])


def test_every_block_has_a_table_of_its_positions():
    model = build_model(GPT)
    model.buffer_dtype = DType.FLOAT32
    assert model.layer_buffer_bytes == 4 * 512 * 512 * 4


@pytest.mark.parametrize("loss", [LossKind.CHUNKED, LossKind.LIGER])
def test_the_losss_gradient_of_the_last_blocks_result_leaves_no_component_below_zero(loss):
    trace = build_model(GPT).run(Tape(), BATCH, AttentionBackend(implementation="eager"), loss=loss)
    sections = [*[section.forward for _, section in trace.forward()], *[one.backward for _, one in trace.backward()]]
    spans = [event for events in sections for event in events if isinstance(event, Span)]
    assert sum(span.delta[Kind.LOGITS] for span in spans) == DType.FLOAT32.num_bytes


def test_its_layers_are_not_run_again():
    assert not ModelFiles(id="gpt", config=GPT).can_checkpoint


def test_an_activation_function_that_the_class_does_not_know_is_refused():
    with pytest.raises(InputError, match=r"afn is .?gelu_new.?; one of relu, silu, gelu, swish"):
        predicted_step({**GPT, "afn": "gelu_new"}, BATCH)

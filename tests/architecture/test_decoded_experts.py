"""A generated token of transformers takes copies of the weights of its experts, which a prompt does not."""

from collections.abc import Mapping
from typing import Any

import pytest

from storages import Live
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.engines.profile import forward_rise

NUM_ROWS, WIDTH, INNER, NUM_EXPERTS, NUM_CHOSEN, VOCABULARY = 3, 64, 2 * 112, 5, 2, 17
MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": NUM_EXPERTS,
    "num_experts_per_tok": NUM_CHOSEN,
}
COPIES = NUM_ROWS * NUM_CHOSEN * (2 * INNER * WIDTH + WIDTH * INNER)


DENSE = {key: value for key, value in MIXTRAL.items() if "experts" not in key} | {"model_type": "llama"}


def rise(config: Mapping[str, Any] = MIXTRAL, *, is_past_prompt: bool) -> int:
    """The most bytes of a forward over one token of each row, in 16 bit."""
    batch = Batch(micro_batch=NUM_ROWS, num_tokens=1)
    tape = Tape(is_evaluating=True)
    found = generation_pass(build_model(config), tape, batch, AttentionBackend(), is_past_prompt=is_past_prompt)
    return forward_rise(found.trace)[0]


def test_both_copies_of_all_chosen_experts_are_there_at_once_behind_the_prompt_alone():
    assert rise(is_past_prompt=False) < 2 * COPIES / 10
    assert 2 * COPIES < rise(is_past_prompt=True) < 2 * COPIES * 1.05


def test_dense_models_decode_as_they_read_prompts():
    assert rise(DENSE, is_past_prompt=True) == rise(DENSE, is_past_prompt=False)


def test_the_copies_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    moe = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    config = pytest.importorskip("transformers").MixtralConfig(**MIXTRAL)
    config._experts_implementation = "batched_mm"
    experts = moe.MixtralExperts(config).bfloat16()
    x = torch.randn(NUM_ROWS, WIDTH, dtype=torch.bfloat16)
    indices = torch.arange(NUM_ROWS * NUM_CHOSEN).view(NUM_ROWS, NUM_CHOSEN) % NUM_EXPERTS
    scores = torch.ones(NUM_ROWS, NUM_CHOSEN)
    with torch.no_grad(), Live([x, indices, scores, *experts.parameters()]) as live:
        experts(x, indices, scores)
    assert 2 * COPIES < live.most < 2 * COPIES * 1.05

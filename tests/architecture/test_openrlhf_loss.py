"""OpenRLHF's loss: what its loops hold of logits, by the words of the vocabulary (rehearsals of its programs stand in
``tests/rehearsed/openrlhf.json``)."""

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span, Trace
from vlmplan.hardware import CPU_KERNELS
from vlmplan.recipe.choices import LossKind

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "tie_word_embeddings": False,
}
ROWS, TOKENS, WORDS = 3, 110, 7013 - 5003
BACKEND = AttentionBackend(compute_capability=CPU_KERNELS)


def peaks(trace: Trace) -> tuple[int, int, int]:
    """The most bytes in forward and in backward, and those that are left."""
    live, found = 0, []
    forward = [section.forward for _, section in trace.forward()]
    for phase in (forward, [section.backward for _, section in trace.backward()]):
        most = live
        for event in (event for events in phase for event in events if isinstance(event, Span)):
            most = max(most, live + event.peak_bytes)
            live += event.delta_bytes
        found.append(most)
    return found[0], found[1], live


def run(words: int, *, keeps: bool) -> tuple[int, int, int]:
    model = build_model({**CONFIG, "vocab_size": words})
    for _, weight in model.distinct_parameters():
        weight.requires_grad = weight.shape[0] != words  # whose gradients have as many words
    batch = Batch(micro_batch=ROWS, num_tokens=TOKENS, keeps_graph=keeps, keeps_logits=keeps)
    tape = Tape(follows_weights=False, accumulates_in_place=True, fuses_dropout=True)
    return peaks(model.run(tape, batch, BACKEND, loss=LossKind.OPENRLHF))


@pytest.mark.parametrize(
    ("keeps", "expected"),
    # Of a logit: as the model makes it, in float32, and that of the micro batch before; in backward what is held, its
    # gradient, and that of the model's own, beside which the loss has let go of what nothing holds.
    [(True, (4 + 2 + 4, 4 + 4 + 2, 4)), (False, (2 + 4, 4 + 4, 0))],
)
def test_the_loop_of_samples_holds_logits_until_those_of_the_next_micro_batch(keeps, expected):
    small, large = (run(words, keeps=keeps) for words in (5003, 7013))
    grown = tuple((one - other) / (ROWS * TOKENS * WORDS) for one, other in zip(large, small, strict=True))
    assert grown == expected


def test_a_reference_makes_logits_and_lets_them_go():
    found = []
    for words in (5003, 7013):
        tape = Tape(follows_weights=False, is_evaluating=True)
        batch = Batch(micro_batch=ROWS, num_tokens=TOKENS)
        model = build_model({**CONFIG, "vocab_size": words})
        found.append(peaks(evaluation_pass(model, tape, batch, BACKEND, loss=LossKind.OPENRLHF).trace))
    assert [(one - other) / (ROWS * TOKENS * WORDS) for one, other in zip(found[1], found[0], strict=True)] == [6, 0, 0]

"""HyperCLOVA X Vision beside its text model alone."""

from typing import Any

from seeing_families import FAMILIES
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.recipe.choices import LossKind

CONFIG = FAMILIES["hyperclovax_vision_v2"].config
TEXT = {**CONFIG["text_config"], "intermediate_size": 4096}
BATCH = Batch(micro_batch=2, num_tokens=64)


def most_in_an_evaluation(config: dict[str, Any]) -> int:
    tape = Tape(is_evaluating=True)
    trace = evaluation_pass(build_model(config), tape, BATCH, AttentionBackend(), loss=LossKind.CHUNKED).trace
    live = peak = 0
    for _, section in trace.forward():
        for event in section.forward:
            if isinstance(event, Span):
                peak = max(peak, live + event.peak_bytes)
                live += event.delta_bytes
    return peak


def test_embeddings_are_held_as_images_were_put_among_them_and_as_they_are_scaled_for_the_layers():
    """The text model alone has scaled ones in their place."""
    embeddings_bytes = BATCH.micro_batch * BATCH.num_tokens * TEXT["hidden_size"] * 2
    of_both = most_in_an_evaluation({**CONFIG, "text_config": TEXT})
    assert of_both - most_in_an_evaluation(TEXT) == embeddings_bytes


def test_logits_are_scaled_as_those_of_the_text_model():
    assert build_model(CONFIG).logit_changes["scales"]
    assert build_model(TEXT).logit_changes["scales"]

"""What a checkpointed layer's second forward saves of trained weights keeps them whole under ZeRO-3."""

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Drop, Hold
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

LLAMA = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IN_A_LAYER = 7


@pytest.mark.parametrize(
    ("method", "use_dora", "checkpoints", "num_held"),
    [
        (Method.FULL, False, True, IN_A_LAYER),
        (Method.FULL, False, False, 0),
        (Method.LORA, False, True, 2 * IN_A_LAYER),
        (Method.LORA, True, True, 2 * IN_A_LAYER),
    ],
)
def test_each_is_held_until_its_node_has_run(method: Method, use_dora: bool, checkpoints: bool, num_held: int):
    """Those of adapters alike; DoRA multiplies them for a length too, and detaches that."""
    recipe = Recipe(method=method, use_dora=use_dora, zero_stage=3, activation_checkpointing=checkpoints)
    model = prepared_model(LLAMA, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    tape = Tape(keeps_linear_inputs=recipe.keeps_linear_inputs)
    trace = model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    layer = next(trace.sections[run.key] for run in reversed(trace.schedule) if run.layer is not None)
    held = [event.handle for event in layer.backward if isinstance(event, Hold)]
    dropped = [event.handle for event in layer.backward if isinstance(event, Drop)]
    assert len(held) == num_held
    assert sorted(held) == sorted(dropped)
    assert not any(isinstance(event, Hold) for event in layer.forward)

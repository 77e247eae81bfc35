"""When adapters' weights come and go in a trace, as ZeRO-3 gathers them."""

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Fetch, Release
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_backward_leaves_an_adapted_layer_when_that_of_all_inside_it_is_over(dropout: float):
    """``lora_A`` is looked at by the layer around it, which holds it until the base layer has given its gradient."""
    recipe = Recipe(method=Method.LORA, zero_stage=3, lora_dropout=dropout, activation_checkpointing=False)
    model = prepared_model(LLAMA, recipe)
    batch = Batch(micro_batch=1, num_tokens=8)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    adapted = model.module("model.layers").kinds[0].mlp.down_proj
    inside = {id(adapted.base_layer): "base", id(adapted.lora_A): "A", id(adapted.lora_B): "B"}
    looked_at = adapted._looked_at
    names = inside | {id(looked_at): "layer"}
    events = [
        (type(event), names[id(event.module)])
        for event in trace.sections["layers.0"].backward
        if isinstance(event, Fetch | Release) and id(event.module) in names
    ]
    in_turn = [(kind, name) for name in ("B", "A", "base") for kind in (Fetch, Release)]
    assert events == [(Fetch, "layer"), *in_turn, (Release, "layer")]

"""Modules with weights that call others under ZeRO-3: gathered once for their backward, whatever is inside."""

from typing import Any

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Fetch, Prefetch, Release
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

TEXT = {"model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 96, "intermediate_size_mlp": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "num_hidden_layers": 1}
VISION = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "patch_size": 14, "image_size": 56}
WIDTHS = {"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64, "pixel_shuffle_ratio": 0.5}
CONFIG = {
    "model_type": "llama4",
    "text_config": {**TEXT, **HEADS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "vision_config": {**VISION, **WIDTHS, "num_hidden_layers": 3},
}
"""Whose tower has a class embedding and positions of its own around its layers."""

DECODER = {"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100, "global_head_dim": 32}
ENCODER = {"model_type": "gemma4_vision", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}
GEMMA = {
    "model_type": "gemma4",
    "text_config": {**DECODER, **PER_LAYER, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100},
    "vision_config": {**ENCODER, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24},
}
LLAMA_4 = {**TEXT, **HEADS, "num_local_experts": 2, "num_experts_per_tok": 1, "tie_word_embeddings": True}
"""Whose models read the weight of the embedding inside of them."""


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_tower_with_weights_around_its_layers_is_fetched_first_in_backward_and_once(checkpoints):
    image = image_shape(CONFIG, None, width=56, height=56)
    model = build_model(CONFIG)
    for _, stack in model.stacks():
        stack.checkpoints = checkpoints
    tower = model.module("vision_model")
    batch = Batch(micro_batch=1, num_tokens=image.num_tokens + 9, images_per_sample=1, image=image)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.FULL)
    backward = [event for _, section in trace.backward() for event in section.backward if isinstance(event, Fetch)]
    modules = [event.module for event in backward]
    assert modules.count(tower) == 1
    inside = {id(one) for _, one in tower.named_modules() if one is not tower}
    assert modules.index(tower) < min(place for place, one in enumerate(modules) if id(one) in inside)
    released = [event for _, section in trace.backward() for event in section.backward if isinstance(event, Release)]
    assert tower not in [event.module for event in released]  # pixels have no gradient


@pytest.mark.parametrize(("config", "checkpoints"), [(GEMMA, False), (GEMMA, True), (LLAMA_4, True)])
def test_an_embedding_that_the_model_reads_is_fetched_behind_the_head_in_backward_and_stays(config, checkpoints):
    model = build_model(config)
    for _, stack in model.stacks():
        stack.checkpoints = checkpoints
    batch = Batch(micro_batch=1, num_tokens=9, images_per_sample=0, image=None)
    weight = model.head.weight
    weight.requires_grad = False
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.CHUNKED)

    def uses(events, kind):
        modules = [event.module for event in events if isinstance(event, kind)]
        return [place for place, one in enumerate(modules) if weight in one.parameters_by_name.values()]

    forward = [event for _, section in trace.forward() for event in section.forward]
    backward = [event for _, section in trace.backward() for event in section.backward]
    assert uses(forward, Fetch)[:2] == [0, 1]  # the model, then the embedding inside of it
    assert uses(backward, Fetch) == [0, 1]  # the head, then the model
    assert len(uses(backward, Release)) == 1  # of the head: the ids that the model gets have no gradient


def backward_of_layers(config: dict[str, Any]) -> list[list[Any]]:
    """Events of each layer's backward, with adapters and checkpoints."""
    recipe = Recipe(method=Method.LORA, zero_stage=3, activation_checkpointing=True)
    model = prepared_model(config, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    batch = Batch(micro_batch=1, num_tokens=9, images_per_sample=0, image=None)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.CHUNKED)
    layers = [section.backward for run, section in trace.backward() if run.layer is not None]
    assert layers
    return layers


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
OPT = {"model_type": "opt", **SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64}
STARCODER2 = {"model_type": "starcoder2", **SIZES, "intermediate_size": 96, "num_key_value_heads": 2}


@pytest.mark.parametrize("config", [GEMMA, OPT, {**STARCODER2, "residual_dropout": 0.1}])
def test_a_layer_that_runs_again_for_an_operation_of_its_own_keeps_what_it_gathers_to_its_end(config: dict[str, Any]):
    for events in backward_of_layers(config):
        fetched = [place for place, event in enumerate(events) if isinstance(event, Fetch)]
        ended = [place for place, event in enumerate(events) if isinstance(event, Release) and event.ends_recomputation]
        assert ended
        assert min(ended) > max(fetched)


def test_a_layer_that_runs_again_for_an_operation_inside_of_it_keeps_that_no_longer_than_the_module_takes():
    for events in backward_of_layers(STARCODER2):
        fetched = [place for place, event in enumerate(events) if isinstance(event, Fetch)]
        ended = [place for place, event in enumerate(events) if isinstance(event, Release) and event.ends_recomputation]
        assert min(ended) < max(fetched)


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}


@pytest.mark.parametrize("config", [OPT, GPT2])
def test_no_module_runs_between_the_tokens_and_their_positions(config: dict[str, Any]):
    """The decoder has begun when it calls its token table."""
    model = build_model(config)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=9), AttentionBackend(), loss=LossKind.CHUNKED)
    forward = [event for _, section in trace.forward() for event in section.forward]
    first, second = [place for place, event in enumerate(forward) if isinstance(event, Fetch)][:2]
    assert not [event for event in forward[first:second] if isinstance(event, Prefetch)]
    assert forward[second].before == 0

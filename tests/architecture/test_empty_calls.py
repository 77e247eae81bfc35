"""Modules without weights of their own are called in forward, and their backward begins, where torch says so."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.module_log import module_kind
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Event, Fetch, Prefetch, Trace
from vlmplan.recipe.choices import LossKind

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
CONFIGS = {
    "llama": {"model_type": "llama"},
    "phi3": {"model_type": "phi3", "resid_pdrop": 0.1, "pad_token_id": 0},
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 16, "layer_types": ["full_attention"] * 2},
}
WRAPPERS = ("", "model")
"""The model and the one without its head, which are no part of a trace (``coordinator.wrapper_modules``)."""


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, on results and inputs that its hooks do not see
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_trace_has_as_many_empty_modules_before_each_with_weights_as_torch_calls(
    config: dict[str, Any], checkpoints: bool
):
    tree = build_model({**SIZES, **config})
    for _, stack in tree.stacks():
        stack.checkpoints = checkpoints
    trace = tree.run(Tape(), Batch(micro_batch=1, num_tokens=4), AttentionBackend(), loss=LossKind.FULL)
    forward, backward = called_by_torch({**SIZES, **config}, checkpoints=checkpoints)
    assert planned(tree, trace, 0) == counted(forward)
    assert planned(tree, trace, 1) == counted(backward)


def planned(tree: Model, trace: Trace, phase: int) -> list[tuple[str, int]]:
    """The modules with weights in their order, each with how many empty ones come before it."""
    names = {id(module): module_kind(name) for name, module in tree.named_modules()}
    schedule = trace.schedule[::-1] if phase else trace.schedule
    found: list[tuple[str, int]] = []
    empty = 0
    for run in schedule:
        section = trace.sections[run.key]
        events: list[Event] = section.backward if phase else section.forward
        for event in events:
            if isinstance(event, Prefetch):
                empty += event.times
            elif isinstance(event, Fetch):
                found.append((names[id(event.module)], empty + event.before))
                empty = 0
    return found


def counted(calls: list[tuple[str, bool]]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    empty = 0
    for name, has_weights in calls:
        if has_weights:
            found.append((module_kind(name), empty))
            empty = 0
        else:
            empty += name not in WRAPPERS
    return found


def called_by_torch(config: dict[str, Any], *, checkpoints: bool) -> tuple[list[tuple[str, bool]], ...]:
    """The modules of transformers' model in the order in which forward calls them, and in which the gradients of their
    results arrive, modules that run again included; whether each has weights of its own."""
    settings = dict(config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    calls: list[tuple[str, bool]] = []

    def note(name: str, has_weights: bool) -> Any:
        return lambda *_: calls.append((name, has_weights))

    for name, module in model.named_modules():
        told = note(name, bool(module._parameters))
        module.register_forward_pre_hook(told)
        module.register_full_backward_pre_hook(told)
    ids = torch.arange(4)[None]
    logits = model.train()(input_ids=ids, use_cache=False).logits
    forward = list(calls)
    calls.clear()
    logits.sum().backward()
    return forward, calls

"""What forward keeps, by module: the modules of transformers by their names, and all bytes of the trace."""

from typing import Any

import pytest

from vlmplan.architecture.module_log import ModuleTape, followed, kept_bytes, module_kind
from vlmplan.architecture.trace import Kind, Span, Trace
from vlmplan.estimation import Estimator
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.request import parse
from vlmplan.requested import requested_estimate

SETUPS = [
    {"model": "gpt2", "method": "full", "micro_batch": 3},
    {"model": "gpt2", "method": "lora", "activation_checkpointing": False, "loss": "full"},
    {"model": "qwen2-vl-2b", "method": "lora", "zero_stage": "3", "train_vision": True},
    {"model": "gpt-oss-20b", "method": "lora"},
    {"model": "smollm2-135m", "method": "lora", "task": "dpo"},
    {"model": "qwen3-vl-2b", "method": "full", "activation_checkpointing": False},
]
BESIDE_A_REFERENCE = [
    {"model": "smollm2-135m", "method": "full", "task": "dpo"},
    {"model": "gpt2", "method": "lora", "task": "kto", "micro_batch": 2},
]


def bytes_after_forward(trace: Trace) -> dict[Kind, int]:
    live = [0] * len(Kind)
    for run in trace.schedule:
        for event in trace.sections[run.key].forward:
            if isinstance(event, Span):
                live = [before + more for before, more in zip(live, event.delta, strict=True)]
    return {kind: live[kind] for kind in Kind if live[kind]}


@pytest.mark.parametrize("options", SETUPS, ids=str)
def test_modules_together_keep_what_is_alive_when_forward_ends(options):
    """Gradients that a chunked loss makes in forward are the engine's when they are whole, so they may be less."""
    _keeps_what_is_alive(options)


@pytest.mark.parametrize("options", BESIDE_A_REFERENCE, ids=str)
def test_modules_keep_the_same_beside_the_forwards_of_other_models(options):
    _keeps_what_is_alive(options)


def _keeps_what_is_alive(options: dict[str, Any]) -> None:
    found, _ = requested_estimate(parse({"gpu": "h100-sxm:2", **options}), ())
    estimator, capability = Estimator(found.workload, found.recipe), found.cluster.node.gpu.compute_capability
    tape = tape_for(ModuleTape, found.recipe)
    with followed(estimator.model, tape):
        trace = estimator.run(tape, found.recipe, capability)
    by_kind: dict[Kind, int] = {}
    for (_, kind), num_bytes in kept_bytes(trace, tape).items():
        by_kind[kind] = by_kind.get(kind, 0) + num_bytes
    assert by_kind == bytes_after_forward(estimator.trace(found.recipe, capability))


def test_modules_inside_of_layers_that_are_checkpointed_keep_nothing():
    """Of 12 layers, each keeps what the one before made, and the last norm what the last layer did: (2, 5, 768) in
    bfloat16. What the embedding made ends with the model's forward."""
    options = {"model": "gpt2", "gpu": "h100-sxm", "method": "full", "micro_batch": 2, "seq_len": 5}
    found, _ = requested_estimate(parse({**options, "zero_stage": "2", "activation_checkpointing": True}), ())
    estimator = Estimator(found.workload, found.recipe)
    tape = tape_for(ModuleTape, found.recipe)
    with followed(estimator.model, tape):
        trace = estimator.run(tape, found.recipe, (9, 0))
    kept = kept_bytes(trace, tape)
    assert not [name for name, _ in kept if name.startswith("transformer.h.*.")]
    assert kept["transformer.h.*", Kind.ACTIVATION] == 12 * 2 * 5 * 768 * 2
    assert ("transformer.wte", Kind.ACTIVATION) not in kept


def test_the_model_is_as_it_was_afterwards():
    found, _ = requested_estimate(parse({"model": "gpt2", "gpu": "h100-sxm"}), ())
    model = Estimator(found.workload, found.recipe).model
    with followed(model, tape_for(ModuleTape, found.recipe)):
        assert [name for name, module in model.distinct_modules() if "forward" in vars(module)]
    assert not [name for name, module in model.distinct_modules() if "forward" in vars(module)]


def test_layers_have_one_name():
    assert module_kind("model.layers.11.mlp.experts.3.up") == "model.layers.*.mlp.experts.*.up"
    assert module_kind("visual.blocks.7") == "visual.blocks.*"

"""What a model's modules take: weights, whole and before any engine shards them, and what forward keeps in each."""

from vlmplan.architecture.module_log import ModuleTape, followed, kept_bytes, module_kind
from vlmplan.architecture.trace import Kind
from vlmplan.engines.parameters import is_trained
from vlmplan.estimation import Estimate, Estimator
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.files.json_reader import JsonDict

WRAPPED = ".base_layer"
"""What peft puts between an adapted Linear and its weight."""
OUTSIDE = "outside of modules"
"""Inputs of the model, the loss, and what it computes between them."""
KINDS = {
    Kind.ACTIVATION: "activations",
    Kind.LOGITS: "logits",
    Kind.TEMPORARY: "temporaries",
    Kind.GRADIENT: "gradients",
}
"""Components of what forward leaves; gradients are those of a chunked loss, which makes them in forward."""


def document(found: Estimate) -> JsonDict:
    """Modules with weights or activations, equal layers together; that with the most bytes comes first.

    ``bytes`` are those of the weights as they are stored, adapters among them, without master copies. ``kept`` has
    the bytes by component that wait for backward when forward ends, on one GPU.
    """
    recipe = found.recipe
    estimator = Estimator(found.workload, recipe)
    rows: dict[str, JsonDict] = {}
    for entry in estimator.model.parameters():
        row = _row(rows, module_kind(entry.name).rpartition(".")[0].removesuffix(WRAPPED))
        row["num_params"] += entry.parameter.numel
        row["num_trained"] += entry.parameter.numel if is_trained(entry) else 0
        row["bytes"] += entry.parameter.num_bytes
    tape = tape_for(ModuleTape, recipe)
    with followed(estimator.model, tape):
        trace = estimator.run(tape, recipe, found.cluster.node.gpu.kernel_capability)
    for (name, kind), num_bytes in kept_bytes(trace, tape).items():
        kept = _row(rows, name or OUTSIDE)["kept"]
        kept[KINDS[kind]] = kept.get(KINDS[kind], 0) + num_bytes
    return {"modules": sorted(rows.values(), key=lambda row: -row["bytes"] - sum(row["kept"].values()))}


def _row(rows: dict[str, JsonDict], module: str) -> JsonDict:
    return rows.setdefault(module, {"module": module, "num_params": 0, "num_trained": 0, "bytes": 0, "kept": {}})

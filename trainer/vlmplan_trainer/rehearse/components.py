"""What a storage is for: weights, gradients, optimizer states, activations, logits, communication buffers, temporaries.

What the model, DeepSpeed and the optimizer hold by name is found there; the rest is classified by what allocated it and
when.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATE, GENERATION, INIT, LOAD, REFERENCE, SCORE
from vlmplan_trainer.rehearse.attribution import DDP
from vlmplan_trainer.rehearse.ledger import WORKSPACE, Entry, Ledger

COMPONENTS = (
    "weights",
    "gradients",
    "optimizer_states",
    "activations",
    "logits",
    "communication_buffers",
    "temporaries",
)
ENGINE_STORES = {
    "averaged_gradients": "gradients",
    "grad_partitions_flat_buffer": "gradients",
    "all_grad_tensors": "gradients",
    "fp16_groups_flat": "weights",
    "bit16_groups_flat": "weights",
    "fp16_partitioned_groups_flat": "weights",
    "fp32_partitioned_groups_flat": "optimizer_states",
    "single_partition_of_fp32_groups": "optimizer_states",
    "fp32_groups": "optimizer_states",
    "grads_in_partition": "gradients",
    "temp_grad_buffer_for_gpu_offload": "communication_buffers",
    "_muon_pending_momentum": "optimizer_states",
    "_muon_allgather_buffers": "communication_buffers",
}
"""Attributes of DeepSpeed's optimizers (``runtime``): ``zero/stage3.py``, ``zero/stage_1_and_2.py``,
``fp16/unfused_optimizer.py``."""
BUCKETS, FLAT_BUCKET = "ipg_buckets", "ipg_bucket_flat_buffer"
"""Attributes that hold the buckets of what is sent (``runtime/zero/stage_1_and_2.py``, ``stage3.py``)."""
DEEPSPEED_FUNCTIONS = (
    ("muon", "communication_buffers"),
    ("_partitioned_buffers_all_gather", "communication_buffers"),
    *((name, "weights") for name in ("all_gather", "allgather", "_fetch", "fetch_sub_module", "_alloc")),
    ("norm", "temporaries"),
    *((name, "communication_buffers") for name in ("reduce", "scatter", "average", "bucket", "ipg")),
)
"""Parts of the names of DeepSpeed's functions, and what they make: the first that a name has counts. Muon gathers
gradients and momenta (``_muon_update_sub_group`` and ``_partitioned_buffers_all_gather`` in ``zero/stage3.py``)."""
HANDLES = ("wait", "__init__")
"""Functions of the handles of all-gathers, which make weights whole (``AllGatherCoalescedHandle``, and
``NoGatherCoalescedHandle`` of a rank that is alone)."""
CASTING = ("vlmplan_trainer make_engine", "deepspeed _configure_distributed_model")
"""Functions that cast the model's weights. What is whole for a moment before training, under ZeRO-3, is temporary."""
FSDP_FUNCTIONS = {
    **dict.fromkeys(
        (
            *("allocate", "_get_param_all_gather_inputs", "foreach_all_gather", "foreach_reduce"),
            *("_use_low_precision_shard", "_get_reduce_scatter_tensors"),
        ),
        "communication_buffers",
    ),
    "to_accumulated_grad_if_needed": "gradients",
}
"""Functions of FSDP2 (``_fsdp_collectives.py``, ``_fsdp_param.py``) and of FSDP1 (``_flat_param.py``,
``_runtime_utils.py``) that make what is sent, and gradients in the reduction's type; others all-gather weights."""
PASSING = ("optim ", "bitsandbytes ")
"""What optimizers make on the way, and 4-bit weights that are dequantized for one product."""
FLAT_WEIGHTS, FLAT_GRADIENTS = ("_local_shard", "_full_param_padded"), ("grad", "_saved_grad_shard")
"""What a flat parameter of FSDP1 holds (``FlatParameter`` in ``_flat_param.py``)."""
COPY, BACKWARD_NODE = "_to_copy", "Backward0"
"""Of a weight's shape are its gradients, and the copies in another type that autocast makes on the way forward."""
MODEL_PHASES = (FORWARD, BACKWARD, EVALUATION, GENERATION, REFERENCE, GENERATE, SCORE)
"""In these the model computes, so that what no name is known of are activations; elsewhere, temporaries."""


class Owners:
    """The storages that model and engine hold by name."""

    def __init__(self, ledger: Ledger, model: torch.nn.Module, engine: Any, vocab_size: int | None) -> None:
        self._ledger, self._model, self._engine, self._vocab_size = ledger, model, engine, vocab_size
        trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
        self._shapes = {tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in trained}

    def components(self) -> dict[int, str]:
        """The component of every live storage by its number."""
        known = self.held()
        return {
            number: known.get(number) or self.guess(entry)
            for number, entry in self._ledger.entries.items()
            if entry.is_on_device
        }

    def held(self) -> dict[int, str]:
        """The component of each storage that model, optimizer and engine hold by name."""
        found: dict[int, str] = {}
        optimizers = self._optimizers()
        for optimizer in optimizers:  # first of all: gradients may be views of a bucket
            for name, value in vars(optimizer).items():
                if name == BUCKETS or name.endswith(FLAT_BUCKET):
                    self._note(found, "communication_buffers", tensors_in(value))
        flat = self._flat_parameters()
        for component, tensors in (
            ("weights", (getattr(one, name, None) for one in flat for name in FLAT_WEIGHTS)),
            ("gradients", (getattr(one, name, None) for one in flat for name in FLAT_GRADIENTS)),
            ("optimizer_states", self._states(optimizers)),
            ("gradients", (p.grad for p in self._model.parameters())),
            ("weights", self._weights()),
            ("weights", (one for one in optimized(optimizers) if isinstance(one, DTensor))),
        ):
            self._note(found, component, tensors)
        for optimizer in optimizers:
            for name, component in ENGINE_STORES.items():
                self._note(found, component, tensors_in(vars(optimizer).get(name)))
            for name, value in vars(optimizer).items():
                if name.endswith("param_id_to_grad_partition"):
                    self._note(found, "gradients", tensors_in(value))
        return found

    def _flat_parameters(self) -> list[Any]:
        """FSDP1's, whose gradients are those of the weights in it and its own."""
        handles = getattr(getattr(self._engine, "_module", None), "_all_handles", ())
        for one in handles:
            self._shapes |= {tuple(shape) for shape in one.flat_param._shapes}
            self._shapes.add(tuple(one.flat_param._unpadded_unsharded_size))
        return [handle.flat_param for handle in handles]

    def _weights(self) -> Iterator[Tensor | None]:
        for parameter in self._model.parameters():
            yield parameter
            yield getattr(parameter, "ds_tensor", None)
            yield getattr(parameter, "ds_secondary_tensor", None)
            state = getattr(parameter, "quant_state", None)
            if state is not None:
                yield from tensors_in(vars(state))
        yield from self._model.buffers()

    def _optimizers(self) -> list[Any]:
        """DeepSpeed's optimizer and torch's inside it."""
        inner = getattr(self._engine, "_optimizer", None)
        if inner is None:
            inner = self._engine._engine.optimizer
        found = [inner]
        while hasattr(found[-1], "optimizer"):
            found.append(found[-1].optimizer)
        return found

    def _states(self, optimizers: Iterable[Any]) -> Iterator[Tensor | None]:
        weights = {id(parameter) for parameter in self._model.parameters()}
        for parameter in optimized(optimizers):
            if id(parameter) not in weights and not isinstance(parameter, DTensor):
                yield parameter
        for optimizer in optimizers:
            yield from tensors_in(dict(getattr(optimizer, "state", None) or {}))

    def _note(self, found: dict[int, str], component: str, tensors: Iterable[Tensor | None]) -> None:
        for tensor in tensors:
            for own in inner_tensors(tensor):
                number = self._ledger.number_of(own.untyped_storage())
                if number is not None:
                    found.setdefault(number, component)

    def guess(self, entry: Entry) -> str:
        """The component of a storage by what allocated it and when."""
        maker, phase = entry.maker, entry.phase
        if not phase:
            return "activations"  # a micro batch on its way to the device
        if maker.startswith("fsdp "):
            return FSDP_FUNCTIONS.get(maker.removeprefix("fsdp "), "weights")
        if maker.startswith(DDP):
            return "communication_buffers"
        if maker.startswith("deepspeed "):
            function = maker.removeprefix("deepspeed ")
            named = next((component for part, component in DEEPSPEED_FUNCTIONS if part in function), None)
            named = "weights" if function in HANDLES else named
            if named is not None:
                return "temporaries" if named == "weights" and phase in (LOAD, INIT) else named
        if maker in CASTING:
            return "weights"
        if entry.op == WORKSPACE or phase not in MODEL_PHASES or maker.startswith(PASSING):
            return "temporaries"
        if entry.shape in self._shapes and (COPY not in entry.op or BACKWARD_NODE in maker):
            return "gradients"
        if self._vocab_size is not None and self._vocab_size in entry.shape:
            return "logits"  # or the head in another type, to make them
        return "activations"


def inner_tensors(tensor: Tensor | None) -> list[Tensor]:
    """The tensors with storages of their own: a rank's part of a sharded tensor, the codes and scales of torchao's
    moments."""
    if tensor is None:
        return []
    if isinstance(tensor, DTensor):
        return inner_tensors(tensor.to_local())
    names = getattr(tensor, "tensor_attrs", None)
    return [tensor] if names is None else [getattr(tensor, name) for name in names]


def optimized(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    """What the optimizers update: master copies, or the model's own weights, which FSDP2 has as shards although the
    model may show them whole."""
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", None) or ():
            yield from group["params"]


def tensors_in(item: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, dictionaries and plain objects of DeepSpeed's."""
    if isinstance(item, Tensor):
        yield item
        return
    if depth == 0 or item is None or isinstance(item, (str, int, float)):
        return
    if isinstance(item, dict):
        for value in item.values():
            yield from tensors_in(value, depth - 1)
    elif isinstance(item, (list, tuple, set)):
        for value in item:
            yield from tensors_in(value, depth - 1)
    elif type(item).__module__.startswith(("deepspeed", "bitsandbytes")):
        yield from tensors_in({k: v for k, v in vars(item).items() if k not in ("params", "grads")}, depth - 1)

"""What code finds that is rehearsed on tensors without data: a card, or none, and process groups of any size; and what
is put in the way of libraries for it."""

import importlib.util
import warnings
from contextlib import ExitStack

import torch
from torch._subclasses import fake_tensor

from vlmplan_trainer.rehearse import kernels, shims
from vlmplan_trainer.rehearse.attribution import AllocationAttribution
from vlmplan_trainer.rehearse.device_shims import (
    dequantising_for_products,
    knowing_used_weights,
    making_numbers_on_the_host,
    paging_in_host_memory,
    rebuilding_buckets,
    recording_no_streams,
    taking_tensors_together,
)
from vlmplan_trainer.rehearse.flash import flash_attention_from_torch
from vlmplan_trainer.rehearse.int8_products import quantising_for_products
from vlmplan_trainer.rehearse.ledger import GPU_BLOCK_BYTES, Ledger
from vlmplan_trainer.resized_storages import telling_of_resized_storages
from vlmplan_trainer.script_rehearsal.card import make_cuda_known
from vlmplan_trainer.script_rehearsal.flash_package import flash_attn_package
from vlmplan_trainer.script_rehearsal.generators import generators_of_the_card
from vlmplan_trainer.script_rehearsal.inference import inferring_without_gradients
from vlmplan_trainer.script_rehearsal.queries import Card, answer_as
from vlmplan_trainer.script_rehearsal.ranks import one_host, running_alone

NAMED_BYTES = 1 << 16
"""Storages from this size on have the line of the script that made them: a small model's weights too."""
CPU_SHIMS = (rebuilding_buckets, knowing_used_weights, inferring_without_gradients, one_host)
CUDA_SHIMS = (
    making_numbers_on_the_host,
    rebuilding_buckets,
    knowing_used_weights,
    inferring_without_gradients,
    recording_no_streams,
    taking_tensors_together,
    flash_attention_from_torch,
    flash_attn_package,
    generators_of_the_card,
)


def prepared(card: Card | None) -> Ledger:
    """Once in a process, before fake tensors: the libraries, and the card. Where storages will be counted."""
    _import_libraries()
    ledger = Ledger(
        counts_host_as_device=card is None,
        block_bytes=1 if card is None else GPU_BLOCK_BYTES,
        named_bytes=NAMED_BYTES,
    )
    if card is not None:
        _make_card(card, ledger)
    warnings.filterwarnings("ignore")
    torch.autograd.set_multithreading_enabled(False)
    return ledger


def enter_shims(
    stack: ExitStack,
    ledger: Ledger,
    attribution: AllocationAttribution,
    *,
    card: Card | None,
    rank: int,
    num_ranks: int,
) -> None:
    """What stands in the way of libraries, and the ranks."""
    stack.enter_context(shims.installed(has_device=False, has_paged_states=False))
    for shim in CPU_SHIMS if card is None else CUDA_SHIMS:
        stack.enter_context(shim())
    if card is not None and _has_bitsandbytes():
        stack.enter_context(dequantising_for_products())
        stack.enter_context(quantising_for_products())
        stack.enter_context(paging_in_host_memory())
    stack.enter_context(telling_of_resized_storages(lambda storage: ledger.resized(storage, attribution)))
    stack.enter_context(running_alone(rank, num_ranks, device=card and "cuda"))


def _import_libraries() -> None:
    """Import the libraries that look at torch while they are imported: they see it as it is."""
    import transformers

    for name in (
        *("deepspeed.ops.op_builder.all_ops", "deepspeed.runtime.engine", "transformers.modeling_utils"),
        "torch._inductor.decomposition",  # asks all operations for overloads; DeepSpeed's engine for a card imports it
    ):
        importlib.import_module(name)
    if _has_bitsandbytes():
        importlib.import_module("bitsandbytes")  # with a card it takes torch's functions of a build for cards
    assert transformers.Trainer


def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def _make_card(card: Card, ledger: Ledger) -> None:
    make_cuda_known()
    answer_as(card, ledger)
    fake_tensor.init_gpu_context = lambda device: None
    kernels.register(card.compute_capability, backend="CUDA")
    import deepspeed

    from vlmplan_trainer.script_rehearsal.accelerator import CardAccelerator

    deepspeed.accelerator.set_accelerator(CardAccelerator(card, ledger))

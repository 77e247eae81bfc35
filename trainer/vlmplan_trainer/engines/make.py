"""The engine of a plan, on the device that this process has."""

import os
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.plan.unlaunched import recipe_problems, row_problems
from vlmplan.recipe.choices import Offload, Precision
from vlmplan.units import counted
from vlmplan_trainer.engines.base import Engine, LossModule
from vlmplan_trainer.engines.ddp import DdpEngine
from vlmplan_trainer.engines.fsdp1 import FlatEngine
from vlmplan_trainer.engines.fsdp2 import FsdpEngine
from vlmplan_trainer.engines.plain import PlainEngine
from vlmplan_trainer.engines.zero import ZeroEngine


def start_process_group(plan: Plan, *, is_needed: bool = False) -> None:
    """Join the other ranks, where the plan has any or ``is_needed`` (DeepSpeed's monitor asks for the rank).

    Raises InputError on a wrong count, and where DeepSpeed cannot compute as the plan says.
    """
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks != plan.hardware.num_gpus:
        wanted, found = counted(plan.hardware.num_gpus, "GPU"), counted(num_ranks, "rank")
        verb = "was" if num_ranks == 1 else "were"
        raise InputError(
            f"the plan is for {wanted}, but {found} {verb} started (WORLD_SIZE); "
            f"start it with launch.sh or vlmplan launch"
        )
    is_on_cpu = plan.hardware.vendor == "cpu"
    if plan.ds_config is None and not is_needed:
        if plan.has_ranks and not torch.distributed.is_initialized():
            _meet_nobody_if_alone(num_ranks)
            torch.distributed.init_process_group(_backend(plan))
        return
    import deepspeed

    if plan.ds_config is not None and plan.recipe.precision is Precision.FP16:
        _check_fp16(plan)
    _meet_nobody_if_alone(num_ranks)
    if is_on_cpu or not plan.has_ranks:
        init_gloo()
    else:
        deepspeed.init_distributed(verbose=False)


def _meet_nobody_if_alone(num_ranks: int) -> None:
    """Set the variables of a process group of one, for a rank that is started by hand."""
    if num_ranks == 1 and not {"RANK", "MASTER_PORT"} <= os.environ.keys():
        # Port 0: any that is free.
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        os.environ.update(alone)


def _backend(plan: Plan) -> str:
    """The backend of a run without DeepSpeed. The norm of gradients that FSDP2 has on the host is summed there."""
    if plan.hardware.vendor == "cpu":
        return "gloo"
    return "nccl" if plan.recipe.offload_params is Offload.NONE else "cpu:gloo,cuda:nccl"


def _check_fp16(plan: Plan) -> None:
    """DeepSpeed refuses fp16 where the accelerator has no fast arithmetic for it (``_do_sanity_check``, 0.19.8)."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    assert accelerator is not None
    if not accelerator.is_fp16_supported():
        is_cpu = plan.hardware.vendor == "cpu"
        needed = "a processor with AVX512-FP16" if is_cpu else "a GPU of compute capability 7.0 or newer"
        raise InputError(
            f"--precision fp16 under DeepSpeed needs {needed}, which this machine has not; "
            f"plan with --precision {'bf16 or fp32' if is_cpu else 'fp32'}"
        )


def multiplies_in_tf32(plan: Plan) -> bool:
    """Whether float32 matrices are multiplied in TF32: the planner's time of fp32 plans is at that rate
    (``timing/rates.py``), and torch's default is full float32 since 1.12."""
    return plan.hardware.vendor == "nvidia" and plan.recipe.precision is Precision.FP32


def init_gloo(**rendezvous: Any) -> None:
    """DeepSpeed between CPU ranks, over gloo alone. ``rendezvous`` goes to ``deepspeed.init_distributed``.

    Where a compiler is found, DeepSpeed would build an extension for messages through shared memory at the first start
    (comm/torch.py, build_shm_op). A start killed meanwhile leaves a lock file, for which all later ones wait for ever.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False, **rendezvous)


def device_of(plan: Plan) -> torch.device:
    """The card of this rank, or the CPU for a plan of CPU ranks."""
    if plan.hardware.vendor == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(f"the plan is for {plan.hardware.gpu_name}, but torch finds no GPU here")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if multiplies_in_tf32(plan):
        torch.set_float32_matmul_precision("high")
    return device


def make_engine(
    model: torch.nn.Module, plan: Plan, *, device: torch.device, weight_decay: float, is_universal: bool = False
) -> Engine:
    """Plain PyTorch, alone, data-parallel or sharded, or DeepSpeed, as the plan says.

    Raises InputError for what only other trainers have.
    """
    for problem in (*recipe_problems(plan.recipe), *row_problems(plan.recipe, plan.workload.model)):
        raise InputError(problem)
    module = LossModule(model, loss=plan.recipe.loss)
    if plan.ds_config is None:
        if plan.recipe.is_flat:
            return FlatEngine(module, plan.recipe, device=device, weight_decay=weight_decay)
        if plan.recipe.fsdp:
            return FsdpEngine(module, plan.recipe, device=device, weight_decay=weight_decay)
        kind = DdpEngine if plan.has_ranks else PlainEngine
        return kind(module.to(device), plan.recipe, device=device, weight_decay=weight_decay)
    return ZeroEngine(module, plan, weight_decay=weight_decay, is_universal=is_universal)

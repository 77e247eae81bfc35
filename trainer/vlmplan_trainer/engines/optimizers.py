"""The optimizer that a recipe names, over the trained weights of a model."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from vlmplan.errors import UnavailableError
from vlmplan.recipe import Offload, OptimizerKind, Precision, Recipe
from vlmplan.training import ADAM_BETAS, ADAM_EPSILON
from vlmplan_trainer.phases import say_phase

CPU_ADAM = "cpu_adam"
COMPILING = "compiling DeepSpeed's cpu_adam: once on this machine, two minutes or so"
"""Measured: 130 seconds on two cores."""


def make_optimizer(parameters: Sequence[nn.Parameter], recipe: Recipe, *, weight_decay: float) -> Optimizer:
    """The optimizer of the plan. Learning rates are set at every step."""
    kind = recipe.optimizer
    if kind is OptimizerKind.SGD:
        return SGD(parameters, lr=0.0, momentum=0.9, weight_decay=weight_decay)
    if kind is OptimizerKind.ADAFACTOR:
        from transformers import Adafactor

        return Adafactor(parameters, lr=0.0, relative_step=False, scale_parameter=False, weight_decay=weight_decay)
    common: dict[str, Any] = {"lr": 0.0, "betas": ADAM_BETAS, "eps": ADAM_EPSILON, "weight_decay": weight_decay}
    if kind in (OptimizerKind.ADAMW_8BIT, OptimizerKind.PAGED_ADAMW_8BIT):
        import bitsandbytes

        is_paged = kind is OptimizerKind.PAGED_ADAMW_8BIT
        return (bitsandbytes.optim.PagedAdamW8bit if is_paged else bitsandbytes.optim.AdamW8bit)(parameters, **common)
    if recipe.offload_optimizer is not Offload.NONE and not recipe.fsdp:
        return _adamw_on_host(parameters, common, keeps_float32=recipe.precision is not Precision.BF16_PURE)
    return AdamW(parameters, fused=recipe.fuses_optimizer, foreach=not recipe.fuses_optimizer, **common)


@contextmanager
def keeping_settings(optimizer: Any) -> Iterator[None]:
    """Within, a checkpoint is loaded; afterwards the settings of ``optimizer`` are those that it was made with.

    ``load_state_dict`` takes those of the checkpoint, of which ``DeepSpeedCPUAdam`` misses some where torch's AdamW
    wrote it, and which would bring back another kernel than the plan's.
    """
    made = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    yield
    for group, settings in zip(optimizer.param_groups, made, strict=True):
        group.update(settings)


def _adamw_on_host(parameters: Sequence[nn.Parameter], common: dict[str, Any], *, keeps_float32: bool) -> Optimizer:
    """DeepSpeed's AdamW for offloaded states, whose kernel is compiled at its first use on a machine (0.19.8).

    The build calls ``ninja`` by name, which in a virtual environment that is not activated only its interpreter's
    folder has. Raises UnavailableError where it cannot be built.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    if _is_to_compile():
        say_phase(COMPILING)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    try:
        return DeepSpeedCPUAdam(parameters, adamw_mode=True, fp32_optimizer_states=keeps_float32, **common)
    except RuntimeError as error:
        cause = " ".join(str(error.__cause__ or error).split())[:300]
        raise UnavailableError(
            f"offloading the optimizer needs DeepSpeed's cpu_adam, which cannot be built here ({cause}); "
            f"a C++ compiler and the package ninja are needed, or a plan with --offload-optimizer none"
        ) from None


def _is_to_compile() -> bool:
    """Whether DeepSpeed's cpu_adam is neither installed with it nor compiled on this machine before
    (``op_builder/builder.py`` 0.19.8, ``load``; ``torch/utils/cpp_extension.py``)."""
    from deepspeed.git_version_info import installed_ops
    from torch.utils.cpp_extension import _get_build_directory

    return (
        not installed_ops.get(CPU_ADAM) and not Path(_get_build_directory(CPU_ADAM, False), f"{CPU_ADAM}.so").exists()
    )

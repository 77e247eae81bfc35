"""The optimizer that a recipe names, over the trained weights of a model."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn, no_grad
from torch import _foreach_add_ as foreach_add_  # as torch's own optimizers call it
from torch.optim import SGD, AdamW, Optimizer

from vlmplan.errors import UnavailableError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, OptimizerKind, Precision
from vlmplan.run.training import ADAM_BETAS, ADAM_EPSILON
from vlmplan_trainer.engines.groups import LR_FACTOR, num_dimensions
from vlmplan_trainer.phases import say_phase

CPU_ADAM = "cpu_adam"
COMPILING = "compiling DeepSpeed's cpu_adam: once on this machine, two minutes or so"
"""Measured: 130 seconds on two cores."""


def trained_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of a module by name, in its order."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def make_optimizer(trained: Mapping[str, nn.Parameter], recipe: Recipe, *, weight_decay: float) -> Optimizer:
    """The optimizer of the plan. ``set_learning_rate`` sets learning rates at every step."""
    kind = recipe.optimizer
    parameters = _groups(trained, recipe)
    if kind is OptimizerKind.SGD:
        return DecayingSGD(parameters, weight_decay)
    if kind is OptimizerKind.ADAFACTOR:
        from transformers import Adafactor

        return Adafactor(parameters, lr=0.0, relative_step=False, scale_parameter=False, weight_decay=weight_decay)
    common: dict[str, Any] = {"lr": 0.0, "betas": ADAM_BETAS, "eps": ADAM_EPSILON, "weight_decay": weight_decay}
    if kind.is_bitsandbytes:
        import bitsandbytes

        make = getattr(bitsandbytes.optim, BITSANDBYTES_CLASSES[kind])
        if kind in LIONS:
            return make(parameters, lr=0.0, betas=LION_BETAS, weight_decay=weight_decay)
        return make(parameters, **common)
    if kind.is_torchao:
        from vlmplan_trainer.engines.torchao import make_torchao

        return make_torchao(parameters, recipe, common)
    if kind is OptimizerKind.MUON:
        from vlmplan_trainer.engines.muon import make_muon

        return make_muon(trained, recipe, common)
    if recipe.offload_optimizer is not Offload.NONE and not recipe.fsdp:
        return _adamw_on_host(parameters, common, keeps_float32=recipe.precision is not Precision.BF16_PURE)
    return AdamW(parameters, fused=recipe.fuses_optimizer, foreach=not recipe.fuses_optimizer, **common)


class DecayingSGD(SGD):
    """torch's SGD with momentum, whose weight decay is added to the gradients in place.

    Its own makes copies of all gradients for that (``_foreach_add`` in ``_multi_tensor_sgd``, ``torch/optim/sgd.py`` of
    2.13), of which no plan knows; behind a step nobody has gradients. The weights become the same.
    """

    def __init__(self, parameters: Sequence[Any], decay: float) -> None:
        super().__init__(parameters, lr=0.0, momentum=0.9)
        self._decay = decay

    def step(self, closure: Any = None) -> Any:
        weights = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        if self._decay and weights:
            with no_grad():
                foreach_add_([one.grad for one in weights], weights, alpha=self._decay)
        return super().step(closure)


BITSANDBYTES_CLASSES = {
    OptimizerKind.ADAMW_8BIT: "AdamW8bit",
    OptimizerKind.PAGED_ADAMW: "PagedAdamW32bit",
    OptimizerKind.PAGED_ADAMW_8BIT: "PagedAdamW8bit",
    OptimizerKind.LION: "Lion",
    OptimizerKind.LION_8BIT: "Lion8bit",
    OptimizerKind.PAGED_LION: "PagedLion32bit",
    OptimizerKind.PAGED_LION_8BIT: "PagedLion8bit",
}
LIONS = (OptimizerKind.LION, OptimizerKind.LION_8BIT, OptimizerKind.PAGED_LION, OptimizerKind.PAGED_LION_8BIT)
LION_BETAS = (0.9, 0.99)
"""As in its paper (Chen et al., arXiv 2302.06675, table 12) and in bitsandbytes."""


def _groups(trained: Mapping[str, nn.Parameter], recipe: Recipe) -> Sequence[Any]:
    """All parameters in one group, or with LoRA+ those that peft's ``create_loraplus_optimizer`` gives the larger
    learning rate in another: ``lora_B``, and vectors such as DoRA's magnitude. Each in the order of the model, which
    all ranks share: DeepSpeed lays a group out in a flat buffer, of which each rank updates a part."""
    ratio = recipe.loraplus_lr_ratio
    if ratio is None:
        return list(trained.values())
    faster = {name for name, parameter in trained.items() if "lora_B" in name or num_dimensions(parameter) == 1}
    groups = [
        {"params": [one for name, one in trained.items() if (name in faster) is is_faster], LR_FACTOR: factor}
        for is_faster, factor in ((False, 1.0), (True, ratio))
    ]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        rate = learning_rate * group.get(LR_FACTOR, 1.0)
        if isinstance(group["lr"], Tensor):  # torchao's, which is compiled for it
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def keeping_settings(optimizer: Any) -> Iterator[None]:
    """Within, a checkpoint is loaded; afterwards the settings of ``optimizer`` are those that it was made with.

    ``load_state_dict`` takes those of the checkpoint, of which ``DeepSpeedCPUAdam`` misses some where torch's AdamW
    wrote it, and which would bring back another kernel than the plan's.
    """
    made = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    with _keeping_types():
        yield
    for group, settings in zip(optimizer.param_groups, made, strict=True):
        group.update(settings)


@contextmanager
def _keeping_types() -> Iterator[None]:
    """Within, states are loaded in the element type that they were saved in.

    torch 2.13 gives them that of their weight, which for Adafactor's float32 states of 16-bit weights is another than
    they were made with (``_process_value_according_to_param_policy`` in ``torch/optim/optimizer.py``).
    """
    name = "_process_value_according_to_param_policy"
    cast = getattr(Optimizer, name)

    def moved(param: Tensor, value: Tensor, param_id: int, param_groups: list[Any], key: Any = None) -> Tensor:
        if key != "step" and value.is_floating_point():
            return value.to(param.device)
        return cast(param, value, param_id, param_groups, key)

    setattr(Optimizer, name, staticmethod(moved))
    try:
        yield
    finally:
        setattr(Optimizer, name, staticmethod(cast))


def _adamw_on_host(parameters: Sequence[Any], common: dict[str, Any], *, keeps_float32: bool) -> Optimizer:
    """DeepSpeed's AdamW for offloaded states, whose kernel is compiled at its first use on a machine (0.19.8).

    The build calls ``ninja`` by name, which in a virtual environment that is not activated only its interpreter's
    folder has. Raises UnavailableError where it cannot be built.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    if is_to_compile():
        say_phase(COMPILING)
    find_ninja()
    try:
        return DeepSpeedCPUAdam(parameters, adamw_mode=True, fp32_optimizer_states=keeps_float32, **common)
    except RuntimeError as error:
        cause = " ".join(str(error.__cause__ or error).split())[:300]
        raise UnavailableError(
            f"offloading the optimizer needs DeepSpeed's cpu_adam, which cannot be built here ({cause}); "
            f"a C++ compiler and the package ninja are needed, or a plan with --offload-optimizer none"
        ) from None


def find_ninja() -> None:
    """What builds cpu_adam, and looks whether it is to be built again, lies beside an interpreter whose environment may
    not be active."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


def is_to_compile() -> bool:
    """Whether DeepSpeed's cpu_adam is neither installed with it nor compiled on this machine before
    (``op_builder/builder.py`` 0.19.8, ``load``; ``torch/utils/cpp_extension.py``)."""
    from deepspeed.git_version_info import installed_ops
    from torch.utils.cpp_extension import _get_build_directory

    return (
        not installed_ops.get(CPU_ADAM) and not Path(_get_build_directory(CPU_ADAM, False), f"{CPU_ADAM}.so").exists()
    )

"""The element type of every weight, as the recipe's table has it."""

import torch
from torch import nn

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.units import DType

TRAINED_COPY = ".modules_to_save."
"""What is in the names of peft's trained copies."""
OF_ADAPTERS = ".lora_"
"""What is in the names of the weights of adapters."""
REFERENCE_ADAPTER = "ref"
"""TRL's copy of the adapters that it is given (``dpo_trainer.py``, ``grpo_trainer.py`` 1.16)."""


def set_types(model: nn.Module, recipe: Recipe) -> None:
    """Give every weight the element type of the recipe's table; 4-bit weights stay as they are. A copy of adapters for
    a reference has their type."""
    trained, frozen = torch_dtype(recipe.held_dtype), torch_dtype(recipe.frozen_held_dtype)
    copy = trained if recipe.fsdp else torch_dtype(recipe.copy_dtype)
    full = trained if recipe.fsdp or not recipe.trains_adapters else torch_dtype(recipe.full_part_dtype)
    for name, parameter in model.named_parameters():
        of_peft = trained if OF_ADAPTERS in name else copy if TRAINED_COPY in name else full
        is_copied = f".{REFERENCE_ADAPTER}." in name
        dtype = of_peft if parameter.requires_grad or is_copied else frozen
        is_packed = getattr(parameter, "quant_state", None) is not None
        if is_packed or not parameter.is_floating_point() or parameter.dtype == dtype:
            continue
        shard = getattr(parameter, "ds_tensor", None)
        if shard is not None:
            raise InputError(
                f"{name} was sharded as {shard.dtype}, but the recipe needs {dtype}; plan with --zero-stage 2"
            )
        parameter.data = parameter.data.to(dtype)


def torch_dtype(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.torch_name)

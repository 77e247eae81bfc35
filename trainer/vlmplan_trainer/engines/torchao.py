"""torchao's AdamW, whose update is compiled for every shape (``torchao/optim``, 0.18)."""

from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any

import torch
from torch.optim import Optimizer

from vlmplan.errors import UnavailableError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import TORCHAO_BLOCK, OptimizerKind, Precision
from vlmplan_trainer.phases import say_phase

COMPILERS = ("cc", "gcc", "clang")
COMPILING = "the optimizer is compiled for each shape of weight: some minutes in the first step"
"""Measured: 40 to 60 seconds a shape on two cores."""


def make_torchao(parameters: Sequence[Any], recipe: Recipe, common: Mapping[str, Any]) -> Optimizer:
    """torchao's AdamW, with the blocks of transformers' ``adamw_torch_8bit`` and ``4bit``. Weights in 16 bit are
    rounded stochastically, so that updates smaller than their last bit are not lost.

    Raises UnavailableError where nothing can be compiled.
    """
    from torchao import optim

    if not torch.cuda.is_available():
        torch.compiler.set_stance("force_eager")  # a run without a GPU follows every tensor, which no compiler bears
    elif not any(which(name) for name in COMPILERS):
        raise UnavailableError(
            f"--optimizer {recipe.optimizer.value} is compiled by torch, which needs a C compiler (one of "
            f"{', '.join(COMPILERS)}), not found here; install one, or plan with --optimizer adamw-8bit"
        )
    else:
        say_phase(COMPILING)
    rounds = {"bf16_stochastic_round": recipe.precision is Precision.BF16_PURE}
    if recipe.optimizer is OptimizerKind.TORCHAO_ADAMW:
        return optim._AdamW(parameters, **common, **rounds)
    is_8bit = recipe.optimizer is OptimizerKind.TORCHAO_ADAMW_8BIT
    kind = optim.AdamW8bit if is_8bit else optim.AdamW4bit
    return kind(parameters, block_size=TORCHAO_BLOCK, **common, **rounds)

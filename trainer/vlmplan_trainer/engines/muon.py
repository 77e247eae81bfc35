"""DeepSpeed's Muon with its AdamW, over the trained weights of a model (``runtime/zero/muon``, 0.19.8)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from vlmplan.recipe import Recipe
from vlmplan.recipe.muon import LR_RATIO, MOMENTUM, is_orthogonalised
from vlmplan_trainer.engines.groups import LR_FACTOR, num_dimensions


def make_muon(trained: Mapping[str, nn.Parameter], recipe: Recipe, common: Mapping[str, Any]) -> Optimizer:
    """Hidden matrices by Muon, all else by AdamW with the settings ``common``.

    The groups are those that DeepSpeed makes of ``optimizer: {type: Muon}`` (``_muon_param_groups`` in ``engine.py``),
    and ``use_muon`` is how it tags their weights (``set_optimizer_flags`` in ``deepspeed/__init__.py``). Its AdamW is
    torch's, which needs no kernel to be compiled. Nothing of it is offloaded.
    """
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    # torch.compile would take minutes for all shapes and needs a C compiler, for a part of the time of a step.
    torch.compiler.set_stance("force_eager")
    chosen: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in trained.items():
        uses_muon = is_orthogonalised(name, num_dimensions(parameter))
        parameter.use_muon = uses_muon  # pyright: ignore[reportAttributeAccessIssue]: DeepSpeed's tag
        chosen[uses_muon].append(parameter)
    settings = {
        True: {"lr": 0.0, "momentum": MOMENTUM, "weight_decay": common["weight_decay"], LR_FACTOR: LR_RATIO},
        False: dict(common),
    }
    groups = [
        {"params": parameters, "use_muon": uses_muon, **settings[uses_muon]}
        for uses_muon, parameters in chosen.items()
        if parameters
    ]
    kernel = {"fused": recipe.fuses_optimizer, "foreach": not recipe.fuses_optimizer}
    return MuonWithAuxAdam(groups, adam_optimizer=AdamW, adam_optimizer_kwargs=kernel)

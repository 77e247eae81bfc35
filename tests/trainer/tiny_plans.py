"""Tiny models in folders and plans that train them on CPU ranks, for tests of the trainer."""

import json
from pathlib import Path
from typing import Any

from recipe_cases import plan
from vlmplan.architecture.prepare import prepared_model
from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.engines.parameters import ParameterTable
from vlmplan.launch.prepared import planned
from vlmplan.model_types.thinkers import thinker_config
from vlmplan.plan import Plan, PlannedHardware
from vlmplan.recipe import Recipe
from vlmplan.request import parse
from vlmplan.run.training import TrainerOptions
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload


def model_files(folder: Path) -> ModelFiles:
    """What the planner reads of a folder."""
    preprocessor = folder / "preprocessor_config.json"
    return ModelFiles(
        id=str(folder),
        config=thinker_config(json.loads((folder / "config.json").read_text()), source=str(folder)),
        preprocessor=json.loads(preprocessor.read_text()) if preprocessor.exists() else None,
    )


def tiny_plan(folder: Path, recipe: Recipe, *, num_ranks: int = 1, **changes: Any) -> Plan:
    """A plan that trains the model in ``folder`` as ``recipe`` says; what it expects besides counts is made up."""
    files = model_files(folder)
    table = ParameterTable(prepared_model(files.config, recipe))
    known: dict[str, Any] = {
        "workload": Workload(model=files, seq_len=64, num_samples=8),
        "hardware": PlannedHardware(
            gpu_id="cpu", gpu_name="CPU", vendor="cpu", gpus_per_node=num_ranks, num_nodes=1, usable_bytes=GIB
        ),
        "num_params": table.num_params,
        "num_trainable_params": table.num_trained,
        "ds_config": deepspeed_config(recipe, num_gpus=num_ranks),
        "offer": None,
        "environment": {"DS_ACCELERATOR": "cpu"},
    }
    return plan(recipe, num_ranks, **(known | changes))


def plan_of_data(model: Path, data: Path, **more: object) -> Plan:
    """What is planned of the samples of ``data`` for one CPU rank."""
    options = {"model": str(model), "gpu": "cpu:1", "method": "full", "micro_batch": 1, "grad_accum": 1, "data": data}
    options |= more
    return planned(parse(options), (), TrainerOptions(output_dir=Path("unused"), train_data=data))[0]

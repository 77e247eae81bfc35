"""The result: a folder that transformers (or peft) loads without anything of this trainer."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from vlmplan.plan import Plan
from vlmplan.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.models.load import load_base


def export(engine: Engine, processor: Any, output_dir: Path, *, is_adapter: bool) -> Path:
    """Write the trained model, or the adapter; every rank calls it."""
    weights = engine.weights()
    place = output_dir / (ADAPTER_FOLDER if is_adapter else MODEL_FOLDER)
    if engine.rank == 0 and weights is not None:
        _write(engine.model, processor, place, state_dict=weights)
    engine.barrier()
    return place


def merge(plan: Plan, engine: Engine, processor: Any, output_dir: Path) -> None:
    """Write the model with the exported adapter merged in; every rank calls it, rank 0 works.

    The model is loaded again in the recipe's 16 bits (32 in a float32 recipe), in host memory: what an engine has may
    be sharded, or rounded to 4 bits, and adapters are merged into the weights that they will be used with.
    """
    if engine.rank == 0:
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(load_base(plan), str(output_dir / ADAPTER_FOLDER))
        _write(adapted.merge_and_unload(), processor, output_dir / MERGED_FOLDER)
    engine.barrier()


def _write(model: nn.Module, processor: Any, place: Path, **more: Any) -> None:
    """Into a folder beside its place first: a killed run leaves no half model."""
    writing = place.with_name(place.name + ".unfinished")
    shutil.rmtree(writing, ignore_errors=True)
    model.save_pretrained(writing, safe_serialization=True, **more)
    processor.save_pretrained(writing)
    shutil.rmtree(place, ignore_errors=True)
    writing.rename(place)

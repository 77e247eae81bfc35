"""The result: a folder that transformers (or peft) loads without anything of this trainer."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from vlmplan_trainer.engines import Engine

MODEL_FOLDER, ADAPTER_FOLDER, MERGED_FOLDER = "model", "adapter", "merged"


def export(engine: Engine, processor: Any, output_dir: Path, *, is_adapter: bool, merges: bool) -> Path:
    """Write the trained model, or the adapter and on request the model with it merged in; every rank calls it."""
    weights = engine.weights()
    place = output_dir / (ADAPTER_FOLDER if is_adapter else MODEL_FOLDER)
    if engine.rank == 0 and weights is not None:
        _write(engine.model, weights, processor, place)
        if is_adapter and merges:
            _merge(engine.model, processor, output_dir / MERGED_FOLDER)
    engine.barrier()
    return place


def _write(model: nn.Module, weights: dict[str, Any], processor: Any, place: Path) -> None:
    """Into a folder beside its place first: a killed run leaves no half model."""
    writing = place.with_name(place.name + ".unfinished")
    shutil.rmtree(writing, ignore_errors=True)
    model.save_pretrained(writing, state_dict=weights, safe_serialization=True)
    processor.save_pretrained(writing)
    shutil.rmtree(place, ignore_errors=True)
    writing.rename(place)


def _merge(model: nn.Module, processor: Any, place: Path) -> None:
    merged = model.merge_and_unload()
    _write(merged, merged.state_dict(), processor, place)

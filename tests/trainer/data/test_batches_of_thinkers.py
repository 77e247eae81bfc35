"""Thinkers of Qwen's Omni models are loaded out of whole checkpoints, and trained on batches of images and texts."""

import json
from pathlib import Path

import pytest
import torch
from chat_cases import question
from published_folders import write_published
from test_batches_of_families import loss_sum
from tiny_plans import tiny_plan

from vlmplan.model_types.thinkers import THINKERS
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Precision
from vlmplan_trainer.data.batches import collated, with_blank
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.flat_rows import flat_row, for_the_model
from vlmplan_trainer.models.load import load_model, load_processing
from vlmplan_trainer.reporting.result import loading_lines

GRIDS = "image_grid_thw"
FULL = Recipe(method=Method.FULL, precision=Precision.FP32)


def whole_checkpoint(folder: Path, model_type: str) -> Path:
    """One of a thinker, without what speaks: transformers writes a thinker's weights under the whole model's names."""
    write_published(folder, THINKERS[model_type].model_type)
    path = folder / "config.json"
    config = {"model_type": model_type, "enable_audio_output": False, "thinker_config": json.loads(path.read_text())}
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", THINKERS)
def test_the_thinker_of_a_whole_checkpoint_is_trained(model_type: str, tmp_path: Path):
    thinker = write_published(tmp_path / "thinker", THINKERS[model_type].model_type)
    whole = whole_checkpoint(tmp_path / "whole", model_type)
    plan = tiny_plan(whole, FULL)
    loaded, expected = load_model(plan).model, load_model(tiny_plan(thinker, FULL)).model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    assert THINKERS[model_type].class_name in loading_lines(plan, whole, is_vision=True)[0]

    processor = load_processing(plan).processor
    made = Encoder(processor, PlannedSamples(seq_len=256), model_type=THINKERS[model_type].model_type)
    sizes = [((56, 56),), (), ((28, 112),), ((112, 28), (56, 56))]
    rows = [made.encode(question(answer="A cat. " * number, sizes=size)) for number, size in enumerate(sizes, start=1)]
    with torch.no_grad():
        alone = [loss_sum(loaded, row) for row in rows]
        together = loss_sum(loaded, collated(rows, pad_id=made.pad_id, pads_to=16, seq_len=256))
        blank = loss_sum(loaded, with_blank(rows[1], made, made.blank_image))
        flat = flat_row([{**row} for row in rows], pad_id=made.pad_id)
        images = {name: torch.cat([row[name] for row in rows if name in row]) for name in ("pixel_values", GRIDS)}
        in_one_row = loss_sum(loaded, for_the_model(loaded, {**flat, **images}))
    assert together == pytest.approx(sum(alone), rel=1e-4)
    assert blank == pytest.approx(alone[1], rel=1e-4)
    assert in_one_row == pytest.approx(sum(alone), rel=1e-4)

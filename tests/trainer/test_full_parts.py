"""Runs that train a projector or a vision tower in full beside adapters: planned, trained, resumed and exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_runs import assert_goes_on_alike, planned, train_all, train_here

from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "8", "--max-steps", "4", "--save-every", "2", "--learning-rate", "3e-3")
PARTS = {"full_projector": ("visual.merger",), "full_vision": ("visual.blocks", "visual.patch_embed")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("qwen2_vl"), "qwen2_vl")


def with_adapter(folder: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """The weights that peft makes of the model and the adapter, those of adapters merged."""
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().state_dict()


@pytest.mark.parametrize("full", [["full_projector"], ["full_vision"], ["full_vision", "full_projector"]])
def test_a_part_learns_by_itself_and_peft_loads_it_with_the_adapter(full: list[str], folder: Path, tmp_path: Path):
    from transformers import AutoModelForImageTextToText

    plan = planned(folder, num_ranks=1, method="lora", precision="fp32", zero_stage="none", **dict.fromkeys(full, True))
    done = train_here(plan, tmp_path / "out", *WORDS, "--merge-adapters")
    assert done.code == 0, done.err
    for name in ("load, peak", "forward, peak", "backward, peak", "step, peak"):
        assert abs(done.error_of(name)) < 0.05, (name, done.error_of(name))
    assert_goes_on_alike(plan, done, tmp_path / "on", *WORDS)
    base: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    trained = with_adapter(folder, done.folder / "adapter")
    merged: Any = AutoModelForImageTextToText.from_pretrained(done.folder / "merged", dtype=torch.float32)
    assert trained.keys() == base.state_dict().keys()
    for name, before in base.state_dict().items():
        of_part = any(place in name for one in full for place in PARTS[one])
        changed = not torch.equal(before, trained[name])
        assert changed if of_part and name.endswith("weight") else True, name
        torch.testing.assert_close(merged.state_dict()[name], trained[name])


@pytest.mark.sweep
def test_a_run_starts_from_the_trained_part_and_none_forgets_it(folder: Path, tmp_path: Path):
    plan = planned(folder, num_ranks=1, method="lora", precision="fp32", zero_stage="none", full_projector=True)
    first = train_here(plan, tmp_path / "first", *WORDS)
    adapter = first.folder / "adapter"
    second = train_here(plan, tmp_path / "second", *WORDS, "--adapter", str(adapter), "--learning-rate", "1e-12")
    assert second.code == 0, second.err
    ends, starts = with_adapter(folder, adapter), with_adapter(folder, second.folder / "adapter")
    torch.testing.assert_close(starts, ends)
    other = planned(folder, num_ranks=1, method="lora", precision="fp32", zero_stage="none")
    refused = train_here(other, tmp_path / "other", *WORDS, "--adapter", str(adapter))
    assert refused.code != 0
    assert "plan as it was trained, with --full-vision, --full-projector" in refused.err


@pytest.mark.sweep
def test_embeddings_that_an_adapter_has_none_of_start_as_the_models(folder: Path, tmp_path: Path):
    setup: dict[str, Any] = {"num_ranks": 1, "method": "lora", "precision": "fp32", "zero_stage": "none"}
    first = train_here(planned(folder, **setup), tmp_path / "first", *WORDS)
    words = (*WORDS, "--adapter", str(first.folder / "adapter"), "--learning-rate", "1e-12")
    second = train_here(planned(folder, **setup, train_embeddings=True), tmp_path / "second", *words)
    assert second.code == 0, second.err
    torch.testing.assert_close(
        with_adapter(folder, second.folder / "adapter"), with_adapter(folder, first.folder / "adapter")
    )


@pytest.mark.long
@pytest.mark.sweep
def test_parts_are_trained_in_full_on_ranks_as_planned(folder: Path, tmp_path: Path):
    setups: dict[str, dict[str, Any]] = {
        "zero-2": {"zero_stage": "2", "precision": "bf16"},
        "zero-3": {"zero_stage": "3", "precision": "bf16"},
        "ddp": {"zero_stage": "none", "precision": "fp32"},
        "fsdp2": {"fsdp": True, "precision": "fp32"},
        "qlora": {"zero_stage": "2", "precision": "bf16", "method": "qlora"},
    }
    jobs = {
        name: (planned(folder, **{"method": "lora", "full_projector": True, "full_vision": True, **setup}), WORDS)
        for name, setup in setups.items()
    }
    for name, done in train_all(jobs, tmp_path, num_ranks=2).items():
        assert done.code == 0, (name, done.code)
        for phase in ("forward, peak", "step, peak"):
            assert abs(done.error_of(phase)) < 0.05, (name, phase, done.error_of(phase))
        trained = with_adapter(folder, done.folder / "adapter")
        assert any("visual.merger" in key for key in trained)

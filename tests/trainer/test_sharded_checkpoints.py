"""Checkpoints of DeepSpeed's engines on two ranks: a damaged one is not loaded, and code in one is not run."""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_faults import flip, poisoned
from trainer_runs import Outcome, planned, train_all

from vlmplan.errors import InputError
from vlmplan.run.training import CHECKPOINTS
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.saving.safe_loading import data_only, refuse_paths

WORDS = ("--dummy-data", "48", "--learning-rate", "1e-2", "--measured-steps", "0", "--save-every", "1")
FIRST, LONGER = (*WORDS, "--max-steps", "2"), (*WORDS, "--max-steps", "3", "--resume")
MODEL, OPTIMIZER = "*model_states.pt", "*optim_states.pt"
HOSTILE = {
    "model states of stage 2": ("2", MODEL, 2),
    "optimizer states of stage 2": ("2", OPTIMIZER, 2),
    "model states of stage 3": ("3", MODEL, 2),
    "optimizer states of stage 3": ("3", OPTIMIZER, 2),
    "the universal form of stage 2, from model states": ("2", MODEL, 1),
    "the universal form of stage 2, from optimizer states": ("2", OPTIMIZER, 1),
}
"""Stage, file, and on how many ranks it is read."""


def plan_of(model: Path, stage: str, num_ranks: int = 2):
    micro_batch = 4 // num_ranks
    options = {"method": "full", "num_samples": 48, "global_batch": 8}
    return planned(model, num_ranks=num_ranks, zero_stage=stage, micro_batch=micro_batch, **options)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> tuple[dict[str, Outcome], Path]:
    """Runs of two steps, and what became of each copy of them that was poisoned or damaged."""
    folder = tmp_path_factory.mktemp("runs")
    model = write_tiny_model(folder / "llama", "llama")
    first = train_all({stage: (plan_of(model, stage), FIRST) for stage in "23"}, folder / "first", num_ranks=2)
    found: dict[str, Outcome] = {}
    for num_ranks in (2, 1):
        jobs = {}
        for name, (stage, file, ranks) in HOSTILE.items():
            if ranks == num_ranks:
                place = copied(first[stage].folder, folder / "later" / name)
                for path in sorted(place.rglob(file)):  # of both ranks, which would wait for each other
                    poisoned(place, path.relative_to(place).as_posix(), folder / name)
                jobs[name] = (plan_of(model, stage, num_ranks), LONGER)
        if num_ranks == 2:
            for stage in "23":
                place = copied(first[stage].folder, folder / "later" / stage)
                flip(place / _last(place, OPTIMIZER))
                jobs[stage] = (plan_of(model, stage), LONGER)
        found |= train_all(jobs, folder / "later", num_ranks=num_ranks)
    return found, folder


def copied(run: Path, to: Path) -> Path:
    """The newest checkpoint of a copy of a run."""
    shutil.copytree(run, to / "run")
    return max((to / "run" / CHECKPOINTS).iterdir())


def _last(place: Path, pattern: str) -> str:
    return max(path.relative_to(place).as_posix() for path in place.rglob(pattern))


@pytest.mark.sweep
@pytest.mark.parametrize("name", HOSTILE)
def test_code_in_a_checkpoint_is_not_run(outcomes, name):
    found, folder = outcomes
    assert found[name].code == 1
    assert not (folder / name).exists()
    place = max((folder / "later" / name / "run" / CHECKPOINTS).glob("step-????????"))
    assert f"{place} asks for posix.mkdir to be run" in found[name].err
    torch.load(place / _last(place, HOSTILE[name][1]), weights_only=False)
    assert (folder / name).exists()  # it would have been


@pytest.mark.sweep
@pytest.mark.parametrize("stage", "23")
def test_a_damaged_file_of_one_rank_is_named_and_all_go_on_from_the_checkpoint_before(outcomes, stage):
    done = outcomes[0][stage]
    assert done.code == 0, done.err
    assert "the checkpoint step-00000002 is damaged (engine/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" in done.out
    assert [line["step"] for line in done.metrics] == [1, 2, 3]


def test_a_weight_that_is_a_path_is_refused_before_the_universal_form_is_made(tmp_path):
    torch.save(
        {"param_shapes": [{"model.norm": torch.Size([1]), "../../elsewhere": torch.Size([1])}]}, tmp_path / "a.pt"
    )
    with pytest.raises(InputError, match=r"'\.\./\.\./elsewhere', which would be written to another folder"):
        refuse_paths(tmp_path)


@pytest.mark.parametrize("before", [{}, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}])
def test_what_the_user_has_set_does_not_let_code_in_and_comes_back(before, monkeypatch, tmp_path):
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    torch.save({"a": torch.nn.Linear(1, 1)}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"asks for torch\.nn"), data_only(tmp_path):
        torch.load(tmp_path / "a.pt", weights_only=False)
    assert torch.load(tmp_path / "a.pt", weights_only=False)["a"].in_features == 1

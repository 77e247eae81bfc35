"""What tests of several scripts have in common."""

from pathlib import Path

import pytest

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config


@pytest.fixture
def read(tmp_path: Path):
    """A shell script's text → what it means on eight GPUs."""

    def config(text: str, model: str | None = None) -> TrainerConfig:
        path = tmp_path / "run.sh"
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, num_gpus=8, find_model=find_model))

    return config

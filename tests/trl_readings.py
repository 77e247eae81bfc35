"""Files of TRL as they are read with packaged models, for tests."""

from pathlib import Path
from typing import Any

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config, read_opened


def read(folder: Path, name: str, text: str, *changes: tuple[str, str], **asked: Any) -> TrainerConfig:
    """What ``text`` means as a file called ``name``, with ``changes``: a text that is there and another."""
    for one, other in changes:
        assert one in text
        text = text.replace(one, other)
    opened = open_trainer_config(folder / name, text)
    return read_opened(opened, Asked(find_model=find_model, **{"num_gpus": 1, **asked}))

"""Processor and tokenizer of the tiny models, made once."""

from pathlib import Path
from typing import Any

import pytest

from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.tiny import write_tiny_model


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen2_vl", "qwen2_vl")


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Any:
    """A Qwen2VLProcessor with Pillow's image processor."""
    return load_processor(str(qwen_folder), is_vision=True)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer with a template like that of Llama 3."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama")
    return load_processor(str(folder), is_vision=False)

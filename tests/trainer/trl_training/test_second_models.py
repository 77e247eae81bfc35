"""What TRL is told of a second model, which it loads by itself."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from transformers import AutoConfig

from model_table import packaged_config
from vlmplan_trainer.trl_training.run import of_second_model


@pytest.mark.parametrize(
    ("alias", "is_tied", "told"),
    [("paddleocr-vl", False, {"tie_word_embeddings": False}), ("smollm2-135m", True, {}), ("qwen2.5-7b", False, {})],
)
def test_a_head_is_the_embeddings_in_a_second_model_as_in_the_first(alias, is_tied, told, tmp_path):
    """Of PaddleOCR-VL's file transformers' class takes the text's default, which the first model is not loaded by."""
    (tmp_path / "config.json").write_text(json.dumps(dict(packaged_config(alias))))
    config = AutoConfig.from_pretrained(tmp_path)
    config.tie_word_embeddings = is_tied
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=str(tmp_path)))
    loaded = SimpleNamespace(config=config, model=model)
    assert of_second_model(loaded) == told  # pyright: ignore[reportArgumentType]

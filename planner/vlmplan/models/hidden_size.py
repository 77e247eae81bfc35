"""The hidden size of a model as transformers looks it up, for sizes of a ds_config.json that are "auto"."""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.config import Config


def hidden_size_of(config: Mapping[str, Any]) -> int | None:
    """The hidden size that transformers takes for a model, by its config.json; None where it finds none.

    ``hidden_size`` of the configuration itself, else the largest of its ``hidden_sizes``, else the same of its
    ``text_config`` (transformers 5.23, ``trainer_config_finalize`` in ``integrations/deepspeed.py``).
    """
    top = Config(config)
    text = config.get("text_config")
    for part in (top, top.section("text_config") if text is None or isinstance(text, Mapping) else top):
        if "hidden_size" in part:
            return part.integer("hidden_size")
        if "hidden_sizes" in part:
            return max(part.integers("hidden_sizes"))
    return None

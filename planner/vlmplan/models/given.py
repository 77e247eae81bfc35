"""A model that is given by its configuration, as a program has it, and not by a name."""

from collections.abc import Mapping
from typing import Any

from vlmplan.files.json_reader import json_text
from vlmplan.models.description import files_of_texts, with_layout
from vlmplan.models.hub_names import CONFIG
from vlmplan.workload import ModelFiles

SOURCE = "the model's configuration"
NAME_KEY = "_name_or_path"
"""Where transformers' ``to_dict()`` has what a configuration was loaded by; empty where it was made in memory."""


def given_model(config: Mapping[str, Any]) -> ModelFiles:
    """The model of what transformers' ``config.to_dict()`` gives, or of what a config.json holds.

    It is called by the name that it was loaded by, or, where it has none, by its model_type. Image sizes are the
    defaults of its processor. Raises InputError where the configuration makes no sense.
    """
    text = json_text(config, source=SOURCE)
    name = str(config.get(NAME_KEY) or "")
    files = files_of_texts(name or str(config.get("model_type")), {CONFIG: text}, source=SOURCE, hub_id=name or None)
    return with_layout(files)

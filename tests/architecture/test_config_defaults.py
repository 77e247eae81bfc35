"""The defaults of configuration classes, which published config.json files leave out, are those of transformers."""

import json

import pytest

pytest.importorskip("transformers")

from tools.config_defaults import OUTPUT, table


def test_the_packaged_defaults_are_those_of_the_installed_transformers():
    packaged, installed = (json.loads(text) for text in (OUTPUT.read_text(), json.dumps(table())))
    assert packaged["model_types"] == installed["model_types"]

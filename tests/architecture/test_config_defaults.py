"""The defaults of configuration classes, which published config.json files leave out, are those of transformers."""

import json

import pytest

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match
from tools.config_defaults import OUTPUT, table


def test_the_packaged_defaults_are_those_of_the_installed_transformers():
    packaged, installed = (json.loads(text) for text in (OUTPUT.read_text(), json.dumps(table())))
    assert packaged["model_types"] == installed["model_types"]


@pytest.mark.parametrize(
    ("older", "config"),
    [
        ({"n_embed": 96}, {"model_type": "bloom", "n_layer": 2, "n_head": 4, "vocab_size": 160}),
        (
            {"n_embed": 96},
            {"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 160},
        ),
    ],
)
def test_a_width_under_the_name_of_older_files_is_the_width_of_the_model(older: dict[str, int], config: dict[str, int]):
    assert_parameters_and_linears_match({**config, **older}, attention="eager")
    assert_parameters_and_linears_match({**config, **older, "hidden_size": 48}, attention="eager")

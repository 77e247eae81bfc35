"""Features that LLaVA's projector gets are a slice behind the class token, which torch's product copies into rows."""

import pytest

from vlmplan.architecture.families import build_model
from vlmplan.architecture.tape import Tape
from vlmplan.units import DType

TILES, POSITIONS, WIDTH = 3, 1 + 4, 16
CONFIG = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 32,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": WIDTH,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 4,
        "patch_size": 2,
    },
}


@pytest.mark.parametrize("tiles", [1, TILES])
@pytest.mark.parametrize("is_deepspeeds", [False, True])
def test_the_copy_stays_for_torchs_backward_and_not_for_deepspeeds(is_deepspeeds: bool, tiles: int):
    """``LinearFunctionForZeroStage3`` saves the slice, and its product's copy is gone when it returns."""
    model, tape = build_model(CONFIG).model, Tape(keeps_linear_inputs=is_deepspeeds)
    with tape.section("projector"):
        features = tape.tensor((tiles, POSITIONS, WIDTH), DType.BFLOAT16)
        before = tape.total
        rows = model.foldable(model.without_first(features), is_sliced=True)
        copied = 2 * tiles * (POSITIONS - 1) * WIDTH
        assert tape.total - before == (copied if tiles > 1 and not is_deepspeeds else 0)
    assert rows.shape == (tiles, POSITIONS - 1, WIDTH)

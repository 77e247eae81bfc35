"""What no model can have is refused by its key, and every packaged model is sound."""

from typing import Any

import pytest

from cli_calls import TINY
from vlmplan.architecture.config import class_table
from vlmplan.architecture.impossible_config import check_config
from vlmplan.errors import InputError
from vlmplan.models import packaged_models
from vlmplan.models.packaged import packaged_files

WITHOUT_ROTATION = {"rope_scaling": False, "rope_parameters": {"rope_type": "linear", "factor": 2}}
HALF = {"dtype": None, "torch_dtype": "half"}
SECTIONS = "mrope_section is [8, 12, 12]; whole numbers that add up to 16 are needed, half of what is rotated of a head"
MISSING = "mrope_section is missing, and then [16, 24, 24]; whole numbers that add up to 256 are needed"
WITHOUT_SECTIONS = {"glm46v", "glm4v", "glm4v_moe", "glmga"}
"""Types whose class has other sections by default than its heads (transformers 5.23): such a model cannot run."""


def glm_ocr(**rotation: Any) -> dict[str, Any]:
    """A model with heads of 64, and this rotation of them."""
    rope = {"rope_type": "default", "mrope_section": [8, 12, 12], **rotation}
    text = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    return {"model_type": "glm_ocr", "text_config": {**text, "rope_parameters": rope}}


VISION = {"model_type": "qwen2_vl", "vision_config": {"embed_dim": 1280, "num_heads": 16}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads is 5, which does not divide hidden_size, 64"),
        ({"num_attention_heads": 128}, "num_attention_heads is 128, which does not divide hidden_size, 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide num_attention_heads, 4"),
        ({"num_key_value_heads": 1000}, "num_key_value_heads is 1,000, which does not divide num_attention_heads, 4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; a whole number of 1 or more"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; a whole number of 1 or more"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; a whole number of 1 or more"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5; a whole number of 1 or more"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers is 100000; at most 1,000"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers is NaN"),
        ({"model_type": "olmo2", "num_hidden_layers": 100_000}, "num_hidden_layers is 100000; at most 1,000"),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer is 0; a whole number of 1 or more"),
        (VISION | {"vision_config": {"embed_dim": 1280, "num_heads": 7}}, "vision_config.num_heads is 7, which"),
        (VISION | {"vision_config": {"depth": 10**9}}, "vision_config.depth is 1000000000; at most 1,000"),
        ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn"; a mapping is needed'),
        ({"rope_parameters": [2]}, "rope_parameters is [2]; a mapping is needed"),
        ({"rope_scaling": {"rope_type": 4}}, "rope_scaling.rope_type is 4; a string is needed"),
        ({"rope_parameters": {"full": {"factor": "2"}}}, 'rope_parameters.full.factor is "2"; a number is needed'),
        (VISION | {"text_config": {"rope_scaling": 4.0}}, "text_config.rope_scaling is 4.0; a mapping is needed"),
        ({"torch_dtype": "bf16"}, 'torch_dtype is "bf16"; one of bfloat16, float16, float32, float64 is needed'),
        ({"dtype": 16}, "dtype is 16; one of bfloat16, float16, float32, float64 is needed"),
        (VISION | {"vision_config": {"dtype": ["float16"]}}, 'vision_config.dtype is ["float16"]; one of bfloat16'),
    ],
)
def test_impossible_numbers_are_refused_by_their_key(changes: dict[str, Any], sentence: str):
    with pytest.raises(InputError) as caught:
        check_config(TINY | changes)
    assert str(caught.value).startswith(f"config.json: {sentence}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 16},
        VISION | {"rope_parameters": {"mrope_section": [2, 3, 3]}},
        WITHOUT_ROTATION,
        HALF,
        glm_ocr(),
    ],
)
def test_possible_numbers_are_taken(changes: dict[str, Any]):
    check_config(TINY | changes)


def test_every_packaged_model_and_every_default_is_sound():
    for alias in packaged_models():
        check_config(packaged_files(alias).config)
    for model_type in set(class_table()) - WITHOUT_SECTIONS:
        check_config({"model_type": model_type})

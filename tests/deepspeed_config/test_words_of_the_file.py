"""Sentences on a setup of a ds_config.json name the file's keys, not options that nobody gave."""

import pytest

from vlmplan.deepspeed_config import merged_recipe, settings_from_ds_config, with_keys_of_file
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision

BF16 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("sentence", "of_file"),
    [
        ("--precision bf16 needs compute capability 8.0", "bf16.enabled true needs compute capability 8.0"),
        (
            "give --precision fp32, or --zero-stage none",
            "give bf16.enabled and fp16.enabled false, or --zero-stage none",
        ),
        ("give --precision bf16 or fp16", "give bf16.enabled true or fp16.enabled true"),
        ("leave off --precision bf16-pure", "leave off bf16.bf16_master_weights_and_grads true"),
        ("takes 16-bit tensors, but --precision is fp32", "takes 16-bit tensors, but the precision is fp32"),
        ("--zero-stage 3 does not", "zero_optimization.stage 3 does not"),
    ],
)
def test_an_option_that_the_file_decides_is_told_as_its_key_with_the_value_that_means_it(sentence, of_file):
    config = settings_from_ds_config(BF16, name="ds.json")
    assert with_keys_of_file(sentence, config, ()) == f"ds.json: {of_file}"


def test_an_option_that_was_given_stays_one():
    config = settings_from_ds_config(BF16, name="ds.json")
    assert with_keys_of_file("give --precision fp16", config, ("precision",)) == "give --precision fp16"


def test_a_precision_that_contradicts_the_file_is_told_with_its_key():
    config = settings_from_ds_config(BF16, name="ds.json")
    with pytest.raises(
        InputError, match=r"the precision is bf16 \(bf16.enabled true\), but --precision fp16 was given"
    ):
        merged_recipe(config, Recipe(precision=Precision.FP16), num_gpus=1, given=("precision",))

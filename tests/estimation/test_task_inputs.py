"""What TRL's trainers can hand on to a model, by what processor and model call it."""

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import vlmplan
from vlmplan.errors import InputError
from vlmplan.estimation.task_inputs import NAMES_OF_ITS_OWN

GRPO: dict[str, Any] = {"gpu": "h100-sxm:2", "method": "lora", "task": "grpo", "seq_len": 2048}


def test_images_whose_processor_names_them_in_its_own_way_are_refused_and_text_is_planned():
    with pytest.raises(InputError, match=r"makes aspect_ratio_ids.*give images_per_sample 0, or task dpo"):
        vlmplan.estimate("llama-3.2-11b-vision", images_per_sample=1, **GRPO)
    assert vlmplan.estimate("llama-3.2-11b-vision", images_per_sample=0, **GRPO).as_dict()["verdict"] == "fits"


@pytest.mark.parametrize(
    ("task", "num_images", "words"),
    [
        ("grpo", 1, "TRL's trainer does not give behind a prompt"),
        ("grpo", 0, "does not give for text alone"),
        ("dpo", 0, "does not go with text alone of molmo2-4b"),
        ("kto", 0, "does not give for text alone"),
    ],
)
def test_a_model_that_asks_for_types_of_tokens_is_refused_where_trl_gives_none(task, num_images, words):
    with pytest.raises(InputError, match=f"mm_token_type_ids.*{words}|{words}.*mm_token_type_ids"):
        vlmplan.estimate("molmo2-4b", images_per_sample=num_images, **{**GRPO, "task": task})


@pytest.mark.parametrize("task", ["dpo", "kto", "sft"])
def test_images_give_it_their_types(task):
    found = vlmplan.estimate("molmo2-4b", images_per_sample=1, **{**GRPO, "task": task, "micro_batch": 2})
    assert found.as_dict()["verdict"] == "fits"


def test_the_names_are_those_of_the_image_processors_of_transformers():
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("transformers is not installed")
    for model_type, name in NAMES_OF_ITS_OWN.items():
        folder = "minicpmv4_6" if model_type == "minicpmv4_7" else model_type
        files = (Path(spec.origin).parent / "models" / folder).glob("image_processing_*.py")
        assert any(f'"{name}"' in file.read_text(encoding="utf-8") for file in files), model_type


def test_trls_trainer_takes_none_of_the_names():
    grpo = pytest.importorskip("trl.trainer.grpo_trainer")
    taken = inspect.signature(grpo.GRPOTrainer._get_per_token_logps_and_entropies).parameters
    assert not taken.keys() & set(NAMES_OF_ITS_OWN.values())

"""Whether peft copies a tied head beside the embedding that it shares its weight with, as plans have it."""

import pytest

pytest.importorskip("peft")

import torch
from peft import LoraConfig, get_peft_model

from planned import of_few_layers, workload
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan_trainer.probe import configuration, model_class

NUM_LAYERS = 2
EMBEDDINGS = ["embed_tokens", "lm_head"]


@pytest.mark.filterwarnings("ignore:You have requested `ensure_weight_tying`")
@pytest.mark.parametrize(("alias", "copies_head"), [("blip2-opt-2.7b", True), ("qwen2.5-0.5b", False)])
def test_a_tied_head_is_copied_by_itself_where_its_class_does_not_say_that_it_is_tied(alias: str, copies_head: bool):
    files = of_few_layers(alias, NUM_LAYERS)
    with torch.device("meta"):
        config = configuration(dict(files.config))
        model = model_class(config)._from_config(config)
        lora = LoraConfig(target_modules=["q_proj"], modules_to_save=EMBEDDINGS, ensure_weight_tying=True)
        adapted = get_peft_model(model, lora)
    found = [getattr(one, "modules_to_save", None) for one in adapted.modules()]
    copies = [one["default"] for one in found if isinstance(one, torch.nn.ModuleDict)]
    assert len({id(one.weight) for one in copies}) == 1 + copies_head
    recipe = Recipe(method=Method.LORA, train_embeddings=True, zero_stage=3)
    assert Estimator(workload(files), recipe).table.copies_tied_head is copies_head

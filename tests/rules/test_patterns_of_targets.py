"""A regular expression of LoRA targets is refused where peft refuses what it means, and only there."""

import pytest

from vlmplan.models.packaged import packaged_files
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rules import model_facts, problems
from vlmplan.workload import ModelFiles

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 2,
    "chunk_size": 8,
}
RULE = "mamba_has_no_adapter_on_its_output"
PATTERNS = (
    *(r".*out_proj", r".*\.(in_proj|out_proj)", r".*layers\.1\..*_proj"),
    *(r".*in_proj", r".*layers\.1\.mixer\.in_proj"),
)


def is_refused(model: ModelFiles, targets: str, exclude: str | None = None) -> bool:
    recipe = Recipe(method=Method.LORA, lora_targets=f"regex:{targets}", lora_exclude=exclude)
    return RULE in {problem.rule for problem in problems(recipe, model=model_facts(model))}


@pytest.mark.sweep
@pytest.mark.parametrize("targets", PATTERNS)
@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "falcon_mamba"])
def test_a_pattern_is_refused_where_peft_refuses_it(model_type: str, targets: str):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = {"model_type": model_type, **SIZES}
    known = transformers.AutoConfig.for_model(model_type).to_dict()
    config = {key: value for key, value in config.items() if key in known}
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    try:
        peft.get_peft_model(made, peft.LoraConfig(target_modules=targets))
        refuses = False
    except ValueError:
        refuses = True
    assert is_refused(ModelFiles(id="m", config=config), targets) is refuses


def test_what_a_pattern_means_may_be_left_out():
    model = packaged_files("nemotron-3-nano-30b-a3b")
    assert is_refused(model, r".*\.(in_proj|out_proj)")
    assert not is_refused(model, r".*\.(in_proj|out_proj)", "out_proj")
    assert not is_refused(model, r".*\.in_proj")
    assert not is_refused(packaged_files("llama-3.2-1b"), ".*_proj")

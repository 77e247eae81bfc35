import pytest

from model_table import packaged_config
from vlmplan.architecture.adapter_names import target_names
from vlmplan.architecture.prepare import prepared_model
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method

SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 320, "num_attention_heads": 4}
CONFIG = packaged_config("qwen2.5-0.5b", **SIZES, num_hidden_layers=6, num_key_value_heads=4)
LORA = Recipe(method=Method.LORA, lora_rank=8)


def adapted(**changes) -> set[str]:
    """The modules that got adapters."""
    parameters = prepared_model(CONFIG, LORA.with_changes(**changes)).parameters()
    return {one.name.removesuffix(".lora_A.weight") for one in parameters if one.name.endswith(".lora_A.weight")}


def places(*names: str, layers=range(6)) -> set[str]:
    return {f"model.layers.{layer}.{name}" for layer in layers for name in names}


def test_a_pattern_means_modules_by_their_whole_names():
    assert adapted(lora_targets=r"regex:.*\.[qv]_proj") == places("self_attn.q_proj", "self_attn.v_proj")


@pytest.mark.parametrize("targets", [r"regex:model\.layers\.(2|4)\.mlp\..*_proj", "2.mlp.up_proj,4.mlp.up_proj"])
def test_equal_layers_can_be_adapted_apart(targets: str):
    names = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj") if "regex" in targets else ("mlp.up_proj",)
    assert adapted(lora_targets=targets) == places(*names, layers=(2, 4))


def test_excluded_modules_take_none():
    without = adapted(lora_exclude="q_proj,mlp.up_proj")
    assert without == adapted() - places("self_attn.q_proj", "mlp.up_proj")
    assert adapted(lora_exclude=r"regex:.*layers\.[0-3]\..*") == {
        name for name in adapted() if name.split(".")[2] in "45"
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_targets": r"regex:.*\.nothing"}, "no layer of this model has such a name"),
        ({"lora_targets": "q_prj,k_prj"}, "did you mean k_proj or v_proj or q_proj or o_proj?"),
        ({"lora_targets": r"regex:.*layers\.0\.self_attn.*"}, "means model.layers.0.self_attn too"),
        ({"lora_targets": r"regex:.*layers\.\d+\.mlp\..*"}, "means model.layers.0.mlp.act_fn too; only linear and"),
        ({"lora_targets": "regex:.*(q_proj|rotary_emb)"}, "means model.rotary_emb too; only linear and"),
        ({"lora_exclude": "q_prj"}, "--lora-exclude q_prj: no module of this model has such a name"),
        ({"lora_exclude": " "}, "--lora-exclude is empty; give names such as q_proj,v_proj, or regex:"),
        ({"lora_targets": ""}, "--lora-targets is empty; give all-linear, attention, names such as"),
        ({"lora_targets": "attention,o_proj"}, "--lora-targets is attention,o_proj; attention stands alone"),
        ({"lora_targets": "q_proj,all-linear"}, "--lora-targets is q_proj,all-linear; all-linear stands alone"),
        ({"lora_exclude": "regex:.*"}, "no layer is left to adapt"),
    ],
)
def test_names_that_will_not_do_are_told(changes: dict[str, str], sentence: str):
    with pytest.raises(InputError) as raised:
        adapted(**changes)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("value", ["regex:", "regex:(", "regex:" + "a" * 10_001])
@pytest.mark.parametrize("name", ["lora_targets", "lora_exclude"])
def test_a_pattern_that_is_none_is_refused_at_once(name: str, value: str):
    with pytest.raises(InputError, match="regular expression"):
        Recipe(**{name: value})


def test_all_linear_is_no_name_to_exclude():
    with pytest.raises(InputError, match="--lora-exclude is all-linear"):
        target_names("all-linear", "--lora-exclude")

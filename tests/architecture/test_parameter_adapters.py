from unittest.mock import patch

import pytest

from model_table import packaged_config
from tape_probe import predicted_step
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError
from vlmplan.recipe.choices import REGEX
from vlmplan.recipe.lora_targets import layer_targets, listed_targets, stacked_targets
from vlmplan.units import DType

# peft warns of patterns for ranks that match no module; they match parameters.
pytestmark = pytest.mark.filterwarnings("ignore:The following:RuntimeWarning")

BATCH = Batch(micro_batch=2, num_tokens=384)
RANK = 8
MIXTRAL = packaged_config(
    "mixtral-8x7b",
    num_hidden_layers=2,
    vocab_size=4096,
    hidden_size=1024,
    intermediate_size=1792,
    num_attention_heads=8,
    num_key_value_heads=4,
)
QWEN3_MOE = {
    **packaged_config("qwen3-vl-30b-a3b")["text_config"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "vocab_size": 4096,
    "num_experts": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS = {"mixtral": MIXTRAL, "qwen3": QWEN3_MOE}
GPT_OSS = packaged_config(
    "gpt-oss-20b",
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=384,
    num_local_experts=8,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    pad_token_id=None,
    eos_token_id=None,
)
GLM4_MOE = {
    "model_type": "glm4_moe",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "use_qk_norm": True,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "n_shared_experts": 1,
}
STACKED = "experts.gate_up_proj,mlp.experts.down_proj"


def adapted(config, targets, frozen=()):
    """The tree as peft prepares it: 16-bit weights frozen, adapters in float32."""
    tree = build_model(config)
    for entry in tree.parameters():
        entry.parameter.requires_grad = False
    before = {id(entry.parameter) for entry in tree.parameters()}
    add_lora(tree, AdapterSettings(rank=RANK), targets=targets, closed=frozen)
    for entry in tree.parameters():
        if id(entry.parameter) not in before:
            entry.parameter.requires_grad, entry.parameter.dtype = True, DType.FLOAT32
    return tree


def real_adapted(config, targets):
    import peft
    import torch

    from family_checks import real_model

    layers, stacked = layer_targets(targets), stacked_targets(targets)
    if layers != "all-linear" and not layers.startswith(REGEX):
        layers = listed_targets(layers)
    elif layers != "all-linear":
        layers = layers.removeprefix(REGEX)
    attention = "eager" if config["model_type"] == "gpt_oss" else "sdpa"
    # Fake tensors cannot be moved; the adapters are float32 from the start then, as peft makes them by a cast.
    with patch.object(torch.nn.Module, "to", lambda self, *args, **kwargs: self):
        adapters = peft.LoraConfig(target_modules=layers, target_parameters=stacked, r=RANK)
        return peft.get_peft_model(real_model(config, attention=attention), adapters)


PATTERNS = (
    r"regex:.*layers\.1\.(.*experts\.(w\d|(gate|up|down)_proj)|self_attn\.q_proj)",
    r"regex:.*\.layers\.0\..*(w2|down_proj)",
    r"regex:.*\.1\..*gate",
)
"""Of whole names in one layer, experts' as transformers 4 had them among them."""


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("targets", ["all-linear", "gate", "mlp.gate", "q_proj,v_proj", *PATTERNS])
def test_adapters_have_the_sizes_that_peft_gives_them(config, targets):
    pytest.importorskip("peft")
    import torch

    with torch.device("meta"):
        model = real_adapted(config, targets)
    expected = {
        name.removeprefix("base_model.model.").replace(".default", ""): tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    entries = [entry for entry in adapted(config, targets).parameters() if entry.parameter.requires_grad]
    assert {entry.name: entry.parameter.shape for entry in entries} == expected


@pytest.mark.parametrize(
    ("config", "targets"),
    [
        (GPT_OSS, f"all-linear,{STACKED}"),
        (GPT_OSS, "experts.down_proj"),
        (QWEN3_MOE, f"q_proj,{STACKED}"),
        (GLM4_MOE, "all-linear"),
        ({**QWEN3_MOE, "mlp_only_layers": [0]}, "all-linear"),
    ],
    ids=["gpt-oss", "gpt-oss alone", "qwen3", "glm-4.5", "qwen3 with a dense layer"],
)
def test_adapters_of_named_experts_have_the_sizes_that_peft_gives_them(config, targets):
    test_adapters_have_the_sizes_that_peft_gives_them(config, targets)


@pytest.mark.parametrize(
    ("model", "targets"), [("mixtral", "w1,w2,w3"), ("qwen3", "gate_proj,up_proj,down_proj")], ids=["mixtral", "qwen3"]
)
def test_the_names_of_the_old_layers_mean_the_experts(model, targets):
    names = {entry.name for entry in adapted(MODELS[model], targets).parameters() if entry.parameter.requires_grad}
    experts = "model.layers.0.mlp.experts."
    assert {name for name in names if name.startswith("model.layers.0.")} == {
        experts + name
        for name in ("base_layer.lora_A.weight", "base_layer.lora_B.weight", "lora_A.weight", "lora_B.weight")
    }


@pytest.mark.one_in(5)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", "gate", "q_proj,v_proj"])
def test_a_step_keeps_and_peaks_as_with_peft(config, targets, checkpoints):
    """Weights of adapted experts live as often as there are layers."""
    pytest.importorskip("peft")
    from family_checks import text_inputs
    from torch_probe import measured_step

    def build():
        model = real_adapted(config, targets)
        if checkpoints:
            model.enable_input_require_grads()
            model.base_model.model.gradient_checkpointing_enable()
        return model

    measured = measured_step(build, text_inputs(BATCH))
    predicted = predicted_step(adapted(config, targets), BATCH, checkpoints=checkpoints)
    assert predicted.end_live == 0
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(predicted, name) == pytest.approx(getattr(measured, name), rel=0.001), name


def test_an_adapted_expert_weight_is_kept_whole_for_backward():
    attention, everything = (
        predicted_step(adapted(MIXTRAL, targets), BATCH) for targets in ("q_proj,k_proj,v_proj,o_proj", "all-linear")
    )
    num_layers, num_experts, weight_bytes = 2, 8, 2
    kept = num_layers * num_experts * 3 * 1024 * 1792 * weight_bytes
    assert kept < everything.forward_live - attention.forward_live < 1.3 * kept


def test_one_of_two_fused_names_is_refused():
    with pytest.raises(InputError, match="w1 needs w3 too"):
        adapted(MIXTRAL, "w1,w2")


def test_a_frozen_language_model_has_no_adapted_experts():
    with pytest.raises(InputError, match="no layer is left"):
        adapted(MIXTRAL, "all-linear", frozen=[Part.LANGUAGE])


def test_a_name_that_no_stack_of_experts_has_is_refused_with_those_that_there_are():
    with pytest.raises(InputError, match=r"there are experts\.gate_up_proj, experts\.down_proj"):
        adapted(GPT_OSS, "experts.up_proj")


def test_experts_that_all_linear_adapts_already_are_refused():
    with pytest.raises(InputError, match="another target adapts it already"):
        adapted(MIXTRAL, "all-linear,experts.down_proj")


def test_stacked_experts_have_no_weight_that_adapters_could_be_taken_out_of():
    """peft 0.21 reads ``weight`` of the module with the experts, which it has not: a run ended while it loaded."""
    settings = AdapterSettings(rank=RANK, changes_base=True)
    with pytest.raises(InputError, match=r"--lora-init olora and pissa .* gate_up_proj, down_proj"):
        add_lora(build_model(MIXTRAL), settings, targets="all-linear", closed=())
    add_lora(build_model(MIXTRAL), settings, targets="q_proj,v_proj", closed=())


@pytest.mark.parametrize("name", ["glm-4.5v", "qwen3-omni-30b-a3b"])
def test_experts_that_peft_would_adapt_although_they_are_frozen_are_refused(name):
    """Seen with peft 0.21: GLM-4.5V with its language model frozen had 80 M trained weights in place of 0.7 M."""
    config, settings = packaged_config(name), AdapterSettings(rank=RANK)
    with pytest.raises(InputError, match=r"experts too, .* none of gate, gate_proj, up_proj, down_proj"):
        add_lora(build_model(config), settings, targets="all-linear", closed=[Part.LANGUAGE])
    add_lora(build_model(config), settings, targets="qkv,proj", closed=[Part.LANGUAGE])
    add_lora(build_model(config), settings, targets="all-linear", closed=[Part.VISION])


def test_a_pattern_of_one_layer_means_every_layer_where_experts_are_parameters():
    """peft keeps the last parts of the names alone (``_resolve_string_target_modules``)."""
    of_one_layer = adapted(QWEN3_MOE, r"regex:model\.layers\.1\.self_attn\.(q|v)_proj")
    shapes = [
        [(one.name, one.parameter.shape) for one in tree.parameters()]
        for tree in (of_one_layer, adapted(QWEN3_MOE, "q_proj,v_proj"))
    ]
    assert shapes[0] == shapes[1]


def test_a_pattern_of_half_of_what_was_fused_is_refused_as_peft_refuses_it():
    with pytest.raises(InputError, match="gate_proj needs up_proj too"):
        adapted(QWEN3_MOE, r"regex:.*experts\.gate_proj")


def test_a_pattern_that_means_a_module_of_experts_is_refused():
    with pytest.raises(InputError, match="only linear and embedding layers"):
        adapted(QWEN3_MOE, r"regex:.*\.experts")


def test_a_router_that_is_left_out_and_peft_would_adapt_is_refused():
    with pytest.raises(InputError, match="left out"):
        add_lora(build_model(MIXTRAL), AdapterSettings(rank=RANK), targets="all-linear", exclude="gate", closed=())

"""What an estimate leaves out or means otherwise: said where it is so, and nowhere else."""

from typing import Any

import pytest

from planned import cluster, workload
from vlmplan.answers.estimate import document
from vlmplan.estimation import estimate
from vlmplan.estimation.cautions import STACKED_FRACTION, kernels_note, not_counted_caveat, stacked_caveat
from vlmplan.models.packaged import packaged_files
from vlmplan.notes import caveats
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.rules.recurrent import GATED_DELTA_TYPES, STATE_SPACE_TYPES
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload

LAYERS, EXPERTS, HIDDEN, INTERMEDIATE = 32, 8, 4096, 14336
MIXTRAL_EXPERT_BYTES = 2 * LAYERS * EXPERTS * 3 * HIDDEN * INTERMEDIATE
"""In 16 bits: three matrices of each expert of Mixtral 8x7B."""


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({"offload_optimizer": Offload.NVME}, True),
        ({"offload_optimizer": Offload.CPU, "offload_params": Offload.NVME}, True),
        ({"offload_optimizer": Offload.NVME, "nvme_path": "/nvme"}, False),
        ({"offload_optimizer": Offload.CPU}, False),
    ],
)
def test_what_is_offloaded_to_nvme_without_a_folder_says_that_a_plan_takes_one(changes: dict[str, Any], is_said: bool):
    found = estimate(workload("gpt2", seq_len=128), Recipe(zero_stage=3, **changes), cluster("rtx-4090"))
    assert any("--nvme-path DIR" in note for note in found.cautions) == is_said


@pytest.mark.parametrize(("method", "stage"), [(Method.QLORA, None), (Method.LORA, 3)])
def test_experts_that_stay_in_16_bits_are_said_of_a_4_bit_model_alone(method: Method, stage: int | None):
    recipe = Recipe(method=method, zero_stage=stage)
    found = estimate(workload("mixtral-8x7b", seq_len=128), recipe, cluster("b300"))
    is_4_bit = method is Method.QLORA
    assert found.stacked_bytes == document(found)["unquantized_bytes"] == (MIXTRAL_EXPERT_BYTES if is_4_bit else 0)
    said = [note for note in caveats(found.cautions) if "stay in 16 bits" in note]
    assert len(said) == is_4_bit
    assert not said or said[0].startswith(f"{MIXTRAL_EXPERT_BYTES / GIB:.2f} GiB of the model's weights")


def test_stacked_experts_of_any_family_stay_in_16_bits():
    files = packaged_files("gpt-oss-20b")
    config = {key: value for key, value in files.config.items() if key != "quantization_config"}
    model = ModelFiles(id="gpt-oss-20b in bfloat16", config=config)
    found = estimate(Workload(model=model, seq_len=128), Recipe(method=Method.QLORA), cluster("b300"))
    assert found.stacked_bytes == 2 * 24 * 32 * 3 * 2880 * 2880
    assert any("stay in 16 bits" in note for note in caveats(found.cautions))


@pytest.mark.parametrize(
    ("alias", "kernels"),
    [
        ("qwen3.5-0.8b", "flash-linear-attention"),
        ("llama-3.2-1b", None),
    ],
)
def test_layers_with_a_state_are_said_to_be_planned_without_their_kernels(alias: str, kernels: str | None):
    note = kernels_note(workload(alias).model, Recipe())
    assert (note is None) == (kernels is None)
    assert note is None or kernels in note


@pytest.mark.parametrize("model_type", sorted(GATED_DELTA_TYPES | STATE_SPACE_TYPES))
def test_kernels_are_said_of_a_language_model_within_another_too(model_type: str):
    alone, within = {"model_type": model_type}, {"model_type": "llava", "text_config": {"model_type": model_type}}
    notes = [kernels_note(ModelFiles(id="m", config=config), Recipe()) for config in (alone, within)]
    assert notes[0] == notes[1] is not None


def test_upcast_weights_are_said_to_be_32_bits():
    recipe = Recipe(method=Method.QLORA, upcasts_frozen=True)
    (note,) = caveats([stacked_caveat(recipe, stacked_bytes=10**9, num_params=10**9) or ""])
    assert "stay in 32 bits" in note


@pytest.mark.parametrize("alias", ["llama-3.2-1b", "smolvlm-256m"])
def test_a_4_bit_model_of_linears_has_no_such_caveat(alias: str):
    found = estimate(workload(alias, seq_len=2048), Recipe(method=Method.QLORA), cluster("b300"))
    assert found.stacked_bytes < STACKED_FRACTION * 2 * found.num_params
    assert not caveats(found.cautions)


@pytest.mark.parametrize(
    ("kinds", "text", "ends_with_option"),
    [(("images",), "images", True), (("images", "sound"), "images and sound", True), (("sound",), "sound", False)],
)
def test_what_is_not_counted_is_named(kinds: tuple[str, ...], text: str, ends_with_option: bool):
    caveat = not_counted_caveat(ModelFiles(id="m", config={"model_type": "kosmos"}, not_counted=kinds))
    assert caveat is not None
    assert caveat.startswith(f"not counted: {text}, which vlmplan does not describe for kosmos; ")
    assert ("--images-per-sample 0" in caveat) is ends_with_option


def test_a_described_model_leaves_nothing_out():
    assert not_counted_caveat(workload("qwen2-vl-2b").model) is None


@pytest.mark.parametrize(("alias", "is_said"), [("qwen3.5-0.8b", True), ("qwen3-vl-2b", False)])
def test_models_of_gated_delta_nets_say_that_their_kernels_would_take_less(alias: str, is_said: bool):
    cautions = estimate(workload(alias, seq_len=256), Recipe(method=Method.LORA), cluster("b300")).cautions
    assert any("flash-linear-attention" in note for note in cautions) is is_said
    assert not any("flash-linear-attention" in note for note in caveats(cautions))


@pytest.mark.parametrize(("num_samples", "num_gpus", "is_said"), [(15, 2, True), (16, 2, False), (16, 4, True)])
def test_fewer_samples_than_one_step_takes_are_said(num_samples: int, num_gpus: int, is_said: bool):
    recipe = Recipe(zero_stage=2, micro_batch=2, grad_accum=4)
    few = workload("smollm2-135m", seq_len=128, num_samples=num_samples)
    found = estimate(few, recipe, cluster("rtx-4090", num_gpus))
    said = [note for note in caveats(found.cautions) if "one step takes" in note]
    assert len(said) == is_said
    assert all(str(num_samples) in note and str(8 * num_gpus) in note for note in said)

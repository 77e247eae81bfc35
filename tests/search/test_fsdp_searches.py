"""Searches for FSDP2: what does not go with it is refused in the words of an estimate, and not left out."""

import pytest

import vlmplan
from cli_calls import refusal

WORDS = ("--model", "qwen2.5-0.5b", "--gpu", "h100-sxm:8", "--fsdp")


@pytest.mark.parametrize(
    "besides",
    [
        ("--zero-stage", "3"),
        ("--offload-optimizer", "nvme"),
        ("--offload-optimizer", "cpu", "--offload-params", "none"),
        ("--task", "dpo"),
    ],
)
def test_what_does_not_go_with_fsdp_is_refused_by_a_search_too(besides):
    assert refusal("recommend", *WORDS, *besides) == refusal("estimate", *WORDS, *besides)


def test_a_ds_config_beside_fsdp_is_refused(tmp_path):
    config = tmp_path / "zero3.json"
    config.write_text('{"zero_optimization": {"stage": 3}}')
    sentence = refusal("recommend", *WORDS, "--ds-config", str(config))
    assert sentence.removeprefix("vlmplan: ") == (
        f"{config}: --fsdp is PyTorch's own sharding, and zero_optimization.stage 3 DeepSpeed's; give one of the two"
    )


@pytest.mark.parametrize("flat_parameters", ["none", "backward-pre"])
def test_on_several_machines_copies_of_the_model_are_taken_where_weights_would_cross_a_slow_network(flat_parameters):
    """Of FSDP1 too."""
    options = {"model": "qwen2.5-0.5b", "gpu": "h100-sxm:8", "num_nodes": 2, "fsdp": True, "inter_node_gbit": 10}
    options |= {"flat_parameters": flat_parameters}
    found = vlmplan.recommend(**options, method="full").plans[0].estimate
    assert found.recipe["dp_shard_size"] == 8
    batch = {name: found.recipe[name] for name in ("micro_batch", "grad_accum")}
    together = vlmplan.estimate(**options, **batch, method="full")
    assert found.step_seconds < 0.8 * together.step_seconds


def test_on_one_machine_too_where_gpus_have_a_slow_link():
    options = {"model": "llama-3.2-1b", "gpu": "l4:8", "fsdp": True, "method": "lora", "seq_len": 512}
    found = vlmplan.recommend(**options, global_batch=32, objective="time").plans[0].estimate
    assert found.recipe["dp_shard_size"] == 2
    batch = {name: found.recipe[name] for name in ("micro_batch", "grad_accum")}
    same = {**options, **batch, "activation_checkpointing": found.recipe["activation_checkpointing"]}
    assert vlmplan.estimate(**same).step_seconds > vlmplan.estimate(**same, dp_shard_size=2).step_seconds

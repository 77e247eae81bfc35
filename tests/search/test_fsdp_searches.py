"""Searches for FSDP2: what does not go with it is refused in the words of an estimate, and not left out."""

import pytest

from cli_calls import refusal

WORDS = ("--model", "qwen2.5-0.5b", "--gpu", "h100-sxm:8", "--fsdp")


@pytest.mark.parametrize(
    "besides",
    [
        ("--zero-stage", "3"),
        ("--offload-optimizer", "nvme"),
        ("--offload-optimizer", "cpu", "--offload-params", "none"),
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

"""What a DeepSpeed file decides and no setup can do is refused by its keys; an option that was given stays one."""

import json
from typing import Any

import pytest

from cli_calls import MENDABLE, TINY, call, folder_of

SIZES = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}}
CASES = (
    ({"zero_hpz_partition_size": 3, "stage": 3}, "zero_optimization.zero_hpz_partition_size 3 does not divide"),
    ({"zero_hpz_partition_size": 2, "stage": 2}, "with zero_optimization.stage 2, where weights"),
    ({"offload_optimizer": {"device": "cpu"}, "stage": 0}, "zero_optimization.offload_optimizer.device cpu has no"),
    ({"offload_param": {"device": "cpu"}, "stage": 2}, "zero_optimization.offload_param.device cpu has no effect"),
)


def file_with(tmp_path: Any, zero: dict[str, Any]) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(SIZES | {"zero_optimization": zero}))
    return str(path)


@pytest.mark.parametrize(("zero", "said"), CASES)
def test_what_a_file_decides_is_refused_by_its_keys(tmp_path, zero: dict[str, Any], said: str):
    words = ["--model", str(folder_of("tiny", TINY)), "--gpu", "rtx-4090:4", "--ds-config", file_with(tmp_path, zero)]
    refused, searched, advised = (call(command, *words) for command in ("estimate", "recommend", "advise"))
    assert {refused.code, searched.code, advised.code} == {MENDABLE}
    for text in (refused.err, searched.err, advised.err):
        assert "ds.json: " in text
        assert said in text
        assert "--hpz" not in text
        assert "--offload" not in text
        assert "--zero-stage" not in text


def test_an_option_that_was_given_is_refused_as_an_option(tmp_path):
    config = file_with(tmp_path, {"zero_hpz_partition_size": 3, "stage": 3})
    words = ["--model", str(folder_of("tiny", TINY)), "--gpu", "rtx-4090:4", "--ds-config", config, "--hpz", "3"]
    refused = call("estimate", *words)
    assert refused.code == MENDABLE
    assert "--hpz 3 does not divide 4 GPU(s)" in refused.err

"""The cases of ``cases.yaml``: what the formulas say of each, and what is asked of a rehearsal."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cli_calls import request_of_words
from vlmplan.cli.estimate import estimate as command
from vlmplan.deepspeed_config import settings_from_ds_config
from vlmplan.estimation import Estimate
from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan.plan import plan_from_estimate
from vlmplan.recipe.choices import Precision
from vlmplan.rehearsal.request import request_json
from vlmplan.request import Request
from vlmplan.requested import requested_estimate

HERE = Path(__file__).parent
CASES: dict[str, Any] = yaml.safe_load((HERE / "cases.yaml").read_text())
NAMES: tuple[str, ...] = tuple(case["name"] for case in CASES["cases"])
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"bf16": {"enabled": True}},
    "bf16-pure": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
    "fp16": {"fp16": {"enabled": True}},
    "fp32": {},
}
"""How a ds_config.json says them."""
SMALL_LLAMA = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32_001,
    "tie_word_embeddings": False,
}
"""Of 45 M parameters."""


def case_named(name: str) -> dict[str, Any]:
    return next(case for case in CASES["cases"] if case["name"] == name)


@cache
def estimated(name: str) -> Estimate:
    """What the formulas say of a case."""
    case = case_named(name)
    with tempfile.TemporaryDirectory() as folder:
        write_model(CASES["models"][case["model"]], Path(folder))
        return requested_estimate(replace(asked_of(case), model=folder), ())[0]


def asked_of(case: Mapping[str, Any]) -> Request:
    """The request of a case as ``vlmplan estimate`` parses it."""
    request = request_of_words(command, "--model", case["model"], *case["options"].split())
    if "zero_optimization" not in case:
        return request
    precision = PRECISIONS[(request.recipe.precision or Precision.BF16).value]
    ds_config = settings_from_ds_config({"zero_optimization": case["zero_optimization"]} | precision)
    return replace(request, ds_config=ds_config)


def write_model(model: Mapping[str, Any], folder: Path) -> None:
    """The files of a packaged model, with other values in its config.json."""
    packaged = PACKAGED_MODELS / model["alias"]
    for path in packaged.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((packaged / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(merged(config, model.get("config", {}))))


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with ``changes``, object by object; what says something of each layer is cut to fewer."""
    result = dict(values)
    for key, value in changes.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    if "layer_types" in result and "num_hidden_layers" in changes:
        result["layer_types"] = result["layer_types"][: changes["num_hidden_layers"]]
    return result


def request_of(name: str) -> dict[str, Any]:
    """What ``python -m vlmplan_trainer.rehearse`` is asked: the rank that the formulas speak of."""
    estimate = estimated(name)
    return request_json(plan_from_estimate(estimate), estimate, rank=estimate.timeline.rank)

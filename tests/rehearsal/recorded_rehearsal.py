"""Writes the recorded answer that the tests of this folder read; to do so again, with the trainer's packages:

PYTHONPATH=tests python tests/rehearsal/recorded_rehearsal.py

A Llama of four small layers in full under ZeRO-2 on two A100s, two micro batches a step, torch's native allocator.
"""

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from vlmplan.cli.options import DATA, ONE_CLUSTER, WORKLOAD
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.rehearse import OUTPUT, rehearse
from vlmplan.cli.rehearse_script import SCRIPT
from vlmplan.cli.task_options import TASK
from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonObject
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.rehearsal import Comparison, compared
from vlmplan.rehearsal.process import COMMAND, SOURCE, answer_of
from vlmplan.rehearsal.request import request_json
from vlmplan.rehearsal.result import Rehearsed, rehearsed_from_json
from vlmplan.request import parse
from vlmplan.requested import requested_estimate

ANSWER = Path(__file__).parent / "data" / "small_llama_zero2.json"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
OPTIONS = {
    "gpu": "a100-sxm4-80gb:2",
    "zero_stage": "2",
    "seq_len": 512,
    "micro_batch": 2,
    "grad_accum": 2,
    "activation_checkpointing": False,
    "expandable_segments": False,
}


def given(model: Path, **changes: Any) -> dict[str, Any]:
    """The options of ``vlmplan rehearse`` that make a plan."""
    num_options = len(DATA) + len(WORKLOAD) + len(ONE_CLUSTER) + len(RECIPE) + len(EVALUATION) + len(TASK)
    before = len(("--plan", "--config"))
    names = [option.name for option in rehearse.params if option.name is not None]
    values = dict.fromkeys(names[before : before + num_options])
    assert len(names) == before + num_options + len(OUTPUT) + len(SCRIPT) + len(("--catalog", "--json"))
    return values | {"model": str(model)} | OPTIONS | changes


@cache
def planned(**changes: Any) -> tuple[Plan, Estimate]:
    """The recorded setup with ``changes`` of its options."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small-llama"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        estimate, _ = requested_estimate(parse(given(model, **changes)), ())
    return plan_from_estimate(estimate), estimate


def recorded_json() -> dict[str, Any]:
    """The answer as JSON has it, anew for whoever changes it."""
    return json.loads(ANSWER.read_text())


@cache
def recorded() -> Rehearsed:
    return rehearsed_from_json(JsonObject(recorded_json(), source=SOURCE))


def comparison(**changes: Any) -> Comparison:
    """The recorded answer beside the estimate of its setup with ``changes`` of the options."""
    return compared(recorded(), planned(**changes)[1])


if __name__ == "__main__":
    plan, estimate = planned()
    request = request_json(plan, estimate, rank=0)
    answer = answer_of([sys.executable, *COMMAND], json.dumps(request), print)
    ANSWER.write_text(json.dumps(answer) + "\n")

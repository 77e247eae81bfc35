"""Scripts of OpenRLHF: what ``check`` plans beside rehearsals of OpenRLHF's own programs.

``openrlhf.json``: ``openrlhf.cli.train_sft``, ``train_dpo`` and ``train_rm`` of OpenRLHF@3c3be623 with these options,
models of few layers and samples that are cut off at the limit, as ``vlmplan rehearse --gpu a100-sxm4-80gb:N --rank R
-- deepspeed --module ...`` runs them on tensors without data, with transformers 5.23, peft 0.21.2 and DeepSpeed 0.19.8.
Its patch of loading under ZeRO-3, which is for transformers 5.15, is left out. What a rehearsal calls forward is
there the model's and the reference's.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call

HERE = Path(__file__).parent
FILE = json.loads((HERE / "openrlhf.json").read_text(encoding="utf-8"))
MODELS = json.loads((HERE / "trainers.json").read_text(encoding="utf-8"))["models"]
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in FILE["cases"]}
MOST = 0.002
SCRIPT = (
    "read -r -d '' training_commands <<EOF\nopenrlhf.cli.{program} {options}\nEOF\n"
    "deepspeed --module $training_commands\n"
)


@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_of_a_script_is_what_openrlhf_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    config = MODELS[case["model"]]["config"] | {"num_hidden_layers": case["layers"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    options = " \\\n  ".join([f"--model.model_name_or_path {tmp_path}", *case["options"]])
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.format(program=case["program"], options=options), encoding="utf-8")
    document = call("check", str(script), "--gpu", f"a100-sxm4-80gb:{case['gpus']}", "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in document["estimate"]["phases"]}
    planned["forward"] = max(planned["forward"], planned.pop("reference", 0))
    errors = {phase: planned[phase] / found - 1 for phase, found in case["peaks"].items()}
    assert all(abs(error) <= MOST for error in errors.values()), errors

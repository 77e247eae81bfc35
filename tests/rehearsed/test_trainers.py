"""Files of other trainers: what ``check`` plans beside rehearsals of the trainers themselves.

``trainers.json``: TRL 1.16's ``trl sft`` and LLaMA-Factory 0.9.5's ``llamafactory-cli train`` with these files, models
of few layers and samples as long as planned, as ``vlmplan rehearse --gpu a100-sxm4-80gb:N -- COMMAND`` runs them on
tensors without data, with transformers 5.23, peft 0.21.2, DeepSpeed 0.19.8 and liger-kernel 0.8.5; its training on
preferences with TRL 0.24, whose trainer it builds on, and pairs that are all cut off. What a rehearsal calls forward is
there the trainer's ``compute_loss``, with the reference. VLM-R1's trainer is run by ``vlm_r1_run.py``, which says how:
generating and looking up the reference are phases of their own there. Under ZeRO-3 weights are gathered for answers
before ``generate`` is called, so that backward has them too and stands beside nothing. R1-V's is run by
``r1_v_run.py``, its backward under ZeRO-2 with ``--rank 1``, whose part of the gradients is the larger one; its step
under DDP, where transformers 5.23 has another optimizer and bf16 weights by default, stands beside nothing.
``swift rlhf`` of ms-swift 4.6.0 is started by torchrun with
TRL 0.29.1, and answers of ``answer`` tokens behind the 20 that its template makes of a prompt of one. What axolotl
0.19.0 makes of preferences and rewards is run by ``axolotl_run.py``, with prompts of 20 tokens; its step behind
reentrant checkpoints, which holds a few weights more than planned, stands beside nothing;
ms-swift's rewards by ``ms_swift_grpo_run.py``, whose old log-probabilities and reference are one phase.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call

FILE = json.loads((Path(__file__).parent / "trainers.json").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in FILE["cases"]}
MOST = 0.006
IMAGES = ("--images-per-sample", "1", "--image-size", "448x448")


def written(case: dict[str, Any], folder: Path) -> Path:
    """The file of a case with its model and DeepSpeed's file beside it."""
    model = FILE["models"][case["model"]]
    for name, content in (("config", model["config"]), ("preprocessor_config", model.get("preprocessor"))):
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    key = {"rlhf_type": "model", "rl": "base_model"}.get(next(iter(case["settings"])), "model_name_or_path")
    settings = {key: str(folder), "output_dir": "out", **case["settings"]}
    if case["deepspeed"] is not None:
        (folder / "zero.json").write_text(json.dumps(FILE["deepspeed_configs"][case["deepspeed"]]), encoding="utf-8")
        settings["deepspeed"] = str(folder / "zero.json")
    if "script" in case:
        options = " ".join(f"--{key} {value}" for key, value in settings.items())
        path = folder / "run.sh"
        path.write_text(f"torchrun --nproc_per_node {case['gpus']} {case['script']} {options}\n", encoding="utf-8")
        return path
    path = folder / "train.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_of_a_file_is_what_its_trainer_takes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    words = [str(written(case, tmp_path)), "--gpu", f"a100-sxm4-80gb:{case['gpus']}", "--json"]
    words += case.get("words", [])
    if "answer" in case:
        estimate = call("estimate", "--config", *words, "--max-completion-tokens", str(case["answer"])).document
    else:
        estimate = call("check", *words, *(IMAGES if case["images"] else ())).document["estimate"]
    asleep = case.get("asleep", 0)  # of vLLM, which is not there in a rehearsal
    planned = {phase["name"]: phase["peak_bytes"] - asleep for phase in estimate["phases"]}
    errors = {phase: planned[phase] / found - 1 for phase, found in case["peaks"].items()}
    assert all(abs(error) <= MOST for error in errors.values()), errors

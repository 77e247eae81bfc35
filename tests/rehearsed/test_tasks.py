"""Planned peaks of DPO and GRPO beside those of TRL's own trainers, rehearsed on tensors without data.

``tasks.json``: TRL 1.16 with transformers 5.23, peft 0.21 and DeepSpeed 0.19.8, scripts of DPOTrainer and GRPOTrainer
as ``vlmplan rehearse --gpu GPU -- python script.py`` runs them, three steps each. Triton kernels do nothing there, as
they allocate nothing. A rehearsal sums a gradient of two parts into a new tensor, a GPU in place: that is what full
training of a model with tied embeddings is below it.
"""

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from vlmplan.request import parse
from vlmplan.requested import requested_estimate
from vlmplan.workload import ModelFiles

FILE = json.loads((Path(__file__).parent / "tasks.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in FILE["cases"]}
WORST, USUAL = 0.06, 0.02


@cache
def error(name: str) -> float:
    case = CASES[name]
    own = FILE["models"][case["model"]]
    model = ModelFiles(id=case["model"], config=own["config"], preprocessor=own.get("preprocessor"))
    options = {**case["options"], "model": case["model"], "ds_config": case["ds_config"]}
    found, _ = requested_estimate(parse(options, model), ())
    return found.peak_allocated_bytes / case["rehearsed_peak_bytes"] - 1


def test_all_peaks_are_near_the_rehearsed_ones():
    errors = [abs(error(name)) for name in CASES]
    assert len(errors) >= 25
    assert max(errors) <= WORST
    assert median(errors) <= USUAL

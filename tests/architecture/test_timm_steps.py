"""Models with vision towers of timm, held to what transformers' own models with it take (``timm_steps.json``)."""

import json
from pathlib import Path

import pytest

from model_table import packaged_config
from timm_cases import CASES, PEAKS, SMALL, described, predicted
from vlmplan.architecture.families import build_model

STORED = json.loads((Path(__file__).parent / "timm_steps.json").read_text(encoding="utf-8"))
EXACT = 0.001
"""Statistics of batch norms are float32 here, as on CUDA; the CPU keeps them in the model's type."""


@pytest.mark.parametrize("name", STORED["models"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_the_real_model(name):
    config = SMALL[name] if name in SMALL else packaged_config(name)
    assert described(build_model(config)) == STORED["models"][name]


@pytest.mark.parametrize("name", CASES)
def test_a_step_keeps_and_peaks_as_the_real_model(name):
    found = predicted(CASES[name])
    assert found.end_live == 0
    assert {peak: getattr(found, peak) for peak in PEAKS} == pytest.approx(STORED["steps"][name], rel=EXACT)


@pytest.mark.sweep
def test_what_is_stored_is_what_the_real_model_takes_where_timm_is_installed():
    pytest.importorskip("timm", exc_type=ImportError)
    from tools.timm_steps import found

    assert {key: found()[key] for key in ("models", "steps")} == {key: STORED[key] for key in ("models", "steps")}

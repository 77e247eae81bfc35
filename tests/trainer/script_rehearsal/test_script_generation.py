"""What is generated runs to its length limit, in a phase of its own; the highest step is known by name, whichever."""

from pathlib import Path

import pytest

from cli_calls import call

SCRIPT = Path(__file__).parent / "scripts" / "generating.py"
VOCABULARY, WIDTH = 4096, 256
pytestmark = pytest.mark.sweep


def test_generation_runs_to_its_limit_and_the_longest_batch_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = call("rehearse", "--gpu", "h100-sxm:1", "--json", "--", "python", str(SCRIPT))
    assert done.code == 0, done.err
    found = done.document
    assert not [one for one in found["unknown_values"] if one["what"] == "decision"]
    assert [note for note in found["notes"] if "generation runs to its length limit" in note]
    phases = {phase["name"]: phase for phase in found["phases"]}
    assert {"generate", "forward", "backward", "step"} <= phases.keys()
    assert "evaluation" not in phases
    weights = phases["load"]["resident_bytes"]
    assert weights == phases["step"]["components"]["weights"]
    assert found["peak_step"] == 2
    assert found["components_at_peak"]["weights"] == weights
    assert found["components_at_peak"]["optimizer_states"] == pytest.approx(2 * weights, rel=0.001)
    assert all(one["maker"] for one in found["largest"])
    assert found["checkpoint_bytes"] == VOCABULARY * WIDTH * 4
    assert not list(tmp_path.iterdir())

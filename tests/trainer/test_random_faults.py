"""Faults at random moments lose nothing: ``random_faults.py`` says which, and tries more of them, under every
engine."""

import pytest
from random_faults import tried

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = [pytest.mark.sweep, pytest.mark.long]


@pytest.mark.parametrize("engine", ["ZeRO-3"])
def test_a_run_broken_at_random_moments_leaves_what_an_unbroken_one_does(engine: str, tmp_path):
    model = write_tiny_model(tmp_path / "llama", "llama")
    found = tried(model, engine, tmp_path / "runs", num_faults=2, seed=1)
    assert (found.num_faults >= 2, found.problems) == (True, [])


def test_a_launched_run_broken_at_random_moments_leaves_what_an_unbroken_one_does(tmp_path):
    model = write_tiny_model(tmp_path / "llama", "llama")
    found = tried(model, "ZeRO-2", tmp_path / "runs", num_faults=1, seed=5, launches=True)
    assert (found.num_faults >= 1, found.problems) == (True, [])

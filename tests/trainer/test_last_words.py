"""What a run that fails says: one sentence from the rank that speaks for all, and from others where it cannot."""

import pytest

from vlmplan_trainer import __main__ as trainer


@pytest.mark.parametrize(("rank", "waited", "speaker"), [("0", [], ""), ("1", [trainer.OTHERS_SECONDS], "rank 1: ")])
def test_other_ranks_leave_the_first_time_to_end_before_they_say_the_same(
    rank: str, waited: list[float], speaker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trainer.main(["--plan", "nothing.json", "--output-dir", "out"]) == trainer.EXIT_MENDABLE
    assert slept == waited
    assert capsys.readouterr().err.startswith(f"vlmplan_trainer: {speaker}")

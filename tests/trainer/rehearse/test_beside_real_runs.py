"""Rehearsed bytes are those of the same trainer on real CPU tensors; ``beside_real_runs.py`` has all combinations."""

import pytest
from beside_real_runs import WORDS, compared, plan_named, write_model
from rehearsals import many_rehearsed, really_run, rehearsed, request_for

TOLERANCE = 0.005
PLAIN = ["lora-none-whole_loss"]
ON_TWO = ["full-none-accumulation", "lora-none", "qlora-none", "full-0", "qlora-1", "lora-2", "full-3"]
MUON = ["full-1-muon", "lora-2-muon", "full-3-muon"]
MUON_TOLERANCE = 0.02
"""Muon's handles keep what a round has gathered until the next round's are made, at stage 3 two weights in float32,
131,072 bytes of a step's 7,824,753; those of a rehearsal keep nothing."""
RANKS = [*((name, 0) for name in ON_TWO), ("full-3", 1)]
"""And the rank that is rehearsed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models"))


def assert_equal(found, tolerance=TOLERANCE):
    wrong = [line for line in found if abs(line.error) > tolerance]
    assert found
    assert not wrong, wrong


@pytest.mark.sweep
def test_one_rank_without_deepspeed_has_the_bytes_of_its_rehearsal(model, tmp_path):
    plans = {name: plan_named(model, name, num_ranks=1) for name in PLAIN}
    assert_equal(compared(plans, tmp_path, num_ranks=1))


@pytest.mark.sweep
def test_weights_from_files_are_seen_though_threads_load_them(model, tmp_path):
    plans = {"qlora-none": plan_named(model, "qlora-none", num_ranks=1)}
    words = [word for word in WORDS if word != "--random-weights"]
    [real] = really_run(plans, tmp_path, num_ranks=1, words=words)
    [answer] = many_rehearsed([request_for(plan) for plan in plans.values()])
    here, there = real["qlora-none"], answer["phases"]
    assert [phase["name"] for phase in here] == [phase["name"] for phase in there]
    resident = [(phase["resident_bytes"], other["resident_bytes"]) for phase, other in zip(here, there, strict=True)]
    assert [found for found, _ in resident] == pytest.approx([expected for _, expected in resident], rel=TOLERANCE)


@pytest.mark.long
@pytest.mark.sweep
def test_two_ranks_have_the_bytes_of_their_rehearsals_under_every_engine(model, tmp_path):
    plans = {name: plan_named(model, name, num_ranks=2) for name in ON_TWO}
    assert_equal(compared(plans, tmp_path, num_ranks=2, asked=RANKS))


@pytest.mark.long
@pytest.mark.sweep
def test_two_ranks_with_muon_have_the_bytes_of_their_rehearsals(model, tmp_path):
    plans = {name: plan_named(model, name, num_ranks=2) for name in MUON}
    found = compared(plans, tmp_path, num_ranks=2, asked=[(name, 0) for name in MUON])
    assert_equal([line for line in found if (line.run, line.phase) != ("full-3-muon", "step")])
    assert_equal(found, MUON_TOLERANCE)


@pytest.mark.sweep
def test_qlora_with_stage_3_is_refused_in_a_sentence(model):
    plan = plan_named(model, "lora-3", num_ranks=2)
    request = request_for(plan)
    request["plan"]["recipe"]["method"] = "qlora"
    answer = rehearsed(request)
    assert list(answer) == ["error"]
    assert "--zero-stage 3" in answer["error"]

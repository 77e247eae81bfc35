"""Seconds of a step of which a rehearsal counted the operations."""

import pytest

from planned import cluster
from vlmplan.timing import CountedCollectives, CountedWork, TimedStep, timed_work

GIGABYTE = 10**9
WORK = CountedWork(
    phase="forward",
    step=1,
    products={("bfloat16", 2**40, 2**20): 3},
    attention_flops={},
    moved_bytes=GIGABYTE,
    copied_bytes=0,
    num_kernels=5,
)


def timed(*kinds: str, phase: str = "step") -> TimedStep | None:
    collectives = [CountedCollectives(phase, kind, 2, GIGABYTE) for kind in kinds]
    return timed_work([WORK], collectives, cluster("h100-sxm", num_gpus=8), num_steps=1)


def communication(*kinds: str, phase: str = "step") -> float:
    found = timed(*kinds, phase=phase)
    assert found is not None
    return found.expected.communication


@pytest.mark.parametrize("kind", ["allgather", "broadcast", "gather", "scatter", "reduce", "send", "recv_any_source"])
def test_what_crosses_a_ring_once_takes_as_long_as_an_all_gather(kind: str):
    assert communication(kind) == communication("allgather_base") > 0


def test_a_kind_that_adds_up_is_none_of_them():
    assert communication("reduce_scatter") == communication("reduce_scatter_base")
    assert communication("allreduce") > 1.3 * communication("allgather")


def test_seconds_with_a_kind_that_nobody_knows_are_not_known():
    assert timed("allgather") is not None
    assert timed("allgather", "teleport") is None


def test_collectives_between_steps_hide_behind_nothing():
    assert communication("allgather", phase="reference") == communication("allgather", phase="step")
    assert communication("allgather", phase="forward") < communication("allgather", phase="step")

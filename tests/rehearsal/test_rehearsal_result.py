"""The recorded answer as it is read, and answers that are no answer."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from recorded_rehearsal import recorded, recorded_json

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject
from vlmplan.rehearsal.result import CACHE_EMPTIED, rehearsed_from_json

Answer = dict[str, Any]


def test_phases_are_those_of_a_run_in_order():
    assert [phase.name for phase in recorded().last_phases] == ["load", "init", "forward", "backward", "step", "save"]
    assert [phase.step for phase in recorded().last_phases] == [0, 0, 3, 3, 3, 0]


def test_components_of_every_phase_add_up_to_its_peak():
    for phase in recorded().phases:
        assert phase.components.total == phase.peak_bytes, (phase.name, phase.step)


def test_largest_storages_are_at_most_ten_in_order_and_within_their_components():
    for phase in recorded().phases:
        sizes = [one.num_bytes for one in phase.largest]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) <= 10
        for name, total in phase.components.as_json().items():
            assert sum(one.num_bytes for one in phase.largest if one.component == name) <= total


def test_first_step_is_found_for_phases_of_steps_alone():
    first = recorded().first("step")
    assert first is not None
    assert (first.name, first.step) == ("step", 1)
    assert recorded().first("init") is None


def test_later_steps_are_alike():
    """What the answer's last step is taken for."""
    peaks = {(phase.name, phase.step): phase.peak_bytes for phase in recorded().phases}
    for name in ("forward", "backward", "step"):
        assert peaks[name, 2] == peaks[name, 3] >= peaks[name, 1]


def test_events_reach_the_bytes_that_each_phase_ends_with():
    live, totals = 0, [0]
    for _, num_bytes in recorded().events:
        live += num_bytes
        totals.append(live)
    ends = {(mark.name, mark.step): totals[mark.end] for mark in recorded().marks}
    assert {(phase.name, phase.step): phase.resident_bytes for phase in recorded().phases} == ends


def test_origins_add_up_to_the_components_of_every_peak_of_the_last_step():
    """What is told of storages one by one is what is told of them together."""
    found = recorded()
    for phase in found.last_phases:
        marks = [mark for mark in found.marks if (mark.name, mark.step) == (phase.name, phase.step)]
        live: Counter[str] = Counter()
        highest: dict[int, dict[str, int]] = {}
        for place, (storage, num_bytes) in enumerate(found.events, start=1):
            if num_bytes:
                live[found.origins[storage].component] += num_bytes
            if any(mark.begin <= place <= mark.end for mark in marks):
                highest.setdefault(live.total(), dict(live))
        if phase.step:
            shown = {name: num_bytes for name, num_bytes in phase.components.as_json().items() if num_bytes}
            assert {name: one for name, one in highest[phase.peak_bytes].items() if one} == shown, phase.name


def test_the_engine_emptied_its_cache():
    assert CACHE_EMPTIED in recorded().events


def test_the_engines_own_stream_is_known():
    storages = {storage for storage, num_bytes in recorded().events if num_bytes > 0}
    assert set(recorded().streams) <= storages
    assert set(recorded().streams.values()) == {1}


def test_flops_of_a_step_are_of_all_its_micro_batches():
    phases = [phase for phase in recorded().phases if phase.step == 2]
    assert recorded().flops_per_step == sum(phase.flops for phase in phases) > 0


Spoil = Callable[[Answer], object]
SPOILT: dict[str, Spoil] = {
    "vlmplan.rehearsed/1 is needed": lambda answer: answer.update(schema="vlmplan.plan/1"),
    "num_ranks is missing": lambda answer: answer.pop("num_ranks"),
    "phases[0].peak_bytes is -1": lambda answer: answer["phases"][0].update(peak_bytes=-1),
    "phases[2].components is missing": lambda answer: answer["phases"][2].pop("components"),
    "phases[2].largest[0].shape is [0.5]": lambda answer: answer["phases"][2]["largest"][0].update(shape=[0.5]),
    "events.bytes is": lambda answer: answer["events"]["bytes"].pop(),
    "events.storages is": lambda answer: answer["events"]["storages"].append("x"),
    "every phase lies within": lambda answer: answer["marks"][-1].__setitem__(3, 10**9),
    "streams is [[1]]": lambda answer: answer.update(streams=[[1]]),
    "every storage of the events is there": lambda answer: (
        answer["origins"]["storages"].pop(),
        answer["origins"]["places"].pop(),
    ),
    "origins.places is": lambda answer: answer["origins"]["places"].pop(),
    "marks is": lambda answer: answer["marks"].append([1, "load"]),
}


@pytest.mark.parametrize("said", SPOILT)
def test_what_is_wrong_with_an_answer_is_named(said: str):
    answer = recorded_json()
    SPOILT[said](answer)
    with pytest.raises(InputError) as error:
        rehearsed_from_json(JsonObject(answer, source="the answer"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)

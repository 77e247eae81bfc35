"""Memory of a model without a family: what a rehearsal adds to the generic formulas."""

import json
import runpy
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from cli_calls import call
from hub_server import isolated_cache
from planned import cluster, workload
from vlmplan.errors import UnavailableError, VlmplanError
from vlmplan.estimation import Estimate, estimate
from vlmplan.models import find_model
from vlmplan.models import probe as model_probe
from vlmplan.models.probe import probe_path
from vlmplan.proposals.trainable import trainable_model, with_known_host
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rehearsal import unknown
from vlmplan.rehearsal.prefixes import num_layers_of
from vlmplan.rehearsal.process import LongRehearsalError
from vlmplan.rehearsal.setup_peaks import Peaks, Rehearse, RehearseAll, Setup, peaks_together, rehearsed_peaks
from vlmplan.rehearsal.unknown import (
    MOST_OPERATIONS,
    OF_ACTIVATIONS,
    _digest,
    all_with_rehearsed_activations,
    with_rehearsed_activations,
)
from vlmplan.workload import Workload

NUM_LAYERS = 5
CONFIG = {
    "model_type": "xmod",
    "default_language": "en_XX",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0",
}
RECIPE = Recipe(method=Method.LORA, zero_stage=None, micro_batch=2, activation_checkpointing=False)
FIRST, FURTHER = 3_000_000, 500_000
CHOSEN = ("method", "zero_stage", "micro_batch", "grad_accum")
"""What a search chooses, by options of estimate."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where layouts that were looked up are kept for all tests here."""
    return tmp_path_factory.mktemp("xmod")


@pytest.fixture(scope="module")
def looked_up_here() -> Iterator[None]:
    """Layouts come from the probe in this process: one of its own for each takes seconds, and adds nothing here."""
    pytest.importorskip("transformers")
    probe = runpy.run_path(str(probe_path(Path(model_probe.__file__).parents[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_probe, "_answer", lambda config: {"layout": probe["layout"](config)})
        yield


@pytest.fixture(autouse=True)
def cache(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rehearsed is forgotten."""
    isolated_cache(monkeypatch, places)
    shutil.rmtree(places / "cache" / "vlmplan" / "activations", ignore_errors=True)


@pytest.fixture(scope="module")
def found(places: Path, looked_up_here: None) -> Iterator[Estimate]:
    (places / "config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        isolated_cache(patch, places)
        files = find_model(str(places))
        yield estimate(Workload(model=files, seq_len=512), RECIPE, cluster("rtx-4090"))


def in_turn(rehearse: Rehearse) -> RehearseAll:
    """One rehearsal after the other."""

    def rehearsed(setup: Setup) -> Peaks | VlmplanError:
        try:
            return rehearse(*setup)
        except VlmplanError as error:
            return error

    return lambda setups, say: [rehearsed(setup) for setup in setups]


def off_by(first: int, further: int, asked: list[int], *, operations_per_layer: int = 1) -> RehearseAll:
    """A rehearsal that sees so many bytes more than the formulas: a first layer's, and each further one's."""

    def rehearse(short: Estimate, most_operations: int | None) -> Peaks:
        num_layers = num_layers_of(short.workload.model.config)
        assert num_layers is not None
        asked.append(num_layers)
        if most_operations is not None and num_layers * operations_per_layer > most_operations:
            raise LongRehearsalError("it has too many operations")
        more = first + (num_layers - 1) * further
        return {p.name: (p.resident.total + more, p.peak.total + 2 * more) for p in short.timeline.phases}

    return in_turn(rehearse)


@pytest.mark.parametrize(
    ("operations_per_layer", "rehearsed"), [(MOST_OPERATIONS // NUM_LAYERS, [5]), (MOST_OPERATIONS, [5, 2, 3])]
)
def test_what_the_formulas_miss_is_that_of_all_layers(found: Estimate, operations_per_layer: int, rehearsed: list[int]):
    """As they were rehearsed, or drawn on from the first ones where all have too many operations."""
    asked: list[int] = []
    rehearse = off_by(FIRST, FURTHER, asked, operations_per_layer=operations_per_layer)
    corrected = with_rehearsed_activations(found, rehearse)
    assert asked == rehearsed
    more = 3_000_000 + 4 * 500_000
    for before, after in zip(found.timeline.phases, corrected.timeline.phases, strict=True):
        assert after.resident.total - before.resident.total == more
        assert after.peak.total - before.peak.total == 2 * more
        component = "activations" if before.name in OF_ACTIVATIONS else "weights"
        assert getattr(after.peak, component) - getattr(before.peak, component) == 2 * more
    assert corrected.peak_allocated_bytes == found.peak_allocated_bytes + 2 * more
    assert corrected.device.device_bytes == found.device.device_bytes + 2 * more


def test_what_is_too_much_is_taken_from_activations_and_then_from_others(found: Estimate):
    before = found.timeline.phases[2].peak
    for micro_batch, less in ((3, before.activations - 1), (4, before.activations + 1)):  # none of which is kept
        other = replace(found, recipe=RECIPE.with_changes(micro_batch=micro_batch))
        after = with_rehearsed_activations(other, taking(less))
        peak = after.timeline.phases[2].peak
        assert peak.total == before.total - less
        assert min(peak.as_json().values()) >= 0
    nothing = with_rehearsed_activations(found, taking(2**40))
    assert all(phase.peak.total == 0 for phase in nothing.timeline.phases)


def test_all_layers_are_rehearsed_where_nobody_knows_how_many_there_are(
    found: Estimate, monkeypatch: pytest.MonkeyPatch
):
    """Configurations that call their number otherwise (Kosmos-2)."""
    monkeypatch.setattr("vlmplan.rehearsal.prefixes.NUM_LAYERS_KEYS", ("decoder_layers",))
    corrected = with_rehearsed_activations(found, taking(-7))
    assert corrected.peak_allocated_bytes == found.peak_allocated_bytes + 7
    assert "memory is rehearsed;" in corrected.workload.model.notes[0]


def test_the_notes_say_where_the_memory_comes_from(found: Estimate):
    (note,) = with_rehearsed_activations(found, off_by(0, 0, [])).workload.model.notes
    assert "memory is rehearsed; FLOPs and time are those of a generic decoder" in note
    long = off_by(0, 0, [], operations_per_layer=MOST_OPERATIONS)
    other = replace(found, recipe=RECIPE.with_changes(micro_batch=3))
    (note,) = with_rehearsed_activations(other, long).workload.model.notes
    assert "memory is rehearsed with its first layers and drawn on to all" in note
    assert "generic decoder" in note


def taking(num_bytes: int) -> RehearseAll:
    """A rehearsal that sees so many bytes less, at peaks, than the formulas."""

    def rehearse(short: Estimate, most_operations: int | None) -> Peaks:
        return {p.name: (p.resident.total, p.peak.total - num_bytes) for p in short.timeline.phases}

    return in_turn(rehearse)


def test_no_more_micro_batches_are_rehearsed_than_differ(found: Estimate):
    asked: list[int] = []

    def rehearse(short: Estimate, most_operations: int | None) -> Peaks:
        asked.append(short.recipe.grad_accum)
        return {}

    for grad_accum in (1, 2, 3, 16, 17):  # the last is that of the three before
        with_rehearsed_activations(replace(found, recipe=RECIPE.with_changes(grad_accum=grad_accum)), in_turn(rehearse))
    assert asked == [1, 2, 3]


def test_setups_that_one_rehearsal_tells_of_have_it_once_and_all_are_asked_together(found: Estimate):
    """Another price, name or memory of the card changes nothing; a long one asks again together, and a family not."""
    asked: list[list[tuple[int, int]]] = []
    each = off_by(FIRST, FURTHER, [], operations_per_layer=MOST_OPERATIONS // 8)

    def rehearse(setups: Sequence[Setup], say: Callable[[str], None]) -> Sequence[Peaks | VlmplanError]:
        recipes = [setup.estimate.recipe for setup in setups]
        layers = [num_layers_of(setup.estimate.workload.model.config) or 0 for setup in setups]
        asked.append([(recipe.micro_batch, count) for recipe, count in zip(recipes, layers, strict=True)])
        return [
            peaks if recipe.micro_batch == 2 else LongRehearsalError("it is too long") if count == NUM_LAYERS else peaks
            for recipe, count, peaks in zip(recipes, layers, each(setups, say), strict=True)
        ]

    again = replace(found, recipe=RECIPE.with_changes(grad_accum=3))
    more = replace(found, recipe=RECIPE.with_changes(grad_accum=16))
    long = [replace(found, recipe=RECIPE.with_changes(micro_batch=size)) for size in (3, 4)]
    described = estimate(workload("smollm2-135m"), RECIPE, cluster("rtx-4090"))
    corrected = all_with_rehearsed_activations([long[0], again, described, more, long[1]], rehearse)
    assert asked == [[(3, 5), (2, 5), (4, 5)], [(3, 2), (3, 3), (4, 2), (4, 3)]]
    assert corrected[2] is described
    assert corrected[1].timeline == corrected[3].timeline
    assert "all;" in corrected[0].workload.model.notes[0]
    assert [one.recipe for one in corrected] == [one.recipe for one in (long[0], again, described, more, long[1])]
    assert all_with_rehearsed_activations([long[0], again], taking(1)) == [corrected[0], corrected[1]]


def test_answers_of_another_length_are_rehearsed_anew(found: Estimate):
    model = replace(found.workload.model, config={**found.workload.model.config, "model_type": "t5"})
    kept = [
        _digest(replace(found, workload=replace(found.workload, model=model, target_len=length))) for length in (16, 32)
    ]
    assert kept[0] != kept[1]


def test_what_was_rehearsed_once_is_kept(found: Estimate):
    asked: list[int] = []
    first = with_rehearsed_activations(found, off_by(FIRST, FURTHER, asked))
    again = with_rehearsed_activations(found, off_by(0, 0, asked))
    assert asked == [NUM_LAYERS]
    assert again.timeline == first.timeline
    other = replace(found, recipe=RECIPE.with_changes(micro_batch=4))
    with_rehearsed_activations(other, off_by(0, 0, asked))
    assert asked == [NUM_LAYERS, NUM_LAYERS]


def test_where_it_cannot_be_rehearsed_the_generic_activations_stay_and_a_note_says_why(found: Estimate):
    def fails(short: Estimate, most_operations: int | None) -> Peaks:
        raise UnavailableError("the rehearsal ended in forward: no reason.")

    same = with_rehearsed_activations(found, in_turn(fails))
    assert same.timeline == found.timeline
    assert same.workload.model.notes[-1] == (
        "Its activations are not rehearsed: the rehearsal ended in forward: no reason."
    )


def test_a_model_with_a_family_is_left_alone():
    described = estimate(workload("smollm2-135m"), RECIPE, cluster("rtx-4090"))
    asked: list[int] = []
    assert with_rehearsed_activations(described, off_by(1, 1, asked)) is described
    assert asked == []


def test_each_recommended_plan_is_rehearsed_as_an_estimate_of_it_is(found: Estimate, places: Path, monkeypatch):
    monkeypatch.setattr("vlmplan.rehearsal.unknown.peaks_together", off_by(FIRST, FURTHER, []))
    words = ("--model", str(places), "--gpu", "rtx-4090:1", "--seq-len", "512", "--json")
    answer = call("recommend", *words).document
    assert len(answer["plans"]) > 1
    for found_plan in answer["plans"]:
        plan, recipe = found_plan["estimate"], found_plan["recipe"]
        made = [word for name in CHOSEN for word in (f"--{name.replace('_', '-')}", str(recipe[name]))]
        assert (recipe["loss"], recipe["activation_checkpointing"]) == ("full", False)
        made += ["--loss", "full", "--no-activation-checkpointing", "--expandable-segments"]
        estimated = call("estimate", *words, *made).document
        for name in ("phases", "peak_allocated_bytes", "peak_device_bytes", "verdict", "step_seconds"):
            assert estimated[name] == plan[name], (recipe["method"], name)
        assert estimated["notes"][0] == answer["notes"][0]
    assert "memory is rehearsed" in answer["notes"][0]


@pytest.mark.long
@pytest.mark.sweep
def test_rehearsals_in_forks_of_one_process_are_those_of_processes_of_their_own(found: Estimate):
    setups = [
        Setup(estimate(found.workload, RECIPE.with_changes(**changes), cluster("rtx-4090", num_gpus)))
        for changes, num_gpus in (({}, 1), ({"zero_stage": 3}, 2), ({"method": Method.FULL, "zero_stage": 1}, 1))
    ]
    said: list[str] = []
    together = peaks_together([*setups, setups[0]._replace(most_operations=1000)], said.append)
    assert together[:3] == [rehearsed_peaks(setup.estimate) for setup in setups]
    assert isinstance(together[3], LongRehearsalError)
    assert said == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize("zero_stage", [None, 3])
def test_a_rehearsal_of_all_layers_is_what_is_planned_and_three_tell_of_five(
    found: Estimate, monkeypatch: pytest.MonkeyPatch, zero_stage: int | None
):
    """The real thing, and what is drawn on from two and three layers where nothing is sharded."""
    recipe = RECIPE.with_changes(zero_stage=zero_stage)
    planned = estimate(found.workload, recipe, cluster("rtx-4090", 1 if zero_stage is None else 2))
    corrected = with_rehearsed_activations(planned)
    assert "memory is rehearsed;" in corrected.workload.model.notes[0], corrected.workload.model.notes
    for most_operations in (1000, 4000):  # it gives up in forward, and in backward
        with pytest.raises(LongRehearsalError):
            rehearsed_peaks(planned, most_operations)
    seen = rehearsed_peaks(planned)
    for phase in corrected.timeline.phases:
        assert (phase.resident.total, phase.peak.total) == seen[phase.name]
    if zero_stage is not None:
        return
    monkeypatch.setattr("vlmplan.rehearsal.unknown.MOST_OPERATIONS", 1000)
    monkeypatch.setattr("vlmplan.rehearsal.unknown.SCHEMA", -1)  # what was kept is of all layers
    drawn_on = with_rehearsed_activations(planned)
    assert "rehearsed with its first layers" in drawn_on.workload.model.notes[0], drawn_on.workload.model.notes
    for phase in drawn_on.timeline.phases:
        if phase.name in OF_ACTIVATIONS:
            assert phase.peak.total == pytest.approx(seen[phase.name][1], rel=1e-3)
            assert phase.resident.total == pytest.approx(seen[phase.name][0], rel=1e-3)


def test_what_can_be_trained_is_planned_with_rehearsed_memory_as_recommend_plans_it(
    found: Estimate, monkeypatch: pytest.MonkeyPatch
):
    on, day = with_known_host(found.cluster), date(2026, 11, 21)

    def rehearsed(estimates: Sequence[Estimate]) -> Sequence[Estimate]:
        return all_with_rehearsed_activations(estimates, off_by(FIRST, FURTHER, []))

    monkeypatch.setattr(unknown, "all_with_rehearsed_activations", rehearsed)
    row = trainable_model(found.workload.model, cluster=on, methods=[Method.LORA], seq_len=512, today=day)
    way = row.ways[Method.LORA]
    alone = estimate(found.workload, way.recipe, on)
    assert way.device_bytes == rehearsed([alone])[0].device.device_bytes
    assert way.device_bytes > alone.device.device_bytes

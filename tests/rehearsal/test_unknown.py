"""Activations of a model without a family: what a rehearsal of one and two layers adds to the generic ones."""

import json
import runpy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli_calls import call
from hub_server import isolated_cache
from planned import cluster, workload
from vlmplan.errors import UnavailableError
from vlmplan.estimation import Estimate, estimate
from vlmplan.models import find_model
from vlmplan.models import probe as model_probe
from vlmplan.models.probe import probe_path
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import Method
from vlmplan.rehearsal.layers import Peaks, Rehearse, rehearsed_peaks
from vlmplan.rehearsal.prefixes import num_layers_of
from vlmplan.rehearsal.unknown import CORRECTED_PHASES, with_rehearsed_activations
from vlmplan.workload import Workload

NUM_LAYERS = 5
CONFIG = {
    "model_type": "arcee",
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


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where layouts that were looked up are kept for all tests here."""
    return tmp_path_factory.mktemp("arcee")


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


def off_by(first: int, further: int, asked: list[int]) -> Rehearse:
    """A rehearsal that sees so many bytes more than the formulas: a first layer's, and each further one's."""

    def rehearse(short: Estimate) -> Peaks:
        num_layers = num_layers_of(short.workload.model.config)
        assert num_layers is not None
        asked.append(num_layers)
        more = first + (num_layers - 1) * further
        return {p.name: (p.resident.total + more, p.peak.total + 2 * more) for p in short.timeline.phases}

    return rehearse


def test_what_the_formulas_miss_is_drawn_on_to_all_layers(found: Estimate):
    asked: list[int] = []
    corrected = with_rehearsed_activations(found, off_by(FIRST, FURTHER, asked))
    assert asked == [1, 2]
    more = 3_000_000 + 4 * 500_000
    for before, after in zip(found.timeline.phases, corrected.timeline.phases, strict=True):
        is_corrected = before.name in CORRECTED_PHASES
        assert after.resident.total - before.resident.total == (more if is_corrected else 0)
        assert after.peak.total - before.peak.total == (2 * more if is_corrected else 0)
        assert after.peak.activations - before.peak.activations == (2 * more if is_corrected else 0)
    assert corrected.peak_allocated_bytes == found.peak_allocated_bytes + 2 * more
    assert corrected.device.device_bytes == found.device.device_bytes + 2 * more


def test_no_more_activations_are_taken_away_than_there_are(found: Estimate):
    corrected = with_rehearsed_activations(found, off_by(-(2**40), 0, []))
    assert all(phase.peak.activations >= 0 for phase in corrected.timeline.phases)
    assert corrected.timeline.phases[2].peak.weights == found.timeline.phases[2].peak.weights


def test_the_notes_say_where_the_activations_come_from(found: Estimate):
    (note,) = with_rehearsed_activations(found, off_by(0, 0, [])).workload.model.notes
    assert "activations are rehearsed, with one layer and with two" in note
    assert "generic decoder" in note


def test_what_was_rehearsed_once_is_kept(found: Estimate):
    asked: list[int] = []
    first = with_rehearsed_activations(found, off_by(FIRST, FURTHER, asked))
    again = with_rehearsed_activations(found, off_by(0, 0, asked))
    assert asked == [1, 2]
    assert again.timeline == first.timeline
    other = replace(found, recipe=RECIPE.with_changes(micro_batch=4))
    with_rehearsed_activations(other, off_by(0, 0, asked))
    assert asked == [1, 2, 1, 2]


def test_where_it_cannot_be_rehearsed_the_generic_activations_stay_and_a_note_says_why(found: Estimate):
    def fails(short: Estimate) -> Peaks:
        raise UnavailableError("the rehearsal ended in forward: no reason.")

    same = with_rehearsed_activations(found, fails)
    assert same.timeline == found.timeline
    assert same.workload.model.notes[-1] == (
        "Its activations are not rehearsed: the rehearsal ended in forward: no reason."
    )


def test_a_model_with_a_family_is_left_alone():
    described = estimate(workload("smollm2-135m"), RECIPE, cluster("rtx-4090"))
    asked: list[int] = []
    assert with_rehearsed_activations(described, off_by(1, 1, asked)) is described
    assert asked == []


def test_a_recommended_plan_is_rehearsed_as_an_estimate_of_it_is(found: Estimate, places: Path, monkeypatch):
    monkeypatch.setattr("vlmplan.rehearsal.unknown.rehearsed_peaks", off_by(FIRST, FURTHER, []))
    words = ("--model", str(places), "--gpu", "rtx-4090:1", "--method", "lora", "--seq-len", "512", "--json")
    answer = call("recommend", *words).document
    plan, recipe = answer["plans"][0]["estimate"], answer["plans"][0]["recipe"]
    sizes = ("--micro-batch", str(recipe["micro_batch"]), "--grad-accum", str(recipe["grad_accum"]))
    assert (recipe["zero_stage"], recipe["loss"], recipe["activation_checkpointing"]) == (0, "full", False)
    made = (*sizes, "--zero-stage", "0", "--loss", "full", "--no-activation-checkpointing", "--expandable-segments")
    estimated = call("estimate", *words, *made).document
    for name in ("phases", "peak_allocated_bytes", "peak_device_bytes", "verdict", "step_seconds"):
        assert estimated[name] == plan[name], name
    assert estimated["notes"][0] == answer["notes"][0]
    assert "activations are rehearsed" in answer["notes"][0]


@pytest.mark.sweep
@pytest.mark.long
def test_two_layers_tell_of_five(found: Estimate):
    """The real thing: what is drawn on from one and two layers is what a rehearsal of all five sees."""
    corrected = with_rehearsed_activations(found)
    assert "rehearsed, with one layer" in corrected.workload.model.notes[0], corrected.workload.model.notes
    seen = rehearsed_peaks(found)
    for phase in corrected.timeline.phases:
        if phase.name in CORRECTED_PHASES:
            assert phase.peak.total == pytest.approx(seen[phase.name][1], rel=1e-3)
            assert phase.resident.total == pytest.approx(seen[phase.name][0], rel=1e-3)

"""Layers of a model without a family: what rehearsals of the first of them found, kept and used by every command."""

import json
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hub_server import isolated_cache
from planned import cluster
from vlmplan.architecture.generic.layer_bytes import UNCORRECTED, TokenBytes, token_bytes
from vlmplan.errors import MissingPackageError, UnavailableError
from vlmplan.estimation import Estimate, estimate
from vlmplan.models import find_model
from vlmplan.models import probe as model_probe
from vlmplan.models.probe import probe_path
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Method
from vlmplan.rehearsal import layers
from vlmplan.rehearsal.layers import (
    TOKENS,
    with_kept_layers,
    with_layers,
    with_needed_layers,
)
from vlmplan.rehearsal.prefixes import num_layers_of
from vlmplan.rehearsal.setup_peaks import Peaks, Rehearse, rehearsed_peaks
from vlmplan.workload import ModelFiles, Workload

KEPT, PAIR, PASSING, AROUND = 700_000, 900, 50_000, 10**8
"""Bytes of a token, of a pair of tokens, and passing ones of a token; those around the layers."""
CONFIG = {"model_type": "xlstm", "hidden_size": 256, "num_hidden_layers": 5, "vocab_size": 1000}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the model, whose layout is looked up in this process and kept."""
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("xlstm")
    (place / "config.json").write_text(json.dumps(CONFIG))
    probe = runpy.run_path(str(probe_path(Path(model_probe.__file__).parents[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_probe, "_answer", lambda config: {"layout": probe["layout"](config)})
        yield place


@pytest.fixture
def model(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbedModelFiles:
    isolated_cache(monkeypatch, tmp_path)
    found = find_model(str(place))
    assert isinstance(found, ProbedModelFiles)
    return found


def finds_more(asked: list[tuple[int, int]]) -> Rehearse:
    """A rehearsal that sees so many bytes more than the formulas of every layer."""

    def rehearse(short: Estimate, most_operations: int | None = None) -> Peaks:
        count, tokens = num_layers_of(short.workload.model.config), short.workload.seq_len
        assert count is not None
        asked.append((count, tokens))
        kept = AROUND + count * (KEPT * tokens + PAIR * tokens**2)
        passing = PASSING * tokens
        return {p.name: (p.resident.total + kept, p.peak.total + kept + passing) for p in short.timeline.phases}

    return rehearse


def fails(short: Estimate, most_operations: int | None = None) -> Peaks:
    raise UnavailableError("the rehearsal ended in forward: no reason.")


def test_one_and_two_layers_at_two_lengths_tell_of_every_layer(model: ProbedModelFiles):
    asked: list[tuple[int, int]] = []
    found = with_layers(model, finds_more(asked))
    assert asked == [(count, tokens) for tokens in TOKENS for count in (1, 2)]
    assert isinstance(found, ProbedModelFiles)
    assert found.rehearsed is not None
    (layer,) = found.rehearsed.kinds
    assert layer.kept.of(num_samples=3, num_tokens=1000) == pytest.approx(3 * (KEPT * 1000 + PAIR * 1000**2), rel=1e-9)
    assert layer.passing.of(num_samples=3, num_tokens=1000) == pytest.approx(3 * PASSING * 1000, rel=1e-9)


def test_an_estimate_has_the_bytes_of_all_layers(model: ProbedModelFiles):
    recipe = Recipe(
        method=Method.FULL,
        zero_stage=None,
        micro_batch=2,
        activation_checkpointing=False,
        attention=AttentionImplementation.EAGER,
    )
    plain, found = (
        estimate(Workload(model=files, seq_len=512), recipe, cluster())
        for files in (replace(model, rehearsed=UNCORRECTED), with_layers(model, finds_more([])))
    )
    more = 5 * 2 * (KEPT * 512 + PAIR * 512**2)
    forward, before = (each.timeline.phases[2] for each in (found, plain))
    assert forward.name == "forward"
    assert forward.resident.total - before.resident.total == pytest.approx(more, rel=1e-6)


def test_what_was_rehearsed_once_is_kept_for_this_configuration_alone(model: ProbedModelFiles, place: Path):
    first = with_layers(model, finds_more([]))
    assert with_kept_layers(model) == first
    assert with_layers(model, fails) == first
    other = replace(model, config={**model.config, "num_hidden_layers": 4})
    kept = with_kept_layers(other)
    assert isinstance(kept, ProbedModelFiles)
    assert kept.rehearsed is UNCORRECTED


def test_what_was_asked_and_rehearsed_once_needs_no_torch(
    model: ProbedModelFiles, place: Path, monkeypatch: pytest.MonkeyPatch
):
    first = with_layers(model, finds_more([]))
    monkeypatch.setattr(model_probe, "_installed_transformers", lambda: None)
    monkeypatch.setattr(model_probe, "_answer", None)
    assert with_needed_layers(find_model(str(place))) == first
    (place / "other").mkdir(exist_ok=True)
    (place / "other" / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 4}))
    with pytest.raises(MissingPackageError, match=r"pip install 'vlmplan\[train\]'"):
        find_model(str(place / "other"))


def test_recurrent_layers_that_cannot_be_rehearsed_are_refused_and_others_noted(
    model: ProbedModelFiles, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UnavailableError, match="no reason"):
        with_layers(model, fails)
    monkeypatch.setattr(layers, "recurrent_classes", lambda layout: [])
    noted = with_layers(model, fails)
    assert noted.notes[-1].startswith("Its layers are not rehearsed: ")


def test_where_a_type_has_two_layers_at_the_least_what_further_ones_add_tells_of_each(model: ProbedModelFiles):
    asked: list[tuple[int, int]] = []
    found = with_layers(replace(model, config={**model.config, "model_type": "rwkv"}), finds_more(asked))
    assert asked == [(count, tokens) for tokens in TOKENS for count in (2, 3)]
    assert isinstance(found, ProbedModelFiles)
    assert found.rehearsed is not None
    (layer,) = found.rehearsed.kinds
    assert layer.kept.of(num_samples=1, num_tokens=1000) == pytest.approx(KEPT * 1000 + PAIR * 1000**2, rel=1e-9)


def test_a_model_with_a_family_is_left_alone():
    files = ModelFiles(id="x", config={"model_type": "llama"})
    assert with_layers(files, fails) is files
    assert with_needed_layers(files) is files


def test_bytes_are_taken_to_grow_with_tokens_and_pairs_and_never_to_be_below_none():
    assert token_bytes({256: 256 * 7, 512: 512 * 7}) == TokenBytes(per_token=7.0, per_pair=0.0)
    assert token_bytes({256: 3 * 256**2, 512: 3 * 512**2}) == TokenBytes(per_token=0.0, per_pair=3.0)
    assert token_bytes({256: -5, 512: -9}) == TokenBytes(per_token=0.0, per_pair=0.0)
    assert token_bytes({256: 512 * 7, 512: 512 * 7}) == TokenBytes(per_token=7.0, per_pair=0.0)  # padded to a chunk


@pytest.mark.sweep
@pytest.mark.long
def test_the_first_layers_of_mamba_tell_of_five(model: ProbedModelFiles):
    """The real thing, with samples that are longer than those that were rehearsed."""
    found = with_layers(model)
    recipe = Recipe(
        method=Method.LORA,
        zero_stage=None,
        micro_batch=2,
        activation_checkpointing=False,
        attention=AttentionImplementation.EAGER,
        lora_targets="in_proj",
    )
    planned = estimate(Workload(model=found, seq_len=1024), recipe, cluster())
    seen = rehearsed_peaks(planned)
    for phase in planned.timeline.phases:
        if phase.name in ("forward", "backward"):
            assert phase.peak.total == pytest.approx(seen[phase.name][1], rel=0.06)  # forward is 5.1 % too low

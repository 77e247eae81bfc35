"""Images of a model without a family: captured once, kept for these images, and used by every command."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hub_server import isolated_cache
from image_models import IMAGE_MODELS
from planned import cluster
from vlmplan.errors import InputError, MissingPackageError
from vlmplan.estimation import estimate
from vlmplan.models import find_model, takes_images
from vlmplan.models import probe as model_probe
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rehearsal import images
from vlmplan.rehearsal.images import image_capture, with_images
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.sample_images import image_tokens, sample_image

pytestmark = pytest.mark.sweep

TYPE = "cosmos3_edge"
TOKENS = (448 // 16 // 2) ** 2
RECIPE = Recipe(method=Method.LORA, zero_stage=None, micro_batch=2, activation_checkpointing=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(TYPE)
    (place / "config.json").write_text(json.dumps(IMAGE_MODELS[TYPE]))
    return place


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What the probe and the capture say, asked in this process."""
    pytest.importorskip("transformers")
    from vlmplan_trainer.capture.run import captured
    from vlmplan_trainer.probe import layout

    size = {"width": 448, "height": 448, "images_per_sample": 1}
    config = dict(IMAGE_MODELS[TYPE])
    return {"layout": layout(config), "capture": captured({"config": config, "preprocessor": None, **size})}


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def model(
    place: Path, answers: dict[str, Any], asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProbedModelFiles]:
    isolated_cache(monkeypatch, tmp_path)

    def captured(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return json.loads(json.dumps(answers["capture"]))

    monkeypatch.setattr(model_probe, "_answer", lambda config: {"layout": json.loads(json.dumps(answers["layout"]))})
    monkeypatch.setattr(images, "_captured", captured)
    found = find_model(str(place))
    assert isinstance(found, ProbedModelFiles)
    return found


@pytest.mark.long
@pytest.mark.sweep
def test_a_model_that_was_captured_takes_an_image_with_each_sample(model):
    seeing = with_images(model, WorkloadRequest())
    workload = workload_of(seeing, WorkloadRequest())
    assert takes_images(seeing)
    assert not seeing.not_counted
    assert workload.images_per_sample == 1
    assert image_tokens(workload) == TOKENS
    image = sample_image(workload)
    assert image is not None
    assert image.num_placeholder_tokens == TOKENS


@pytest.mark.sweep
def test_images_take_bytes_and_work(model):
    def planned(files: ProbedModelFiles, asked: WorkloadRequest) -> Any:
        return estimate(workload_of(files, asked), RECIPE, cluster())

    with_ = planned(with_images(model, WorkloadRequest()), WorkloadRequest())  # type: ignore[arg-type]
    without = planned(model, WorkloadRequest(images_per_sample=0))
    assert with_.flops_per_step > without.flops_per_step
    assert with_.timeline.peak.total > without.timeline.peak.total
    assert with_.not_counted == without.not_counted == ()


def test_what_was_captured_is_kept_for_these_images(model, asked):
    with_images(model, WorkloadRequest())
    with_images(model, WorkloadRequest(images_per_sample=1, image_size=(448, 448)))
    assert len(asked) == 1
    with_images(model, WorkloadRequest(image_size=(224, 448)))
    assert [(one["width"], one["height"]) for one in asked] == [(448, 448), (224, 448)]


def test_nothing_is_captured_of_samples_without_images(model, asked):
    assert with_images(model, WorkloadRequest(images_per_sample=0)) is model
    assert not asked


def test_images_that_were_not_captured_are_refused(model):
    seeing = with_images(model, WorkloadRequest())
    with pytest.raises(InputError, match="300x300 was not captured"):
        sample_image(workload_of(seeing, WorkloadRequest(images_per_sample=1, image_size=(300, 300), seq_len=2048)))


def test_a_refusal_is_a_note_unless_images_are_asked_for(model, monkeypatch):
    monkeypatch.setattr(images, "_captured", lambda request: {"error": "XProcessor needs torchvision", "packages": {}})
    noted = with_images(model, WorkloadRequest())
    assert noted.notes[-1] == "Its images are not planned: XProcessor needs torchvision."
    assert noted.not_counted == ("images",)
    with pytest.raises(InputError, match=r"--images-per-sample is 2.*XProcessor needs torchvision"):
        with_images(model, WorkloadRequest(images_per_sample=2))


def test_a_model_may_see_without_a_tower_but_not_without_a_language_model_of_its_own(model):
    without = replace(model, layout=replace(model.layout, vision=()))
    assert image_capture(without, width=448, height=448, images_per_sample=1).num_tokens == TOKENS
    neither = replace(model, layout=replace(model.layout, vision=(), text=()))
    with pytest.raises(InputError, match="nothing that sees"):
        image_capture(neither, width=448, height=448, images_per_sample=1)


def test_operations_that_are_not_described_are_refused(model, answers, monkeypatch):
    capture = json.loads(json.dumps(answers["capture"]))
    activation = next(one for one in capture["programs"]["sdpa"][0]["instructions"] if one[0] == "gelu")
    activation[0] = "fft_r2c"
    monkeypatch.setattr(images, "_captured", lambda request: capture)
    with pytest.raises(InputError, match="fft_r2c of torch, whose memory"):
        image_capture(model, width=448, height=448, images_per_sample=1)


def test_a_refusal_is_kept_until_a_package_changes(model, monkeypatch):
    asked: list[object] = []

    def refused(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"error": "no", "packages": images._installed(images.MORE_PACKAGES)}

    monkeypatch.setattr(images, "_captured", refused)
    for _ in range(2):
        with_images(model, WorkloadRequest())
    assert len(asked) == 1
    monkeypatch.setattr(images, "installed_version", lambda name: "another")
    with_images(model, WorkloadRequest())
    assert len(asked) == 2


def test_without_the_libraries_what_was_kept_is_taken(model, place, tmp_path, monkeypatch):
    with_images(model, WorkloadRequest())
    monkeypatch.undo()
    isolated_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(images, "installed_version", lambda name: None)
    assert image_capture(model, width=448, height=448, images_per_sample=1).num_tokens == TOKENS
    with pytest.raises(MissingPackageError, match="torch, transformers"):
        image_capture(model, width=100, height=448, images_per_sample=1)

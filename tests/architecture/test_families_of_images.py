"""Families that see and are made of others' parts, against transformers: parameters, steps, and what images become."""

import copy
import random
from dataclasses import asdict, replace
from importlib.util import find_spec
from math import prod
from typing import Any

import pytest

from seeing_families import DECODER, DEFAULTS, FAMILIES, of_side
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.architecture.model import Batch, Part

EACH = pytest.mark.parametrize("family", FAMILIES)
NUM_FRAMES = 3


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.sweep) for name in DEFAULTS)])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(family):
    said = FAMILIES[family.removesuffix(" by default")]
    config = said.config if family in FAMILIES else DEFAULTS[family]
    assert_parameters_match(config, attention=said.attention)


@pytest.mark.one_in(4)
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(family):
    assert_step(family)


@pytest.mark.sweep
@pytest.mark.parametrize("frozen", ["tower", "decoder"])
@EACH
def test_a_step_of_a_part_keeps_and_peaks_as_in_transformers(family, frozen):
    assert_step(family, frozen=FAMILIES[family].towers if frozen == "tower" else DECODER)


@pytest.mark.sweep
@EACH
def test_eager_attention_keeps_and_peaks_as_in_transformers(family):
    assert_step(family, attention="eager")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", ["video_llama_3", "janus", "glmga", "minicpm_ocr", "deepseek_vl", "aria"])
def test_eager_attention_of_a_tower_drops_out_what_transformers_drops_out(family, monkeypatch):
    said = FAMILIES[family]
    vision = {**said.config["vision_config"], "attention_dropout": 0.1}
    monkeypatch.setitem(FAMILIES, family, replace(said, config={**said.config, "vision_config": vision}))
    assert_step(family, attention="eager")


@pytest.mark.sweep
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(family):
    assert_step(family, checkpoints=True)


@pytest.mark.sweep
@pytest.mark.parametrize("family", [name for name, one in FAMILIES.items() if one.video_token])
def test_a_step_with_videos_keeps_and_peaks_as_in_transformers(family):
    said = FAMILIES[family]
    image = clip_shape(said.config, said.settings, said.settings, num_frames=NUM_FRAMES, size=said.size)
    assert_step_of(family, image, images_per_sample=1)


def assert_step(family: str, **options: Any) -> None:
    said = FAMILIES[family]
    image = image_shape(
        said.config, said.settings, width=said.size[0], height=said.size[1], num_images_per_sample=said.images
    )
    assert_step_of(family, image, images_per_sample=said.images, **options)


def assert_step_of(family: str, image: Any, *, images_per_sample: int, **options: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.rehearse.batch import micro_batch
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

    said = FAMILIES[family]
    num_tokens = images_per_sample * image.num_tokens + 61
    batch = Batch(micro_batch=2, num_tokens=num_tokens, images_per_sample=images_per_sample, image=image)
    samples = Samples(
        micro_batch=2,
        num_tokens=num_tokens,
        images_per_sample=images_per_sample,
        image=ImageSpec(**asdict(image)),
        width=said.size[0],
        height=said.size[1],
    )
    made = micro_batch(configuration(copy.deepcopy(said.config)), samples)
    if said.num_axes:
        positions = torch.arange(num_tokens).view(1, 1, -1).expand(said.num_axes, 2, -1).contiguous()
        made.values["position_ids"] = positions
    options = {"attention": said.attention, **options}
    assert_step_matches(said.config, batch, made.values, made.shapes, tolerance=said.tolerance, **options)


@EACH
def test_towers_and_what_maps_to_the_decoder_are_parts(family):
    model, said = build_model(FAMILIES[family].config), FAMILIES[family]
    for part, prefixes in ((Part.VISION, said.towers), (Part.PROJECTOR, said.projectors)):
        for prefix in prefixes:
            names = [entry.name for entry in model.parameters() if entry.name.startswith(prefix)]
            assert names
            assert {model.part_of(name) for name in names} == {part}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", [name for name, one in FAMILIES.items() if one.has_processor])
def test_images_become_as_many_tokens_and_patches_as_their_processors_make(family):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.processors.processing import processed

    said = FAMILIES[family]
    if said.needs is not None and find_spec(said.needs) is None:
        pytest.skip(f"its processor needs {said.needs}")
    config, settings = of_side(said)
    chosen = random.Random(family)
    for _ in range(4):
        width, height = (chosen.randint(*chosen.choice([(30, 300), (200, 1200)])) for _ in range(2))
        asked = {"width": width, "height": height, "images_per_sample": said.images, "num_samples": 1}
        found = processed(configuration(copy.deepcopy(config)), dict(settings), **asked)
        shape = image_shape(config, settings, width=width, height=height, num_images_per_sample=said.images)
        counts = (said.images * (shape.num_tokens + said.num_around), said.images * shape.num_placeholder_tokens)
        assert (found.num_tokens, found.num_placeholders) == counts, (width, height)
        batch = Batch(micro_batch=1, num_tokens=found.num_tokens, images_per_sample=said.images, image=shape)
        pixels = build_model(config).pixel_shape(batch)
        assert pixels is not None
        made = sum(value.numel() for name, value in found.tensors.items() if "pixel_values" in name)
        assert made == prod(pixels), (width, height)

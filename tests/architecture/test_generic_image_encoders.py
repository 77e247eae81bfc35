"""Models whose encoder reads an image, planned as without a family: parts, parameters, products, and their workload."""

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from image_encoder_folders import CONFIGS, IMAGE, PREPROCESSORS, small_image_model
from tape_probe import predicted_step
from vlmplan.architecture.adapters import quantize
from vlmplan.architecture.captured.capture import ImageCapture, capture_from_json
from vlmplan.architecture.captured.operations import unknown_operations
from vlmplan.architecture.generic.layout import ModelLayout, layout_from_json
from vlmplan.architecture.generic.model import GenericModel, build_generic
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.packed_weight import Linear4bit
from vlmplan.errors import InputError
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.request.parts import WorkloadRequest
from vlmplan.request.samples import length_notes, workload_of
from vlmplan.sample_lengths import sample_lengths
from vlmplan.units import DType
from vlmplan_trainer.capture.merging import FEW, MANY
from vlmplan_trainer.capture.operations import SMALL_BYTES
from vlmplan_trainer.capture.run import captured
from vlmplan_trainer.labels import DECODER_INPUTS
from vlmplan_trainer.models.adapters import _linears
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.probe import layout

pytestmark = pytest.mark.sweep

SIZE = {"width": 80, "height": 60, "images_per_sample": 1}
KINDS = ("captioner", "donut", "florence2", "pix2struct", "trocr")
ANSWERS = Batch(micro_batch=2, num_tokens=24, images_per_sample=1, encodes_images=True)
PAIRS = Batch(micro_batch=2, num_tokens=96, target_tokens=24, images_per_sample=1)
NUM_IMAGE_TOKENS = 65
"""Of Florence-2."""


@pytest.fixture(scope="module")
def layouts() -> dict[str, ModelLayout]:
    made = {kind: layout(json.loads(json.dumps(config))) for kind, config in CONFIGS.items()}
    return {kind: layout_from_json(json.loads(json.dumps(values))) for kind, values in made.items()}


@pytest.fixture(scope="module")
def captures() -> dict[str, ImageCapture]:
    found: dict[str, ImageCapture] = {}
    for kind in KINDS:
        request = {"config": CONFIGS[kind], "preprocessor": PREPROCESSORS[kind], **SIZE}
        found[kind] = capture_from_json(json.loads(json.dumps(captured(request))), **SIZE)
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_and_parts_are_those_of_the_trainers_own_model(layouts: Mapping[str, ModelLayout], kind: str):
    real, model = small_image_model(kind), build_generic(layouts[kind])
    parts = Parts(real)
    found = [(one.name, math.prod(one.parameter.shape), one.part.value) for one in model.parameters()]
    assert found == [(name, one.numel(), parts[name].value) for name, one in real.named_parameters()]
    assert {part for _, _, part in found} >= {Part.VISION.value, Part.LANGUAGE.value}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_no_token_but_of_florence(captures: Mapping[str, ImageCapture], kind: str):
    capture = captures[kind]
    placeholders = NUM_IMAGE_TOKENS if kind == "florence2" else 0
    assert capture.num_placeholder_tokens == placeholders
    assert capture.num_tokens == (placeholders + 2 if placeholders else 0)  # between the beginning and the end
    programs = [one for programs in capture.programs.values() for one in programs]
    assert not [name for one in programs for name in unknown_operations(one)]


@pytest.mark.sweep
def test_what_is_made_once_for_all_samples_is_small_or_not_whatever_their_number():
    """Masks of Swin's windows: half of one's bytes are above what is left out, a third of them is below."""
    config = json.loads(json.dumps(CONFIGS["donut"]))
    sides = [640, 480]  # of patches of 4 pixels, so that a mask has 19,200 places of 2 bytes
    config["encoder"] |= {"image_size": sides, "window_size": 10}
    assert math.prod(side // 4 for side in sides) * 2 / FEW > SMALL_BYTES
    assert math.prod(side // 4 for side in sides) * 2 / MANY < SMALL_BYTES
    settings = {**PREPROCESSORS["donut"], "size": dict(zip(("height", "width"), sides, strict=True))}
    made = captured({"config": config, "preprocessor": settings, **SIZE})
    assert made["inputs"]["pixel_values"][0] == [[0, 1], 3, *sides]


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_transformers_own_model(
    layouts: Mapping[str, ModelLayout], captures: Mapping[str, ImageCapture], kind: str, checkpoints: bool
):
    """Keys and values that the decoder makes of what the encoder has made of the image among them; attention apart,
    which torch counts on GPUs alone where it is one call, and as products of batches where it is none. The windows of
    Donut's encoder, which leaves attention to nobody, are such products in a plan too."""
    batch = PAIRS if kind == "florence2" else ANSWERS
    step = predicted_step(build_generic(layouts[kind], images=captures[kind]), batch, checkpoints=checkpoints)
    assert step.trace is not None
    assert step.end_live == 0
    forward = step.trace.works()[0]
    model = small_image_model(kind).train()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs(captures[kind], kind), use_cache=False)
    counts = {str(operation): count for operation, count in counter.get_flop_counts()["Global"].items()}
    expected = sum(count for operation, count in counts.items() if operation != "aten.bmm" or kind == "donut")
    assert forward.flops - forward.attention_flops == expected


def inputs(capture: ImageCapture, kind: str) -> dict[str, torch.Tensor]:
    """What the model is given of a micro batch."""
    made = {
        name: torch.ones(shape) if dtype.is_floating else torch.ones(shape, dtype=torch.int64)
        for name, (shape, dtype) in capture.input_shapes(ANSWERS.micro_batch).items()
    }
    made[DECODER_INPUTS] = torch.full((ANSWERS.micro_batch, ANSWERS.num_tokens), 5)
    if kind == "florence2":
        ids = torch.full((PAIRS.micro_batch, PAIRS.num_tokens), 5)
        ids[:, :NUM_IMAGE_TOKENS] = IMAGE
        made |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return made


def files(layouts: Mapping[str, ModelLayout], captures: Mapping[str, ImageCapture], kind: str) -> ProbedModelFiles:
    return ProbedModelFiles(
        id=kind,
        config=CONFIGS[kind],
        preprocessor=PREPROCESSORS[kind],
        layout=layouts[kind],
        images=captures[kind],
    )


def tree_of(layouts: Mapping[str, ModelLayout], captures: Mapping[str, ImageCapture], kind: str) -> GenericModel:
    return build_generic(layouts[kind], images=captures[kind])


def test_a_sample_is_one_image_and_an_answer(layouts: Mapping[str, ModelLayout], captures: Mapping[str, ImageCapture]):
    model = files(layouts, captures, "donut")
    asked = WorkloadRequest(image_size=(80, 60), target_len=24)
    workload = workload_of(model, asked)
    assert (workload.seq_len, workload.target_tokens, workload.images_per_sample) == (0, 24, 1)
    assert length_notes(workload, asked) == []
    inputs = tree_of(layouts, captures, "donut").id_inputs(ANSWERS)
    assert [shape for shape, _ in inputs] == [(2, 24), (2, 24)]


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("donut", {"seq_len": 512}, "--seq-len 512 is the length of prompts, and a sample of donut has none"),
        ("donut", {"images_per_sample": 2}, "--images-per-sample is 2; the encoder of donut reads one image in each"),
        ("florence2", {"images_per_sample": 0}, "--images-per-sample is 0; the encoder of florence2 reads one image"),
        ("trocr", {"target_len": 0}, "--target-len is 0"),
    ],
)
def test_other_samples_are_refused(
    layouts: Mapping[str, ModelLayout],
    captures: Mapping[str, ImageCapture],
    kind: str,
    asked: Mapping[str, Any],
    said: str,
):
    with pytest.raises(InputError, match=said):
        workload_of(files(layouts, captures, kind), WorkloadRequest(image_size=(80, 60), **asked))


def test_lengths_of_prompts_vary_where_there_are_prompts(
    layouts: Mapping[str, ModelLayout], captures: Mapping[str, ImageCapture]
):
    asked = WorkloadRequest(image_size=(80, 60))
    with pytest.raises(InputError, match="--sample-lengths vary is of prompts"):
        sample_lengths("vary", workload_of(files(layouts, captures, "trocr"), asked))
    assert sample_lengths("vary", workload_of(files(layouts, captures, "florence2"), asked)).longest == 128


def test_what_is_asked_for_the_type_of_its_weight_is_not_packed_in_four_bits(layouts: Mapping[str, ModelLayout]):
    """``wo`` of Pix2Struct's MLPs: what it multiplies is cast to that type."""
    model = build_generic(layouts["pix2struct"], model_type="pix2struct")
    quantize(model, partial(Linear4bit, compute_dtype=DType.BFLOAT16, double_quantises=True))
    packed = {name for name, module in model.distinct_modules() if isinstance(module, Linear4bit)}
    kept = {name for name, module in model.distinct_modules() if name.endswith(".wo")}
    assert kept
    assert not kept & packed
    real = {child for _, child, _ in _linears(small_image_model("pix2struct"), skipped=())}
    assert {name.rpartition(".")[2] for name in packed} == real

"""What a model that has no family does with the images of a sample, captured once for every command.

The processor is transformers' own, and so is the model, on fake tensors: ``vlmplan_trainer/capture``. What was captured
is kept for these files and these images, and where the training extra is not installed it is taken as it is.
"""

import hashlib
import json
import sys
from dataclasses import replace
from typing import Any

from vlmplan.architecture.captured.capture import SCHEMA, ImageCapture, capture_from_json
from vlmplan.architecture.captured.operations import unknown_operations
from vlmplan.errors import InputError, MissingPackageError, VlmplanError
from vlmplan.files.json_reader import JsonDict
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.rehearsal.prefixes import num_layers_of, shortened
from vlmplan.rehearsal.process import answer_of
from vlmplan.request.parts import WorkloadRequest
from vlmplan.versions import INSTALL, installed_version
from vlmplan.workload import DEFAULT_IMAGE_SIZE, ModelFiles, Workload

COMMAND = ("-m", "vlmplan_trainer.capture")
PACKAGES = ("torch", "transformers", "pillow")
MORE_PACKAGES = ("vlmplan", "torchvision", "timm")
"""What was refused once may not be refused with another of these: some processors and towers need the last two."""
IMAGES = "images"
MOST_LAYERS = 8
"""Of the language model that is captured beside: features of images come into its first layers, where they come into
layers at all (DeepStack). Assumed."""
LONGEST_SECONDS = 600.0


def with_images(model: ModelFiles, asked: WorkloadRequest) -> ModelFiles:
    """``model`` with what it does with the images of the samples, where it has no family and sees; others as they are.

    Where that cannot be had and the user does not ask for images, a note says why. Raises InputError or
    MissingPackageError where the user does, or the model reads nothing else.
    """
    if not isinstance(model, ProbedModelFiles) or IMAGES not in model.not_counted or asked.images_per_sample == 0:
        return model
    width, height = asked.image_size or DEFAULT_IMAGE_SIZE
    count = asked.images_per_sample or 1
    try:
        capture = image_capture(model, width=width, height=height, images_per_sample=count)
    except VlmplanError as error:
        reason = str(error).rstrip(".")
        if asked.images_per_sample is None and not model.encodes_one_image:
            return replace(model, notes=(*model.notes, f"Its images are not planned: {reason}."))
        asks = "" if asked.images_per_sample is None else f"--images-per-sample is {count}, and "
        raise type(error)(f"{asks}images of {model.id} cannot be planned: {reason}") from None
    return _seeing(model, capture)


def with_images_of(model: ModelFiles, workload: Workload) -> ModelFiles:
    """The model with the images of samples that are planned already. Raises what ``image_capture`` does."""
    if not isinstance(model, ProbedModelFiles) or not workload.images_per_sample:
        return model
    size = {"width": workload.image_width, "height": workload.image_height}
    return _seeing(model, image_capture(model, **size, images_per_sample=workload.images_per_sample))


def _seeing(model: ProbedModelFiles, capture: ImageCapture) -> ProbedModelFiles:
    note = (
        f"Its images are what transformers' {capture.processor} makes of them; what is computed of them is taken from "
        f"the model's own code."
    )
    without = tuple(kind for kind in model.not_counted if kind != IMAGES)
    return replace(model, images=capture, not_counted=without, notes=(*model.notes, note))


def image_capture(model: ProbedModelFiles, *, width: int, height: int, images_per_sample: int) -> ImageCapture:
    """What is kept of these images, or captured now.

    Raises InputError for images that the processor refuses and for what cannot be captured, MissingPackageError where
    nothing is kept and the libraries are not installed.
    """
    if not model.layout.vision and not model.layout.text:
        raise InputError(f"nothing that sees is told from the language model of {model.layout.class_name}")
    size = {"width": width, "height": height, "images_per_sample": images_per_sample}
    request: JsonDict = {"config": _short(model), "preprocessor": _settings(model), **size}
    place = (IMAGES, f"{_digest(model, request)}.json")
    kept = _answer(kept_text(*place))
    if kept is None or ("error" in kept and kept.get("packages") != _installed(MORE_PACKAGES)):
        kept = _captured(request)
        keep_text(json.dumps(kept), *place)
    if "error" in kept:
        raise InputError(str(kept["error"]))
    capture = capture_from_json(kept, **size)
    programs = [one for programs in capture.programs.values() for one in programs]
    unknown = sorted({name for program in programs for name in unknown_operations(program)})
    if unknown:
        raise InputError(f"it needs {', '.join(unknown)} of torch, whose memory vlmplan does not describe")
    return capture


def _captured(request: JsonDict) -> JsonDict:
    missing = [name for name in PACKAGES if installed_version(name) is None]
    if missing:
        raise MissingPackageError(f"this needs {', '.join(missing)}, not installed here: {INSTALL}")
    command = [sys.executable, *COMMAND]
    answer = answer_of(
        command, json.dumps(request), lambda text: None, what="the capture of its images", max_seconds=LONGEST_SECONDS
    )
    return answer | {"packages": _installed(MORE_PACKAGES)} if "error" in answer else answer


def _installed(names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: installed_version(name) for name in names}


def _short(model: ProbedModelFiles) -> JsonDict:
    """config.json with the first layers of the language model."""
    if (num_layers_of(model.config) or 0) > MOST_LAYERS:
        return shortened(model.config, MOST_LAYERS)
    return dict(model.config)


def _settings(model: ProbedModelFiles) -> JsonDict | None:
    return None if model.preprocessor is None else dict(model.preprocessor)


def _digest(model: ProbedModelFiles, request: JsonDict) -> str:
    asked = {"schema": SCHEMA, "transformers": model.layout.transformers_version, "request": request}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _answer(text: str | None) -> JsonDict | None:
    """What was kept; None where it is nothing of this version."""
    try:
        values: Any = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(values, dict) or ("error" not in values and values.get("schema") != SCHEMA):  # pyright: ignore[reportUnknownMemberType]
        return None
    return values  # pyright: ignore[reportUnknownVariableType]

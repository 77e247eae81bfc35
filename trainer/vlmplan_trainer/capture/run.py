"""A capture of a model's images: how many tokens they take, and what is computed of them, for any number of samples."""

import copy
import inspect
from dataclasses import dataclass
from typing import Any

from vlmplan.errors import InputError
from vlmplan_trainer.capture.forward import captured_forward
from vlmplan_trainer.capture.merging import FEW, MANY, SCHEMA, merged_json, program_json
from vlmplan_trainer.capture.operations import Instruction, Shapes
from vlmplan_trainer.probe import configuration, model_class
from vlmplan_trainer.processors.image_encoder import encodes_images_alone, processed_alone
from vlmplan_trainer.processors.processing import Processed, processed

IMAGES_AS_WORDS = ("chameleon", "emu3")
"""Look up a word of the vocabulary for each number that their image tokenizer computes (``get_image_tokens``):
neither a capture nor a rehearsal has these numbers."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One forward of so many samples; ``inputs`` are the numbers of what comes from images, by name, ``made`` shapes of
    what comes from none."""

    samples: Processed
    instructions: list[Instruction]
    inputs: dict[str, int]
    made: Shapes

    @property
    def num_attentions(self) -> int:
        return sum(one.op == "attend" for one in self.instructions)

    @property
    def packs(self) -> bool:
        return any(one.op == "attend" and one.values["lengths"] is not None for one in self.instructions)


def captured(request: dict[str, Any]) -> dict[str, Any]:
    """``request``: ``config``, ``preprocessor`` or null, ``width``, ``height``, ``images_per_sample``.

    Raises InputError where the processor cannot be had, refuses the images, or the model cannot be captured.
    """
    refuse_images_as_words(request["config"]["model_type"])
    packed = _captured(request, 1, packs=True)
    programs: dict[str, Any] = {}
    if packed.packs:
        programs["flash_attention_2"] = _programs(request, packed, packs=True)
    plain = _captured(request, 1, packs=False)
    if not packed.packs or plain.num_attentions == packed.num_attentions:  # else one call for each sequence
        programs["sdpa"] = _programs(request, plain, packs=False)
    first, two = plain.samples, _processed(request, FEW)[1]
    accepted = set(inspect.signature(model_class(_configuration(request)).forward).parameters)
    return {
        "schema": SCHEMA,
        "processor": first.class_name,
        "num_tokens": first.num_tokens,
        "num_placeholder_tokens": first.num_placeholders,
        "inputs": {name: _described(first.tensors[name], two.tensors[name]) for name in plain.inputs},
        "token_inputs": [name for name in first.token_inputs if name in accepted],
        "programs": programs,
    }


def refuse_images_as_words(model_type: str) -> None:
    """Raise InputError for a type whose images become words."""
    if model_type in IMAGES_AS_WORDS:
        raise InputError(f"{model_type} makes words of its images, by numbers that only real images give")


def _programs(request: dict[str, Any], one: Captured, *, packs: bool) -> list[Any]:
    """The programs of one sample, of two, and of three and more."""
    few, many = (_captured(request, count, packs=packs, constants=one.made) for count in (FEW, MANY))
    return [
        program_json(one.instructions, one.inputs, 1),
        program_json(few.instructions, few.inputs, FEW),
        merged_json(few.instructions, many.instructions, many.inputs),
    ]


def _captured(request: dict[str, Any], num_samples: int, *, packs: bool, constants: Shapes = frozenset()) -> Captured:
    config, samples = _processed(request, num_samples)
    try:
        instructions, inputs, made = captured_forward(config, samples.tensors, packs=packs, constants=constants)
    except InputError:
        raise
    except Exception as error:  # transformers raises anything at all for files that do not fit each other
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"transformers' {model_class(config).__name__} fails on them: {reason}") from None
    return Captured(samples, instructions, inputs, made)


def _processed(request: dict[str, Any], num_samples: int) -> tuple[Any, Processed]:
    config, preprocessor = _configuration(request), request["preprocessor"]
    size = {"width": request["width"], "height": request["height"]}
    if encodes_images_alone(config):
        return config, processed_alone(config, preprocessor, **size, num_samples=num_samples)
    count = request["images_per_sample"]
    return config, processed(config, preprocessor, **size, images_per_sample=count, num_samples=num_samples)


def _configuration(request: dict[str, Any]) -> Any:
    return configuration(copy.deepcopy(request["config"]))


def _described(one: Any, two: Any) -> list[Any]:
    """Sizes, which are a number or [with no sample, of each], and the element type."""
    pairs = zip(one.shape, two.shape, strict=True)
    sizes = [less if less == more else [2 * less - more, more - less] for less, more in pairs]
    return [sizes, str(one.dtype).removeprefix("torch.")]

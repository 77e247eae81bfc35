"""A captured model's images: the file that ``vlmplan_trainer/capture`` writes, read."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan.architecture.captured.program import Instruction, Operand, Output, Program, Size
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.units import DType

_DTYPES = {dtype.torch_name: dtype for dtype in DType}
SCHEMA = 2
"""Version of what is read; ``merging.py`` of the trainer has the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCapture:
    """Images of one size, so many in each sample, as one model takes them.

    ``num_tokens`` of a sample's images in the language model, ``num_placeholder_tokens`` of which have features.
    ``inputs``: shapes and element types of what the processor makes of the images of one sample, and of two;
    ``token_inputs``: what it says of each token beside its id. ``programs``: by the implementation of attention, of one
    sample, of two, and of three and more.
    """

    processor: str
    width: int
    height: int
    images_per_sample: int
    num_tokens: int
    num_placeholder_tokens: int
    inputs: Mapping[str, tuple[tuple[Size, ...], DType]] = field(hash=False)
    token_inputs: Sequence[str] = field(hash=False)
    programs: Mapping[str, Sequence[Program]] = field(hash=False)
    memo: dict[Hashable, Program] = field(default_factory=dict[Hashable, Program], compare=False, repr=False)
    """Programs of so many samples, once they were made."""

    def program(self, num_samples: int, implementation: str) -> Program:
        """What a micro batch of ``num_samples`` runs with an ``attn_implementation``: the one that was captured, which
        does for others too where only calls of attention differ."""
        key = (num_samples, implementation)
        if key not in self.memo:
            self.memo[key] = self._program(num_samples, implementation)
        return self.memo[key]

    def _program(self, num_samples: int, implementation: str) -> Program:
        others = self.programs.get("sdpa") or next(iter(self.programs.values()))
        programs = self.programs.get(implementation, others)
        fitting = [one for one in programs if one.samples == num_samples or (one.grows and one.samples < num_samples)]
        return replace(fitting[-1].of(num_samples), pixels=self.pixels)

    @property
    def num_first_layers(self) -> int:
        """Layers that the language model has to have at least for all features to get in: one, or the one behind the
        last that begins before some do."""
        program = next(iter(self.programs.values()))[0]
        entering = [one for one in program.instructions if one.op == "enter" and one.values["is_in_language"]]
        return 1 + max([int(one.values["layers"]) for one in entering], default=0)

    @property
    def pixels(self) -> str:
        """The name of the largest input."""
        return max(self.inputs, key=lambda name: math.prod(_sizes(self.inputs[name][0], 1)))

    def input_shapes(self, num_samples: int) -> dict[str, tuple[tuple[int, ...], DType]]:
        """Shapes of the tensors that a micro batch brings of its images, by name; that of ``pixels`` first."""
        shapes = {name: (_sizes(shape, num_samples), dtype) for name, (shape, dtype) in self.inputs.items()}
        return {self.pixels: shapes.pop(self.pixels), **shapes}

    @property
    def image(self) -> ImageShape:
        """One of the images, in the words that families have: its tokens, and what one of its rows of pixels would be
        if all were one patch each."""
        count = self.images_per_sample
        return ImageShape(
            num_tokens=math.ceil(self.num_tokens / count),
            num_placeholder_tokens=math.ceil(self.num_placeholder_tokens / count),
            num_vision_sequences=1,
            num_patch_columns=math.ceil(self.num_placeholder_tokens / count) or 1,
            num_patch_rows=1,
            resized_width=self.width,
            resized_height=self.height,
        )


def capture_from_json(values: Mapping[str, Any], *, width: int, height: int, images_per_sample: int) -> ImageCapture:
    """The capture that the trainer wrote. Raises KeyError, TypeError or ValueError if it is none."""
    if values["schema"] != SCHEMA:
        raise ValueError(f"a capture of schema {values['schema']}")
    return ImageCapture(
        processor=str(values["processor"]),
        width=width,
        height=height,
        images_per_sample=images_per_sample,
        num_tokens=int(values["num_tokens"]),
        num_placeholder_tokens=int(values["num_placeholder_tokens"]),
        inputs={
            name: (tuple([_size(size) for size in shape]), _DTYPES.get(dtype, DType.INT64))
            for name, (shape, dtype) in values["inputs"].items()
        },
        token_inputs=[str(name) for name in values["token_inputs"]],
        programs={str(name): [_program(one) for one in programs] for name, programs in values["programs"].items()},
    )


def _sizes(shape: Sequence[Size], num_samples: int) -> tuple[int, ...]:
    return tuple([size if isinstance(size, int) else size[0] + size[1] * num_samples for size in shape])


def _program(values: Mapping[str, Any]) -> Program:
    return Program(
        samples=int(values["samples"]),
        inputs={str(name): int(slot) for name, slot in values["inputs"].items()},
        instructions=tuple([_instruction(*row) for row in values["instructions"]]),
        turns=tuple([(int(start), int(stop)) for start, stop in values["turns"]]),
        grows=bool(values["grows"]),
    )


def _instruction(
    op: str, inputs: Sequence[Any], outputs: Sequence[Any], values: Mapping[str, Any], freed: Sequence[int]
) -> Instruction:
    results = [
        Output(int(slot), tuple([_size(size) for size in shape]), str(dtype), of) for slot, shape, dtype, of in outputs
    ]
    return Instruction(str(op), tuple([_operand(one) for one in inputs]), tuple(results), dict(values), tuple(freed))


def _size(value: int | list[int]) -> Size:
    return (int(value[0]), int(value[1])) if isinstance(value, list) else int(value)


def _operand(value: int | str | list[int | str | None] | None) -> Operand:
    return tuple(value) if isinstance(value, list) else value

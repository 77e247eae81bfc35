"""The weights of a checkpoint: all that the model has, in its shapes, whichever way round they are stored.

transformers 5.23 draws at random what a checkpoint lacks, and says so in a report alone; here it is an error.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan.errors import InputError

UNEQUAL_SHAPES = re.compile(r"size mismatch for ([^:]+): .*?torch\.Size\((.*?)\).*?torch\.Size\((.*?)\)")
MOST_NAMED = 3
"""Weights that a sentence names. A choice."""
"""What torch says of a stored weight that does not go into its parameter; transformers does under ZeRO-3."""


def load_stored(kind: Any, name: str, revision: str | None, *, drawn: Collection[str] = (), **how: Any) -> Any:
    """A model of class ``kind`` with the weights of ``name``; ``how`` goes to its ``from_pretrained``. Those that are
    ``drawn`` at random the files may lack.

    Raises InputError where files lack a weight of the model's, or have one of another shape.
    """
    try:
        with _comparing_whole_shapes():
            model, said = kind.from_pretrained(
                name, revision=revision, ignore_mismatched_sizes=True, output_loading_info=True, **how
            )
    except RuntimeError as error:
        unequal = UNEQUAL_SHAPES.search(str(error))
        if unequal is None:
            raise
        raise _of_other_shape(name, *unequal.groups()) from None
    for weight, stored, wanted in sorted(said["mismatched_keys"]):
        raise _of_other_shape(name, weight, list(stored), list(wanted))
    weights = {weight for weight, _ in model.named_parameters()}  # buffers are made by the class, not drawn
    lacking = sorted((weights & set(said["missing_keys"])) - set(drawn))
    if lacking:
        raise InputError(
            f"{name} cannot be loaded: its files lack {len(lacking)} of the model's weights, which would be drawn at "
            f"random: {_first_of(lacking)}; give files that have them"
        )
    return model


def _of_other_shape(name: str, weight: str, stored: object, wanted: object) -> InputError:
    return InputError(
        f"{name} cannot be loaded: its files have {weight} with the shape {stored}, its config.json asks for {wanted}"
    )


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" and others" if len(names) > MOST_NAMED else "")


@contextmanager
def _comparing_whole_shapes() -> Iterator[None]:
    """While this lasts, stored weights are compared with the whole shape of a parameter that ZeRO-3 has sharded.

    transformers 5.23 turns the stacked experts of a published Qwen3-VL-MoE around and leaves those that it has saved
    itself, by the parameter's shape (``Transpose`` with ``check_dims`` in ``core_model_loading.py``). Where it is
    sharded that is (0,), and all would be turned around.
    """
    from transformers.core_model_loading import Transpose

    convert = Transpose.convert

    def compared(
        self: Any, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **loading: Any
    ) -> dict[str, torch.Tensor]:
        if self.check_dims:
            parameter = loading["model"].get_parameter(loading["full_layer_name"])
            held = next(iter(input_dict.values()))
            stored = held[0] if isinstance(held, list) else held
            if stored.shape == getattr(parameter, "ds_shape", None):
                return {self.get_target_pattern(input_dict, source_patterns, target_patterns): stored}
        return convert(self, input_dict, source_patterns, target_patterns, **loading)

    Transpose.convert = compared
    try:
        yield
    finally:
        Transpose.convert = convert

"""Images of models without a family: what the planner makes of transformers' own operations, beside a real step.

The language model is described in generic terms, so what is compared is what images add to a step.
"""

import copy
import inspect
import json
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from family_checks import switch_checkpointing
from image_models import DESCRIBED_MODELS
from tape_probe import Predicted, predicted_step
from torch_probe import Measured, measured_step
from vlmplan.architecture.captured.capture import ImageCapture, capture_from_json
from vlmplan.architecture.generic.layout import ModelLayout, layout_from_json
from vlmplan.architecture.generic.model import build_generic
from vlmplan.architecture.model import Batch
from vlmplan_trainer.capture.run import captured
from vlmplan_trainer.probe import configuration, layout, model_class
from vlmplan_trainer.processors.processing import processed

SIDE = 448
NUM_SAMPLES = 2
TEXT_TOKENS = 64
TOLERANCE = 0.002
"""Of what images add; the processor's positions and masks of a few bytes a token are left out."""


class Beside:
    """One type with and without images: bytes that they add as planned and as measured."""

    def __init__(self, model_type: str) -> None:
        self.config = DESCRIBED_MODELS[model_type]
        size = {"width": SIDE, "height": SIDE, "images_per_sample": 1}
        answer = captured({"config": dict(self.config), "preprocessor": None, **size})
        self.capture: ImageCapture = capture_from_json(json.loads(json.dumps(answer)), **size)
        self.layout: ModelLayout = layout_from_json(json.loads(json.dumps(layout(dict(self.config)))))
        self.num_tokens = self.capture.num_tokens + TEXT_TOKENS
        made = processed(self.transformers_config(), None, **size, num_samples=NUM_SAMPLES, num_tokens=self.num_tokens)
        self.names = set(inspect.signature(model_class(self.transformers_config()).forward).parameters)
        self.tensors = {name: value for name, value in made.tensors.items() if name in self.names}

    def transformers_config(self) -> Any:
        config = configuration(copy.deepcopy(dict(self.config)))
        config.use_cache = False
        config.get_text_config().use_cache = False
        return config

    def is_frozen(self, name: str, *, freezes: bool) -> bool:
        return freezes and not name.startswith((*self.layout.text, self.layout.head))

    def measured(self, *, sees: bool, checkpoints: bool, freezes: bool) -> Measured:
        config = self.transformers_config()

        def build() -> Any:
            model = model_class(config)._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(not self.is_frozen(name, freezes=freezes))
            return switch_checkpointing(model, on=checkpoints)

        ids = self.tensors["input_ids"]
        text = torch.full_like(ids, 100)
        tensors = self.tensors if sees else {"input_ids": text, "attention_mask": torch.ones_like(ids)}
        values = {name: value for name, value in tensors.items() if not value.is_floating_point()}
        floats = {name: tuple(value.shape) for name, value in tensors.items() if value.is_floating_point()}
        return measured_step(build, values | {"labels": tensors["input_ids"].clone()}, floats=floats)

    def predicted(self, *, sees: bool, checkpoints: bool, freezes: bool) -> Predicted:
        tree = build_generic(self.layout, None, self.capture if sees else None)
        for entry in tree.parameters():
            entry.parameter.requires_grad = not self.is_frozen(entry.name, freezes=freezes)
        batch = Batch(micro_batch=NUM_SAMPLES, num_tokens=self.num_tokens)
        if sees:
            image = self.capture.image
            batch = Batch(micro_batch=NUM_SAMPLES, num_tokens=self.num_tokens, images_per_sample=1, image=image)
        return predicted_step(tree, batch, checkpoints=checkpoints)

    def added(self, **ways: bool) -> Mapping[str, tuple[int, int]]:
        """(planned, measured) bytes that images add, by what is measured of a step."""
        planned = [self.predicted(sees=sees, **ways) for sees in (True, False)]
        measured = [self.measured(sees=sees, **ways) for sees in (True, False)]
        names = ("forward_live", "forward_peak", "backward_peak")
        return {
            name: tuple(getattr(with_, name) - getattr(without, name) for with_, without in (planned, measured))
            for name in names
        }  # type: ignore[return-value]


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", ["aria", "video_llava"])
def test_images_add_to_a_step_what_they_add_in_transformers(model_type: str):
    """Features of a mask and of one of two towers; towers that train, that do not, and that run again in backward. Both
    types have a family, which is not asked here: of those without one, whose images are read here, transformers has
    either no step without images or none on tensors without data."""
    beside = Beside(model_type)
    for ways in ({}, {"freezes": True}, {"checkpoints": True}):
        chosen = {"checkpoints": False, "freezes": False} | ways
        for name, (planned, measured) in beside.added(**chosen).items():
            assert planned == pytest.approx(measured, rel=TOLERANCE), (model_type, ways, name)

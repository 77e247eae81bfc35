"""From a model's files to its module tree. Pure: whatever had to be asked for is in the files already."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Model
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS, TransformersVersion
from vlmplan.workload import ModelFiles

if TYPE_CHECKING:
    from vlmplan.architecture.captured.capture import ImageCapture
    from vlmplan.architecture.generic.layer_bytes import RehearsedLayers
    from vlmplan.architecture.generic.layout import ModelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedModelFiles(ModelFiles):
    """The files of a model that has no family, and what transformers says of it; ``rehearsed`` once its layers were,
    ``images`` once what it does with those of the samples was captured."""

    layout: "ModelLayout" = field(hash=False)
    rehearsed: "RehearsedLayers | None" = field(default=None, hash=False)
    images: "ImageCapture | None" = field(default=None, hash=False)

    @property
    def attention(self) -> frozenset[str]:
        return self.layout.attention

    @property
    def can_checkpoint(self) -> bool:
        return self.layout.can_checkpoint


def model_tree(model: ModelFiles, release: TransformersVersion = PLANNED_TRANSFORMERS) -> Model:
    """A new module tree of ``model``, as transformers of this release makes it, to be changed at will.

    Raises UnknownNameError for a model_type that has no family and was not looked up, InputError for values that
    cannot be.
    """
    if isinstance(model, ProbedModelFiles):
        from vlmplan.architecture.generic.model import build_generic
        from vlmplan.architecture.generic.stacks import stack_facts

        stacks = stack_facts(model.config)
        return build_generic(model.layout, model.rehearsed, model.images, model_type=model.model_type, stacks=stacks)
    return build_model(model.config, release)

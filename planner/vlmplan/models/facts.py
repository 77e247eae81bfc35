"""What there is to know of a model before any recipe: counted on its tree, nothing stored."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.images import ImageShape, image_shape
from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.modules import Linear
from vlmplan.errors import InputError
from vlmplan.models.description import context_length, takes_images
from vlmplan.models.tree import ProbedModelFiles, model_tree
from vlmplan.recipe.choices import ALL_LINEAR, ATTENTION
from vlmplan.workload import ModelFiles

LORA_RANK = 16
"""The rank that adapters are counted at; their parameters are proportional to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Parameters by part, and what one image becomes.

    ``image`` is None for a model without images, and where its processor refuses the size.
    """

    model: ModelFiles
    num_params_by_part: Mapping[Part, int] = field(hash=False)
    context_length: int | None
    takes_images: bool
    image: ImageShape | None

    @property
    def num_params(self) -> int:
        return sum(self.num_params_by_part.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """Equal or alike layers."""

    name: str
    part: Part
    num_layers: int
    can_checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearNames:
    """Linears of one last name and shape in one part: what a LoRA target of that name matches there."""

    name: str
    part: Part
    in_features: int
    out_features: int
    count: int
    is_head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTargets:
    """What ``--lora-targets`` with this value adapts; ``names`` are the suffixes it means, empty for all."""

    targets: str
    names: tuple[str, ...]
    num_modules: int
    num_params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnatomy:
    """The inside of a model."""

    ties_embeddings: bool
    stacks: tuple[LayerStack, ...]
    linears: tuple[LinearNames, ...]
    lora: tuple[LoraTargets, ...]


def model_facts(model: ModelFiles, *, width: int, height: int) -> ModelFacts:
    """The facts of ``model``, images taken as ``width x height``. Raises InputError for a config that cannot be."""
    counts: Counter[Part] = Counter()
    for entry in model_tree(model).parameters():
        counts[entry.part] += entry.parameter.numel
    sees = takes_images(model)
    return ModelFacts(
        model=model,
        num_params_by_part=dict(counts),
        context_length=context_length(model),
        takes_images=sees,
        image=_image(model, width, height) if sees else None,
    )


def _image(model: ModelFiles, width: int, height: int) -> ImageShape | None:
    if isinstance(model, ProbedModelFiles):
        return None if model.images is None else model.images.image
    try:
        return image_shape(model.config, model.preprocessor, width=width, height=height)
    except InputError:
        return None


def model_anatomy(model: ModelFiles) -> ModelAnatomy:
    """Layers, Linears and what the named LoRA targets adapt."""
    tree = model_tree(model)
    stacks = [
        LayerStack(
            name=next(name for name, module in tree.named_modules() if module is stack),
            part=part,
            num_layers=len(stack.pattern),
            can_checkpoint=stack.can_checkpoint,
        )
        for part, stack in tree.stacks()
    ]
    return ModelAnatomy(
        ties_embeddings=tree.ties_weights,
        stacks=tuple(sorted(stacks, key=lambda stack: stack.name)),
        linears=_linears(tree),
        lora=tuple(found for targets in (ALL_LINEAR, ATTENTION) if (found := _lora(model, targets))),
    )


def _linears(tree: Model) -> tuple[LinearNames, ...]:
    counts: Counter[tuple[str, Part, int, int, bool]] = Counter()
    for full_name, module in tree.named_modules():
        if isinstance(module, Linear):
            name, part = full_name.rpartition(".")[2], tree.part_of(full_name)
            counts[name, part, module.in_features, module.out_features, module is tree.head] += 1
    return tuple(
        LinearNames(name=name, part=part, in_features=inner, out_features=outer, count=count, is_head=is_head)
        for (name, part, inner, outer, is_head), count in counts.items()
    )


def _lora(model: ModelFiles, targets: str) -> LoraTargets | None:
    """What ``targets`` adapts with every part trained; None where it matches nothing."""
    tree = model_tree(model)
    before = {id(entry.parameter) for entry in tree.parameters()}
    try:
        add_lora(tree, AdapterSettings(rank=LORA_RANK), targets=targets)
    except InputError:
        return None
    added = [entry for entry in tree.parameters() if id(entry.parameter) not in before]
    return LoraTargets(
        targets=targets,
        names=() if targets == ALL_LINEAR else tuple(tree.attention_linears),
        num_modules=sum(".lora_A." in entry.name or entry.name.endswith("lora_embedding_A") for entry in added),
        num_params=sum(entry.parameter.numel for entry in added),
    )

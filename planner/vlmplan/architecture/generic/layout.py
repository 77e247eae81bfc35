"""What is known of a model that has no family here: transformers' own list of its modules and parameters.

``vlmplan_trainer/probe.py`` writes it as JSON; ``architecture/generic/model.py`` makes a tree of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

LAYOUT_SCHEMA = 2
"""Version of the layout; the same number stands in the probe."""


RECURRENT_WORDS = (
    *("Mamba", "Delta", "SSM", "Rwkv", "LSTM", "Recurrent", "Retention"),
    *("LinearAttention", "LightningAttention"),
)
"""Parts of the class names of mixers that keep states instead of attending to all tokens."""
SOUND_WORDS = ("audio", "speech", "sound")
"""Parts of the names of encoders that hear; the others see."""
RECURRENT_PARAMETERS = frozenset(("A_log", "dt_bias"))
"""Weights that only such mixers have: decay and step of a state space."""
NO_MIXERS = ("Layer", "Block", "Model", "ForCausalLM", "ForConditionalGeneration", "Norm", "NormGated")
"""Ends of the class names of what only holds or follows such a mixer."""
EXPERT_WIDTH = 64
"""Least rows and columns of a three-dimensional weight that is no convolution."""


class ModuleKind(Enum):
    LINEAR = "linear"
    CONV1D = "conv1d"
    EMBEDDING = "embedding"
    NORM = "norm"
    STACK = "stack"
    OTHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutModule:
    """One module by its dotted name; ``class_name`` is transformers'."""

    name: str
    class_name: str
    kind: ModuleKind


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """The modules and parameters of a model in torch's order.

    ``shapes`` are those of the parameters by name, each listed once; ``tied`` maps every further name to the one that
    is listed. ``checkpointed`` are the stacks whose layers support activation checkpointing. ``vision`` and ``text``
    are the modules that encode images and that are the language model; empty ``text``: all of the model. A model that
    ``takes_images`` may have no such module: pixels go through a Linear into its layers, or into a tower that is no
    model of its own. ``attention``
    are the values of ``attn_implementation`` that it takes, ``dimensions`` the language model's, under transformers'
    names.
    """

    transformers_version: str
    class_name: str
    modules: Sequence[LaidOutModule] = field(hash=False)
    shapes: Mapping[str, tuple[int, ...]] = field(hash=False)
    tied: Mapping[str, str] = field(hash=False)
    checkpointed: frozenset[str]
    embeddings: str
    head: str
    vision: tuple[str, ...]
    takes_images: bool
    text: tuple[str, ...]
    attention: frozenset[str]
    dimensions: Mapping[str, Any] = field(hash=False)

    @cached_property
    def own_parameters(self) -> Mapping[str, list[str]]:
        """Names of the parameters that each module holds itself, tied ones included."""
        result: dict[str, list[str]] = {}
        for name in (*self.shapes, *self.tied):
            result.setdefault(name.rpartition(".")[0], []).append(name)
        return result

    @property
    def can_checkpoint(self) -> bool:
        """Whether layers of the language model support activation checkpointing."""
        return any(
            not self.text or name.startswith(tuple(f"{text}." for text in self.text)) for name in self.checkpointed
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter under any of its names."""
        return self.shapes[self.tied.get(name, name)]

    def integer(self, key: str) -> int | None:
        value = self.dimensions.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def layout_from_json(values: Mapping[str, Any]) -> ModelLayout:
    """The layout that the probe wrote. Raises KeyError, TypeError or ValueError if it is none."""
    if values["schema"] != LAYOUT_SCHEMA:
        raise ValueError(f"a layout of schema {values['schema']}")
    return ModelLayout(
        transformers_version=str(values["transformers"]),
        class_name=str(values["class"]),
        modules=[
            LaidOutModule(name=name, class_name=class_name, kind=ModuleKind(kind))
            for name, class_name, kind in values["modules"]
        ],
        shapes={name: tuple(map(int, shape)) for name, shape in values["parameters"]},
        tied=dict(values["tied"]),
        checkpointed=frozenset(values["checkpointed"]),
        embeddings=str(values["embeddings"]),
        head=str(values["head"]),
        vision=tuple(values["vision"]),
        takes_images=bool(values["takes_images"]),
        text=tuple(values["text"]),
        attention=frozenset(values["attention"]),
        dimensions=dict(values["config"]),
    )


def is_attention(module: LaidOutModule) -> bool:
    """Whether a module is attention over all tokens, by its names."""
    class_name, name = module.class_name, module.name.rpartition(".")[2]
    if module.kind is not ModuleKind.OTHER or class_name.endswith("Layer"):
        return False
    if any(word in class_name for word in RECURRENT_WORDS):
        return False
    return "Attention" in class_name or "attn" in name or "attention" in name


def is_experts(module: LaidOutModule, stacked: Sequence[tuple[int, ...]], hidden_size: int) -> bool:
    """Whether a module holds MLPs of many experts: at least two stacks of matrices from or to the hidden size."""
    is_named_so = "Expert" in module.class_name
    return is_named_so and len(stacked) > 1 and all(hidden_size in shape[1:] for shape in stacked)


def inputs_beside_text(layout: ModelLayout) -> tuple[str, ...]:
    """What the model takes beside text: ``images``, ``sound``."""
    class_names = {module.name: module.class_name for module in layout.modules}
    texts = [f"{name} {class_names.get(name, '')}".casefold() for name in layout.vision]
    hears = [any(word in text for word in SOUND_WORDS) for text in texts]
    sees = layout.takes_images or not all(hears)
    return (*(["images"] if sees else []), *(["sound"] if any(hears) else []))


def recurrent_classes(layout: ModelLayout) -> list[str]:
    """Classes of the layers' mixers that keep states."""
    names: set[str] = set()
    for module in layout.modules:
        is_named_so = any(word in module.class_name for word in RECURRENT_WORDS)
        own = {name.rpartition(".")[2] for name in layout.own_parameters.get(module.name, [])}
        if (is_named_so or own & RECURRENT_PARAMETERS) and not module.class_name.endswith(NO_MIXERS):
            names.add(module.class_name)
    return sorted(names)


def unmultiplied_classes(layout: ModelLayout) -> list[str]:
    """Classes with stacks of matrices that are no experts with a known order of products."""
    names: set[str] = set()
    for module in layout.modules:
        shapes = [layout.shape(name) for name in layout.own_parameters.get(module.name, [])]
        stacked = [shape for shape in shapes if len(shape) == 3 and min(shape[1:]) >= EXPERT_WIDTH]
        if stacked and not is_experts(module, stacked, layout.integer("hidden_size") or 0):
            names.add(module.class_name)
    return sorted(names)

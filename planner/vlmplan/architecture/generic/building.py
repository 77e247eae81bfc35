"""Building the modules of a model from its layout: leaves by their kind, groups by what is inside, layers shared."""

from collections.abc import Collection, Hashable, Iterator
from typing import Any

from vlmplan.architecture.generic.groups import BareNorm, EmbeddingGroup, ExpertsGroup, Group, LinearOrNorm, Role
from vlmplan.architecture.generic.layers import GenericShape
from vlmplan.architecture.generic.layout import LaidOutModule, ModelLayout, ModuleKind, is_attention, is_experts
from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.modules import (
    Conv1D,
    DerivedLinear,
    Embedding,
    GemmaRMSNorm,
    LayerNorm,
    Linear,
    Module,
    RMSNorm,
    Stack,
)
from vlmplan.architecture.parameter import Parameter

LINEAR = "Linear"
"""The class name of ``nn.Linear`` itself."""
NORMS = (LayerNorm, RMSNorm, GemmaRMSNorm, BareNorm)
PROJECTOR_WORDS = ("merger", "downsample", "projector", "connector", "resampler", "adapter")
"""Parts of the names of modules inside a vision tower that other families count as projectors."""


class TreeBuilder:
    """Makes modules by name; tied weights and equal layers become one object."""

    def __init__(
        self,
        layout: ModelLayout,
        shape: GenericShape,
        *,
        unpacked: Collection[str] = (),
    ) -> None:
        """``unpacked``: names of Linears that are never packed in 4 bits."""
        self.layout, self.shape, self.unpacked = layout, shape, unpacked
        self.described = {module.name: module for module in layout.modules}
        self.child_names: dict[str, list[str]] = {}
        for module in layout.modules:
            if module.name:
                self.child_names.setdefault(module.name.rpartition(".")[0], []).append(module.name)
        self.parameters: dict[str, Parameter] = {}

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name; one object for all its names."""
        first = self.layout.tied.get(name, name)
        if first not in self.parameters:
            self.parameters[first] = Parameter(*self.layout.shape(first))
        return self.parameters[first]

    def own(self, name: str) -> dict[str, Parameter]:
        """The parameters that the module ``name`` holds itself."""
        names = self.layout.own_parameters.get(name, [])
        return {full.rpartition(".")[2]: self.parameter(full) for full in names}

    def module(self, name: str, *, is_inside_stack: bool = False) -> Module:
        described = self.described[name]
        leaf = None if self.child_names.get(name) else self.leaf(described)
        if leaf is not None:
            return leaf
        if described.kind is ModuleKind.STACK and not is_inside_stack and self.can_share(name):
            return self.stack(name)
        return self.group(name, is_inside_stack=is_inside_stack)

    def leaf(self, described: LaidOutModule) -> Module | None:
        """A Linear, an embedding or a norm; None where its parameters are not those of one."""
        own = self.own(described.name)
        weight, bias = own.get("weight"), own.get("bias")
        if not own.keys() <= {"weight", "bias"}:
            return None
        if described.kind is ModuleKind.NORM:
            return _with_weights(_norm(described.class_name, weight, bias), weight, bias)
        if weight is None or len(weight.shape) != 2:
            return None
        rows, columns = weight.shape
        if described.kind is ModuleKind.LINEAR:
            is_packed = described.class_name == LINEAR and described.name.rpartition(".")[2] not in self.unpacked
            kind = Linear if is_packed else DerivedLinear
            return _with_weights(kind(columns, rows, bias=bias is not None), weight, bias)
        if described.kind is ModuleKind.CONV1D:
            return _with_weights(Conv1D(rows, columns), weight, bias)  # stored (in, out)
        return _with_weights(Embedding(rows, columns), weight, None) if described.kind is ModuleKind.EMBEDDING else None

    def group(self, name: str, *, is_inside_stack: bool = False) -> Group:
        """A module with others inside, or with weights that no leaf has."""
        described, own = self.described[name], self.own(name)
        is_inside_stack = is_inside_stack or (described.kind is ModuleKind.STACK and not self.holds_layers(name))
        children = {
            child.rpartition(".")[2]: self.module(child, is_inside_stack=is_inside_stack)
            for child in self.child_names.get(name, [])
        }
        if described.kind is ModuleKind.EMBEDDING and len(own["weight"].shape) == 2:
            return EmbeddingGroup(children, own)
        role = self.role(described, own, children)
        steps = list(_steps(children, is_deep=role is Role.ATTENTION))
        if role is Role.EXPERTS:
            self.orient(own)
            is_shared = "shared" in described.name.rpartition(".")[2]
            num_experts = max(weight.shape[0] for weight in own.values())
            per_token = num_experts if is_shared else self.shape.experts_per_token
            return ExpertsGroup(own, experts_per_token=per_token, activation=self.shape.activation)
        return Group(children, own, role, steps)

    def role(self, described: LaidOutModule, own: dict[str, Parameter], children: dict[str, Module]) -> Role:
        if described.kind is ModuleKind.STACK:
            return Role.EXPERT_LIST if "expert" in described.name.rpartition(".")[2] else Role.LIST
        stacked = [weight.shape for weight in own.values() if len(weight.shape) == 3]
        is_flat = not any(child.modules_by_name for child in children.values())
        if is_flat and is_experts(described, stacked, self.shape.hidden_size):
            return Role.EXPERTS
        if is_attention(described) and len([s for s in _steps(children, is_deep=True) if not s.is_norm]) > 1:
            return Role.ATTENTION
        return Role.OTHER

    def orient(self, own: dict[str, Parameter]) -> None:
        """Let the weights of experts be (experts, out, in), whichever way they are stored: the last leads back."""
        hidden_size = self.shape.hidden_size
        weights = [weight for weight in own.values() if len(weight.shape) == 3]
        for weight in weights:
            num_experts, rows, columns = weight.shape
            is_turned = rows != hidden_size if weight is weights[-1] else columns != hidden_size
            weight.shape = (num_experts, columns, rows) if is_turned else weight.shape

    def holds_layers(self, name: str) -> bool:
        """Whether it is a list of modules outside of the language model that have layers to checkpoint inside, and are
        none themselves (a Q-Former for each depth)."""
        inside = any(other.startswith(f"{name}.") for other in self.layout.checkpointed)
        return inside and name not in self.layout.checkpointed and not self.is_text(name)

    def holds_lists(self, name: str) -> bool:
        """Whether it is a list of lists outside of the language model, which are gone through and never called (the
        stages of Florence-2's tower)."""
        children = self.child_names.get(name, [])
        return any(self.described[child].kind is ModuleKind.STACK for child in children) and not self.is_text(name)

    def can_share(self, name: str) -> bool:
        """Whether the list can be a stack: of modules that hold modules, none of them tied to anything outside."""
        if self.holds_layers(name) or self.holds_lists(name):
            return False
        is_of_groups = all(self.child_names.get(child) for child in self.child_names[name])
        inside = [[other.startswith(f"{name}.") for other in pair] for pair in self.layout.tied.items()]
        return is_of_groups and all(further == first for further, first in inside)

    def stack(self, name: str) -> Stack:
        """Layers of one structure share one module, but for those that hold weights of each other."""
        kinds: dict[Hashable, int] = {}
        structures: dict[Hashable, int] = {}
        alike: list[int] = []
        modules: list[Module] = []
        pattern: list[int] = []
        sharing = self.share(name)
        for child in self.child_names[name]:
            signature = self.signature(child)
            key = (signature, child if child in sharing else None)
            if key not in kinds:
                kinds[key] = len(modules)
                alike.append(structures.setdefault(signature, len(structures)))
                modules.append(self.group(child, is_inside_stack=True))
            pattern.append(kinds[key])
        stack = Stack(modules, pattern, label=name, can_checkpoint=name in self.layout.checkpointed)
        stack.alike = alike
        return stack

    def share(self, name: str) -> set[str]:
        """The layers of a list that hold weights of each other, whose weights are told how many layers use them."""
        depth = name.count(".") + 2
        users: dict[str, set[str]] = {}
        for further, first in self.layout.tied.items():
            if first.startswith(f"{name}."):
                users.setdefault(first, {_cut(first, depth)}).add(_cut(further, depth))
        for first, layers in users.items():
            self.parameter(first).shared_uses = len(layers)
        return {layer for layers in users.values() for layer in layers}

    def signature(self, name: str) -> Any:
        """Equal for modules of equal structure."""
        described = self.described[name]
        parameters = [
            (full.rpartition(".")[2], self.layout.shape(full)) for full in self.layout.own_parameters.get(name, [])
        ]
        children = [(child.rpartition(".")[2], self.signature(child)) for child in self.child_names.get(name, [])]
        return (described.class_name, described.kind, tuple(parameters), tuple(children))

    def is_text(self, name: str) -> bool:
        """Whether a module is inside the language model."""
        layout = self.layout
        if layout.text:
            return any(name.startswith(f"{text}.") for text in layout.text)
        return not any(name.startswith(f"{tower}.") for tower in layout.vision)

    def attention_linears(self) -> tuple[str, ...]:
        """The usual suffixes where the language model has all of them; else those that match the Linears of its
        attention and no others."""
        linears = [one.name for one in self.layout.modules if one.kind in (ModuleKind.LINEAR, ModuleKind.CONV1D)]
        if {name.rpartition(".")[2] for name in linears if self.is_text(name)}.issuperset(Model.attention_linears):
            return Model.attention_linears
        inside: dict[str, str] = {}
        outside: set[str] = set()
        for name in linears:
            parts = name.split(".")
            depth = next((i for i in range(1, len(parts)) if is_attention(self.described[".".join(parts[:i])])), None)
            if depth is None:
                outside.add(parts[-1])
            elif self.is_text(name):
                inside.setdefault(".".join(parts[depth - 1 :]), parts[-1])
        return tuple(dict.fromkeys(path if last in outside else last for path, last in inside.items()))

    def parts(self) -> dict[str, Part]:
        """Name prefixes of parts: what is neither a tower nor the language model stands between them."""
        layout = self.layout
        parts = dict.fromkeys(layout.vision, Part.VISION)
        for tower in layout.vision:
            for child in self.child_names.get(tower, []):
                if any(word in child.rpartition(".")[2] for word in PROJECTOR_WORDS):
                    parts[child] = Part.PROJECTOR
        if layout.text:
            parts |= dict.fromkeys((*layout.text, layout.embeddings, layout.head), Part.LANGUAGE)
            known = tuple(parts)
            pending = [""]
            while pending:
                name = pending.pop()
                if name in parts:
                    continue
                prefix = f"{name}." if name else ""
                if any(other.startswith(prefix) for other in known):
                    pending += self.child_names.get(name, [])
                    parts |= dict.fromkeys(layout.own_parameters.get(name, []), Part.PROJECTOR)
                else:
                    parts[name] = Part.PROJECTOR
        return parts


def _cut(name: str, depth: int) -> str:
    """The first ``depth`` parts of a dotted name."""
    return ".".join(name.split(".")[:depth])


def _norm(class_name: str, weight: Parameter | None, bias: Parameter | None) -> Module:
    if weight is None:
        return BareNorm()
    if bias is not None or class_name == "LayerNorm":
        return LayerNorm(weight.numel, bias=bias is not None)
    return GemmaRMSNorm(weight.numel) if "Gemma" in class_name else RMSNorm(weight.numel)


def _with_weights(module: Any, weight: Parameter | None, bias: Parameter | None) -> Module:
    """``module`` with the given parameters in the place of its own."""
    if weight is not None:
        module.weight = weight
    if bias is not None:
        module.bias = bias
    return module


def _steps(children: dict[str, Module], *, is_deep: bool, prefix: tuple[str, ...] = ()) -> Iterator[LinearOrNorm]:
    """The Linears and norms among ``children`` in order; with ``is_deep`` those inside groups too."""
    for name, child in children.items():
        path = (*prefix, name)
        if isinstance(child, Linear):
            yield LinearOrNorm(path, False, child.in_features, child.out_features)
        elif isinstance(child, NORMS):
            width = next((weight.numel for weight in child.parameters_by_name.values()), 0)
            yield LinearOrNorm(path, True, width, width)
        elif is_deep and isinstance(child, Group):
            yield from _steps(child.modules_by_name, is_deep=True, prefix=path)

"""The parameters of a module tree with their names, in the order of ``torch.nn.Module.parameters()``."""

from collections.abc import Mapping
from typing import NamedTuple

from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.recipe.choices import Part


class NamedParameter(NamedTuple):
    """One parameter of the model: ``layer`` is its place inside a stack, None outside and where layers share it."""

    name: str
    parameter: Parameter
    layer: int | None
    part: Part


def collect_parameters(
    module: Module, prefix: str, layer: int | None, part: Part, parts: Mapping[str, Part], into: list[NamedParameter]
) -> None:
    """Add those of ``module`` to ``into``; ``parts``: name prefixes of parts, which begin nowhere else."""
    for name, parameter in module.parameters_by_name.items():
        full_name = prefix + name
        into.append(NamedParameter(full_name, parameter, layer, parts.get(full_name, part)))
    if isinstance(module, Stack):
        # A kind of layer is walked once for all its places; no part begins inside a layer.
        kinds: list[list[NamedParameter]] = [[] for _ in module.kinds]
        for kind, own in zip(module.kinds, kinds, strict=True):
            collect_parameters(kind, ".", 0, part, {}, own)
        for place, kind in enumerate(module.pattern):
            name = f"{prefix}{place}"
            own = kinds[kind]
            into += [NamedParameter(name + one.name, one.parameter, one.parameter.layer_of(place), part) for one in own]
        return
    for name, child in module.modules_by_name.items():
        full_name = prefix + name
        collect_parameters(child, full_name + ".", layer, parts.get(full_name, part), parts, into)

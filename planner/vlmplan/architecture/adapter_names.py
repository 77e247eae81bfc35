"""Which modules ``--lora-targets`` and ``--lora-exclude`` mean, by their names, as peft matches them.

Source: peft 0.21 ``tuners/tuners_utils.py`` (``check_target_module_exists``): a name means every module that is called
so or whose name ends in it behind a dot; a regular expression means those whose whole name it matches. Where experts'
projections are parameters now, it means the last parts of these names, see ``last_parts``.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.model import Model
from vlmplan.architecture.modules import Module, Stack
from vlmplan.errors import InputError
from vlmplan.recipe.choices import ALL_LINEAR, ATTENTION, REGEX
from vlmplan.recipe.lora_targets import pattern_of

Marks = Callable[[str], list[frozenset[str]]]
"""What options mean a module of this name."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A module in a model: ``name`` is its whole name, ``child_name`` that within ``parent``."""

    parent: Module
    child_name: str
    name: str
    child: Module


class ModuleNames(NamedTuple):
    """What an option names: suffixes, or one regular expression. ``is_whole``: names are peft's to find, which takes
    every module that has one or fails."""

    suffixes: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    is_whole: bool = False

    @property
    def is_regex(self) -> bool:
        return self.pattern is not None

    @property
    def names(self) -> frozenset[str]:
        """The names as they were given."""
        return frozenset(self.suffixes) if self.pattern is None else frozenset((REGEX + self.pattern.pattern,))

    @property
    def tells_layers_apart(self) -> bool:
        """Whether they may mean some of several equal layers: a name may have a layer's number in it."""
        return self.is_regex or any(part.isdigit() for name in self.suffixes for part in name.split("."))

    def match(self, full_name: str) -> set[str]:
        """The entries of ``names`` that mean the module of this name."""
        if self.pattern is not None:
            return set(self.names) if self.pattern.fullmatch(full_name) else set()
        return {name for name in self.suffixes if full_name == name or full_name.endswith("." + name)}

    def with_suffixes(self, suffixes: Collection[str]) -> "ModuleNames":
        return self if self.is_regex else self._replace(suffixes=tuple(suffixes))


TARGETS_OPTION, EXCLUDE_OPTION = "--lora-targets", "--lora-exclude"


def target_names(text: str, option: str, *, attention: Sequence[str] | None = None) -> ModuleNames | None:
    """What ``text``, the value of ``option``, means; None for every Linear but the output head.

    ``attention`` is what that word means; None: it is a name like others, as of modules to exclude. Raises InputError.
    """
    if text.startswith(REGEX):
        return ModuleNames(pattern=pattern_of(text, option), is_whole=True)
    if attention is not None and text == ALL_LINEAR:
        return None
    if attention is not None and text == ATTENTION:
        return ModuleNames(suffixes=tuple(attention))
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    allowed = "names such as q_proj,v_proj, or regex: and a regular expression"
    adapts = option == TARGETS_OPTION
    if not names:
        raise InputError(f"{option} is empty; give {'all-linear, attention, ' if adapts else ''}{allowed}")
    words = (ALL_LINEAR,) if attention is None else (ALL_LINEAR, ATTENTION)
    whole = next((word for word in words if word in names), None)
    if whole is not None:
        said = f"{whole} stands alone" if adapts else f"give {allowed}"
        raise InputError(f"{option} is {text}; {said}")
    return ModuleNames(suffixes=names)


def last_parts(model: Model, names: ModuleNames, *, is_open: Callable[[str], bool]) -> ModuleNames:
    """The regular expression ``names`` as peft resolves it where experts' projections are parameters now
    (``PARAMETER_TARGETS``): to the last parts of what it means, which then mean modules anywhere in the model.

    The names that these projections had are tried beside the parameters that they are in. ``is_open``: whether the
    module or parameter of a whole name may be meant, which exclusions leave out. Source: peft 0.21
    ``utils/transformers_weight_conversion.py`` (``_resolve_string_target_modules``).
    """
    old_names = model.PARAMETER_TARGETS
    parameters = [name for name, _ in model.named_parameters()]

    def is_meant(name: str) -> bool:
        return is_open(name) and bool(names.match(name))

    found = dict.fromkeys(name.rpartition(".")[2] for name, _ in model.named_modules() if name and is_meant(name))
    for name in parameters:
        holder, _, last = name.rpartition(".")
        tried = [last, *(old for old, new in old_names.items() if new == last)]
        found |= dict.fromkeys(old for old in tried if old in old_names and is_meant(f"{holder}.{old}"))
    return ModuleNames(suffixes=tuple(found), is_whole=True) if found else names


def places_of(model: Module) -> list[Place]:
    """Every module once; equal layers share one, which has the name of the first."""
    return list(_places(model, ""))


def _places(module: Module, prefix: str) -> Iterator[Place]:
    seen: set[int] = set()
    for name, child in list(module.children()):
        if isinstance(module, Stack):
            if id(child) in seen:
                continue
            seen.add(id(child))
        full = f"{prefix}.{name}" if prefix else name
        yield Place(module, name, full, child)
        yield from _places(child, full)


def weightless_names(module: Module) -> list[str]:
    """The names of modules within ``module`` that have no weights and are in no list of places: activations, rotary
    positions. Others, such as dropouts, are not known."""
    held = [name for name, value in vars(module).items() if isinstance(value, ops.ActivationModule)]
    names = [getattr(module, "ACTIVATION_NAME", name) for name in held]
    return [*(name for name in names if not name.startswith("_")), *module.ROTARY_MODULES]


def split_layers(model: Model, targets: str | None, exclude: str | None) -> None:
    """Make equal layers, of which ``targets`` or ``exclude`` mean different modules, layers of kinds of their own, so
    that some can be adapted and others not. Call it on a new tree, before anything else is done to it."""
    texts = {TARGETS_OPTION: targets, EXCLUDE_OPTION: exclude}
    options = {option: text for option, text in texts.items() if text not in (None, ALL_LINEAR, ATTENTION)}
    found = [names for option, text in options.items() if (names := target_names(text or "", option)) is not None]
    telling = [names for names in found if names.tells_layers_apart]
    if telling:
        _split(model, "", lambda name: [frozenset(names.match(name)) for names in telling])


def _split(module: Module, prefix: str, mark: Marks) -> None:
    if isinstance(module, Stack):
        _split_kinds(module, prefix, mark)
    seen: set[int] = set()
    for name, child in module.children():
        if id(child) not in seen:
            seen.add(id(child))
            _split(child, f"{prefix}.{name}" if prefix else name, mark)


def _split_kinds(stack: Stack, prefix: str, mark: Marks) -> None:
    """Layers of one kind whose modules have other marks get a kind of their own."""
    kinds: dict[tuple[object, ...], int] = {}
    layers: list[Module] = []
    alike: list[int] = []
    pattern: list[int] = []
    taken: set[int] = set()
    for place, kind in enumerate(stack.pattern):
        names = [name for name, _ in stack.kinds[kind].named_modules(f"{prefix}.{place}")]
        key = (kind, *(found for name in names for found in mark(name)))
        if key not in kinds:
            kinds[key] = len(layers)
            layers.append(deepcopy(stack.kinds[kind]) if kind in taken else stack.kinds[kind])
            alike.append(stack.alike[kind])
            taken.add(kind)
        pattern.append(kinds[key])
    stack.kinds, stack.pattern, stack.alike = layers, tuple(pattern), alike

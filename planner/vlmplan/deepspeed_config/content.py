"""A ds_config.json under DeepSpeed's current names, every key checked by its table, every mistake kept.

Whole numbers may be written as ``5e8``; deprecated names, and field names without ``stage3_``, are understood.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vlmplan.deepspeed_config.auto import auto_problem
from vlmplan.deepspeed_config.keys import Effect, Key
from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.deepspeed_config.run_keys import REMOVED_TOP_KEYS, RUN_KEYS, UNREAD_KEYS
from vlmplan.deepspeed_config.section_keys import SECTION_KEYS
from vlmplan.deepspeed_config.zero_keys import (
    DEPRECATED_OFFLOADS,
    DEPRECATED_WITHOUT_EFFECT,
    REMOVED_ZERO_KEYS,
    ZERO_ALIASES,
    ZERO_KEYS,
)
from vlmplan.errors import UnknownNameError
from vlmplan.files.json_reader import JsonDict, JsonObject
from vlmplan.units import is_or_are

KEYS: Mapping[str, Key] = {**RUN_KEYS, **ZERO_KEYS, **SECTION_KEYS}
"""Every key that DeepSpeed 0.19.8 reads, by its path."""
SECTIONS = frozenset(path.rpartition(".")[0] for path in KEYS if "." in path)
TOP_NAMES = tuple(path for path in KEYS if "." not in path)
ZERO = "zero_optimization"
OF_CURVES = ("tensorboard", "csv_monitor", "wandb", "comet")
NEVER_PLANNED = (
    *(*OF_CURVES, "comms_logger", "flops_profiler", "autotuning"),
    *("checkpoint", "datastates_ckpt", "compile", "data_efficiency", "hybrid_engine"),
)
"""Sections by which DeepSpeed writes files in places of their own, asks servers, or runs other code: a plan, which may
be somebody else's, never has them."""
TYPO_SIMILARITY = 0.85
"""A key that is unknown at the top level and this close to a known one is taken for a slip of the pen."""


@dataclass(slots=True)
class Content:
    """What a file says. ``autos`` are the paths of what Hugging Face's Trainer fills in; ``values`` have none of them,
    ``idle`` the paths of keys that are not at their default and change nothing of a plan, ``unread`` those that
    DeepSpeed does not read."""

    values: JsonDict = field(default_factory=JsonDict)
    autos: set[str] = field(default_factory=set[str])
    idle: list[str] = field(default_factory=list[str])
    unread: list[str] = field(default_factory=list[str])


def checked_content(top: JsonObject, mistakes: Mistakes) -> Content:
    """The file's content; what is wrong with it goes to ``mistakes``."""
    content = Content()
    for name, value in top.values.items():
        if name in REMOVED_TOP_KEYS:
            mistakes.add(f"{name} has been removed from DeepSpeed, which refuses the file; take it out")
        elif is_comment(name, value):
            continue
        elif name not in KEYS:
            content.unread.append(name)
        elif name == ZERO and isinstance(value, bool):  # deprecated: true is stage 1
            content.values[name] = {"stage": int(value)}
        else:
            _read_key(_Place(top, "", content, mistakes), name, content.values)
    _refuse_slips(content.unread, mistakes)
    if "bfloat16" in content.values:  # a former name, which bf16 goes before
        content.values.setdefault("bf16", content.values.pop("bfloat16"))
    return content


def is_comment(name: str, value: object) -> bool:
    """Whether a key is a remark to the reader, which JSON has no other place for: ``_comment``, ``//``."""
    return isinstance(value, str) and name.lstrip("_/# ").lower() in ("", "comment", "comments")


@dataclass(slots=True)
class _Place:
    """An object of the file at ``path``, and what becomes of it."""

    section: JsonObject
    path: str
    content: Content
    mistakes: Mistakes

    def key_path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    @property
    def table_path(self) -> str:
        return "bf16" if self.path == "bfloat16" else self.path


def _read_key(place: _Place, name: str, into: JsonDict) -> None:
    """Check one key, and all keys below it."""
    section, path, value = place.section, place.key_path(name), place.section.values[name]
    table_path = f"{place.table_path}.{name}" if place.path else name
    key = KEYS.get(table_path)
    if key is None and table_path in UNREAD_KEYS:
        place.content.unread.append(path)
    elif key is None:
        siblings = [known.name for known in KEYS.values() if known.path == f"{place.table_path}.{known.name}"]
        with place.mistakes.kept():
            raise UnknownNameError("key", name, siblings, f"in {place.path} of {section.source}")
    elif value == "auto" and "auto" not in key.only:
        _take_auto(place, path)
    elif key.takes_null and value is None:
        return
    elif (table_path in SECTIONS or path == "bfloat16") and isinstance(value, Mapping):
        into[name] = _section(_Place(section.object(name), path, place.content, place.mistakes))
    else:
        with place.mistakes.kept():
            into[name] = checked = section.object(name) if table_path in SECTIONS else key.check(section)
            if key.effect is Effect.NONE and checked != key.default:
                place.content.idle.append(path)


def _take_auto(place: _Place, path: str) -> None:
    stage = place.section.values.get("stage") if place.path == ZERO else None
    problem = auto_problem(path, stage=stage)
    if problem is None:
        place.content.autos.add(path)
    else:
        place.mistakes.add(problem)


def _section(place: _Place) -> JsonDict:
    if place.path == ZERO:
        _refuse_removed(place)
        place.section = JsonObject(_current_names(place), source=place.section.source, path=ZERO)
    values: JsonDict = {}
    for name in place.section.values:
        _read_key(place, name, values)
    return values


def _refuse_removed(place: _Place) -> None:
    for name, why in REMOVED_ZERO_KEYS.items():
        if name in place.section:
            place.mistakes.add(f"{ZERO}.{name} cannot be planned: {why}")


def _current_names(place: _Place) -> JsonDict:
    """``zero_optimization`` under DeepSpeed's current names, without what it has removed."""
    values: JsonDict = {}
    written: dict[str, str] = {}
    for key, value in place.section.values.items():
        name = ZERO_ALIASES.get(key, DEPRECATED_OFFLOADS.get(key, key))
        if key in REMOVED_ZERO_KEYS or (key == DEPRECATED_WITHOUT_EFFECT and isinstance(value, bool | None)):
            continue
        if key in DEPRECATED_OFFLOADS:
            with place.mistakes.kept():
                value = {"device": "cpu"} if value is not None and place.section.flag(key) else None
        if value == "auto" and name != key:
            place.mistakes.add(f'{ZERO}.{key} is "auto", which transformers fills in under the name {name} only')
        elif name in written:
            place.mistakes.add(f"{ZERO} has {written[name]} and {key}, which mean the same; one has to go")
        else:
            values[name], written[name] = value, key
    return values


def _refuse_slips(unread: list[str], mistakes: Mistakes) -> None:
    """Refuse keys that DeepSpeed does not read and that are meant for others."""
    for name in unread:
        meant = None if name in UNREAD_KEYS else near_top_key(name) or _place_of(name)
        if meant is not None:
            mistakes.add(f"DeepSpeed knows no key {name!r} and would ignore it; did you mean {meant!r}?")


def near_top_key(name: str) -> str | None:
    """The key that ``name`` is likely a slip of."""
    return next(iter(difflib.get_close_matches(name, TOP_NAMES, n=1, cutoff=TYPO_SIMILARITY)), None)


def _place_of(name: str) -> str | None:
    """Where a key belongs that stands at the top and is not known there."""
    names = {name, ZERO_ALIASES.get(name, name)}
    paths = [path for path in KEYS if path.rpartition(".")[2] in names and path.startswith((ZERO, "bf16", "fp16"))]
    return paths[0] if len(paths) == 1 else None


def idle_sentences(content: Content) -> Iterable[str]:
    """What to say of the keys that change nothing of a plan."""
    apart = ("optimizer", "scheduler", "zero_allow_untested_optimizer")  # what is said of them is said of the whole
    quiet = [path for path in content.idle if path not in SLOWER and not path.startswith(apart)]
    if quiet:
        which = "changes" if len(quiet) == 1 else "change"
        yield f"{listed(quiet)} {which} neither memory nor time of a plan"
    for path in content.idle:
        if path in SLOWER:
            yield SLOWER[path]
    left_out = [name for name in NEVER_PLANNED if name in content.values]
    if left_out:
        which = is_or_are(len(left_out))
        instead = "; for curves there is launch --monitor" if set(left_out) & set(OF_CURVES) else ""
        yield f"{listed(left_out)} {which} left out of a plan{instead}"
    if content.unread:
        yield f"DeepSpeed does not read {listed(content.unread)}"


SLOWER: Mapping[str, str] = {
    "wall_clock_breakdown": "wall_clock_breakdown is true: DeepSpeed then waits for the GPU at every step, which the "
    "planned seconds do not hold",
} | {
    f"{ZERO}.{block}.pin_memory": f"{ZERO}.{block}.pin_memory is false: copies between host and GPU take longer than "
    "planned"
    for block in ("offload_optimizer", "offload_param")
}


def listed(names: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

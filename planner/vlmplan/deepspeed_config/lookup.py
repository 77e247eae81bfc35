"""A key of a ds_config.json by what a user calls it: its path, its name alone, or a former name."""

from collections.abc import Mapping

from vlmplan.deepspeed_config.content import KEYS, ZERO
from vlmplan.deepspeed_config.keys import Key
from vlmplan.deepspeed_config.run_keys import REMOVED_TOP_KEYS, UNREAD_KEYS
from vlmplan.deepspeed_config.zero_keys import DEPRECATED_OFFLOADS, REMOVED_ZERO_KEYS, ZERO_ALIASES
from vlmplan.errors import InputError, UnknownNameError

FORMER_NAMES: Mapping[str, str] = {
    name: f"{ZERO}.{current}" for name, current in {**ZERO_ALIASES, **DEPRECATED_OFFLOADS}.items()
}
"""Paths by names that DeepSpeed takes as well."""
MOST_NAMED = 6
HINT = "vlmplan explain lists them; vlmplan check FILE says what those of another trainer's file mean"


def find_key(name: str) -> Key:
    """The key ``name``. Raises InputError for one that DeepSpeed does not read, or that several sections have."""
    wanted = name.strip().removeprefix("deepspeed.")
    path = wanted.removeprefix(f"{ZERO}.")
    for known in (wanted, FORMER_NAMES.get(path, "")):
        if known in KEYS:
            return KEYS[known]
    found = [key for key in KEYS.values() if key.path.endswith(f".{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        paths = ", ".join(key.path for key in found[:MOST_NAMED])
        raise InputError(f"{name} is the name of {len(found)} keys; give one of their paths: {paths}{more}")
    if path in REMOVED_ZERO_KEYS:
        raise InputError(f"{ZERO}.{path} cannot be planned: {REMOVED_ZERO_KEYS[path]}")
    if wanted in REMOVED_TOP_KEYS:
        raise InputError(f"{wanted} has been removed from DeepSpeed, which refuses a file that has it")
    if wanted in UNREAD_KEYS:
        raise InputError(f"DeepSpeed does not read {wanted}; its place is {UNREAD_KEYS[wanted]}")
    names = list(KEYS) if "." in wanted else [*(key.name for key in KEYS.values()), *FORMER_NAMES]
    raise UnknownNameError("key of a ds_config.json", name, names, HINT)

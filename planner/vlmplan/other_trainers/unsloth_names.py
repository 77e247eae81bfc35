"""Which model a name of Unsloth's stands for: ``unsloth/Qwen2.5-7B-bnb-4bit`` is ``Qwen/Qwen2.5-7B``.

``data/unsloth_names.json`` has what Unsloth's own table says of packaged models (``unsloth/models/mapper.py``, written
anew by ``tests/tools/unsloth_names.py``); a name that is not there is looked for as it is.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parents[1] / "data" / "unsloth_names.json"
OF_FOUR_BITS: Final = "-bnb-4bit"
DYNAMIC: Final = "-unsloth-bnb-4bit"
"""How names of checkpoints end of which some layers stay in 16 bits."""


@cache
def _names() -> Mapping[str, str]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["names"]


def makers_name(name: str) -> str:
    """The model by its makers' name, where Unsloth's table says which; else ``name``."""
    return _names().get(name.casefold(), name)

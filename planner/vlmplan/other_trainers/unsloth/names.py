"""Which model a name of Unsloth's stands for: ``unsloth/Qwen2.5-7B-bnb-4bit`` is ``Qwen/Qwen2.5-7B``.

Unsloth's repositories are called as their makers' are, with an ending for those in 4 bits: all 357 names of its own
table (``unsloth/models/mapper.py`` of unsloth 2026.10.9) that are a packaged model's so are of that model there. What
the table calls otherwise is in ``data/unsloth_names.json``, written by
``tests/tools/unsloth_names.py``. A name that is neither is looked for as it is.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from vlmplan.models.packaged import hub_id_by_repo_name

TABLE: Final = Path(__file__).parents[2] / "data" / "unsloth_names.json"
ORGANISATION: Final = "unsloth/"
OF_FOUR_BITS: Final = "-bnb-4bit"
DYNAMIC: Final = "-unsloth-bnb-4bit"
"""How names of checkpoints end of which some layers stay in 16 bits."""


@cache
def _names() -> Mapping[str, str]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["names"]


def same_repository(name: str) -> str | None:
    """The packaged model whose repository is called as this one of Unsloth's; None for none."""
    if not name.casefold().startswith(ORGANISATION):
        return None
    repository = name.casefold().removeprefix(ORGANISATION).removesuffix(DYNAMIC).removesuffix(OF_FOUR_BITS)
    return hub_id_by_repo_name().get(repository)


def makers_name(name: str) -> str:
    """The model by its makers' name, where that can be told; else ``name``."""
    return same_repository(name) or _names().get(name.casefold(), name)

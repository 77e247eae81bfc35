"""Which published model a name of Unsloth's stands for, from its own table.

``python tests/tools/unsloth_names.py MAPPER.PY RELEASE`` reads ``unsloth/models/mapper.py`` and rewrites the table that
``vlmplan check`` looks names up in that are not the makers' own. Of an entry all names are of one model: in 4 bits, in
16, and as its makers publish it. The table has those whose makers' name is a packaged model; an entry with two of them
tells none.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

from vlmplan.models.packaged import alias_by_hub_id
from vlmplan.other_trainers.unsloth.names import ORGANISATION, TABLE, same_repository


def names_of_mapper(text: str) -> list[list[str]]:
    """Every entry's names."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__INT_TO_FLOAT_MAPPER":
            table: dict[str, Any] = ast.literal_eval(node.value)
            return [[key, *_flat(value)] for key, value in table.items()]
    raise SystemExit("the file has no __INT_TO_FLOAT_MAPPER")


def _flat(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for part in value.values() for name in _flat(part)]  # pyright: ignore[reportUnknownVariableType]
    return [value] if isinstance(value, str) else [name for part in value or () for name in _flat(part)]


def table_of(entries: list[list[str]]) -> dict[str, str]:
    """The makers' name by each of Unsloth's, in small letters."""
    packaged, found = alias_by_hub_id(), dict[str, set[str]]()
    for names in entries:
        makers = {name for name in names if not name.startswith(ORGANISATION) and name.casefold() in packaged}
        for name in names:
            if name.startswith(ORGANISATION) and same_repository(name) is None:
                found.setdefault(name.casefold(), set()).update(makers)
    return {name: makers.pop() for name, makers in sorted(found.items()) if len(makers) == 1}


def main(mapper: str, release: str) -> None:
    table = table_of(names_of_mapper(Path(mapper).read_text(encoding="utf-8")))
    source = f"unsloth {release}: unsloth/models/mapper.py"
    TABLE.write_text(json.dumps({"source": source, "names": table}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

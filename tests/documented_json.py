"""The keys that ``docs/tasks/json.md`` names of each schema."""

import re

from tools.documents import DOCS

PAGE = DOCS / "tasks" / "json.md"


def documented_keys(schema: str) -> set[str]:
    """The keys in the first column of the schema's table."""
    section = re.split(r"^## ", PAGE.read_text().partition(f"\n## {schema}\n")[2], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}

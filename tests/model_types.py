"""How every model type of transformers with a language-model head is planned: a page's table. Needs no torch.

``tests/data/model_types.csv`` says what transformers itself counts and what is refused; the script
``tests/tools/every_model_type.py`` writes it. Which types have a family is asked of the code, so the table follows it.
"""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmplan.architecture.families import FAMILIES

FILE = Path(__file__).parent / "data" / "model_types.csv"
How = Literal["exact", "traced", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """``takes``: ``text``, or ``images`` for a head that takes both. ``num_params`` are those of transformers' own
    model of the default configuration, 0 where it builds none; ``refusal`` is why a type without a family is refused.
    """

    model_type: str
    takes: str
    class_name: str
    num_params: int
    refusal: str

    @property
    def how(self) -> How:
        if self.model_type in FAMILIES:
            return "exact"
        return "refused" if self.refusal else "traced"


COLUMNS = ("model_type", "takes", "class_name", "num_params", "refusal")


def stored_rows() -> list[TypeRow]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [TypeRow(**{**row, "num_params": int(row["num_params"])}) for row in csv.DictReader(file)]  # pyright: ignore[reportArgumentType]


def write_rows(rows: list[TypeRow]) -> None:
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)


def counts() -> str:
    """How many types are planned in which way."""
    rows = stored_rows()
    lines = ["| planned | text alone | text and images | all |", "|---|---:|---:|---:|"]
    for how in ("exact", "traced", "refused", "all"):
        of = Counter(row.takes for row in rows if how in (row.how, "all"))
        lines.append(f"| {how} | {of['text']} | {of['images']} | {of.total()} |")
    return "\n".join(lines) + "\n"


def refusals() -> str:
    """A line for every type that is refused, with the reason."""
    lines = ["| model_type | why it is refused |", "|---|---|"]
    lines += [f"| {row.model_type} | {row.refusal} |" for row in stored_rows() if row.how == "refused"]
    return "\n".join(lines) + "\n"


def table() -> str:
    """A line for every type."""
    lines = ["| model_type | planned | takes | parameters |", "|---|---|---|---:|"]
    for row in stored_rows():
        size = f"{row.num_params:,}" if row.num_params else "-"
        takes = "text, images" if row.takes == "images" else row.takes
        lines.append(f"| {row.model_type} | {row.how} | {takes} | {size} |")
    return "\n".join(lines) + "\n"

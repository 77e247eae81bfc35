"""Of which model types without a family images are planned: a page's table. Needs no torch.

``tests/data/image_types.csv`` is what the capture says of the configurations of ``image_models``; the script
``tests/tools/every_image_type.py`` writes it.
"""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from model_types import stored_rows

FILE = Path(__file__).parent / "data" / "image_types.csv"


@dataclass(frozen=True, slots=True)
class ImageRow:
    """``processor``: transformers' class; ``needs``: the library that it needs beside Pillow.

    ``num_tokens`` of an image of 448x448 in the language model, 0 where it is refused; ``refusal``: why.
    """

    model_type: str
    processor: str
    needs: str
    num_tokens: int
    refusal: str


def stored_image_rows() -> list[ImageRow]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [ImageRow(**{**row, "num_tokens": int(row["num_tokens"])}) for row in csv.DictReader(file)]  # pyright: ignore[reportArgumentType]


def write_image_rows(rows: list[ImageRow]) -> None:
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(ImageRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows([asdict(row) for row in rows])


def traced_types_with_images() -> list[str]:
    """Types without a family that transformers trains on images and text."""
    return [row.model_type for row in stored_rows() if row.takes == "images" and row.how == "traced"]


def image_table() -> str:
    """A line for each type without a family that takes images."""
    tried = {row.model_type: row for row in stored_image_rows()}
    lines = [
        "| model_type | images | processor | needs | tokens of an image of 448x448 | why not |",
        "|---|---|---|---|---:|---|",
    ]
    for model_type in traced_types_with_images():
        row = tried.get(model_type)
        if row is None:
            lines.append(f"| {model_type} | not tried |  |  | - |  |")
        elif row.refusal:
            reason = row.refusal.replace("|", "\\|")
            lines.append(f"| {model_type} | left out |  | {row.needs} | - | {reason} |")
        else:
            lines.append(f"| {model_type} | planned | {row.processor} | {row.needs} | {row.num_tokens:,} |  |")
    return "\n".join(lines) + "\n"

"""Records of the campaign: JSON lines, one for each run, each with what was planned, rehearsed and measured.

A file has one measurement of a run: those of another card are in a file of their own (``OF_OTHER_CARDS``).
"""

import json
from pathlib import Path
from typing import Any

from vlmplan.files import write_atomically

RECORDS = Path(__file__).parent / "records.jsonl"
"""Rehearsals, and measurements on an H200."""
OF_OTHER_CARDS = (Path(__file__).parent / "records_h100.jsonl",)
"""Measurements of the same runs on other cards."""
LAUNCHES = Path(__file__).parent / "launches.jsonl"
"""Of ``vlmplan launch --task``: models with random weights and long texts, measured as the launcher's report has it."""
Record = dict[str, Any]


def records_in(path: Path = RECORDS) -> dict[str, Record]:
    """The last record of each run, by its name; none where there is no file yet."""
    if not path.is_file():
        return {}
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {record["name"]: record for record in found}


def add_record(record: Record, path: Path = RECORDS) -> None:
    """Put the record into the file, which is the old one or the new one whenever this ends. Kinds of evidence add up: a
    rehearsal is kept beside a measurement."""
    known = records_in(path)
    known[record["name"]] = {**known.get(record["name"], {}), **record}
    text = "".join(json.dumps(one) + "\n" for one in known.values())
    write_atomically(path, text, force=True)

"""What the data of a run is like, for --dry-run: the trainer reads it as its start would, in a process of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from vlmplan.child_process import empty_folder, last_words, run_python
from vlmplan.files.json_reader import JsonDict
from vlmplan.plan import PLAN_FILE, Plan, write_plan
from vlmplan.run.training import TrainerOptions

LOOK = "vlmplan_trainer.look"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLook:
    """``accounts`` of "train" and "eval" as the trainer tells them (``SampleCounts`` in its ``data/read.py``), or the
    ``problem`` with which the run would end."""

    accounts: Mapping[str, Mapping[str, Any]]
    problem: str | None = None

    def lines(self) -> Iterator[str]:
        """What to say of each file."""
        for name, account in self.accounts.items():
            yield f"--{name}-data {account['name']}:"
            yield from (f"  {line}" for line in account["lines"])


def looked_at(plan: Plan, options: TrainerOptions, environment: Mapping[str, str]) -> DataLook:
    """What the start of this run would find in its data. Takes as long as that: it reads and encodes every text."""
    with empty_folder() as folder:
        path = folder / PLAN_FILE
        write_plan(plan, path)
        done = run_python(["-m", LOOK, "--plan", str(path), *options.arguments()], environment=environment)
    try:
        found = cast(JsonDict, json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return DataLook(accounts={}, problem=f"the data cannot be looked at: {last_words(done)}")
    if "problem" in found:
        return DataLook(accounts={}, problem=str(found["problem"]))
    return DataLook(accounts={name: account for name, account in found.items() if account is not None})

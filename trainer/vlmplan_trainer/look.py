"""Look at the data of a run as its start would: ``python -m vlmplan_trainer.look``, with the options of the trainer.

Loads the model's processor and no weights. The last line of standard output is JSON: an account of each file, or the
sentence with which the start would end.
"""

import json
import sys
from collections.abc import Sequence

from vlmplan.errors import VlmplanError
from vlmplan_trainer.options import started


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what would be trained on; the exit code."""
    try:
        options, plan = started(arguments)
        from vlmplan_trainer.data.gather import gathered_data

        data = gathered_data(plan, options)
    except VlmplanError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}) + "\n")
        return error.exit_code
    files = {"train": data.train, "eval": data.evaluation}
    found = {name: None if gathered is None else gathered.account.as_json() for name, gathered in files.items()}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

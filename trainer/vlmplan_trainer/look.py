"""Look at the data of a run as its start would: ``python -m vlmplan_trainer.look``, with the options of the trainer.

Loads the model's processor and no weights. The last line of standard output is JSON: an account of each file, or the
sentence with which the start would end.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlmplan.errors import VlmplanError
from vlmplan.plan import Plan
from vlmplan_trainer.options import Options, started

if TYPE_CHECKING:
    from vlmplan_trainer.data.read import SampleCounts


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what would be trained on; the exit code."""
    try:
        options, plan = started(arguments)
        accounts = _accounts(plan, options)
    except VlmplanError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}) + "\n")
        return error.exit_code
    found = {name: None if account is None else account.as_json() for name, account in accounts.items()}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _accounts(plan: Plan, options: Options) -> "dict[str, SampleCounts | None]":
    """What was found, by "train" and "eval"."""
    task = plan.recipe.task
    if task is None:
        from vlmplan_trainer.data.read import read_data

        data = read_data(plan, options)
        return {"train": data.train.account, "eval": None if data.evaluation is None else data.evaluation.account}
    from vlmplan_trainer.trl_training.rewards import reward_functions
    from vlmplan_trainer.trl_training.samples import gathered_rows

    if options.rewards is not None:
        reward_functions(options.rewards)
    data = gathered_rows(plan, options, task)
    return {"train": data.account, "eval": data.eval_account}


if __name__ == "__main__":
    sys.exit(main())

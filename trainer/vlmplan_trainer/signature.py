"""What a checkpoint says of its run, and what has to be the same for the run to go on.

What decides the weights, the samples and their order, and what each step changes; how work is spread over GPUs and
memory may change (``fixed_settings``). run.json has the options of a run too; this holds where that file is
gone, and against a plan that was given by hand.
"""

import json
from typing import Any

from vlmplan.launch.plan_changes import STAGES_ALIKE
from vlmplan.plan import Plan
from vlmplan.recipe.settings import fixed_settings
from vlmplan.run.record import data_mark
from vlmplan.run.training import LEARNING_RATES
from vlmplan_trainer.options import Options
from vlmplan_trainer.phases import is_first


def run_signature(plan: Plan, options: Options, *, num_samples: int) -> dict[str, Any]:
    """Values by the words that a refusal says. The training data is read by the first rank alone, which compares."""
    method, stage = plan.recipe.method.value, plan.recipe.zero_stage
    rate = LEARNING_RATES[method] if options.learning_rate is None else options.learning_rate
    data = None if options.train_data is None or not is_first() else data_mark(options.train_data).sha256
    of_recipe = fixed_settings(plan.recipe.as_json())
    of_recipe["zero_stage"] = " or ".join(map(str, sorted(STAGES_ALIKE))) if stage in STAGES_ALIKE else stage
    values = {
        "samples": num_samples,
        "training data (SHA-256)": data,
        "seed": options.seed,
        "samples a step": plan.samples_per_step,
        "sequence length": plan.workload.seq_len,
        "learning rate": rate,
        "schedule": options.schedule,
        "warmup fraction": options.warmup_fraction,
        "weight decay": options.weight_decay,
        "grouping by length": options.group_by_length,
        **of_recipe,
    }
    return json.loads(json.dumps(values))  # as it will be read

"""A plan: what is trained, on what, how, and what that will take. The contract between recommend, rehearse and launch.

Schema ``vlmplan.plan/1``. ``plan_from_json(plan.as_json())`` is the plan again. Bytes are int, times are seconds.

    model       id, hub_id, config.json and preprocessor_config.json as planned, parameter counts
    workload    shape and number of samples
    hardware    card, GPUs per node, nodes
    offer       what it costs, or null
    recipe      every setting, resolved
    ds_config   DeepSpeed's, all numbers; null for plain PyTorch
    expected    phases, peaks, seconds
    environment variables that the run needs
    versions    of the libraries that the estimate was checked with
"""

# pyright: reportUnusedImport=false
from vlmplan.plan.file import PLAN_FILE, plan_from_json, plan_text, read_plan, write_plan
from vlmplan.plan.making import largest_parameter, plan_from_estimate
from vlmplan.plan.record import (
    SCHEMA,
    Expectation,
    Plan,
    PlannedHardware,
    PlannedOffer,
)

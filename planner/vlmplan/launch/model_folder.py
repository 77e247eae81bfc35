"""A model's folder on this machine beside the plan that was made of it: whether it still says the same, and has weights
for it. The trainer refuses the same when it loads a model, which is when all ranks have started
(``stored_weights.py``).
"""

from collections.abc import Iterator
from pathlib import Path

from vlmplan.errors import VlmplanError
from vlmplan.files.json_reader import shown
from vlmplan.models import described, find_model
from vlmplan.models.hub_names import CONFIG
from vlmplan.models.stored_weights import WEIGHT_FILES, adapter_problems, has_weights, sizes, weight_problems
from vlmplan.notes import listed
from vlmplan.plan import Plan


def model_folder_problems(plan: Plan, folder: Path, *, random_weights: bool) -> Iterator[str]:
    """Why no run of ``plan`` can begin with what is in ``folder``; sentences. With ``random_weights`` the trainer reads
    none, and takes the plan's own configuration."""
    if random_weights:
        return
    is_other = list(_config_problems(plan, folder))
    yield from is_other
    yield from adapter_problems(folder)
    if not has_weights(folder):
        patterns = " or ".join(WEIGHT_FILES)
        yield f"the model's folder {folder} has no weights ({patterns}); --random-weights tries a run without"
        return
    if not is_other:
        model = plan.workload.model
        yield from weight_problems(described(model, model.config), folder)


def _config_problems(plan: Plan, folder: Path) -> Iterator[str]:
    """The trainer builds what config.json says now, and refuses a model of another size. Files that a run has written
    say more than those that it began with, and may name weights otherwise."""
    planned = plan.workload.model
    try:
        present = find_model(str(folder))
        now, then = sizes(present), sizes(described(planned, planned.config))
        if now is None or then is None or sum(now.values()) == sum(then.values()):
            return
    except VlmplanError as error:
        yield str(error)
        return
    differing = [key for key in sorted(planned.config) if planned.config[key] != present.config.get(key)]
    said = [f"{key} {shown(present.config.get(key))} in place of {shown(planned.config[key])}" for key in differing[:3]]
    what = f"says {listed(said)}" if said else "is another one"
    yield f"{folder / CONFIG} {what}, for which the plan was not made; plan again"

"""The model of a run that goes on, where its folder has another place than when the run began: whether it is the same.

Frozen weights are in no checkpoint, so the folder has to have those that the run began with.
"""

from pathlib import Path

from vlmplan.models.weights_mark import weights_mark
from vlmplan.plan import Plan
from vlmplan.run.record import RECORD_FILE, is_moved_along, read_record


def other_model(before: Plan, plan: Plan, folder: Path) -> tuple[str, str] | None:
    """The model of the run in ``folder`` as it was and as it is, where the run cannot go on with it; None: it can."""
    was, now = f"model {before.model_source}", f"model {plan.model_source}"
    is_other = dict(before.workload.model.config) != dict(plan.workload.model.config)
    if before.model_source == plan.model_source:
        return ("another config.json of the model", "this one") if is_other else None
    place = Path(plan.model_source)
    if is_other or not place.is_absolute():
        return was, now
    if is_moved_along(Path(before.model_source), place, folder):
        return None
    record = read_record(folder)
    if record is None or record.weights is None:
        return was, f"{now}, of which {RECORD_FILE} does not tell whether its weights are the same"
    return None if weights_mark(place) == record.weights else (was, f"{now}, which has other weights")


def moved_sentence(before: Plan, plan: Plan, folder: Path) -> str | None:
    """What to say where the run in ``folder`` goes on with the same model at another place; None elsewhere."""
    if before.model_source == plan.model_source or other_model(before, plan, folder) is not None:
        return None
    return (
        f"the model is read from {plan.model_source} from here on; it was {before.model_source}, with the same weights"
    )

"""Why a run ran out of memory, beside the plan of the same setup, for ``vlmplan diagnose`` and Python."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmplan.commands.day import today

if TYPE_CHECKING:
    from vlmplan.diagnosis import Diagnosis, Log
    from vlmplan.request import Request


def files_of(log: Path) -> tuple[Path, Path | None]:
    """The log, and the plan beside it where ``log`` is the folder of a run. Raises InputError for another folder."""
    from vlmplan.errors import InputError
    from vlmplan.launch.run_folder import LOG_FILE
    from vlmplan.plan import PLAN_FILE

    if not log.is_dir():
        return log, None
    if (log / LOG_FILE).is_file():
        plan = log / PLAN_FILE
        return log / LOG_FILE, plan if plan.is_file() else None
    stages = sorted(found.parent for found in log.glob(f"*/{LOG_FILE}"))
    instead = f"{stages[-1]} has one" if stages else "name the log itself"
    raise InputError(f"{log} is a folder without {LOG_FILE}, which vlmplan launch keeps there; {instead}")


def diagnosed(log: "Log", request: "Request | None", catalog_files: tuple[Path, ...]) -> "Diagnosis":
    """What the log proves, beside the plan of a request where there is one."""
    from vlmplan.diagnosis import diagnosis_of

    found = diagnosis_of(log)
    return found if request is None else _beside_plan(found, request, catalog_files)


def described(found: "Diagnosis", command: "Callable[[Request], str]") -> dict[str, Any]:
    """The document of a diagnosis."""
    from vlmplan.answers.diagnosis import document

    return document(found, command, today())


def print_found(found: "Diagnosis", command: "Callable[[Request], str]") -> None:
    """What people see of it."""
    from vlmplan.answers.diagnosis import print_diagnosis

    print_diagnosis(found, command, today())


def request_of_plan(path: Path, catalog_files: tuple[Path, ...]) -> "Request":
    """What a plan.json is of."""
    from vlmplan.catalog import load_catalog
    from vlmplan.launch.plan_options import gpu_of, model_of, request_of
    from vlmplan.plan import read_plan

    plan = read_plan(path)
    name, _ = model_of(plan)
    return request_of(plan, model=name, gpu=gpu_of(plan, load_catalog(catalog_files)))


def _beside_plan(found: "Diagnosis", request: "Request", catalog_files: tuple[Path, ...]) -> "Diagnosis":
    from vlmplan.catalog import load_catalog
    from vlmplan.diagnosis import beside_plan
    from vlmplan.requested import requested_estimate

    present, notes = requested_estimate(request, catalog_files)
    return beside_plan(found, request, present, tuple(notes), load_catalog(catalog_files), today())

"""A curriculum: stages one after another, each with a plan of its own, which starts from what the one before leaves.

A stage starts from the model of the stage before it; from its adapter where both train the same one; else from the
model with the adapter merged in. Its folder is ``OUTPUT/NUMBER-NAME``.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmplan.emit import PLAN_FILE
from vlmplan.errors import InputError, VlmplanError
from vlmplan.launch.plan_changes import plan_problems
from vlmplan.launch.prepared import planned
from vlmplan.launch.resuming import Asked, asked_of, kept_options
from vlmplan.launch.run_folder import what_differs
from vlmplan.plan import Plan, read_plan
from vlmplan.recipe import Method
from vlmplan.request import Request, parse
from vlmplan.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER, REPORT_FILE, TrainerOptions

OptionValues = dict[str, Any]
"""Values by the names of options, as the command line reads them."""
DATA = ("train_data", "dummy_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``values`` by the names of options; what the file says, checked."""

    name: str
    values: OptionValues


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAllStages:
    """The options of the command line: ``given`` for plans, ``asked`` of the trainer. ``text``: what ``file`` held when
    the curriculum was started; None: it is to be read."""

    file: Path | None
    given: OptionValues
    asked: OptionValues
    hostfile: Path | None = None
    catalog_files: tuple[Path, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stage to be run. ``plan`` loads what the stage before leaves in ``needs``, ``unstarted`` the user's model."""

    title: str
    plan: Plan
    unstarted: Plan
    asked: Asked
    notes: list[str]
    needs: Path | None = None

    @property
    def trainer(self) -> TrainerOptions:
        return self.asked.trainer

    def asking(self, **changes: Any) -> "Step":
        """The same with other options of the trainer."""
        trainer = dataclasses.replace(self.trainer, **changes)
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, trainer=trainer))

    @property
    def is_done(self) -> bool:
        return self.trainer.resume and (self.trainer.output_dir / REPORT_FILE).is_file()

    @property
    def is_ready(self) -> bool:
        """Whether what it starts from is there."""
        return self.needs is None or self.needs.is_dir()


def planned_steps(stages: Sequence[Stage], of_all: OfAllStages) -> list[Step]:
    """A plan for every stage. Raises VlmplanError, with the stage, for what cannot be planned."""
    steps: list[Step] = []
    request: Request | None = None
    for number, stage in enumerate(stages, start=1):
        title = f"stage {number} of {len(stages)}, {stage.name}"
        try:
            request = request or parse(of_all.given)
            steps.append(_step(stage, number, title, of_all, request))
            if number > 1:
                steps[-2:] = _joined(steps[-2], steps[-1])
        except VlmplanError as error:
            raise type(error)(f"{title}: {error}") if type(error) is InputError else error from None
    return steps


def _step(stage: Stage, number: int, title: str, of_all: OfAllStages, request: Request) -> Step:
    """``request`` is that of the command line."""
    asked = of_all.asked
    of_trainer = asked | {key: value for key, value in stage.values.items() if key in asked}
    if any(key in stage.values for key in DATA):  # the stage's own data, not that of the command line
        of_trainer |= {key: stage.values.get(key) for key in DATA}
    of_trainer["output_dir"] = asked["output_dir"] / f"{number}-{stage.name}"
    whole = asked_of(of_trainer, hostfile=of_all.hostfile, catalog_files=of_all.catalog_files)
    of_plan = {key: value for key, value in stage.values.items() if key in of_all.given}
    whole = dataclasses.replace(whole, planned_with=kept_options(of_all.given | of_plan))
    plan, notes = planned(request.with_options(of_plan), whole.catalog_files, whole.trainer)
    return Step(title=title, plan=plan, unstarted=plan, asked=whole, notes=notes)


def _joined(before: Step, step: Step) -> tuple[Step, Step]:
    """Both, the later one starting from what the earlier one leaves."""
    folder = before.trainer.output_dir.absolute()
    if not before.plan.recipe.trains_adapters:
        return before, _starting(step, folder / MODEL_FOLDER)
    # The model's own weights are the same in both; what else differs is the adapter.
    if what_differs(dataclasses.replace(before.plan, workload=step.plan.workload), step.plan) is None:
        adapter = folder / ADAPTER_FOLDER
        plan = _loading(step.plan, before.plan.model_source)
        return before, dataclasses.replace(step.asking(adapter=adapter), plan=plan, needs=adapter)
    merging = before.asking(merge_adapters=True)
    if step.plan.recipe.method is Method.QLORA:
        step.notes.append("the merged weights are rounded to 4 bits again, and what was learnt with them")
    return merging, _starting(step, folder / MERGED_FOLDER)


def _starting(step: Step, folder: Path) -> Step:
    return dataclasses.replace(step, plan=_loading(step.plan, str(folder)), needs=folder)


def _loading(plan: Plan, source: str) -> Plan:
    model = dataclasses.replace(plan.workload.model, hub_id=source)
    return dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, model=model))


def changes(step: Step) -> Iterator[str]:
    """Why a stage that is done is not the one that is asked for."""
    folder = step.trainer.output_dir
    for sentence in (*step.asked.problems, *plan_problems(read_plan(folder / PLAN_FILE), step.plan, folder)):
        yield f"{step.title}: {sentence}"

"""A curriculum: stages one after another, each with a plan of its own, which starts from what the one before leaves.

A stage starts from the model of the stage before it; from its adapter where both train the same one; else from the
model with the adapter merged in. Its folder is ``OUTPUT/NUMBER-NAME``.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError, VlmplanError
from vlmplan.launch.plan_changes import plan_problems
from vlmplan.launch.prepared import asked_of, planned
from vlmplan.launch.resuming import LaunchRequest, kept_options, launch_request
from vlmplan.launch.run_folder import what_differs
from vlmplan.plan import PLAN_FILE, Plan, read_plan
from vlmplan.recipe.choices import BITS
from vlmplan.recipe.evaluation import AFTER_EPOCHS, OF_BEST
from vlmplan.run.record import refusal, said
from vlmplan.run.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER, REPORT_FILE, TrainerOptions

OptionValues = dict[str, Any]
"""Values by the names of options, as the command line reads them."""
DATA = ("train_data", "dummy_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``values`` by the names of options; what the file says, checked."""

    name: str
    values: OptionValues


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumOptions:
    """The options of the command line that hold for all stages. ``text``: what ``file`` held when the curriculum was
    started; None: it is to be read."""

    file: Path | None
    plan_options: OptionValues
    trainer_options: OptionValues
    hostfile: Path | None = None
    catalog_files: tuple[Path, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage to be run. ``plan`` loads what the stage before leaves in ``needs``, ``unstarted`` the user's model;
    ``given``: the options that both are made of."""

    title: str
    plan: Plan
    unstarted: Plan
    launch_request: LaunchRequest
    given: OptionValues
    notes: list[str]
    needs: Path | None = None

    @property
    def trainer(self) -> TrainerOptions:
        return self.launch_request.trainer

    def with_trainer_options(self, **changes: Any) -> "PlannedStage":
        """The stage with other options of the trainer."""
        trainer = dataclasses.replace(self.trainer, **changes)
        return dataclasses.replace(self, launch_request=dataclasses.replace(self.launch_request, trainer=trainer))

    @property
    def is_done(self) -> bool:
        return self.trainer.resume and (self.trainer.output_dir / REPORT_FILE).is_file()

    @property
    def is_ready(self) -> bool:
        """Whether what it starts from is there."""
        return self.needs is None or self.needs.is_dir()


def planned_stages(stages: Sequence[Stage], options: CurriculumOptions) -> list[PlannedStage]:
    """A plan for every stage. Raises VlmplanError, with the stage, for what cannot be planned."""
    steps: list[PlannedStage] = []
    for number, stage in enumerate(stages, start=1):
        title = f"stage {number} of {len(stages)}, {stage.name}"
        try:
            steps.append(_planned_stage(stage, number, title, options))
            if number > 1:
                steps[-2:] = _joined(steps[-2], steps[-1])
        except VlmplanError as error:
            raise type(error)(f"{title}: {error}") if type(error) is InputError else error from None
    return steps


def _planned_stage(stage: Stage, number: int, title: str, options: CurriculumOptions) -> PlannedStage:
    shared = options.trainer_options
    of_trainer = shared | {key: value for key, value in stage.values.items() if key in shared}
    if any(key in stage.values for key in DATA):  # the stage's own data, not that of the command line
        of_trainer |= {key: stage.values.get(key) for key in DATA}
    elif "data" in stage.values:  # what is planned from is trained on
        of_trainer |= {"train_data": stage.values["data"], "dummy_data": None}
    of_trainer["output_dir"] = shared["output_dir"] / f"{number}-{stage.name}"
    request_of_stage = launch_request(of_trainer, hostfile=options.hostfile, catalog_files=options.catalog_files)
    given = options.plan_options | {key: stage.values[key] for key in stage.values if key in options.plan_options}
    request_of_stage = dataclasses.replace(request_of_stage, planned_with=kept_options(given))
    trainer = request_of_stage.trainer
    plan, notes = planned(asked_of(given, trainer), request_of_stage.catalog_files, trainer)
    return PlannedStage(
        title=title, plan=plan, unstarted=plan, launch_request=request_of_stage, given=given, notes=notes
    )


def _joined(before: PlannedStage, step: PlannedStage) -> tuple[PlannedStage, PlannedStage]:
    """The stages with the later one starting from what the earlier one leaves. Raises InputError where no model can."""
    folder = before.trainer.output_dir.absolute()
    if before.plan.recipe.scores_rows and not step.plan.recipe.scores_rows:
        raise InputError("the stage before leaves a reward model, which writes no words; let it come last")
    if not before.plan.recipe.trains_adapters:
        return before, _starting(step, folder / MODEL_FOLDER)
    # The model's own weights are the same in both; what else differs is the adapter.
    if what_differs(dataclasses.replace(before.plan, workload=step.plan.workload), step.plan) is None:
        adapter = folder / ADAPTER_FOLDER
        started = step.with_trainer_options(adapter=adapter)
        own, _ = planned(asked_of(step.given, started.trainer), step.launch_request.catalog_files, started.trainer)
        plan = _loading(own, before.plan.model_source)
        return before, dataclasses.replace(started, plan=plan, unstarted=own, needs=adapter)
    merging = before.with_trainer_options(merge_adapters=True)
    if step.plan.recipe.method.packs_weights:
        bits = BITS[step.plan.recipe.method]
        step.notes.append(f"the merged weights are rounded to {bits} bits again, and what was learnt with them")
    return merging, _starting(step, folder / MERGED_FOLDER)


def _starting(step: PlannedStage, folder: Path) -> PlannedStage:
    return dataclasses.replace(step, plan=_loading(step.plan, str(folder)), needs=folder)


def _loading(plan: Plan, source: str) -> Plan:
    model = dataclasses.replace(plan.workload.model, hub_id=source)
    return dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, model=model))


def left_stages(steps: Sequence[PlannedStage]) -> list[PlannedStage]:
    """Those behind the last one that is done: what that one left is what they start from, whatever is still there of
    the stages before it."""
    num_done = max((number for number, step in enumerate(steps, start=1) if step.is_done), default=0)
    return list(steps[num_done:])


def changes(step: PlannedStage) -> Iterator[str]:
    """Why a stage that is done is not the one that is asked for."""
    folder = step.trainer.output_dir
    before = read_plan(folder / PLAN_FILE)
    for sentence in (*step.launch_request.problems, *plan_problems(before, step.plan, folder)):
        yield f"{step.title}: {sentence}"
    record = step.launch_request.record
    lengths: dict[str, tuple[object, object]] = {
        "epochs": (f"{before.workload.epochs:g}", f"{step.plan.workload.epochs:g}")
    }
    kept = (before.recipe.evaluation or AFTER_EPOCHS, step.plan.recipe.evaluation or AFTER_EPOCHS)
    lengths |= {name: (getattr(kept[0], name), getattr(kept[1], name)) for name in OF_BEST}
    if record is not None:
        lengths["max_steps"] = (record.options.max_steps, step.trainer.max_steps)
    for name, (was, now) in lengths.items():
        if was != now:
            yield f"{step.title}: {refusal(folder, said(name, was), said(name, now))}"

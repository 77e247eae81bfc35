"""A run as it would be started: its plan, what this machine says to it, its command, environment and files."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vlmplan.catalog import load_catalog
from vlmplan.chats.data_files import num_samples_in
from vlmplan.errors import UnavailableError, VlmplanError
from vlmplan.launch.data_look import DataLook, looked_at
from vlmplan.launch.facts import Facts, facts_of_this_machine, machine_json
from vlmplan.launch.finished import finished_problem, merges_only, result_problem
from vlmplan.launch.optimizer_settings import refuse_other_settings
from vlmplan.launch.preflight import Findings, data_problems, missing_packages, model_problems, preflight
from vlmplan.launch.resuming import LaunchRequest, record_to_keep
from vlmplan.launch.run_folder import begun_plan, changes_of_plan, has_checkpoint, run_texts
from vlmplan.launch.start import run_command, run_environment
from vlmplan.plan import PLAN_FILE, Plan, plan_from_estimate
from vlmplan.recipe.task_choices import Reference, TaskTrainer
from vlmplan.request import EvaluationRequest, Options, Request, parse
from vlmplan.requested import requested_estimate, requested_recipe
from vlmplan.run.training import TrainerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that was looked at and not started."""

    plan: Plan
    options: TrainerOptions
    facts: Facts
    findings: Findings
    command: list[str]
    environment: dict[str, str]
    texts: dict[str, str]
    notes: list[str]
    catalog_files: tuple[Path, ...] = ()
    hostfile: Path | None = None
    data: DataLook | None = None
    merges_only: bool = False
    """The run has ended, and its adapter is merged: nothing is trained."""


def asked_of(options: Options, trainer: TrainerOptions) -> Request:
    """The request of the options that plan a run; samples that it is planned from have the trainer's images."""
    return parse(options if options.get("data") is None else {**options, "image_folder": trainer.image_folder})


def planned(request: Request, catalog_files: tuple[Path, ...], trainer: TrainerOptions) -> tuple[Plan, list[str]]:
    """The plan that is asked for; the data says how many samples there are, if the user does not. A plan of ``--data``
    has room for every image.
    """
    if request.from_data is not None:
        request = request.with_room_for_images()
    if request.workload.num_samples is None:
        num_samples = trainer.dummy_data
        if trainer.train_data is not None:
            with suppress(UnavailableError):  # which is said among the problems
                num_samples = num_samples_in(trainer.train_data)
        request = request.with_options({"num_samples": num_samples or None})
    if trainer.adapter is not None:
        request = _with_reference(request, catalog_files)
    if trainer.eval_data is not None:
        before = begun_plan(trainer.output_dir) if trainer.resume else None
        if before is None:
            request = _with_evaluation(request, catalog_files, trainer.eval_data)
        else:  # which stays
            request = request.completed(Request(evaluation=EvaluationRequest.of(before.recipe.evaluation)))
    result, notes = requested_estimate(request, catalog_files)
    base = request.ds_config
    if base is not None:
        refuse_other_settings(base, trainer)
    every = [*result.workload.model.notes, *result.hints, *result.cautions, *notes]
    return plan_from_estimate(result, base=base), every


def _with_reference(request: Request, catalog_files: tuple[Path, ...]) -> Request:
    """The request of a run that starts from an adapter: DPO and KTO hold it to where it starts, as TRL does with a
    model that has its adapters, where the user does not say what the reference is."""
    recipe = requested_recipe(request, catalog_files)
    task = recipe.task
    if task is None or not task.reads_reference or task.trainer is not TaskTrainer.TRL or not recipe.trains_adapters:
        return request
    return request if task.reference is not None else request.with_options({"reference": Reference.ADAPTER_COPY.value})


def _with_evaluation(request: Request, catalog_files: tuple[Path, ...], eval_data: Path) -> Request:
    """The request with the evaluation of ``eval_data`` as the trainer does it, where the user does not say how: in
    batches of a micro batch, of all samples. Unchanged where the file cannot be read, which is said among the problems,
    and where a task of another trainer is planned, which launch does not run."""
    num_samples = 0
    with suppress(VlmplanError):
        num_samples = num_samples_in(eval_data)
    asked, task = request.evaluation, request.task.task()
    if not num_samples or (task is not None and task.trainer is not TaskTrainer.TRL):
        return request
    batch = asked.batch
    if batch is None:
        batch = requested_recipe(replace(request, evaluation=EvaluationRequest()), catalog_files).eval_batch
    return request.with_options({"eval_batch": batch, "eval_samples": asked.samples or num_samples})


def prepare(plan: Plan, launch_request: LaunchRequest, notes: Sequence[str]) -> PreparedRun:
    """Look at this machine; the command, environment and files of the run."""
    trainer, hostfile = launch_request.trainer, launch_request.hostfile
    resumes = trainer.resume and has_checkpoint(trainer.output_dir)
    notes = [*notes, *launch_request.notes, *(changes_of_plan(trainer.output_dir, plan) if trainer.resume else ())]
    merges = merges_only(plan, trainer)
    begins_anew = trainer.resume and not resumes and not merges
    finished = result_problem(trainer.output_dir) if begins_anew else finished_problem(plan, trainer)
    if begins_anew and finished is None:
        notes.append(f"{trainer.output_dir} has no checkpoint to go on from, so training starts anew")
    facts = facts_of_this_machine(plan, trainer.output_dir)
    findings = preflight(plan, trainer, facts, load_catalog(launch_request.catalog_files), hostfile=hostfile)
    ended = () if finished is None else (finished,)
    findings = replace(findings, problems=(*launch_request.problems, *ended, *findings.problems))
    command = run_command(
        plan,
        plan_path=os.path.abspath(trainer.output_dir / PLAN_FILE),
        hostfile=hostfile,
        facts=replace(facts, visible_devices=None) if findings.problems else facts,
        arguments=replace(trainer, resume=resumes or merges).arguments(),
        is_alone=merges,
    )
    environment = run_environment(plan, facts, trainer.output_dir, os.environ)
    versions = {"vlmplan": plan.vlmplan_version} | machine_json(facts)
    return PreparedRun(
        plan=plan,
        options=trainer,
        facts=facts,
        findings=findings,
        command=command,
        environment=environment,
        texts=run_texts(plan, command, environment, versions, record_to_keep(launch_request, plan)),
        notes=[note for note in notes if note not in (*findings.problems, *findings.warnings)],
        catalog_files=launch_request.catalog_files,
        hostfile=hostfile,
        merges_only=merges,
    )


def with_data(prepared: PreparedRun) -> PreparedRun:
    """``prepared`` after a look at its data as its start would read it; what that refuses is one more problem."""
    plan, options, findings = prepared.plan, prepared.options, prepared.findings
    if prepared.merges_only or options.train_data is options.eval_data is None:
        return prepared
    if any(model_problems(plan, options)) or any(data_problems(plan, options)):  # which it would say too
        return prepared
    missing = missing_packages(plan, prepared.facts.packages)
    if missing:
        note = f"the data was not looked at, which needs {', '.join(missing)}"
        return replace(prepared, notes=[*prepared.notes, note])
    data = looked_at(plan, options, prepared.environment)
    if data.problem not in (None, *findings.problems):
        findings = replace(findings, problems=(*findings.problems, data.problem))
    return replace(prepared, findings=findings, data=data)

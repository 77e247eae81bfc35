"""A whole run of DPO, a reward model, KTO or GRPO: load, train through TRL, save, export, report."""

import importlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, PrinterCallback

from vlmplan.errors import InputError
from vlmplan.files import write_atomically
from vlmplan.launch.finished import LENGTH, STEPS, run_length
from vlmplan.launch.rank_locks import rank_lock
from vlmplan.launch.run_steps import task_steps
from vlmplan.launch.task_runs import task_problems
from vlmplan.phase_names import LOAD
from vlmplan.plan import Plan
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference
from vlmplan.run.record import data_mark, keep_record
from vlmplan.run.training import LENGTHS_FILE, REPORT_FILE, adapter_weights
from vlmplan.units import counted
from vlmplan_trainer.engines.make import device_of
from vlmplan_trainer.engines.ranks import RanksHere
from vlmplan_trainer.loop import Position, Rates
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.models.delta_kernels import require_delta_kernels
from vlmplan_trainer.models.load import LoadedModel, load_model
from vlmplan_trainer.options import Options
from vlmplan_trainer.out_of_memory import is_out_of_memory, report_out_of_memory
from vlmplan_trainer.phases import is_first, rank_here, say_building, say_phase
from vlmplan_trainer.reporting.earlier import pace
from vlmplan_trainer.reporting.evaluated import Evaluated
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.reporting.report import SCHEMA, lines, print_report, usd_so_far
from vlmplan_trainer.reporting.result import about_result
from vlmplan_trainer.saving.checkpoint import UNFINISHED, FoundCheckpoint
from vlmplan_trainer.saving.random_state import seed_all
from vlmplan_trainer.saving.safe_loading import data_only
from vlmplan_trainer.signature import run_signature
from vlmplan_trainer.starting import (
    checkpoint_to_go_on_from,
    join_ranks,
    refuse_best_of_nothing,
    refuse_finished,
)
from vlmplan_trainer.stopping import StopRequest, exit_code
from vlmplan_trainer.trl_training.arguments import peak_rate, trl_arguments
from vlmplan_trainer.trl_training.callback import StepCallback
from vlmplan_trainer.trl_training.classes import NAMES, trl_of
from vlmplan_trainer.trl_training.phases import TaskPhases
from vlmplan_trainer.trl_training.planned import (
    PlannedRun,
    TokenCounts,
    keeping_checkpointing,
    planned_trainer,
)
from vlmplan_trainer.trl_training.rewards import reward_functions
from vlmplan_trainer.trl_training.samples import Row, RowReader, TaskData, gathered_rows, text_dataset
from vlmplan_trainer.trl_training.trained import TrainedModel, best_of, write_result

OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""What a launcher tells a rank."""
ROWS_FOLDER = "trl-rows"
"""Rows of a run whose ranks hand each other what is computed of them; gone when it ends."""
TRAINED, EVALUATED = "train", "eval"
"""What they are for: folders within it."""


@dataclass
class TaskRun:
    """What a run works with, on this rank."""

    plan: Plan
    options: Options
    data: TaskData
    loaded: LoadedModel
    trainer: Any
    planned: PlannedRun
    ranks: RanksHere
    follows: StepCallback


def run(plan: Plan, options: Options) -> int:
    """Train what ``plan`` says on what ``options`` say. Raises InputError for what the user can mend,
    MissingPackageError without TRL."""
    with rank_lock(options.output_dir, rank_here()):
        return _run(plan, options)


def _run(plan: Plan, options: Options) -> int:
    task = plan.recipe.task
    assert task is not None
    problem = next(task_problems(plan, options), None)
    if problem is not None:
        raise InputError(problem)
    refuse_best_of_nothing(plan, options)
    seed_all(options.seed)
    rewards = [] if options.rewards is None else reward_functions(options.rewards)
    data = gathered_rows(plan, options, task)  # bad data stops a run before its model is loaded
    say_phase("loading TRL")
    trl_of(task)
    device = device_of(plan)
    join_ranks(plan)
    if not torch.distributed.is_initialized():
        for name in OF_RANKS:  # accelerate would look for others
            os.environ.pop(name, None)
    meter = Meter(device, num_steps=options.measured_steps)
    try:
        return _measured_run(plan, options, task, data, rewards, meter)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return report_out_of_memory(error, plan, options, meter)


def _measured_run(
    plan: Plan, options: Options, task: TrainingTask, data: TaskData, rewards: Sequence[Any], meter: Meter
) -> int:
    signature = _signature(plan, options, data)
    num_steps = task_steps(plan, task, len(data.rows))
    if options.max_steps is not None:
        num_steps = min(num_steps, options.max_steps)
    found = checkpoint_to_go_on_from(plan, options, signature) if options.resume else None
    if found is not None:
        refuse_finished(options, found, num_steps=num_steps)
        _refuse_other_ranks(plan, found)
    say_building(plan.model_source, random_weights=options.random_weights)
    with meter.phase(LOAD):
        require_delta_kernels(plan.recipe)
        loaded = load_model(plan, random_weights=options.random_weights, seed=options.seed, adapter=options.adapter)
        meter.count(loaded.model)
    position = Position() if found is None else found.manifest.position
    planned = planned_run(plan, options, meter, num_steps=num_steps, signature=signature, position=position)
    stop = StopRequest()
    with _progress(plan, options, data, planned, stop) as progress, stop:
        follows = StepCallback(planned, progress, stop)
        follows.evaluated = _evaluation_of(plan, data)
        say_phase(f"making TRL's {NAMES[task.kind]}Trainer")
        trainer = made_trainer(planned, task, data, loaded, rewards, follows)
        made = TaskRun(plan, options, data, loaded, trainer, planned, planned.ranks, follows)
        planned.best = best_of(plan, options, TrainedModel(trainer, planned.ranks), loaded, data.processing)
        _train(made, found, progress)
    if follows.stopped_by is not None:
        return exit_code(follows.stopped_by)
    _finish(made)
    return 0


def _evaluation_of(plan: Plan, data: TaskData) -> Evaluated | None:
    account = data.eval_account
    if account is None:
        return None
    num_left_over = account.num_samples % plan.recipe.samples_evaluated_at_once(plan.hardware.num_gpus)
    return Evaluated(num_samples=account.num_samples - num_left_over, num_left_out=account.num_left_out + num_left_over)


def planned_run(
    plan: Plan,
    options: Options,
    meter: Meter,
    *,
    num_steps: int,
    signature: Mapping[str, Any],
    position: Position,
) -> PlannedRun:
    """What the trainer of a run needs of it. The ranks have to have met."""
    rates = Rates(
        peak=peak_rate(plan, options),
        num_steps=num_steps,
        warmup_fraction=options.warmup_fraction,
        schedule=options.schedule,
    )
    return PlannedRun(
        plan=plan,
        options=options,
        rates=rates,
        phases=TaskPhases(meter),
        signature=signature,
        position=position,
        counts=TokenCounts(),
        ranks=RanksHere(device_of(plan)),
    )


def _signature(plan: Plan, options: Options, data: TaskData) -> Mapping[str, Any]:
    values = run_signature(plan, options, num_samples=len(data.rows))
    rewards = None if options.rewards is None or not is_first() else data_mark(options.rewards).sha256
    numbers = {"beta": options.beta, "temperature": options.temperature}
    if plan.recipe.task is not None and plan.recipe.task.is_kto:
        numbers |= {"desirable weight": options.desirable_weight, "undesirable weight": options.undesirable_weight}
    if plan.recipe.reference is Reference.ADAPTER_COPY:
        numbers["adapter of the reference (SHA-256)"] = _mark_of_adapter(options)
    return values | numbers | {"reward functions (SHA-256)": rewards}


def _mark_of_adapter(options: Options) -> str | None:
    """Of the weights that the reference keeps, which a run that goes on reads again; None for fresh adapters."""
    weights = None if options.adapter is None else adapter_weights(options.adapter)
    return None if weights is None or not is_first() else data_mark(weights).sha256


def _refuse_other_ranks(plan: Plan, found: FoundCheckpoint) -> None:
    if found.manifest.num_ranks != plan.hardware.num_gpus:
        raise InputError(
            f"--resume: {found.place} was written by {counted(found.manifest.num_ranks, 'rank')}, and the plan is for "
            f"{plan.hardware.num_gpus}; tasks go on with as many as they began with"
        )


def _progress(plan: Plan, options: Options, data: TaskData, planned: PlannedRun, stop: StopRequest) -> ProgressReporter:
    is_on_cpu = plan.hardware.vendor == "cpu"
    return ProgressReporter(
        plan,
        options.output_dir,
        rank=rank_here(),
        num_steps=planned.rates.num_steps,
        first_step=planned.position.step,
        num_slow_steps=max(1, options.measured_steps if is_on_cpu else 1),
        of_every_step={"num_left_out": data.account.num_left_out},
        on_lost_output=stop.ask,
    )


# -- TRL's trainer -----------------------------------------------------------------------------------------------------


def made_trainer(
    planned: PlannedRun,
    task: TrainingTask,
    data: TaskData,
    loaded: LoadedModel,
    rewards: Sequence[Any],
    follows: StepCallback,
) -> Any:
    """The trainer of a run. Raises InputError for what TRL refuses."""
    plan, options = planned.plan, planned.options
    keeping_checkpointing(loaded.model, plan)
    config, kind = trl_of(task)
    folder = options.output_dir / "checkpoints" / f"trl{UNFINISHED}"
    values = trl_arguments(
        plan, options, task, num_steps=planned.rates.num_steps, folder=folder, is_vision=data.processing.is_vision
    )
    if plan.recipe.reference is Reference.COPY and (own := of_second_model(loaded)):
        values["model_init_kwargs"] = own
    given: dict[str, Any] = {"reward_funcs": list(rewards)} if task.is_grpo else {"data_collator": data.collator}
    os.environ["TQDM_DISABLE"] = "1"
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)  # it has DeepSpeed's numbers, which are these
    try:
        trainer = planned_trainer(kind)(
            model=loaded.model,
            args=config(**values),
            train_dataset=_dataset(planned, data, data.rows, TRAINED) if data.dataset is None else data.dataset,
            eval_dataset=_evaluated(planned, data),
            processing_class=data.processing.processor,
            callbacks=[follows],
            planned=planned,
            **given,
        )
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"TRL refuses this run: {' '.join(str(error).split())}") from None
    trainer.remove_callback(PrinterCallback)
    reference = getattr(trainer, "ref_model", None)
    if reference is not None:
        planned.phases.count_reference(reference)
        follows.reference = reference
    return trainer


def of_second_model(loaded: LoadedModel) -> dict[str, Any]:
    """Whether the head is the embedding's in the second model, which TRL loads by itself, where that would be otherwise
    than in the first: transformers does not always read it as files have it (``models.load``)."""
    is_tied = loaded.config.tie_word_embeddings
    of_model: Any = loaded.model.config
    read = AutoConfig.from_pretrained(of_model._name_or_path, trust_remote_code=False)
    return {} if read.tie_word_embeddings == is_tied else {"tie_word_embeddings": is_tied}


def _evaluated(planned: PlannedRun, data: TaskData) -> Any:
    """What is evaluated; None: nothing is."""
    return data.evaluated if not data.eval_rows else _dataset(planned, data, data.eval_rows, EVALUATED)


def _dataset(planned: PlannedRun, data: TaskData, rows: Sequence[Row], name: str) -> Any:
    """TRL's, of rows; written answers of text are tokenised by TRL before training, all others row by row.

    Where TRL computes the reference's log-probabilities before training, one rank keeps them in a file for all, which
    it does beside the rows: so those are in a folder (``_precompute_ref_logps`` in ``dpo_trainer.py`` 1.16).
    """
    datasets = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    task = planned.plan.recipe.task
    if task is not None and not task.is_grpo and not data.sees:
        texts = text_dataset(datasets, rows)
        if planned.plan.recipe.reference is not Reference.PRECOMPUTED or planned.ranks.num_ranks == 1:
            return texts
        folder = str(planned.options.output_dir / ROWS_FOLDER / name)
        if planned.ranks.rank == 0:
            texts.save_to_disk(folder)
        planned.ranks.barrier()
        return datasets.load_from_disk(folder)
    assert data.encoder is not None
    numbers = datasets.Dataset.from_dict({"number": list(range(len(rows)))})
    return numbers.with_transform(RowReader(rows, data.encoder))


def _train(made: TaskRun, found: FoundCheckpoint | None, progress: ProgressReporter) -> None:
    planned, options, recipe = made.planned, made.options, made.plan.recipe
    if made.ranks.rank == 0:
        keep_record(options, recipe.method.value)
        lengths = "".join(f"{length}\n" for length in made.data.lengths)
        write_atomically(options.output_dir / LENGTHS_FILE, lengths, force=True)
    for sentence in _about_run(made):
        progress.say(sentence)
    left = planned.rates.num_steps - planned.position.step
    say_phase(f"training: {counted(left, 'step')}")
    with ExitStack() as reading:
        place = None
        if found is not None:
            say_phase(f"going on from {found.place}")
            place = str(found.place / f"checkpoint-{planned.position.step}")
            reading.enter_context(data_only(found.place))
        made.follows.on_loaded = reading.close
        if (
            recipe.task is not None and recipe.task.is_grpo
        ):  # TRL counts micro batches from 0 again (grpo_trainer.py 1.16)
            made.trainer._step = planned.position.step * recipe.grad_accum
        made.trainer.train(resume_from_checkpoint=place)
    if made.follows.evaluates_after_training:
        made.trainer.evaluate()
    if planned.best is not None and planned.stops_early:
        progress.say(planned.best.found.sentence())
    if made.follows.stopped_by is not None:
        name = signal.Signals(made.follows.stopped_by).name
        progress.say(f"stopped by {name} after step {planned.position.step}, which is saved; --resume goes on")


def _about_run(made: TaskRun) -> Iterator[str]:
    yield from made.data.account.lines()
    task = made.plan.recipe.task
    assert task is not None
    if task.is_grpo:
        names = ", ".join(made.trainer.reward_func_names)
        yield f"answers are scored by {names} of {made.options.rewards}, which is your code and runs as it is"


def _finish(made: TaskRun) -> None:
    plan, options, planned = made.plan, made.options, made.planned
    say_phase("writing the result")
    trained = TrainedModel(made.trainer, made.ranks)
    folder = write_result(plan, options, trained, made.loaded, made.data.processing, planned.best)
    planned.phases.meter.take_highest_of_ranks()
    if made.ranks.rank != 0:
        return
    shutil.rmtree(options.output_dir / ROWS_FOLDER, ignore_errors=True)
    steps = pace(made.follows.reports, made.follows.earlier, num_followed=options.measured_steps)
    position, account = planned.position, made.data.account
    figures = lines(
        plan,
        planned.phases.meter,
        position,
        pace=steps,
        evaluated=made.follows.evaluated,
    )
    content = {
        "schema": SCHEMA,
        STEPS: position.step,
        LENGTH: run_length(plan, options),
        "seconds": position.seconds,
        "usd": usd_so_far(plan, position.seconds),
        "last_loss": steps.last_loss,
        "num_truncated": account.num_truncated,
        "num_skipped": account.num_left_out,
        "num_left_out": account.num_left_out,
        "num_bad": account.num_bad,
        "num_no_room": account.num_no_room,
        **({} if made.follows.evaluated is None else made.follows.evaluated.as_json()),
        "result": str(folder),
        "planned_and_measured": [figure.as_json() for figure in figures],
    }
    write_atomically(options.output_dir / REPORT_FILE, json.dumps(content, indent=1) + "\n", force=True)
    print_report(Console(highlight=False, soft_wrap=True, force_terminal=False), figures)
    has_random_base = plan.recipe.trains_adapters and options.random_weights
    about = about_result(plan, folder, made.data.processing, has_random_base=has_random_base)
    sys.stdout.writelines(f"{line}\n" for line in about)

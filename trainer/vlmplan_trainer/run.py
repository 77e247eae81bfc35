"""A whole run: load, train, evaluate, save, export, report."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vlmplan.chats.samples import MAX_SENTENCES
from vlmplan.files import write_atomically
from vlmplan.launch.finished import LENGTH, STEPS, run_length
from vlmplan.launch.rank_locks import rank_lock
from vlmplan.launch.run_steps import sft_steps
from vlmplan.phase_names import INIT, LOAD, RESUME, SAVE
from vlmplan.plan import Plan
from vlmplan.run.record import keep_record
from vlmplan.run.training import LEARNING_RATES, LENGTHS_FILE, REPORT_FILE
from vlmplan.sampler import Shares
from vlmplan.units import counted
from vlmplan_trainer.data.batches import PADS_TO, Batches
from vlmplan_trainer.data.encode import Encoder
from vlmplan_trainer.data.flat_batches import BATCHES
from vlmplan_trainer.data.read import Data, read_data
from vlmplan_trainer.data.scan import DatasetScan
from vlmplan_trainer.engines import Engine, make_engine
from vlmplan_trainer.engines.make import device_of, multiplies_in_tf32
from vlmplan_trainer.engines.ranks import RanksHere
from vlmplan_trainer.engines.zero import TAG
from vlmplan_trainer.loop import Rates, StepReport, StepRules, Trainer
from vlmplan_trainer.made_run import EvaluatedData, Run
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.models.delta_kernels import require_delta_kernels
from vlmplan_trainer.models.load import LoadedModel, load_model
from vlmplan_trainer.options import Options
from vlmplan_trainer.out_of_memory import is_out_of_memory, report_out_of_memory
from vlmplan_trainer.phases import rank_here, say_building, say_phase
from vlmplan_trainer.ranks import of_all_ranks
from vlmplan_trainer.reporting.earlier import Earlier, Pace, pace
from vlmplan_trainer.reporting.evaluated import Evaluated
from vlmplan_trainer.reporting.monitors import Monitors, check_monitors
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.reporting.report import SCHEMA, lines, print_report, usd_so_far
from vlmplan_trainer.reporting.result import about_result, result_folder
from vlmplan_trainer.resized_storages import telling_of_resized_storages
from vlmplan_trainer.saving.best import BestResult
from vlmplan_trainer.saving.checkpoint import (
    FoundCheckpoint,
    load_checkpoint,
    save_checkpoint,
    universal_form,
)
from vlmplan_trainer.saving.export import export, merge
from vlmplan_trainer.saving.random_state import seed_all
from vlmplan_trainer.signature import run_signature
from vlmplan_trainer.starting import (
    checkpoint_to_go_on_from,
    join_ranks,
    refuse_best_of_nothing,
    refuse_finished,
    refuse_reported,
)
from vlmplan_trainer.stopping import exit_code


def run(plan: Plan, options: Options) -> int:
    """Train what ``plan`` says on what ``options`` say. Raises InputError for what the user can mend."""
    with rank_lock(options.output_dir, rank_here()):
        return _run(plan, options)


def _run(plan: Plan, options: Options) -> int:
    seed_all(options.seed)
    check_monitors(options.monitor)
    refuse_best_of_nothing(plan, options)
    data = read_data(plan, options)  # bad data stops a run before its model is loaded
    device = device_of(plan)
    join_ranks(plan, is_needed=bool(options.monitor))
    meter = Meter(device, num_steps=options.measured_steps)
    try:
        with telling_of_resized_storages(meter.resized) if plan.recipe.fsdp else nullcontext():
            return _measured_run(plan, options, data, device, meter)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return report_out_of_memory(error, plan, options, meter)


def _measured_run(plan: Plan, options: Options, data: Data, device: torch.device, meter: Meter) -> int:
    monitors = Monitors(
        options.monitor, options.output_dir, rank=rank_here()
    )  # no login, say, before a model is loaded
    signature = run_signature(plan, options, num_samples=len(data.train.samples))
    found = checkpoint_to_go_on_from(plan, options, signature) if options.resume else None
    batches = _training_batches(plan, options, data, RanksHere(device))
    num_steps = _num_steps(plan, options, batches)
    if found is not None:
        refuse_finished(options, found, num_steps=num_steps)
    say_building(plan.model_source, random_weights=options.random_weights)
    require_delta_kernels(plan.recipe)
    with meter.phase(LOAD):
        loaded = load_model(plan, random_weights=options.random_weights, seed=options.seed, adapter=options.adapter)
        meter.count(loaded.model)
    universal = None if found is None else _universal(found, plan)
    stage = plan.recipe.zero_stage
    say_phase("making the optimizer" if stage is None else f"starting DeepSpeed, ZeRO-{stage}")
    with meter.phase(INIT):
        engine = make_engine(
            loaded.model, plan, device=device, weight_decay=options.weight_decay, is_universal=universal is not None
        )
    trainer = Trainer(
        engine, meter, _rates(plan, options, num_steps), StepRules.of(plan), save_seconds=options.save_seconds
    )
    evaluation = _evaluation_of(plan, options, data, loaded, engine)
    made = Run(plan, options, data, loaded, engine, meter, batches, evaluation, trainer, signature)
    if found is not None:
        say_phase(f"going on from {found.place}")
        with meter.phase(RESUME):
            made.trainer.position = load_checkpoint(engine, found, universal=universal)
        meter.step = made.trainer.position.step
        made.batches.resume(made.trainer.position.num_samples)
    if engine.rank == 0:
        keep_record(options, plan.recipe.method.value)
        lengths = "".join(f"{length}\n" for length in made.batches.scan.lengths)
        write_atomically(options.output_dir / LENGTHS_FILE, lengths, force=True)
    say_phase(f"training: {counted(made.trainer.rates.num_steps - made.trainer.position.step, 'step')}")
    reports, earlier = _train(made, monitors)
    if made.stopped_by is not None:
        return exit_code(made.stopped_by)
    _finish(made, pace(reports, earlier, num_followed=options.measured_steps))
    return 0


def _universal(found: FoundCheckpoint, plan: Plan) -> Path | None:
    """The form of a checkpoint that another number of ranks can read, where it was made by another number."""
    if not plan.recipe.zero_stage or found.manifest.num_ranks == plan.hardware.num_gpus:
        return None
    made = universal_form(found.place, TAG, is_first=torch.distributed.get_rank() == 0)
    torch.distributed.barrier()
    return made


def _training_batches(plan: Plan, options: Options, data: Data, ranks: RanksHere) -> Batches:
    workload, recipe = plan.workload, plan.recipe
    return _batches(
        plan,
        data.train.scan,
        data.encoder,
        ranks,
        micro_batch=recipe.micro_batch,
        grad_accum=recipe.grad_accum,
        seed=options.seed,
        # Synthetic samples have the shape of the plan, so that memory and speed can be held against it.
        pads_to=PADS_TO if options.dummy_data is None else workload.seq_len,
        groups_by_length=options.group_by_length,
    )


def _num_steps(plan: Plan, options: Options, batches: Batches) -> int:
    num_steps = sft_steps(plan, len(batches))
    return num_steps if options.max_steps is None else min(num_steps, options.max_steps)


def _rates(plan: Plan, options: Options, num_steps: int) -> Rates:
    peak = options.learning_rate
    if peak is None:
        peak = LEARNING_RATES[plan.recipe.method.value]
    return Rates(peak=peak, num_steps=num_steps, warmup_fraction=options.warmup_fraction, schedule=options.schedule)


def _evaluation_of(
    plan: Plan, options: Options, data: Data, loaded: LoadedModel, engine: Engine
) -> EvaluatedData | None:
    found, planned = data.evaluation, plan.recipe.evaluation
    if found is None:
        return None
    batches = _batches(plan, found.scan, data.encoder, engine, micro_batch=plan.recipe.eval_batch, takes_all=True)
    num_left_out = found.account.num_bad + batches.scan.num_skipped
    evaluated = Evaluated(num_samples=len(batches.scan.samples), num_left_out=num_left_out)
    best = None
    if planned is not None and planned.keeps_best:
        write = partial(export, engine, loaded, data.processing, is_adapter=plan.recipe.trains_adapters)
        best = BestResult(planned, options.output_dir, write, rank=engine.rank)
    return EvaluatedData(batches=batches, found=evaluated, best=best)


def _batches(
    plan: Plan,
    scan: DatasetScan,
    encoder: Encoder,
    ranks: Engine | RanksHere,
    *,
    micro_batch: int,
    grad_accum: int = 1,
    takes_all: bool = False,
    seed: int = 0,
    **more: Any,
) -> Batches:
    size = plan.recipe.sequence_parallel
    group, part = divmod(ranks.rank, size)
    shares = Shares(
        micro_batch=micro_batch,
        num_ranks=ranks.num_ranks // size,
        rank=group,
        grad_accum=grad_accum,
        takes_all=takes_all,
    )
    made = BATCHES[plan.recipe.batching](scan, encoder, shares, seed=seed, **more)
    made.take_part(part, size)
    return made


def _train(made: Run, monitors: Monitors) -> tuple[list[StepReport], Earlier]:
    """Steps until the run's last, or until a signal, and what there was before; a checkpoint every ``save_every``,
    after its time and at the end. It evaluates when the plan says, after every epoch where that says nothing."""
    trainer, options, rank = made.trainer, made.options, made.engine.rank
    first, num_steps = trainer.position.step, trainer.rates.num_steps
    reports: list[StepReport] = []
    monitors.go_on_after(first)
    progress = ProgressReporter(
        made.plan,
        options.output_dir,
        rank=rank,
        num_steps=num_steps,
        first_step=first,
        num_slow_steps=max(1, options.measured_steps if made.engine.device.type == "cpu" else 1),
        of_every_step={"num_left_out": made.num_left_out},
        on_lost_output=trainer.stop.ask,
    )
    with progress, trainer.stop:
        for sentence in _about_run(made):
            progress.say(sentence)
        num_missing = made.num_evaluations_missing(progress.earlier)
        if made.stops_early:
            refuse_reported(options, first)
        made.evaluate(progress, monitors, num_missing)
        while not made.is_done and made.stopped_by is None:
            for report in trainer.epoch(made.batches):
                reports.append(report)
                progress.step(report, made.meter)
                monitors.step(report, made.meter)
                is_last = report.step == num_steps or made.stopped_by is not None
                is_its_step = options.save_every is not None and report.step % options.save_every == 0
                is_saved = is_last or is_its_step or trainer.is_save_due
                if is_saved:
                    _save(made)
                made.evaluate(progress, monitors, made.num_evaluations_due())
                if made.stops_early and not is_saved:
                    _save(made)
                if is_last or made.stops_early:
                    break
        if made.best is not None and made.stops_early:
            progress.say(made.best.found.sentence())
        if made.stopped_by is not None:
            name = signal.Signals(made.stopped_by).name
            progress.say(f"stopped by {name} after step {trainer.position.step}, which is saved; --resume goes on")
    return reports, progress.earlier


def _about_run(made: Run) -> Iterator[str]:
    """What becomes of the samples: cut, left out, left over; and how float32 is multiplied."""
    yield from made.data.train.account.lines()
    if made.batches.num_left_over:
        num_left_over = made.batches.num_left_over
        does = "fills no whole step and waits" if num_left_over == 1 else "fill no whole step and wait"
        yield f"{counted(num_left_over, 'sample')} of every epoch {does} for another epoch"
    if multiplies_in_tf32(made.plan):
        yield "float32 matrices are multiplied in TF32 where the GPU has it, as the plan's time has it"


def _save(made: Run) -> None:
    with made.meter.phase(SAVE):
        save_checkpoint(
            made.engine,
            made.options.output_dir,
            made.trainer.position,
            keep_last=made.options.keep_last,
            run=made.signature,
        )
    made.trainer.saved()
    if made.best is not None:
        made.best.has_checkpoint()


def _finish(made: Run, pace: Pace) -> None:
    recipe, options = made.plan.recipe, made.options
    say_phase("writing the result")
    place = result_folder(made.plan, options.output_dir, is_merged=False)
    if made.best is None or not made.best.take(place.name, place):
        export(
            made.engine,
            made.loaded,
            made.data.processing,
            options.output_dir,
            is_adapter=recipe.trains_adapters,
        )
    if recipe.trains_adapters and options.merge_adapters:
        merge(made.plan, made.engine, made.data.processing, options.output_dir)
    made.meter.take_highest_of_ranks()
    found_late = {source: said for late in of_all_ranks(made.data.encoder.late) for source, said in late.items()}
    if made.engine.rank != 0:
        return
    found = lines(
        made.plan,
        made.meter,
        made.trainer.position,
        pace=pace,
        evaluated=None if made.evaluation is None else made.evaluation.found,
    )
    content = _report_content(made, pace.last_loss, found_late)
    content["planned_and_measured"] = [line.as_json() for line in found]
    write_atomically(options.output_dir / REPORT_FILE, json.dumps(content, indent=1) + "\n", force=True)
    print_report(Console(highlight=False, soft_wrap=True, force_terminal=False), found)
    sys.stdout.writelines(f"{line}\n" for line in _about_result(made))


def _report_content(made: Run, last_loss: float | None, found_late: Mapping[str, str]) -> dict[str, Any]:
    """What report.json says of a run, without its lines; ``found_late``: what is wrong with samples that no longer went
    into the plan once training had begun, by their places."""
    trained_on = {sample.source for sample in made.data.train.samples}
    late_sentences = [said for source, said in found_late.items() if source in trained_on]
    num_left_out = made.num_left_out + len(late_sentences)
    position = made.trainer.position
    return {
        "schema": SCHEMA,
        STEPS: position.step,
        LENGTH: run_length(made.plan, made.options),
        "seconds": position.seconds,
        "usd": usd_so_far(made.plan, position.seconds),
        "last_loss": last_loss,
        "num_truncated": made.batches.scan.num_truncated,
        "num_skipped": num_left_out,
        "left_out_late": list(found_late.values())[:MAX_SENTENCES],
        "num_left_over_per_epoch": made.batches.num_left_over,
        "num_left_out": num_left_out,
        "num_bad": made.data.train.account.num_bad + len(late_sentences),
        "num_no_room": made.batches.scan.num_skipped,
        **({} if made.evaluation is None else made.evaluation.found.as_json()),
        "result": str(_result_folder(made)),
    }


def _result_folder(made: Run) -> Path:
    is_merged = made.plan.recipe.trains_adapters and made.options.merge_adapters
    return result_folder(made.plan, made.options.output_dir, is_merged=is_merged)


def _about_result(made: Run) -> Iterator[str]:
    has_random_base = made.plan.recipe.trains_adapters and made.options.random_weights
    return about_result(made.plan, _result_folder(made), made.data.processing, has_random_base=has_random_base)

"""One rank of a plan with a task, on fake tensors: loaded, trained by TRL and saved as ``trl_training.run`` does."""

import gc
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmplan.launch.run_steps import prompts_at_once
from vlmplan.phase_names import LOAD
from vlmplan.plan import Plan
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference
from vlmplan.run.training import CHECKPOINTS
from vlmplan_trainer.data.read import SampleCounts
from vlmplan_trainer.engines.make import device_of
from vlmplan_trainer.loop import Position
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.load import LoadedModel, Processing, Source, load_model
from vlmplan_trainer.options import Options
from vlmplan_trainer.probe import sees_images
from vlmplan_trainer.rehearse.answer import rehearsed_json
from vlmplan_trainer.rehearse.compiled_updates import updating_in_compiled_kernels
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.run import NUM_EVALUATED, leaves_whole
from vlmplan_trainer.rehearse.samples import Samples
from vlmplan_trainer.rehearse.sharded_shims import gathering_as_for_files
from vlmplan_trainer.script_rehearsal.checkpoints import Saved, counting_checkpoints
from vlmplan_trainer.script_rehearsal.compiling import compiling_nothing
from vlmplan_trainer.script_rehearsal.generation import generating_to_the_limit
from vlmplan_trainer.script_rehearsal.mode import ScriptAttribution, ScriptRehearsal, Unknowns, reading_fake_tensors
from vlmplan_trainer.script_rehearsal.queries import Card
from vlmplan_trainer.script_rehearsal.side_effects import Notes, leaving_nothing
from vlmplan_trainer.script_rehearsal.surroundings import enter_shims, prepared
from vlmplan_trainer.script_rehearsal.triton_package import triton_without_kernels
from vlmplan_trainer.script_rehearsal.weights import reading_no_weights
from vlmplan_trainer.starting import join_ranks
from vlmplan_trainer.stopping import StopRequest
from vlmplan_trainer.task_rehearsal.meter import FollowedElsewhere, RehearsedSteps, SilentProgress, TaskMeter
from vlmplan_trainer.task_rehearsal.rows import (
    Batches,
    Fake,
    LabelledCollator,
    PairCollator,
    WordProcessor,
    labelled_row,
    preference_row,
    prompt_row,
    rewards,
    same_rows,
    word_tokenizer,
)
from vlmplan_trainer.trl_training.classes import trl_of
from vlmplan_trainer.trl_training.run import OF_RANKS, made_trainer, planned_run
from vlmplan_trainer.trl_training.samples import TaskData, text_dataset

MODEL, RUN = "model", "run"
"""Folders in the temporary one: the configuration that TRL makes a second model of, and where the run may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """One rank of ``plan``, ``num_steps`` optimizer steps on equal samples. ``card``: None on the CPU."""

    plan: Plan
    samples: Samples
    rank: int
    num_steps: int
    card: Card | None
    folder: Path
    say: Callable[[str], None] = lambda text: None


def rehearse_task(request: TaskRequest) -> dict[str, Any]:
    """What happened, as JSON has it. Once in a process. Raises InputError for what TRL refuses, MissingPackageError
    without it."""
    start = time.perf_counter()
    plan, notes, ledger = request.plan, Notes(), prepared(request.card)
    task = plan.recipe.task
    assert task is not None
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)  # imports what looks at torch.cuda as it is
    unknowns, attribution = Unknowns(), ScriptAttribution()
    with ExitStack() as stack:
        place = {"card": request.card, "rank": request.rank, "num_ranks": plan.hardware.num_gpus}
        enter_shims(stack, ledger, attribution, **place)
        mode = ScriptRehearsal(fake_mode, ledger, attribution, unknowns)
        meter = TaskMeter(ledger, mode, num_steps=request.num_steps, say=request.say)
        meter.follow(task)
        saved = _enter_surroundings(stack, request, notes)
        _, trainer_class = trl_of(task)
        if task.reference is Reference.PRECOMPUTED:
            stack.enter_context(writing_what_is_precomputed(trainer_class))
        stack.enter_context(reading_fake_tensors(unknowns))
        gc.freeze()  # the libraries' own objects, which the meter need not look through before every phase
        with fake_mode, mode:
            _train(request, task, meter, mode, attribution)
    return rehearsed_json(
        meter,
        mode,
        rank=request.rank,
        num_ranks=plan.hardware.num_gpus,
        num_steps=request.num_steps,
        start=start,
        checkpoint_bytes=saved.largest_bytes or None,
    )


@contextmanager
def writing_what_is_precomputed(trainer_class: Any) -> Iterator[None]:
    """The rank that runs writes the reference's log-probabilities, which the first rank writes for all: no other is
    here that would (``_precompute_ref_logps`` in ``dpo_trainer.py`` and ``kto_trainer.py`` of TRL 1.16)."""
    precompute = trainer_class._precompute_ref_logps

    def written(*arguments: Any, **named: Any) -> Any:
        with replaced(PartialState, "is_main_process", True):
            return precompute(*arguments, **named)

    with replaced(trainer_class, "_precompute_ref_logps", written):
        yield


def _enter_surroundings(stack: ExitStack, request: TaskRequest, notes: Notes) -> Saved:
    """What TRL's trainers read, generate, compile and write. What is saved is counted."""
    phases: Any = FollowedElsewhere()
    stack.enter_context(reading_no_weights(notes))
    stack.enter_context(generating_to_the_limit(phases, notes))
    stack.enter_context(compiling_nothing(notes))
    if request.card is not None:
        stack.enter_context(triton_without_kernels(notes))
    if request.plan.recipe.optimizer.is_torchao:
        stack.enter_context(updating_in_compiled_kernels())
    stack.enter_context(leaving_nothing(request.folder, notes, allows_network=False))
    return stack.enter_context(counting_checkpoints(phases))


def _train(
    request: TaskRequest, task: TrainingTask, meter: TaskMeter, mode: ScriptRehearsal, attribution: ScriptAttribution
) -> None:
    """Train as ``trl_training.run`` does, from the meeting of ranks to the checkpoint behind the last step."""
    plan, options = request.plan, _options(request.plan, request.folder)
    device = device_of(plan)
    join_ranks(plan)
    if not torch.distributed.is_initialized():
        for name in OF_RANKS:
            os.environ.pop(name, None)
    with meter.phase(LOAD), gathering_as_for_files():
        loaded = load_model(plan, random_weights=True, device=device)
    _name_folder(loaded, request.folder / MODEL)
    data = _data(request, task, loaded, mode.fake)
    planned = planned_run(
        plan, options, meter, num_steps=request.num_steps + leaves_whole(plan), signature={}, position=Position()
    )
    progress: Any = SilentProgress()
    follows = RehearsedSteps(planned, progress, StopRequest())
    follows.know(mode.ledger, attribution, getattr(loaded.config.get_text_config(), "vocab_size", None))
    made_trainer(planned, task, data, loaded, rewards() if task.is_grpo else [], follows).train()


def _options(plan: Plan, folder: Path) -> Options:
    """A run of the plan's own values, which saves behind its last step alone."""
    output_dir = folder / RUN
    (output_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    evaluated = None if plan.recipe.evaluation is None else folder
    return Options(plan=folder, output_dir=output_dir, train_data=folder, eval_data=evaluated, save_minutes=0.0)


def _name_folder(loaded: LoadedModel, folder: Path) -> None:
    """Name the folder that TRL makes a second model from, as if the first had come from there."""
    model: Any = loaded.model
    values = loaded.config.to_dict() | {"architectures": [type(base_model(model)).__name__]}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values, default=str), encoding="utf-8")
    model.config._name_or_path = str(folder)


def _data(request: TaskRequest, task: TrainingTask, loaded: LoadedModel, fake: Fake) -> TaskData:
    """Equal rows, as many as all steps take, each as long as the plan says."""
    plan, samples = request.plan, request.samples
    has_tower = sees_images(loaded.config)
    of_images = 0 if samples.image is None else samples.image.num_tokens * samples.images_per_sample
    least = max(1, of_images)
    answer_tokens = task.answer_tokens(samples.num_tokens, least_prompt=least)
    sees = samples.num_images > 0
    prompt_tokens = samples.num_tokens - answer_tokens
    tokenizer, batches = (
        word_tokenizer(loaded.config.get_text_config().vocab_size),
        Batches(loaded.config, samples, fake),
    )
    num_tiles = 1 if samples.image is None else samples.image.num_vision_sequences
    processor = WordProcessor(tokenizer, batches, prompt_tokens=prompt_tokens, num_tiles=num_tiles)
    if task.is_grpo:
        row, count = prompt_row(prompt_tokens, samples.images_per_sample), prompts_at_once(plan, task)
    else:
        row_of = labelled_row if task.is_kto else preference_row
        row, count = row_of(samples.num_tokens, answer_tokens, sees=sees), plan.samples_per_step
    rows = [dict(row) for _ in range(count * (request.num_steps + leaves_whole(plan)))]
    pairs = PairCollator(batches, num_tokens=samples.num_tokens, answer_tokens=answer_tokens, fake=fake)
    collator = LabelledCollator(pairs, has_kl=task.estimates_kl, fake=fake) if task.is_kto else pairs
    at_once = plan.recipe.samples_evaluated_at_once(plan.hardware.num_gpus)
    num_evaluated = 0 if plan.recipe.evaluation is None else NUM_EVALUATED * at_once
    return TaskData(
        processing=Processing(
            processor=processor if has_tower else tokenizer,
            is_vision=has_tower,
            model_type=str(loaded.config.model_type),
            source=Source(name=str(request.folder / MODEL)),
        ),
        encoder=None,
        rows=rows,
        account=_counted(rows, samples),
        lengths=[samples.num_tokens] * len(rows),
        collator=collator if sees and task.reads_reference else None,
        dataset=_dataset(row, len(rows), is_made=sees or task.is_grpo),
        evaluated=_dataset(row, num_evaluated, is_made=sees or task.is_grpo) if num_evaluated else None,
    )


def _dataset(row: dict[str, Any], count: int, *, is_made: bool) -> Any:
    """Equal written answers, or prompts; ``is_made``: TRL tokenizes none of them before training."""
    if is_made:
        return same_rows(row, count)
    datasets = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    return text_dataset(datasets, [dict(row) for _ in range(count)])


def _counted(rows: list[dict[str, Any]], samples: Samples) -> SampleCounts:
    """All of them are trained on."""
    return SampleCounts(
        name="samples of the plan",
        forms={},
        num_samples=len(rows),
        num_bad=0,
        num_no_room=0,
        num_truncated=0,
        num_images=0,
        num_images_reduced=0,
        shortest=samples.num_tokens,
        median_length=samples.num_tokens,
        longest=samples.num_tokens,
        seq_len=samples.num_tokens,
        sentences=(),
    )

"""A plan's steps on fake tensors, through the trainer's own functions."""

import gc
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from vlmplan.phase_names import INIT, LOAD, SAVE
from vlmplan.plan import Plan
from vlmplan.recipe.choices import LinearAttention, Method
from vlmplan_trainer.engines import Engine, make_engine
from vlmplan_trainer.loop import Rates, StepRules, Trainer
from vlmplan_trainer.models.load import load_model
from vlmplan_trainer.rehearse import autocast, collectives, device, kernels, shims
from vlmplan_trainer.rehearse.answer import rehearsed_json
from vlmplan_trainer.rehearse.attribution import AllocationAttribution
from vlmplan_trainer.rehearse.batch import micro_batch
from vlmplan_trainer.rehearse.compiled_updates import updating_in_compiled_kernels
from vlmplan_trainer.rehearse.components import Owners
from vlmplan_trainer.rehearse.device_shims import dequantising_for_products
from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.fla import delta_kernels
from vlmplan_trainer.rehearse.flash import flash_attention_from_torch
from vlmplan_trainer.rehearse.int8_products import quantising_for_products
from vlmplan_trainer.rehearse.ledger import GPU_BLOCK_BYTES, Ledger
from vlmplan_trainer.rehearse.meter import PhaseMeter
from vlmplan_trainer.rehearse.samples import MicroBatch, Samples
from vlmplan_trainer.rehearse.sharded_shims import gathering_as_for_files
from vlmplan_trainer.resized_storages import telling_of_resized_storages
from vlmplan_trainer.sequence_parallel import part_of_samples

NUM_EVALUATED = 2
"""Batches of an evaluation; one more where the second one's forward still differs from those that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is rehearsed: one rank of a plan, ``num_steps`` optimizer steps on equal samples.

    ``compute_capability`` chooses attention's kernels; ``total_bytes`` is what DeepSpeed is told that a card has, and
    ``overhead_bytes`` what of it CUDA and NCCL have taken.
    ``give_up`` is called behind ``most_operations``, and has to end the process.
    """

    plan: Plan
    samples: Samples
    rank: int = 0
    num_steps: int = 3
    compute_capability: tuple[int, int] = (8, 0)
    total_bytes: int = 80 * 2**30
    overhead_bytes: int = 0
    saves: bool = True
    most_operations: int = sys.maxsize
    give_up: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda text: None


class MicroBatches:
    """A loader of the same micro batch again and again, each made anew in host memory as a data loader's would be."""

    def __init__(
        self,
        mode: Rehearsal,
        config: Any,
        samples: Samples,
        count: int,
        *,
        part: int,
        num_parts: int,
        preprocessor: Mapping[str, Any] | None = None,
    ) -> None:
        """``part``: which of the ``num_parts`` of each sample's tokens; ``preprocessor`` as ``micro_batch``."""
        with _disable_current_modes():
            made = micro_batch(config, samples, preprocessor)
            values = part_of_samples(made.values, part=part, num_parts=num_parts)
            self._made = MicroBatch(values, made.shapes)
        self._mode, self._count = mode, count

    def __len__(self) -> int:
        return self._count

    def set_epoch(self, epoch: int) -> None:
        pass

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(self._count):
            yield self._anew()  # a variable here would keep it for as long as it is trained on, as no data loader does

    def _anew(self) -> dict[str, torch.Tensor]:
        return self._made.made(self._mode.fake)


def rehearse(request: Request) -> dict[str, Any]:
    """What happened, as JSON has it. Once in a process: torch and DeepSpeed are told of the device for good."""
    start = time.perf_counter()
    plan = request.plan
    is_on_cpu = plan.hardware.vendor == "cpu"
    os.environ["DS_ACCELERATOR"] = "cpu"  # what DeepSpeed finds by itself when it is imported
    ledger = Ledger(counts_host_as_device=is_on_cpu, block_bytes=1 if is_on_cpu else GPU_BLOCK_BYTES)
    attribution = AllocationAttribution()
    place = torch.device("cpu") if is_on_cpu else _registered(ledger, request)
    _start_ranks(request, is_on_cpu=is_on_cpu)
    warnings.filterwarnings("ignore")
    torch.autograd.set_multithreading_enabled(False)
    gc.freeze()  # the libraries' own objects, which the meter need not look through before every phase
    with _on_fake_tensors(request, ledger, attribution, is_on_cpu=is_on_cpu) as mode:
        meter = PhaseMeter(ledger, mode, num_steps=request.num_steps, say=request.say)
        checkpoint_bytes = _phases(request, meter, ledger, mode, attribution, place)
    return rehearsed_json(
        meter,
        mode,
        rank=request.rank,
        num_ranks=plan.hardware.num_gpus,
        num_steps=request.num_steps,
        start=start,
        checkpoint_bytes=checkpoint_bytes,
    )


@contextmanager
def _on_fake_tensors(
    request: Request, ledger: Ledger, attribution: AllocationAttribution, *, is_on_cpu: bool
) -> Iterator[Rehearsal]:
    """Everything that torch, DeepSpeed and the models do inside is done on fake tensors and written into ``ledger``."""
    plan = request.plan
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)  # imports what does not bear the shims while it is imported
    with ExitStack() as stack:
        stack.enter_context(shims.installed(has_device=not is_on_cpu, has_paged_states=plan.recipe.optimizer.is_paged))
        if not is_on_cpu:
            stack.enter_context(flash_attention_from_torch())
            if plan.recipe.method is Method.QLORA:
                stack.enter_context(dequantising_for_products())
            elif plan.recipe.method is Method.LORA_8BIT:
                stack.enter_context(quantising_for_products())
        if plan.recipe.linear_attention is LinearAttention.FLA:
            stack.enter_context(delta_kernels())
        if plan.recipe.optimizer.is_torchao:
            stack.enter_context(updating_in_compiled_kernels())
        if plan.recipe.fsdp:
            stack.enter_context(telling_of_resized_storages(lambda storage: ledger.resized(storage, attribution)))
        stack.enter_context(fake_mode)
        mode = Rehearsal(
            fake_mode, ledger, attribution, most_operations=request.most_operations, give_up=request.give_up
        )
        yield stack.enter_context(mode)


def _phases(
    request: Request,
    meter: PhaseMeter,
    ledger: Ledger,
    mode: Rehearsal,
    attribution: AllocationAttribution,
    place: torch.device,
) -> int | None:
    """Loads, prepares and trains, each phase in ``meter``. Bytes of this rank's files of a checkpoint, if one is
    saved."""
    plan = request.plan
    with meter.phase(LOAD), gathering_as_for_files():
        loaded = load_model(plan, random_weights=True, device=place)
    attribution.learn(loaded.model)
    with meter.phase(INIT):
        engine = make_engine(loaded.model, plan, device=place, weight_decay=0.0)
    config: Any = loaded.model.config
    vocab_size = getattr(config.get_text_config(), "vocab_size", None)
    meter.owners = Owners(ledger, loaded.model, engine, vocab_size)
    num_batches = (request.num_steps + leaves_whole(plan)) * plan.recipe.grad_accum
    batches = _micro_batches(mode, config, request, request.samples, num_batches)
    return _train(request, engine, meter, batches, _evaluated(mode, config, request))


def _registered(ledger: Ledger, request: Request) -> torch.device:
    module = device.register(ledger)
    autocast.register()
    kernels.register(request.compute_capability)
    if request.plan.ds_config is not None:
        import deepspeed

        from vlmplan_trainer.rehearse.accelerator import RehearsalAccelerator

        accelerator = RehearsalAccelerator(
            module,
            compute_capability=request.compute_capability,
            total_bytes=request.total_bytes,
            overhead_bytes=request.overhead_bytes,
        )
        deepspeed.accelerator.set_accelerator(accelerator)
    return torch.device(device.NAME, 0)


def _start_ranks(request: Request, *, is_on_cpu: bool) -> None:
    plan = request.plan
    ranks = {"RANK": request.rank, "LOCAL_RANK": 0, "WORLD_SIZE": plan.hardware.num_gpus}
    os.environ.update({name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"})
    os.environ["MASTER_PORT"] = "1"  # never opened
    if plan.has_ranks:
        import deepspeed

        collectives.start(request.rank, plan.hardware.num_gpus, has_device=not is_on_cpu)
        if (
            is_on_cpu or plan.ds_config is None
        ):  # without an accelerator of ours DeepSpeed takes the ranks for the CPU's
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # see engines.make.init_gloo
        deepspeed.init_distributed(collectives.BACKEND, verbose=False)


def _evaluated(mode: Rehearsal, config: Any, request: Request) -> MicroBatches | None:
    """The batches of an evaluation: the second finds what the first leaves."""
    evaluation = request.plan.recipe.evaluation
    if evaluation is None:
        return None
    count = NUM_EVALUATED + request.plan.recipe.evaluates_by_another_order
    samples = replace(request.samples, micro_batch=evaluation.batch)
    return _micro_batches(mode, config, request, samples, count)


def _micro_batches(mode: Rehearsal, config: Any, request: Request, samples: Samples, count: int) -> MicroBatches:
    plan, num_parts = request.plan, request.plan.recipe.sequence_parallel
    preprocessor, part = plan.workload.model.preprocessor, request.rank % num_parts
    return MicroBatches(mode, config, samples, count, part=part, num_parts=num_parts, preprocessor=preprocessor)


def _train(
    request: Request, engine: Engine, meter: PhaseMeter, batches: MicroBatches, evaluated: MicroBatches | None
) -> int | None:
    """All steps, and behind the last an evaluation, where there is one, and a checkpoint; an evaluation before the
    first too, where the plan says so. Where an evaluation leaves something to the step behind it, there is one between
    the last step and a further one too. Bytes of this rank's files of the checkpoint."""
    plan = request.plan
    rates = Rates(peak=1e-4, num_steps=request.num_steps, warmup_fraction=0.0, schedule="constant")
    trainer = Trainer(engine, meter, rates, StepRules.of(plan))
    last = request.num_steps + leaves_whole(plan)
    if evaluated is not None and plan.recipe.evaluation is not None and plan.recipe.evaluation.on_start:
        trainer.evaluate(evaluated)
    for report in trainer.epoch(batches):
        if evaluated is not None and report.step in (request.num_steps, last):
            trainer.evaluate(evaluated)
        if report.step == last:
            return _saved(engine, meter) if request.saves else None
    return None


def leaves_whole(plan: Plan) -> bool:
    """Whether an evaluation leaves whole weights to the step behind it, as ZeRO-3's does."""
    return plan.recipe.evaluation is not None and plan.recipe.zero_stage == 3


def _saved(engine: Engine, meter: PhaseMeter) -> int:
    """Bytes of this rank's files of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder, shims.counting_saved_bytes() as saved, meter.phase(SAVE):
        engine.save(Path(folder) / "checkpoint")
    return saved.num_bytes

"""One run of the campaign in a process of its own: ``python tests/gpu/one_run.py FILE``, a request on standard input.

FILE has the same request: what needs no card is done with it ahead, until standard input says that the card is free.
The request is that of a rehearsal (``vlmplan.rehearsal.request``), so the same plan on samples of the same shape is run
here on a real device: the trainer's own model, engine and loop, weights drawn at random, no network, nothing saved. The
last line of standard output is the record's measured part.
"""

import fcntl
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import date
from pathlib import Path
from typing import Any

from vlmplan.recipe.choices import Method
from vlmplan_trainer.answering import Answering

REPORTS_SYNCHRONIZED = 2
"""Steps at the end in which the GPU is waited for after every phase, so that seconds are those of a part; the steps
before them, but for the first two, are timed as a whole."""
WARM_STEPS = 2


DRAWN_ONCE = 2**20
"""Elements of a weight in host memory that are drawn at random; the rest of it repeats them: a card waits meanwhile."""
STEPS_RUN = Path(__file__)
"""Locked by the run whose steps are on the card; models are not made meanwhile, which would take its host's time."""


def main() -> int:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    with redirect_stdout(sys.stderr):
        loaded = loaded_ahead(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    answering = Answering()
    try:
        answer = {"measured": measured(answering.request, loaded)}
    except Exception as error:  # whatever it is, it is what became of the run
        traceback.print_exc()
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    answering.end(answer)
    return 0


def loaded_ahead(request: dict[str, Any]) -> Any:
    """The model of the plan in host memory; None where its weights are made on the card. Makes no CUDA context, which
    would be in the run that is measured meanwhile."""
    import torch
    from transformers.utils import logging

    import vlmplan_trainer.loop
    import vlmplan_trainer.rehearse.batch  # noqa: F401
    from vlmplan.plan import plan_from_json
    from vlmplan_trainer.models.load import load_model

    logging.disable_progress_bar()
    plan = plan_from_json(request["plan"])
    recipe = plan.recipe
    if recipe.zero_stage == 3 or recipe.fsdp or recipe.method is Method.QLORA:
        return None
    num_threads = torch.get_num_threads()
    torch.set_num_threads(max(1, num_threads // 2))
    with draws_little():
        loaded = load_model(plan, random_weights=True)
    torch.set_num_threads(num_threads)
    return loaded


@contextmanager
def draws_little() -> Iterator[None]:
    """Random numbers for large tensors in host memory are a few that come again."""
    import torch

    methods = {name: getattr(torch.Tensor, name) for name in ("normal_", "uniform_")}

    def little(draw: Any) -> Any:
        def drawn(tensor: Any, *args: Any, **options: Any) -> Any:
            if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.numel() <= DRAWN_ONCE:
                return draw(tensor, *args, **options)
            with locked(STEPS_RUN, fcntl.LOCK_SH):  # waits for the steps of another run
                pass
            some = draw(torch.empty(DRAWN_ONCE, dtype=tensor.dtype), *args, **options)
            whole = tensor.detach().view(-1)
            repeats = whole.numel() // DRAWN_ONCE * DRAWN_ONCE
            whole[:repeats].view(-1, DRAWN_ONCE).copy_(some)
            whole[repeats:].copy_(some[: whole.numel() - repeats])
            return tensor

        return drawn

    try:
        for name, draw in methods.items():
            setattr(torch.Tensor, name, little(draw))
        yield
    finally:
        for name, draw in methods.items():
            setattr(torch.Tensor, name, draw)


@contextmanager
def locked(path: Path, kind: int) -> Iterator[None]:
    """Within, this process has a lock of this ``kind`` (``fcntl``) on the file."""
    with path.open(encoding="utf-8") as file:
        fcntl.flock(file, kind)
        yield


def measured(request: dict[str, Any], loaded: Any = None) -> dict[str, Any]:
    """Bytes by phase and seconds by part of the steps that the request asks for; ``loaded``: the model, if it is
    there already."""
    import torch

    from vlmplan.plan import plan_from_json
    from vlmplan_trainer.engines import make_engine
    from vlmplan_trainer.engines.make import device_of, start_process_group
    from vlmplan_trainer.loop import Rates, StepRules, Trainer
    from vlmplan_trainer.models.load import load_model

    plan, num_steps = plan_from_json(request["plan"]), request["num_steps"]
    torch.manual_seed(0)
    device = device_of(plan)
    start_process_group(plan, is_needed=False)
    meter = campaign_meter(device, num_steps)
    with draws_little(), meter.phase("load"):
        loaded = loaded or load_model(plan, random_weights=True)
        meter.count(loaded.model)
    with meter.phase("init"):
        engine = make_engine(loaded.model, plan, device=device, weight_decay=0.0)
    batches = SameBatches(loaded.model.config, request["samples"], num_steps * plan.recipe.grad_accum)
    rates = Rates(peak=1e-5, num_steps=num_steps, warmup_fraction=0.0, schedule="constant")
    trainer = Trainer(engine, meter, rates, StepRules.of(plan))
    with locked(STEPS_RUN, fcntl.LOCK_EX):
        reports = list(trainer.epoch(batches))
    found = {"device": device_name(device), "date": date.today().isoformat(), "versions": versions()}
    return {**meter.as_json(reports), **found}


class SameBatches:
    """The same micro batch again and again, each made anew in host memory as a data loader's would be."""

    def __init__(self, config: Any, samples: dict[str, Any], count: int) -> None:
        from vlmplan_trainer.rehearse.batch import micro_batch
        from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

        values = dict(samples)
        image, sequences = values.pop("image"), values.pop("sequences")
        values["sequences"] = None if sequences is None else tuple(sequences)
        self._made = micro_batch(config, Samples(**values, image=None if image is None else ImageSpec(**image)))
        self._count = count

    def set_epoch(self, epoch: int) -> None:
        pass

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        pixels = {name: torch.randn(shape) for name, shape in self._made.shapes.items()}
        for _ in range(self._count):
            yield {name: value.clone() for name, value in (*self._made.values.items(), *pixels.items())}


def campaign_meter(device: Any, num_steps: int) -> Any:
    """The trainer's ``Meter`` that also notes reserved and device bytes, and in the last steps the parts' seconds."""
    import torch

    from vlmplan_trainer.measure import Meter

    class CampaignMeter(Meter):
        def __init__(self) -> None:
            super().__init__(device, num_steps=max(1, num_steps - WARM_STEPS - REPORTS_SYNCHRONIZED))
            self.reserved: dict[str, int] = {}
            self.device_bytes: dict[str, int] = {}
            self.parts: dict[str, float] = {}

        @property
        def synchronizes(self) -> bool:
            return self.step > num_steps - REPORTS_SYNCHRONIZED

        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            self._wait()
            start = time.perf_counter()
            with super().phase(name):
                yield
                self._wait()
            if self.synchronizes:
                self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - start
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                self.reserved[name] = max(self.reserved.get(name, 0), torch.cuda.max_memory_reserved(device))
                self.device_bytes[name] = max(self.device_bytes.get(name, 0), total - free)

        def _wait(self) -> None:
            if self.synchronizes and device.type == "cuda":
                torch.cuda.synchronize(device)

        def as_json(self, reports: list[Any]) -> dict[str, Any]:
            timed = [one.seconds for one in reports[WARM_STEPS : len(reports) - REPORTS_SYNCHRONIZED]]
            return {
                "phases": {
                    name: {
                        "peak_bytes": one.peak_bytes,
                        "resident_bytes": one.resident_bytes,
                        "reserved_bytes": self.reserved.get(name),
                        "device_bytes": self.device_bytes.get(name),
                    }
                    for name, one in self.memory.items()
                },
                "peak_allocated_bytes": self.peak_allocated_bytes,
                "peak_reserved_bytes": max(self.reserved.values(), default=None),
                "peak_device_bytes": max(self.device_bytes.values(), default=None),
                "step_seconds": timed,
                "seconds_by_part": {name: seconds / REPORTS_SYNCHRONIZED for name, seconds in self.parts.items()},
                "losses": [one.loss for one in reports],
            }

    return CampaignMeter()


def device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def versions() -> dict[str, str]:
    from vlmplan.versions import CHECKED_VERSIONS, installed_version

    found = {name: installed_version(name) for name in CHECKED_VERSIONS}
    return {name: version for name, version in found.items() if version is not None}


if __name__ == "__main__":
    sys.exit(main())

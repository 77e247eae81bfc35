"""``PlanCallback``: a plan beside a run of Hugging Face's Trainer, or of what is built on it (TRL's SFTTrainer).

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[PlanCallback(seq_len=2048)])

When training begins it estimates the run from the live model and its arguments, and warns or stops where that cannot
fit; while it runs it follows memory by phase; at the end it writes planned against measured.
"""

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from transformers import TrainerCallback

import vlmplan
from vlmplan.errors import InputError, VlmplanError
from vlmplan.files import write_atomically
from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, INIT, LOAD, STEP
from vlmplan.units import GIB
from vlmplan_trainer.integrations.live_setup import (
    arguments_file,
    configuration,
    gpu_of,
    model_options,
    num_nodes_of,
    num_trained,
)
from vlmplan_trainer.integrations.trainer_phases import TrainerPhases
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.reporting.report import ReportedFigure, print_report

PLANNED_PHASES = (LOAD, INIT, FORWARD, BACKWARD, STEP, EVALUATION)
SCHEMA = "vlmplan.callback/1"
REPORT_FILE = "vlmplan-report.json"


class PlanCallback(TrainerCallback):
    """Estimates a Trainer's run before its first step, and holds the estimate to what is measured.

    ``on_too_large``: "warn", or "stop" before the first step where the estimate says that the run cannot fit; the same
    before a micro batch whose samples are longer than any that was planned. ``gpu``: as in ``vlmplan.estimate``; this
    machine's where it is left out. ``options`` are others of ``vlmplan.estimate`` (``seq_len``,
    ``images_per_sample``, ``image_size``, ``eval_keeps="logits"`` where the Trainer has ``compute_metrics`` ...):
    samples are as long as the first micro batch, or SFTConfig's ``max_length``, unless ``seq_len`` says otherwise; a
    model that sees needs its images said.

    After training ``estimate`` is the last estimate (None where none could be made, and ``why_not`` says why), and
    ``lines`` are planned and measured figures, bytes of the fullest rank; rank 0 prints them and writes
    ``vlmplan-report.json`` to ``output_dir``.
    """

    def __init__(
        self, *, gpu: str | None = None, on_too_large: Literal["warn", "stop"] = "warn", **options: Any
    ) -> None:
        if on_too_large not in ("warn", "stop"):
            raise InputError(f"on_too_large is {on_too_large!r}; warn or stop is needed")
        self.estimate: vlmplan.EstimateResult | None = None
        self.why_not: str | None = None
        self.lines: list[ReportedFigure] = []
        self._gpu, self._stops, self._options = gpu, on_too_large == "stop", options
        self._phases: TrainerPhases | None = None
        self._seq_len: int | None = options.get("seq_len")
        self._watch: Any = None
        self._step_began = self._step_seconds = 0.0
        self._num_timed = 0

    # -- the Trainer's events --------------------------------------------------------------------------------------

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is there."""
        self._phases = TrainerPhases(Meter(args.device))
        self._phases.begin_init(kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Everything is there: the plan is made, unless the length of samples is still to be seen."""
        model, phases = kwargs["model"], self._followed()
        phases.begin_training(model, kwargs.get("optimizer"))
        self._seq_len = self._seq_len or getattr(args, "max_length", None)
        if self._seq_len is not None:
            self._plan(model, args, self._seq_len)

        def look(module: torch.nn.Module, inputs: tuple[Any, ...], given: dict[str, Any]) -> None:
            ids = given.get("input_ids", inputs[0] if inputs else None)
            if module.training and isinstance(ids, torch.Tensor) and ids.dim() == 2:
                self._see(model, args, ids.shape[1])

        self._watch = model.register_forward_pre_hook(look, with_kwargs=True, prepend=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._followed().meter.start_step()
        self._step_began = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._followed().begin_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        phases = self._followed()
        is_timed = phases.meter.step > 1 and (args.device.type == "cuda" or not phases.meter.is_following)
        phases.end_step()
        if is_timed:
            self._step_seconds += time.perf_counter() - self._step_began
            self._num_timed += 1

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._phases is not None:
            self._phases.end_evaluation()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Planned against measured, printed and written by rank 0."""
        phases = self._followed()
        phases.end()
        if self._watch is not None:
            self._watch.remove()
        phases.meter.take_highest_of_ranks()
        self.lines = self._figures(phases.meter)
        if not state.is_world_process_zero:
            return
        if self.why_not is not None:
            warnings.warn(f"no plan was made: {self.why_not}", stacklevel=2)
        print_report(Console(), self.lines)
        write_report(Path(args.output_dir), self.estimate, self.lines, self.why_not)

    # -- the plan --------------------------------------------------------------------------------------------------

    def _see(self, model: torch.nn.Module, args: Any, seq_len: int) -> None:
        """A micro batch is about to run whose samples are ``seq_len`` tokens long, padding included."""
        if self._seq_len is None or (self.why_not is None and seq_len > self._seq_len):
            self._seq_len = seq_len
            self._plan(model, args, seq_len)

    def _plan(self, model: torch.nn.Module, args: Any, seq_len: int) -> None:
        """Raises InputError where the run cannot fit and is to stop."""
        try:
            self.estimate = self._estimated(model, args, seq_len)
        except VlmplanError as error:
            self.why_not = str(error)
            return
        if self.estimate.verdict == "does_not_fit":
            peak, usable = self.estimate.peak_device_bytes, self.estimate.usable_bytes
            sentence = (
                f"samples of {seq_len:,} tokens need {peak / GIB:.2f} GiB on each GPU in {self.estimate.peak_phase}, "
                f"{usable / GIB:.2f} GiB are usable; in a terminal: {self.estimate.command}"
            )
            if self._stops:
                raise InputError(sentence)
            warnings.warn(sentence, stacklevel=2)

    def _estimated(self, model: torch.nn.Module, args: Any, seq_len: int) -> vlmplan.EstimateResult:
        given: dict[str, Any] = model_options(model, args) | self._options | {"seq_len": seq_len}
        nodes = num_nodes_of(args)
        if nodes > 1:
            given["num_nodes"] = nodes
        with tempfile.TemporaryDirectory() as folder:
            path = arguments_file(args, Path(folder))
            ask: Any = vlmplan.estimate  # which names its arguments when it is called
            found: vlmplan.EstimateResult = ask(configuration(model), self._gpu or gpu_of(args), config=path, **given)
        live = num_trained(model)
        if live != found.num_trainable_params:
            raise InputError(
                f"the model trains {live:,} parameters, and its configuration means {found.num_trainable_params:,}: "
                f"what is trained is none of what vlmplan plans"
            )
        return found

    # -- the report ------------------------------------------------------------------------------------------------

    def _followed(self) -> TrainerPhases:
        assert self._phases is not None, "the Trainer has not begun"
        return self._phases

    def _figures(self, meter: Meter) -> list[ReportedFigure]:
        found = self.estimate
        planned = {} if found is None else {phase.name: phase.peak_bytes for phase in found.phases}
        memory = {name: meter.memory[name] for name in PLANNED_PHASES if name in meter.memory}
        lines = [
            ReportedFigure(f"{name}, peak", "bytes", planned.get(name), one.peak_bytes) for name, one in memory.items()
        ]
        if meter.peak_reserved_bytes:
            reserved = device = None
            if found is not None:
                reserved = found.reserved_with_room_bytes
                device = found.peak_device_bytes + reserved - found.peak_reserved_bytes
            lines.append(ReportedFigure("peak reserved", "bytes", reserved, meter.peak_reserved_bytes))
            lines.append(ReportedFigure("device", "bytes", device, meter.peak_device_bytes))
        if self._num_timed:
            seconds = None if found is None else found.step_seconds
            lines.append(ReportedFigure("step", "seconds", seconds, self._step_seconds / self._num_timed))
        return lines


def write_report(
    folder: Path, estimate: vlmplan.EstimateResult | None, lines: list[ReportedFigure], why_not: str | None
) -> None:
    """``vlmplan-report.json``: the estimate's document, and planned and measured figures."""
    import json

    document = {
        "schema": SCHEMA,
        "estimate": None if estimate is None else estimate.as_dict(),
        "why_not": why_not,
        "lines": [line.as_json() for line in lines],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / REPORT_FILE, json.dumps(document, indent=2) + "\n", force=True)

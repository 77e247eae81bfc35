"""One rank of a script, from its first line to its last, on fake tensors."""

import gc
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from vlmplan.errors import InputError
from vlmplan.phase_names import LOAD
from vlmplan_trainer.rehearse.answer import rehearsed_json
from vlmplan_trainer.rehearse.components import Owners
from vlmplan_trainer.rehearse.ledger import Ledger
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.checkpoints import Saved, counting_checkpoints
from vlmplan_trainer.script_rehearsal.compiling import compiling_nothing
from vlmplan_trainer.script_rehearsal.generation import generating_to_the_limit
from vlmplan_trainer.script_rehearsal.launchers import Launch
from vlmplan_trainer.script_rehearsal.loaders import (
    NoBatchLeft,
    datasets_in_this_process,
    short_loaders,
    stopping_trainers,
)
from vlmplan_trainer.script_rehearsal.longest import longest_batches
from vlmplan_trainer.script_rehearsal.meter import ScriptMeter
from vlmplan_trainer.script_rehearsal.mode import (
    Assumption,
    ScriptAttribution,
    ScriptRehearsal,
    Unknowns,
    reading_fake_tensors,
)
from vlmplan_trainer.script_rehearsal.other_programs import refuse_other_programs
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases, inner_model
from vlmplan_trainer.script_rehearsal.programs import StartedElsewhere, starting_ranks_here
from vlmplan_trainer.script_rehearsal.queries import Card
from vlmplan_trainer.script_rehearsal.side_effects import Notes, leaving_nothing
from vlmplan_trainer.script_rehearsal.surroundings import enter_shims, prepared
from vlmplan_trainer.script_rehearsal.triton_package import triton_without_kernels
from vlmplan_trainer.script_rehearsal.weights import reading_no_weights

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""As launchers and scripts may set them."""
LONGEST_LINE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """One rank of ``num_ranks`` of what is launched.

    ``understood``: what a command that the script starts would run on each rank. ``card``: None on the CPU. ``folder``
    is a temporary one for what the script writes. ``longest``: every batch that trains is of the longest samples.
    """

    launch: Launch
    understood: Callable[[Sequence[str]], Launch]
    rank: int
    num_ranks: int
    num_steps: int
    card: Card | None
    folder: Path
    assumptions: Sequence[tuple[str, int, Any]] = ()
    allows_network: bool = False
    allows_programs: bool = False
    longest: bool = False
    say: Any = lambda text: None


def rehearse_script(request: ScriptRequest) -> dict[str, Any]:
    """What happened, as JSON has it. Once in a process. Raises InputError with the script's own error and its place."""
    start = time.perf_counter()
    notes, ledger = Notes(), prepared(request.card)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)  # imports what looks at torch.cuda as it is
    unknowns = Unknowns(tuple(Assumption(*assumption) for assumption in request.assumptions))
    attribution = ScriptAttribution()
    with ExitStack() as stack:
        place = {"card": request.card, "rank": request.rank, "num_ranks": request.num_ranks}
        enter_shims(stack, ledger, attribution, **place)
        mode = ScriptRehearsal(fake_mode, ledger, attribution, unknowns)
        meter = ScriptMeter(ledger, mode, num_steps=request.num_steps, say=request.say)
        phases = _phases(request, meter, ledger, attribution)
        saved = _enter_surroundings(stack, request, phases, notes)
        if not request.allows_programs:
            refuse_other_programs(notes)
        stack.enter_context(reading_fake_tensors(unknowns))
        gc.freeze()  # the libraries' own objects, which the meter need not look through before every phase
        with fake_mode, mode, phases.following():
            phases.switch(LOAD)
            try:
                _run(request)
            except InputError as error:
                if not phases.is_done:
                    raise
                notes(f"behind its last step, where loaders that train give no batch more, the script failed: {error}")
    if not phases.steps_done:
        raise InputError("it made no optimizer step, so there is nothing to tell")
    if not phases.is_done:
        notes(f"it made {phases.steps_done} optimizer steps of {request.num_steps}: it ended before")
    answer = rehearsed_json(
        meter,
        mode,
        rank=request.rank,
        num_ranks=request.num_ranks,
        num_steps=min(request.num_steps, phases.steps_done),
        start=start,
        checkpoint_bytes=saved.largest_bytes or None,
    )
    return {
        **answer,
        **unknowns.as_json(),
        "allocator_settings": [os.environ.get(name, "") for name in ALLOCATOR_VARIABLES],
        "notes": notes.sentences,
    }


def _enter_surroundings(stack: ExitStack, request: ScriptRequest, phases: ScriptPhases, notes: Notes) -> Saved:
    """What the script reads, generates, compiles and writes. What it saves is counted."""
    stack.enter_context(reading_no_weights(notes))
    stack.enter_context(generating_to_the_limit(phases, notes))
    stack.enter_context(short_loaders(phases))
    if request.longest:
        stack.enter_context(longest_batches(phases, notes))
    stack.enter_context(datasets_in_this_process())
    stack.enter_context(stopping_trainers(phases))
    stack.enter_context(compiling_nothing(notes))
    if request.card is not None:
        stack.enter_context(triton_without_kernels(notes))
    stack.enter_context(leaving_nothing(request.folder, notes, allows_network=request.allows_network))
    return stack.enter_context(counting_checkpoints(phases))


def _phases(request: ScriptRequest, meter: ScriptMeter, ledger: Ledger, attribution: ScriptAttribution) -> ScriptPhases:
    """The phases of a script, which find who owns what once model and optimizer are known."""
    models: list[Any] = []

    def on_training(model: Any) -> None:
        models.append(model)
        attribution.learn(inner_model(model))

    def on_update(optimizer: Any) -> None:
        if meter.owners is None and models:
            engine = _Engine(optimizer)
            meter.owners = Owners(ledger, models[0], engine, _vocab_size(models[0]))

    return ScriptPhases(meter, num_steps=request.num_steps, on_training=on_training, on_update=on_update)


class _Engine:
    """What ``Owners`` asks of an engine."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer


def _vocab_size(model: Any) -> int | None:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "vocab_size", None)


def _run(request: ScriptRequest) -> None:
    """The script, and what it would start as ranks instead of itself."""
    launch = request.launch
    while True:
        try:
            with starting_ranks_here(is_program=launch.is_program):
                _run_script(launch)
            return
        except StartedElsewhere as start:
            launch = request.understood(start.words)
            os.environ.update(start.environment | launch.environment)


def _run_script(launch: Launch) -> None:
    """The script as Python runs it: its own folder first on the path, its name and arguments in ``sys.argv``."""
    sys.argv = [launch.script, *launch.arguments]
    place = os.getcwd() if launch.is_module else str(Path(launch.script).resolve().parent)
    sys.path.insert(0, place)
    if not launch.is_module and not Path(launch.script).is_file():
        raise InputError(f"{launch.script} is not a file here")
    errors = _LastLine(sys.stderr)
    try:
        with replaced(sys, "stderr", errors):
            if launch.is_module:
                runpy.run_module(launch.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(launch.script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise InputError(f"the script ended itself: {_why(end.code, errors.line)}") from None
    except (KeyboardInterrupt, StartedElsewhere):
        raise
    except BaseException as error:
        if isinstance(error, NoBatchLeft) or isinstance(error.__cause__, NoBatchLeft):  # as a generator passes it on
            return
        traceback.print_exc()
        raise InputError(_where(error)) from None
    finally:
        sys.path.remove(place)


class _LastLine:
    """Standard error, and what was written there last: parsers of arguments say why there, and end with a number."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._text = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._text = (self._text + text)[-LONGEST_LINE:]
        return self._stream.write(text)

    @property
    def line(self) -> str:
        lines = self._text.rstrip().splitlines()
        return lines[-1].strip() if lines else ""


def _why(code: object, line: str) -> str:
    """What ``sys.exit`` was given, and where that is a number what the script wrote last."""
    return f"{code} ({line})" if isinstance(code, int) and line else f"{code}"


def _where(error: BaseException) -> str:
    """The error with the last line of the user's own code, or of any, that it came through."""
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps if not any(part in step.filename for part in ("site-packages", "vlmplan", "<"))]
    own = [step for step in own if "/lib/python" not in step.filename]
    last = steps[-1]
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    inside = f" (in {'/'.join(Path(last.filename).parts[-2:])}:{last.lineno})"
    return f"{own[-1].filename}:{own[-1].lineno}: {text}{inside}" if own else f"{text}{inside}"

"""A run before it is started: its document, what would be written and run, notes and problems, and what would fit."""

from collections.abc import Sequence
from datetime import date

from vlmplan.answers.to_fit import Command, way_out_parts
from vlmplan.files.json_reader import JsonDict
from vlmplan.launch.curriculum import PlannedStage
from vlmplan.launch.prepared import PreparedRun
from vlmplan.launch.run_folder import LOG_FILE
from vlmplan.launch.run_steps import planned_run_steps, whole_run_steps
from vlmplan.launch.start import shell_text
from vlmplan.notes import caveats, footnotes
from vlmplan.proposals.way_out import WayOut
from vlmplan.render.lines import say, say_command, tell
from vlmplan.units import count_text, counted, duration_text, gib_text

SCHEMA = "vlmplan.launch/1"


def document(prepared: PreparedRun) -> JsonDict:
    """Schema ``vlmplan.launch/1``: what would be run."""
    return {"schema": SCHEMA, **_run_json(prepared)}


def stages_document(titles: Sequence[str], stages: Sequence[PreparedRun]) -> JsonDict:
    """The document of a curriculum: its stages, each a run with its title."""
    listed = [{"title": title} | _run_json(prepared) for title, prepared in zip(titles, stages, strict=True)]
    return {"schema": SCHEMA, "stages": listed}


def _run_json(prepared: PreparedRun) -> JsonDict:
    return {
        "command": prepared.command,
        "environment": prepared.environment,
        "files": _files(prepared),
        "data": None if prepared.data is None else dict(prepared.data.accounts),
        "problems": list(prepared.findings.problems),
        "notes": [*prepared.notes, *prepared.findings.warnings],
        "plan": prepared.plan.as_json(),
    }


def print_run(prepared: PreparedRun) -> None:
    """Print what would be run."""
    say(f"would write: {', '.join(_files(prepared))}")
    say_command("would run:", shell_text(prepared.command, prepared.environment))
    taken = _time_line(prepared)
    if taken is not None:
        say(taken)
    for line in () if prepared.data is None else prepared.data.lines():
        say(line)
    print_notes(prepared)


def _time_line(prepared: PreparedRun) -> str | None:
    """``would take: 38 min for 10,000 steps with 20 evaluations of 28.1 s``; None where a step's time is not known."""
    plan = prepared.plan
    if prepared.merges_only:
        return None
    num_steps, whole_steps = planned_run_steps(plan, prepared.options), whole_run_steps(plan)
    seconds, each = plan.seconds_of(num_steps, whole_steps), plan.seconds_per_evaluation
    if seconds is None:
        return None
    evaluating = ""
    if each is not None:
        count = plan.num_evaluations_in(num_steps, whole_steps)
        evaluating = f" with {counted(count, 'evaluation')} of {duration_text(each)}"
    return f"would take: {duration_text(seconds)} for {counted(num_steps, 'step')}{evaluating}"


def _files(prepared: PreparedRun) -> list[str]:
    return [str(prepared.options.output_dir / name) for name in (*prepared.texts, LOG_FILE)]


def print_notes(prepared: PreparedRun) -> None:
    """Print notes and problems to standard error."""
    sentences = (*prepared.notes, *prepared.findings.warnings)
    for sentence in caveats(sentences):
        tell(f"caution: {sentence}")
    for sentence in footnotes(sentences):
        tell(f"note: {sentence}")
    for sentence in prepared.findings.problems:
        tell(f"vlmplan: {sentence}")


def starting_text(prepared: PreparedRun) -> str:
    """What is started, and how."""
    plan = prepared.plan
    if prepared.merges_only:
        return "merging the adapter of the run that has ended into its model; nothing is trained"
    hardware = plan.hardware
    how = "through DeepSpeed's launcher" if plan.has_ranks else "in plain PyTorch"
    nodes = f" on {hardware.num_nodes} machines" if hardware.num_nodes > 1 else ""
    return f"starting {counted(hardware.num_gpus, 'rank')}{nodes} {how}, which takes a while"


def print_way_out(found: WayOut, command: Command, on: date) -> None:
    """Print to standard error what would fit."""
    for sentence, lead, changed in way_out_parts(found, on):
        tell(sentence)
        if changed is not None:
            tell(f"{lead} {command(changed)}")


def step_line(step: PlannedStage) -> str:
    """``stage 1 of 2, align: full, 2.1 M of 2.2 B parameters; 3.1 GiB of 22.5 GiB on each GPU; 120 steps in 9 min``."""
    plan, expected = step.plan, step.plan.expected
    num_steps = planned_run_steps(plan, step.trainer)
    seconds = plan.seconds_of(num_steps, whole_run_steps(plan))
    return (
        f"{step.title}: {plan.recipe.method.value}, {count_text(plan.num_trainable_params)} of "
        f"{count_text(plan.num_params)} parameters; {gib_text(expected.peak_device_bytes)} of "
        f"{gib_text(plan.hardware.usable_bytes)} on each GPU; {counted(num_steps, 'step')}"
        f"{'' if seconds is None else f' in {duration_text(seconds)}'}"
    )

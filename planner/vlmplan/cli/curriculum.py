"""``vlmplan launch --curriculum``: stages one after another, each with a plan of its own.

The file is YAML (or JSON): a list ``stages``, each a mapping of options of ``vlmplan launch`` to values, with ``name``,
and ``train``, the parts that are trained, as short forms. Paths are relative to the file; an option that a stage leaves
out has its value on the command line.

    stages:
      - {name: align, train_data: captions.jsonl, train: [projector], learning_rate: 1e-3}
      - {name: instruct, train_data: chats.jsonl, train: [projector, language], epochs: 2}

A stage starts from what the one before it wrote: from its model; from its adapter where both train the same one; else
from the model with the adapter merged in. Its folder is ``OUTPUT/NUMBER-NAME``.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from vlmplan.answers.launch import print_notes, print_run, stages_document
from vlmplan.cli.launch_options import CURRICULUM_FILE, parser
from vlmplan.cli.options import ClickValues, words_of
from vlmplan.cli.start import start
from vlmplan.emit import PLAN_FILE
from vlmplan.errors import InputError, UnknownNameError, VlmplanError
from vlmplan.files import text_of, write_atomically
from vlmplan.json_reader import JsonObject, not_allowed, read_json_object
from vlmplan.launch.plan_changes import plan_problems
from vlmplan.launch.prepared import Prepared, planned, prepare, with_data
from vlmplan.launch.resuming import Asked, asked_of, kept_options
from vlmplan.launch.run_folder import what_differs
from vlmplan.plan import Plan, read_plan
from vlmplan.recipe import Method
from vlmplan.render import lines
from vlmplan.request import Request, parse
from vlmplan.run_record import OF_EACH_START
from vlmplan.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER, REPORT_FILE, TrainerOptions
from vlmplan.units import count_text, duration_text, gib_text
from vlmplan.yaml_reader import parse_yaml

PARTS = ("vision", "projector", "language")
OF_ALL_STAGES = {
    *("plan_file", "demo", "curriculum", "output_dir", "resume", "dry_run", "hostfile", "as_json", "catalog_files"),
    *("model", "gpu", "num_nodes", "adapter", "random_weights"),
}
"""Options that a stage cannot have for itself."""
DATA = ("train_data", "dummy_data")
RECORD_SCHEMA = "vlmplan.curriculum/1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``values`` by the names of options; what the file says, checked."""

    name: str
    values: ClickValues


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAllStages:
    """The options of the command line: ``given`` for plans, ``asked`` of the trainer. ``text``: what ``file`` held when
    the curriculum was started; None: it is to be read."""

    file: Path | None
    given: ClickValues
    asked: ClickValues
    hostfile: Path | None = None
    catalog_files: tuple[Path, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stage to be run. ``plan`` loads what the stage before leaves in ``needs``, ``unstarted`` the user's model."""

    title: str
    plan: Plan
    unstarted: Plan
    asked: Asked
    notes: list[str]
    needs: Path | None = None

    @property
    def trainer(self) -> TrainerOptions:
        return self.asked.trainer

    def asking(self, **changes: Any) -> "Step":
        """The same with other options of the trainer."""
        trainer = dataclasses.replace(self.trainer, **changes)
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, trainer=trainer))

    @property
    def is_done(self) -> bool:
        return self.trainer.resume and (self.trainer.output_dir / REPORT_FILE).is_file()

    @property
    def is_ready(self) -> bool:
        """Whether what it starts from is there."""
        return self.needs is None or self.needs.is_dir()


# -- the file --------------------------------------------------------------------------------------------------------


def read_stages(path: Path, text: str | None = None) -> list[Stage]:
    """The stages in a file, which held ``text`` or is read.

    Raises UnavailableError or InputError with the stage and the key that is wrong.
    """
    name = f"--curriculum {path}"
    text = text_of(path, name=name) if text is None else text
    documents = parse_yaml(text, source=name)
    if len(documents) != 1:
        raise InputError(f"{name} has {len(documents)} YAML documents; one with the list stages is needed")
    content = JsonObject(documents[0], source=name)
    stages = content.array("stages")
    content.close()
    if not stages:
        content.refuse("stages", "a list of one stage or more")
    numbered = (JsonObject(item, source=f"{name}: stage {i}") for i, item in enumerate(stages, start=1))
    return [_stage(stage, path.parent) for stage in numbered]


def _stage(stage: JsonObject, folder: Path) -> Stage:
    said = {key.replace("-", "_"): value for key, value in stage.values.items()}
    name = str(said.pop("name", "stage"))
    if not NAME.fullmatch(name):
        stage.refuse("name", "a text of letters, digits and _.-")
    trained = said.pop("train", None)
    if trained is not None:
        said |= _switches(trained, stage.source)
    return Stage(name=name, values=_parsed(said, stage, folder))


def _switches(trained: Any, where: str) -> dict[str, bool]:
    wanted: list[Any] = cast(list[Any], trained) if isinstance(trained, list) else [trained]
    for part in wanted:
        if part not in PARTS:
            raise UnknownNameError(f"{where}: part to train", str(part), PARTS, f"{', '.join(PARTS)} are known")
    return {f"train_{part}": part in wanted for part in PARTS}


def _parsed(said: Mapping[str, Any], stage: JsonObject, folder: Path) -> ClickValues:
    """Values as the command line reads them."""
    where, known = stage.source, {str(item.name): item for item in parser.params if item.name not in OF_ALL_STAGES}
    for key in said:
        if key not in known:
            raise UnknownNameError(f"{where}: option", key, known, "options of launch, name and train are known")
    checked = {key: _value(cast(click.Option, known[key]), stage, key, value) for key, value in said.items()}
    command = click.Command("stage", params=list(known.values()))
    try:
        values = command.make_context("stage", words_of(command, checked)).params
    except click.UsageError as error:
        raise InputError(f"{where}: {error.format_message()}") from None
    given = {key: values[key] for key in said}
    return {key: folder / value if isinstance(value, Path) else value for key, value in given.items()}


def _value(option: click.Option, stage: JsonObject, key: str, value: Any) -> Any:
    """What the file says, if it is of a kind that the option can have."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise not_allowed(stage.source, stage.key_path(key), value, "true or false")
        return value
    if isinstance(value, list):
        items = tuple(map(str, cast(list[Any], value)))
        return items if option.multiple else ",".join(items)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise not_allowed(stage.source, stage.key_path(key), value, "a number or a text")
    return value


# -- what is kept of it ----------------------------------------------------------------------------------------------


def keep_curriculum(file: Path, of_all: OfAllStages) -> None:
    """Write curriculum.json, from which the curriculum goes on with ``--resume`` alone."""
    values = {**of_all.given, **of_all.asked, "hostfile": of_all.hostfile, "catalog_files": of_all.catalog_files}
    kept = {name: value for name, value in values.items() if name not in OF_EACH_START}
    kept |= {name: value.absolute() for name, value in kept.items() if isinstance(value, Path)}
    if kept["model"] is not None:
        kept |= kept_options({"model": str(kept["model"])})
    kept["catalog_files"] = tuple(path.absolute() for path in of_all.catalog_files)
    content = {
        "schema": RECORD_SCHEMA,
        "file": str(file.absolute()),
        "text": text_of(file, name=f"--curriculum {file}") if of_all.text is None else of_all.text,
        "arguments": words_of(parser, kept),
    }
    write_atomically(of_all.asked["output_dir"] / CURRICULUM_FILE, json.dumps(content, indent=2) + "\n", force=True)


def with_kept(of_all: OfAllStages) -> OfAllStages:
    """The same, with the file and options of the curriculum in the output folder where they are not given again."""
    path = of_all.asked["output_dir"] / CURRICULUM_FILE
    if not path.is_file():
        return of_all
    content = JsonObject(read_json_object(path), source=str(path))
    if content.raw("schema") != RECORD_SCHEMA:
        content.refuse("schema", RECORD_SCHEMA)
    try:
        kept = parser.make_context("launch", list(content.texts("arguments"))).params
    except click.UsageError as error:
        raise InputError(f"{path}: arguments: {error.format_message()}") from None
    file, text = Path(content.text("file")), content.text("text")
    content.close()

    return OfAllStages(
        file=of_all.file or file,
        text=text if of_all.file is None else None,
        given=_completed(of_all.given, kept, has_off=True),
        asked=_completed(of_all.asked, kept, has_off=False),
        hostfile=of_all.hostfile or kept["hostfile"],
        catalog_files=of_all.catalog_files or kept["catalog_files"],
    )


def _completed(values: ClickValues, kept: ClickValues, *, has_off: bool) -> ClickValues:
    """``values``, and the ``kept`` ones of options that were not given. ``has_off``: False was given (--freeze-vision);
    flags of the trainer have no such form."""

    def is_given(value: Any) -> bool:
        return value is not None and value != () and (has_off or value is not False)

    return {name: value if is_given(value) else kept[name] for name, value in values.items()}


# -- the plans -------------------------------------------------------------------------------------------------------


def planned_steps(stages: Sequence[Stage], of_all: OfAllStages) -> list[Step]:
    """A plan for every stage. Raises VlmplanError, with the stage, for what cannot be planned."""
    steps: list[Step] = []
    request: Request | None = None
    for number, stage in enumerate(stages, start=1):
        title = f"stage {number} of {len(stages)}, {stage.name}"
        try:
            request = request or parse(of_all.given)
            steps.append(_step(stage, number, title, of_all, request))
            if number > 1:
                steps[-2:] = _joined(steps[-2], steps[-1])
        except VlmplanError as error:
            raise type(error)(f"{title}: {error}") if type(error) is InputError else error from None
    return steps


def _step(stage: Stage, number: int, title: str, of_all: OfAllStages, request: Request) -> Step:
    """``request`` is that of the command line."""
    asked = of_all.asked
    of_trainer = asked | {key: value for key, value in stage.values.items() if key in asked}
    if any(key in stage.values for key in DATA):  # the stage's own data, not that of the command line
        of_trainer |= {key: stage.values.get(key) for key in DATA}
    of_trainer["output_dir"] = asked["output_dir"] / f"{number}-{stage.name}"
    whole = asked_of(of_trainer, hostfile=of_all.hostfile, catalog_files=of_all.catalog_files)
    of_plan = {key: value for key, value in stage.values.items() if key in of_all.given}
    whole = dataclasses.replace(whole, planned_with=kept_options(of_all.given | of_plan))
    plan, notes = planned(request.with_options(of_plan), whole.catalog_files, whole.trainer)
    return Step(title=title, plan=plan, unstarted=plan, asked=whole, notes=notes)


def _joined(before: Step, step: Step) -> tuple[Step, Step]:
    """Both, the later one starting from what the earlier one leaves."""
    folder = before.trainer.output_dir.absolute()
    if not before.plan.recipe.trains_adapters:
        return before, _starting(step, folder / MODEL_FOLDER)
    # The model's own weights are the same in both; what else differs is the adapter.
    if what_differs(dataclasses.replace(before.plan, workload=step.plan.workload), step.plan) is None:
        adapter = folder / ADAPTER_FOLDER
        plan = _loading(step.plan, before.plan.model_source)
        return before, dataclasses.replace(step.asking(adapter=adapter), plan=plan, needs=adapter)
    merging = before.asking(merge_adapters=True)
    if step.plan.recipe.method is Method.QLORA:
        step.notes.append("the merged weights are rounded to 4 bits again, and what was learnt with them")
    return merging, _starting(step, folder / MERGED_FOLDER)


def _starting(step: Step, folder: Path) -> Step:
    return dataclasses.replace(step, plan=_loading(step.plan, str(folder)), needs=folder)


def _loading(plan: Plan, source: str) -> Plan:
    model = dataclasses.replace(plan.workload.model, hub_id=source)
    return dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, model=model))


# -- the run ---------------------------------------------------------------------------------------------------------


def run_curriculum(of_all: OfAllStages, *, dry_run: bool, as_json: bool) -> int:
    """Train all stages, each looked at before the first is started; the exit code of the one that ends badly.

    A resumed curriculum skips the stages that are done and goes on in the one that is not.
    """

    def looked_at(step: Step, *, is_first_look: bool) -> Prepared:
        if step.is_ready or not is_first_look:
            return prepare(step.plan, step.asked, step.notes)
        return prepare(step.unstarted, step.asking(adapter=None).asked, step.notes)

    assert of_all.file is not None
    steps = planned_steps(read_stages(of_all.file, of_all.text), of_all)
    changed = [sentence for step in steps if step.is_done for sentence in _changes(step)]
    left = [step for step in steps if not step.is_done]
    seen = [looked_at(step, is_first_look=True) for step in left]
    if dry_run or len(left) > 1:  # a wrong sample of a later stage would end the curriculum after days
        seen = [with_data(prepared) for prepared in seen]
    if dry_run:
        return _show(left, seen, as_json=as_json)
    has_problems = bool(changed) or any(prepared.findings.problems for prepared in seen)
    for sentence in changed:
        click.echo(f"vlmplan: {sentence}", err=True)
    for step, prepared in zip(left, seen, strict=True):
        if prepared.findings.problems:
            click.echo(step.title, err=True)
            print_notes(prepared)
    if has_problems:
        return VlmplanError.exit_code
    keep_curriculum(of_all.file, of_all)
    for step in left:
        lines.say(_line(step))
        code = start(looked_at(step, is_first_look=False))
        if code:
            return code
    lines.say(f"all {len(steps)} stages are done; the last one's result is in {steps[-1].trainer.output_dir}")
    return 0


def _changes(step: Step) -> Iterator[str]:
    """Why a stage that is done is not the one that is asked for."""
    folder = step.trainer.output_dir
    for sentence in (*step.asked.problems, *plan_problems(read_plan(folder / PLAN_FILE), step.plan, folder)):
        yield f"{step.title}: {sentence}"


def _line(step: Step) -> str:
    """``stage 1 of 2, align: full, 2.1 M of 2.2 B parameters; 3.1 GiB of 22.5 GiB on each GPU; 120 steps in 9 min``."""
    plan, expected = step.plan, step.plan.expected
    num_steps = min(expected.num_steps, step.trainer.max_steps or expected.num_steps)
    seconds = "" if expected.step_seconds is None else f" in {duration_text(expected.step_seconds * num_steps)}"
    return (
        f"{step.title}: {plan.recipe.method.value}, {count_text(plan.num_trainable_params)} of "
        f"{count_text(plan.num_params)} parameters; {gib_text(expected.peak_device_bytes)} of "
        f"{gib_text(plan.hardware.usable_bytes)} on each GPU; {num_steps:,} steps{seconds}"
    )


def _show(steps: Sequence[Step], seen: Sequence[Prepared], *, as_json: bool) -> int:
    """Print what would be run; 1 if a stage cannot."""
    if as_json:
        click.echo(json.dumps(stages_document([step.title for step in steps], seen), indent=2))
    else:
        for step, prepared in zip(steps, seen, strict=True):
            lines.say(_line(step))
            print_run(prepared)
    return VlmplanError.exit_code if any(prepared.findings.problems for prepared in seen) else 0

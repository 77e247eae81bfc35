"""``vlmplan launch --curriculum``: stages one after another, each with a plan of its own.

The file is YAML (or JSON): a list ``stages``, each a mapping of options of ``vlmplan launch`` to values, with ``name``,
and ``train``, the parts that are trained, as short forms. Paths are relative to the file; an option that a stage leaves
out has its value on the command line.

    stages:
      - {name: align, train_data: captions.jsonl, train: [projector], learning_rate: 1e-3}
      - {name: instruct, train_data: chats.jsonl, train: [projector, language], epochs: 2}

What a stage starts from, and its plan, are in ``vlmplan.launch.curriculum``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from vlmplan.answers.launch import print_notes, print_run, stages_document, step_line
from vlmplan.cli.launch_options import CURRICULUM_FILE, parser
from vlmplan.cli.option_words import ClickValues, words_of
from vlmplan.cli.output import print_document
from vlmplan.cli.start import start
from vlmplan.errors import InputError, UnknownNameError, VlmplanError
from vlmplan.files import text_of, write_atomically
from vlmplan.files.json_reader import JsonObject, not_allowed, read_json_object
from vlmplan.files.yaml_reader import parse_yaml
from vlmplan.launch.curriculum import CurriculumOptions, PlannedStage, Stage, changes, left_stages, planned_stages
from vlmplan.launch.prepared import PreparedRun, prepare, with_data
from vlmplan.launch.resuming import kept_options
from vlmplan.render import lines
from vlmplan.render.lines import tell
from vlmplan.run.record import OF_EACH_START

PARTS = ("vision", "projector", "language")
OF_ALL_STAGES = {
    *("plan_file", "demo", "curriculum", "output_dir", "resume", "dry_run", "hostfile", "as_json", "catalog_files"),
    *("model", "gpu", "num_nodes", "adapter", "random_weights", "html", "force"),
}
"""Options that a stage cannot have for itself."""
RECORD_SCHEMA = "vlmplan.curriculum/1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


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
            raise UnknownNameError("part to train", str(part), PARTS, f"in {where}; {', '.join(PARTS)} are known")
    return {f"train_{part}": part in wanted for part in PARTS}


def _parsed(said: Mapping[str, Any], stage: JsonObject, folder: Path) -> ClickValues:
    """Values as the command line reads them."""
    where, known = stage.source, {str(item.name): item for item in parser.params if item.name not in OF_ALL_STAGES}
    for key in said:
        if key not in known:
            raise UnknownNameError("key", key, known, f"in {where}; options of launch, name and train are known")
    checked = {key: _value(cast(click.Option, known[key]), stage, key, value) for key, value in said.items()}
    command = click.Command("stage", params=list(known.values()))
    try:
        values = command.make_context("stage", words_of(command, checked)).params
    except click.UsageError as error:
        raise InputError(f"{where}: {error.format_message()}") from None
    given = {key: values[key] for key in said}
    return {key: folder / value if isinstance(value, Path) else value for key, value in given.items()}


def _value(option: click.Option, stage: JsonObject, key: str, value: Any) -> Any:
    """The file's value, checked against the type of the option."""
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


def keep_curriculum(file: Path, options: CurriculumOptions) -> None:
    """Write curriculum.json, from which the curriculum goes on with ``--resume`` alone."""
    values = {
        **options.plan_options,
        **options.trainer_options,
        "hostfile": options.hostfile,
        "catalog_files": options.catalog_files,
    }
    kept = {name: value for name, value in values.items() if name not in OF_EACH_START}
    kept |= {name: value.absolute() for name, value in kept.items() if isinstance(value, Path)}
    if kept["model"] is not None:
        kept |= kept_options({"model": str(kept["model"])})
    kept["catalog_files"] = tuple(path.absolute() for path in options.catalog_files)
    content = {
        "schema": RECORD_SCHEMA,
        "file": str(file.absolute()),
        "text": text_of(file, name=f"--curriculum {file}") if options.text is None else options.text,
        "arguments": words_of(parser, kept),
    }
    write_atomically(
        options.trainer_options["output_dir"] / CURRICULUM_FILE, json.dumps(content, indent=2) + "\n", force=True
    )


def with_kept(options: CurriculumOptions) -> CurriculumOptions:
    """The options, with the file and options of the curriculum in the output folder where they are not given again."""
    path = options.trainer_options["output_dir"] / CURRICULUM_FILE
    if not path.is_file():
        return options
    content = JsonObject(read_json_object(path), source=str(path))
    if content.raw("schema") != RECORD_SCHEMA:
        content.refuse("schema", RECORD_SCHEMA)
    try:
        kept = parser.make_context("launch", list(content.texts("arguments"))).params
    except click.UsageError as error:
        raise InputError(f"{path}: arguments: {error.format_message()}") from None
    file, text = Path(content.text("file")), content.text("text")
    content.close()

    return CurriculumOptions(
        file=options.file or file,
        text=text if options.file is None else None,
        plan_options=_completed(options.plan_options, kept, has_off=True),
        trainer_options=_completed(options.trainer_options, kept, has_off=False),
        hostfile=options.hostfile or kept["hostfile"],
        catalog_files=options.catalog_files or kept["catalog_files"],
    )


def _completed(values: ClickValues, kept: ClickValues, *, has_off: bool) -> ClickValues:
    """``values``, and the ``kept`` ones of options that were not given. ``has_off``: False was given (--freeze-vision);
    flags of the trainer have no such form."""

    def is_given(value: Any) -> bool:
        return value is not None and value != () and (has_off or value is not False)

    return {name: value if is_given(value) else kept[name] for name, value in values.items()}


# -- the run ---------------------------------------------------------------------------------------------------------


def run_curriculum(options: CurriculumOptions, *, dry_run: bool, as_json: bool) -> int:
    """Train all stages, each looked at before the first is started; the exit code of the one that ends badly.

    A resumed curriculum skips the stages that are done and goes on in the one that is not.
    """

    def looked_at(step: PlannedStage, *, is_first_look: bool) -> PreparedRun:
        if step.is_ready or not is_first_look:
            return prepare(step.plan, step.launch_request, step.notes)
        return prepare(step.unstarted, step.with_trainer_options(adapter=None).launch_request, step.notes)

    assert options.file is not None
    steps = planned_stages(read_stages(options.file, options.text), options)
    changed = [sentence for step in steps if step.is_done for sentence in changes(step)]
    left = left_stages(steps)
    seen = [looked_at(step, is_first_look=True) for step in left]
    if dry_run or len(left) > 1:  # a wrong sample of a later stage would end the curriculum after days
        seen = [with_data(prepared) for prepared in seen]
    for sentence in changed:
        tell(f"vlmplan: {sentence}")
    if dry_run:
        return _show(left, seen, as_json=as_json) if not changed else VlmplanError.exit_code
    for step, prepared in zip(left, seen, strict=True):
        if prepared.findings.problems:
            tell(step.title)
            print_notes(prepared)
    if changed or any(prepared.findings.problems for prepared in seen):
        return VlmplanError.exit_code
    keep_curriculum(options.file, options)
    for step in left:
        lines.say(step_line(step))
        code = start(looked_at(step, is_first_look=False))
        if code:
            return code
    lines.say(f"all {len(steps)} stages are done; the last one's result is in {steps[-1].trainer.output_dir}")
    return 0


def _show(steps: Sequence[PlannedStage], seen: Sequence[PreparedRun], *, as_json: bool) -> int:
    """Print what would be run; 1 if a stage cannot."""
    if as_json:
        print_document(stages_document([step.title for step in steps], seen))
    else:
        for step, prepared in zip(steps, seen, strict=True):
            lines.say(step_line(step))
            print_run(prepared)
    return VlmplanError.exit_code if any(prepared.findings.problems for prepared in seen) else 0

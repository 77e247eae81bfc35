"""``vlmplan explain``: what a key of a ds_config.json does, and its bytes in a plan."""

from pathlib import Path
from typing import Any

import click

from vlmplan.cli.option_kinds import SectionedCommand, options
from vlmplan.cli.options import CATALOG, CONFIG, DATA, JSON, MODEL, ONE_CLUSTER, WORKLOAD
from vlmplan.cli.output import print_document
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.rehearse import PLAN
from vlmplan.cli.task_options import TASK


@click.command(cls=SectionedCommand)
@click.argument("name", metavar="[KEY]", required=False)
@options(PLAN, CONFIG, MODEL, DATA, WORKLOAD[1:], ONE_CLUSTER, RECIPE, EVALUATION, TASK, CATALOG, JSON)
@click.pass_context
def explain(
    ctx: click.Context,
    *,
    name: str | None,
    plan_file: Path | None,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    **given: Any,
) -> int:
    """What a key of a ds_config.json does in DeepSpeed, its default, what vlmplan sets it to and why.

    With the options of estimate, or with --plan, also its value in that plan, and bytes and seconds with other values
    of it. KEY is a path, such as zero_optimization.sub_group_size, or its last part alone; without it all keys are
    listed.
    """
    from vlmplan.answers.explanation import document, print_key
    from vlmplan.deepspeed_config import find_key

    names_plan = plan_file is not None or any(value is not None for value in given.values())
    if name is None:
        if names_plan:
            raise click.UsageError("a KEY is needed to look at in a plan", ctx)
        return _list_keys(as_json=as_json)
    key = find_key(name)
    found, notes = None, []
    if names_plan:
        from vlmplan.cli.rehearse import plan_asked_for
        from vlmplan.key_effects import key_in_plan

        asked = plan_asked_for(ctx, plan_file, given, catalog_files)
        found, notes = key_in_plan(key, asked.estimate, asked.plan.ds_config), asked.notes
        if found is None:
            notes = [*notes, "this plan is one of plain PyTorch, which has no ds_config.json; --zero-stage names one"]
    if as_json:
        print_document(document(key, found, notes))
    else:
        print_key(key, found, notes)
    return 0


def _list_keys(*, as_json: bool) -> int:
    from vlmplan.answers.explanation import keys_document, print_keys
    from vlmplan.deepspeed_config import KEYS

    keys = list(KEYS.values())
    if as_json:
        print_document(keys_document(keys))
    else:
        print_keys(keys)
    return 0

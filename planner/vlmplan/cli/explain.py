"""``vlmplan explain``: what a key of a ds_config.json does, and its bytes in a plan."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import CATALOG, JSON, ONE_CLUSTER, RECIPE, WORKLOAD, options
from vlmplan.cli.rehearse import MODEL, PLAN

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import Key
    from vlmplan.key_effects import KeyInPlan

SCHEMA = "vlmplan.explanation/1"


@click.command()
@click.argument("name", metavar="[KEY]", required=False)
@options(PLAN, MODEL, WORKLOAD[1:], ONE_CLUSTER, RECIPE, CATALOG, JSON)
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
    from vlmplan.deepspeed_config import KEYS, find_key

    names_plan = plan_file is not None or any(value is not None for value in given.values())
    if name is None:
        if names_plan:
            raise click.UsageError("a KEY is needed to look at in a plan", ctx)
        keys = list(KEYS.values())
        _print_list(keys, as_json=as_json)
        return 0
    key = find_key(name)
    found, notes = None, []
    if names_plan:
        from vlmplan.cli.rehearse import plan_asked_for
        from vlmplan.key_effects import key_in_plan

        plan, estimate, notes = plan_asked_for(ctx, plan_file, given, catalog_files)
        found = key_in_plan(key, estimate, plan.ds_config)
        if found is None:
            notes = [*notes, "this plan is one of plain PyTorch, which has no ds_config.json; --zero-stage names one"]
    if as_json:
        click.echo(json.dumps(document(key, found, notes), indent=2))
    else:
        from vlmplan.render.key import print_key

        print_key(key, found, notes)
    return 0


def _print_list(keys: "list[Key]", *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "keys": [key_json(key) for key in keys]}, indent=2))
    else:
        from vlmplan.render.key import print_keys

        print_keys(keys)


def key_json(key: "Key") -> dict[str, Any]:
    """What is known of a key; ``accepted_values`` are those that can be planned, null: any of its kind."""
    from vlmplan.deepspeed_config import auto_text

    return {
        "key": key.path,
        "kind": key.kind.value,
        "default": key.default,
        "effect": key.effect.name.lower(),
        "about": key.about,
        "source": [f"deepspeed/{source}" for source in key.source.split(", ")],
        "planned": key.planned or None,
        "auto": auto_text(key.path),
        "accepted_values": list(key.only or key.words) or None,
    }


def document(key: "Key", found: "KeyInPlan | None", notes: list[str]) -> dict[str, Any]:
    """Schema ``vlmplan.explanation/1``; integers of ``plan`` are bytes, but for the key's own values."""
    return {"schema": SCHEMA} | key_json(key) | {"plan": None if found is None else found.as_json(), "notes": notes}

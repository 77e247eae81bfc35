"""A key of a ds_config.json: the document, and for people what it does, what it is in a plan, a list of all keys."""

from collections.abc import Sequence
from typing import Any

import click

from vlmplan.answers.estimate import calibration_lines, hardware_text, setup_text
from vlmplan.answers.used_calibration import reference_json
from vlmplan.deepspeed_config import Effect, Key, auto_text
from vlmplan.files.json_reader import JsonDict, shown
from vlmplan.key_effects import KeyInPlan, OtherValue
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import GIB, MIB, duration_text, gib_text
from vlmplan.versions import CHECKED_VERSIONS

SCHEMA = "vlmplan.explanation/1"
HEADS = {
    Effect.MODELLED: "Keys that a plan follows:",
    Effect.NONE: "Keys that are accepted and change neither memory nor time of a plan:",
    Effect.REFUSED: "Keys that matter and are not modelled; only what leaves them off is accepted:",
}
NUMBERS = frozenset(("peak of a GPU", "difference", "host", "step"))


def keys_document(keys: Sequence[Key]) -> JsonDict:
    """Schema ``vlmplan.explanation/1`` of the list of all keys."""
    return {"schema": SCHEMA, "keys": [_key_json(key) for key in keys]}


def document(key: Key, found: KeyInPlan | None, notes: Sequence[str]) -> JsonDict:
    """Schema ``vlmplan.explanation/1``; integers of ``plan`` are bytes, but for the key's own values."""
    return (
        {"schema": SCHEMA}
        | _key_json(key)
        | {"plan": None if found is None else _plan_json(found), "notes": list(notes)}
    )


def _key_json(key: Key) -> JsonDict:
    """What is known of a key; ``accepted_values`` are those that can be planned, null: any of its kind."""
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


def _plan_json(found: KeyInPlan) -> JsonDict:
    return {
        "model": found.planned.workload.model.id,
        "recipe": found.planned.recipe.as_json(),
        "calibration": reference_json(found.planned.cluster.node.gpu.calibration),
        "value": found.value,
        "is_written": found.is_written,
        "peak_allocated_bytes": found.planned.peak_allocated_bytes,
        "peak_device_bytes": found.planned.device.device_bytes,
        "host_bytes_per_node": found.planned.host.peak_bytes,
        "step_seconds": found.planned.step_seconds,
        "other_values": [_other_json(other) for other in found.others],
    }


def _other_json(other: OtherValue) -> JsonDict:
    phase, difference = other.largest_phase_difference
    return {
        "value": other.value,
        "peak_allocated_bytes": other.found.peak_allocated_bytes,
        "peak_difference_bytes": other.peak_difference_bytes,
        "peak_device_bytes": other.found.device.device_bytes,
        "largest_phase_difference": {"phase": phase, "bytes": difference},
        "host_bytes_per_node": other.found.host.peak_bytes,
        "step_seconds": other.found.step_seconds,
    }


def print_key(key: Key, found: KeyInPlan | None, notes: Sequence[str] = ()) -> None:
    """Print one key to standard output, and what it does to a plan where one is asked for."""
    say(key.path)
    say(f"  {key.about}", f"  default: {value_text(key.default)}; {_kind_text(key)}")
    places = ", ".join(f"deepspeed/{source}" for source in key.source.split(", "))
    say(f"  read in: {places} (DeepSpeed {CHECKED_VERSIONS['deepspeed']})")
    say(f"  vlmplan writes: {key.planned or 'nothing of it'}", f"  in a file of --ds-config: {_file_text(key)}")
    filled = auto_text(key.path)
    if filled is not None:
        say(f'  "auto" in such a file: {filled}')
    if found is not None:
        click.echo()
        _print_plan(found)
    if notes:
        click.echo()
        say(*notes)


def print_keys(keys: Sequence[Key]) -> None:
    """Print every key with its default, by what it means for a plan."""
    for effect, head in HEADS.items():
        say(head)
        rows = [[key.path, value_text(key.default), key.about] for key in keys if key.effect is effect]
        titles = ("key", "default", "what it does")
        print_table(Table(titles=titles, rows=rows, cut_columns=frozenset(titles[2:]), least_first=titles[:0:-1]))
        click.echo()
    say("vlmplan explain KEY says more of one; with --model and --gpu, or --plan FILE, its bytes in that plan")


def value_text(value: Any) -> str:
    """A value as it stands in a file, counts with commas.

    >>> value_text(500_000_000), value_text(True), value_text(None), value_text("cpu")
    ('500,000,000', 'true', 'left out', 'cpu')
    """
    if value is None:
        return "left out"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) and value else shown(value)


def _kind_text(key: Key) -> str:
    accepted = key.only or key.words
    if accepted and key.effect is Effect.MODELLED:
        return f"one of {', '.join(value_text(value) for value in accepted)}"
    return f"{key.kind.value} of {key.least:g} or more" if key.kind.value.endswith("number") else key.kind.value


def _file_text(key: Key) -> str:
    if key.effect is Effect.MODELLED:
        return "followed"
    if key.effect is Effect.NONE:
        return "accepted; it changes neither memory nor time of a plan"
    accepted = " or ".join(value_text(value) for value in key.only or key.words)
    return f"refused unless {accepted}, which leaves it off" if accepted else "refused: vlmplan has no model of it"


def _print_plan(found: KeyInPlan) -> None:
    planned = found.planned
    say(f"{planned.workload.model.id}: {setup_text(planned)}; {hardware_text(planned)}")
    say(*(f"  {line}" for line in calibration_lines(planned)))
    say(f"  in this plan: {value_text(found.value)}{_unwritten_text(found)}")
    if not found.others:
        say("  no other value of it is compared: " + _why_alone(found.key))
        return
    click.echo()
    seconds = planned.step_seconds
    peak = planned.peak_allocated_bytes
    rows = [[value_text(found.value), gib_text(peak), "as planned", "", gib_text(planned.host.peak_bytes),
             "" if seconds is None else duration_text(seconds)]]  # fmt: skip
    print_table(Table(titles=("value", "peak of a GPU", "difference", "most changed phase", "host", "step"),
                      rows=[*rows, *map(_row, found.others)], number_columns=NUMBERS,
                      least_first=("host", "step", "peak of a GPU")))  # fmt: skip
    say("bytes allocated on the fullest GPU; all other keys as they are")


def _unwritten_text(found: KeyInPlan) -> str:
    if found.is_written:
        return ""
    if found.value != found.key.default:
        return " (the trainer builds it; not written)"
    return " (DeepSpeed's default; not written)"


def _why_alone(key: Key) -> str:
    if key.effect is Effect.NONE:
        return "it changes neither memory nor time"
    return "no other can be trained here" if key.effect is Effect.MODELLED else "no other can be planned"


def _row(other: OtherValue) -> list[str]:
    phase, difference = other.largest_phase_difference
    seconds = other.found.step_seconds
    return [
        value_text(other.value),
        gib_text(other.found.peak_allocated_bytes),
        signed(other.peak_difference_bytes),
        f"{phase} {signed(difference)}" if difference else "none",
        gib_text(other.found.host.peak_bytes),
        "" if seconds is None else duration_text(seconds),
    ]


def signed(num_bytes: int) -> str:
    """A difference in bytes with its sign.

    >>> signed(3 * 2**20), signed(-2**30), signed(0)
    ('+3.0 MiB', '-1.00 GiB', '0')
    """
    text = gib_text(num_bytes) if abs(num_bytes) >= GIB or not num_bytes else f"{num_bytes / MIB:.1f} MiB"
    return f"+{text}" if num_bytes > 0 else text

"""Published measurements beside rehearsals; ``python tests/measured/rehearsed_report.py`` rewrites rehearsed.md.

Takes some twenty minutes: most rows are rehearsals of models of seven billion weights.
"""

import json
from importlib.metadata import version
from typing import Any

from click.testing import CliRunner
from measured_report import CASES, HERE, KEY_OF_COUNTER, command_of

from vlmplan.cli.command_line import cli
from vlmplan.units import GIB

TABLE = HERE / "rehearsed.md"
PACKAGES = ("torch", "transformers", "peft", "deepspeed", "bitsandbytes")
HEADER = """# Published measurements beside rehearsals

Rows of [README.md](README.md), one of those that are alike, rehearsed with `vlmplan rehearse`: what today's libraries
do, which are newer than those that were measured. Nothing is fitted to them. `python
tests/measured/rehearsed_report.py` rewrites this file; rehearsed with {versions}.

| run | counter | measured GiB | rehearsed GiB | error | estimated GiB |
|---|---|---:|---:|---:|---:|
"""


def rehearsed(case: dict[str, Any]) -> dict[str, Any]:
    words = ["rehearse", *command_of(case)[1:], "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


def rows(case: dict[str, Any]) -> list[str]:
    answer = rehearsed(case)
    found: list[str] = []
    for counter, measured in case["measured_gib"].items():
        key = KEY_OF_COUNTER[counter]
        seen, estimated = answer[key] / GIB, answer[f"estimated_{key}"] / GIB
        found.append(
            f"| {case['id']} | {counter} | {measured:.2f} | {seen:.2f} | {100 * (seen / measured - 1):+.1f}% | "
            f"{estimated:.2f} |"
        )
        print(found[-1], flush=True)
    return found


def table() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    cases = [case for case in CASES["cases"] if case.get("is_rehearsed", True)]
    return HEADER.format(versions=versions) + "\n".join(row for case in cases for row in rows(case)) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())

"""Rehearse the cases of ``cases.yaml``, one after another, and keep what happened in ``golden.json``.

``python tests/rehearsed/rehearse_all.py [--only NAME]...`` rehearses all cases, or some anew; about 10 seconds each.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version
from typing import Any

from rehearsed_cases import HERE, NAMES, estimated, request_of

from vlmplan.files.json_reader import JsonObject
from vlmplan.memory.overhead import workspace_sizes
from vlmplan.rehearsal.process import SOURCE, answer_of
from vlmplan.rehearsal.reserved import replayed
from vlmplan.rehearsal.result import rehearsed_from_json

GOLDEN = HERE / "golden.json"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")
KEPT = ("name", "step", "resident_bytes", "peak_bytes", "host_resident_bytes", "host_peak_bytes", "flops", "components")


def rehearsed(name: str) -> dict[str, Any]:
    """What is kept of one rehearsal. Raises RuntimeError where there is none."""
    command = [sys.executable, "-m", "vlmplan_trainer.rehearse"]
    answer = answer_of(command, json.dumps(request_of(name)), lambda phase: None)
    if "error" in answer:
        raise RuntimeError(f"{name}: {answer['error']}")
    return {
        "rank": answer["rank"],
        "checkpoint_bytes": answer["checkpoint_bytes"],
        "reserved_bytes": reserved(name, answer),
        "phases": [{key: phase[key] for key in KEPT if key in phase} for phase in answer["phases"]],
        "collectives": answer["collectives"],
    }


def reserved(name: str, answer: dict[str, Any]) -> dict[str, int]:
    """The most that torch's allocator reserves, library workspaces included, as it is and with expandable segments."""
    found = rehearsed_from_json(JsonObject(answer, source=SOURCE))
    workspaces = workspace_sizes(estimated(name).cluster.node.gpu)
    return {
        kind: replayed(found, workspaces=workspaces, has_expandable_segments=expandable).peak_reserved_bytes
        for kind, expandable in (("native", False), ("expandable", True))
    }


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"versions": {}, "cases": {}}


def keep(name: str, case: dict[str, Any]) -> None:
    """Put one case into the file, a line for each phase so that changes can be read."""
    kept = golden()
    kept["versions"] = {package: version(package) for package in PACKAGES}
    kept["cases"] = {key: value for key, value in (kept["cases"] | {name: case}).items() if key in NAMES}
    kept["cases"] = dict(sorted(kept["cases"].items(), key=lambda item: NAMES.index(item[0])))
    GOLDEN.write_text(as_text(kept))


def as_text(kept: dict[str, Any]) -> str:
    """JSON with lists of objects one object a line."""
    cases = []
    for name, case in kept["cases"].items():
        fields = []
        for key, value in case.items():
            if isinstance(value, list):
                lines = ",\n    ".join(json.dumps(item, separators=(",", ":")) for item in value)
                fields.append(f'   "{key}": [\n    {lines}]' if value else f'   "{key}": []')
            else:
                fields.append(f'   "{key}": {json.dumps(value)}')
        cases.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(fields) + "}")
    return f'{{"versions": {json.dumps(kept["versions"])},\n "cases": {{\n' + ",\n".join(cases) + "}}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="only those that golden.json does not have")
    arguments = parser.parse_args()
    names = arguments.only or NAMES
    if arguments.missing:
        names = [name for name in names if name not in golden()["cases"]]
    num_failed = 0
    for name in names:
        start = time.perf_counter()
        try:
            keep(name, rehearsed(name))
            print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        except Exception as error:
            num_failed += 1
            print(f"{name}: {error}", flush=True)
    return min(1, num_failed)


if __name__ == "__main__":
    sys.exit(main())

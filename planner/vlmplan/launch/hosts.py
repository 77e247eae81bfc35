"""A hostfile as DeepSpeed's launcher reads it (``deepspeed/launcher/runner.py`` 0.19.8, ``_parse_hostfile``)."""

import re
from collections.abc import Mapping
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.files import text_of
from vlmplan.files.json_reader import shown
from vlmplan.units import counted

LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})\s*(#.*)?")
HOST = re.compile(r"(\w[\w.-]*@)?\w[\w.:-]*", re.ASCII)
"""An address or a name, with a user or without; nothing that ssh, or pdsh, would take for an option or a pattern."""


def read_hostfile(path: Path) -> dict[str, int]:
    """GPUs by host, in the order of the file. Raises UnavailableError or InputError with the line that is wrong."""
    text = text_of(path, name=f"--hostfile {path}")
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None or not HOST.fullmatch(match[1]):
            raise InputError(f"{path}:{number} is {shown(line)}; HOST slots=GPUS is needed, HOST a name or an address")
        host, count = match[1], int(match[2])
        if host in slots:
            raise InputError(f"{path}:{number} names {host} a second time; one line for each host is needed")
        slots[host] = count
    return slots


def hostfile_problems(slots: Mapping[str, int], *, num_nodes: int, gpus_per_node: int) -> list[str]:
    """Why the first ``num_nodes`` hosts, which are the ones used, are not what the plan is for."""
    problems: list[str] = []
    if len(slots) < num_nodes:
        problems.append(f"the hostfile names {len(slots)} of the {num_nodes} nodes that the plan is for")
    for host, count in list(slots.items())[:num_nodes]:
        if count < gpus_per_node:
            needed = f"{counted(gpus_per_node, 'GPU')} per node"
            problems.append(f"the hostfile gives {host} {counted(count, 'slot')}; the plan is for {needed}")
    return problems

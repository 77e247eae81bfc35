"""Anybody's training script, rehearsed: the request to ``vlmplan_trainer.script_rehearsal`` and what came of it."""

import ast
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vlmplan.child_process import empty_folder
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject
from vlmplan.hardware import Cluster
from vlmplan.memory.overhead import ProcessGroup
from vlmplan.rehearsal.process import SOURCE, answer_of
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
from vlmplan.rehearsal.request import LEAST_STEPS, card_json
from vlmplan.rehearsal.result import Rehearsed, RehearsedPhase, rehearsed_from_json

COMMAND = ("-P", "-m", "vlmplan_trainer.script_rehearsal")
"""``-P``: no module is taken from the folder that the script runs in until the script runs."""
DECISION = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRead:
    """A line that read what is not known, how often; ``what``: a number, numbers, a decision, or an operation."""

    file: str
    line: int
    what: str
    count: int


@dataclass(frozen=True)
class ScriptRehearsal(RehearsedDevice):
    """``unknown``: where unknown values read as zero; ``bounded``: where a shape is an upper bound; ``host_rss_bytes``:
    the most of this machine's memory that it took; ``allocator_settings``: those of torch when it ended."""

    rehearsed: Rehearsed
    machine: Cluster
    words: tuple[str, ...]
    unknown: tuple[UnknownRead, ...]
    bounded: tuple[UnknownRead, ...]
    notes: tuple[str, ...]
    allocator_settings: tuple[str, ...]
    host_rss_bytes: int

    @property
    def cluster(self) -> Cluster:
        return self.machine

    @property
    def has_expandable_segments(self) -> bool:
        return any("expandable_segments:True" in text for text in self.allocator_settings)

    @property
    def uses_deepspeed(self) -> bool:
        return any(one.maker.startswith("deepspeed") for phase in self.rehearsed.phases for one in phase.largest)

    @property
    def process_group(self) -> ProcessGroup:
        return ProcessGroup.ONE if self.uses_deepspeed else ProcessGroup.NONE

    @property
    def decisions(self) -> tuple[UnknownRead, ...]:
        """The places at which an unknown truth value decided how the script went on."""
        return tuple(one for one in self.unknown if one.what == DECISION)

    @cached_property
    def phases(self) -> list[RehearsedPhase]:
        """The phases in the order of a run, workspaces included."""
        return [self.whole(phase) for phase in self.rehearsed.last_phases]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """How a script is rehearsed. ``assumptions``: values of lines, as ``--assume`` has them; ``longest``: on its
    longest samples; ``max_host_bytes`` of this machine's memory and ``max_seconds`` end it."""

    rank: int | None = None
    num_steps: int | None = None
    assumptions: Sequence[str] = ()
    allows_network: bool = False
    allows_programs: bool = False
    longest: bool = False
    max_host_bytes: int | None = None
    max_seconds: float | None = None


def rehearse_script(
    words: Sequence[str],
    cluster: Cluster,
    settings: ScriptSettings,
    say: Callable[[str], None] = lambda text: None,
) -> ScriptRehearsal:
    """Rehearse ``words``, a command that trains, on one GPU of ``cluster``.

    Raises InputError for what the script itself raises, for a rank or number of steps that cannot be, and for limits
    that it goes beyond; UnavailableError where the process dies.
    """
    gpu = cluster.node.gpu
    rank, num_steps = _checked(settings.rank or 0, settings.num_steps or LEAST_STEPS, cluster)
    with empty_folder() as folder:
        request: JsonDict = {
            "words": list(words),
            "world": {"rank": rank, "gpus_per_node": cluster.node.num_gpus, "num_nodes": cluster.num_nodes},
            "num_steps": num_steps,
            "card": card_json(gpu),
            "folder": str(folder),
            "cwd": os.getcwd(),
            "assumptions": [assumed(text) for text in settings.assumptions],
            "allows_network": settings.allows_network,
            "allows_programs": settings.allows_programs,
            "longest": settings.longest,
            "host_limit_bytes": settings.max_host_bytes,
        }
        answer = JsonObject(
            answer_of([sys.executable, *COMMAND], json.dumps(request), say, max_seconds=settings.max_seconds),
            source=SOURCE,
        )
    if "error" in answer:
        raise InputError(f"this script cannot be rehearsed: {answer.text('error')}")
    return ScriptRehearsal(
        rehearsed=rehearsed_from_json(answer),
        machine=cluster,
        words=tuple(words),
        unknown=tuple(_read(one) for one in answer.objects("unknown_values")),
        bounded=tuple(_read(one) for one in answer.objects("bounded_shapes")),
        notes=tuple(str(note) for note in answer.raw("notes")),
        allocator_settings=tuple(str(text) for text in answer.raw("allocator_settings")),
        host_rss_bytes=answer.count("host_rss_bytes"),
    )


def assumed(text: str) -> tuple[str, int, Any]:
    """File, line and value of ``x.py:120=False``. Raises InputError for anything else.

    >>> assumed("x.py:120=False")
    ('x.py', 120, False)
    """
    place, _, value = text.partition("=")
    file, _, line = place.rpartition(":")
    try:
        read = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        read = None
    if not file or not line.isdigit() or not isinstance(read, (bool, int, float)):
        raise InputError(f"--assume is {text}; it must be FILE:LINE=VALUE with True, False or a number")
    return file, int(line), read


def _checked(rank: int, num_steps: int, cluster: Cluster) -> tuple[int, int]:
    if not 0 <= rank < cluster.num_gpus:
        raise InputError(f"--rank is {rank}; the ranks of --gpu are 0 to {cluster.num_gpus - 1}")
    if num_steps < LEAST_STEPS:
        raise InputError(f"--steps is {num_steps}; {LEAST_STEPS} or more are needed: the first differs from later ones")
    return rank, num_steps


def _read(section: JsonObject) -> UnknownRead:
    return UnknownRead(
        file=section.text("file"), line=section.count("line"), what=section.text("what"), count=section.count("count")
    )

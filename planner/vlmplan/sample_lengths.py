"""Samples of different lengths: what torch's native allocator keeps for them.

Blocks that were as large as one length needs rarely fit the next: what is left of a block below 1 MiB is not split off,
and what is split off is held by whatever came to lie there. So a run whose micro batches differ reserves more than one
in which all have the plan's length, and goes on to reserve more with every new length until the GPU is full; then torch
gives back what nothing lives on. Expandable segments do not have that. Lengths are replayed here, micro batch by micro
batch, padded as the trainer pads them.

How much it comes to is a matter of order: each micro batch that is longer than all before it makes new blocks beside
those that lie there, and where the longest is the first there are none. So some orders are drawn, and what they reserve
is a range. The same draws serve every size of a micro batch, whose longest sample is never shorter with more of them.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator, VaryingLengths
from vlmplan.files import text_of
from vlmplan.sample_audio import encoded_kinds, encoded_tokens
from vlmplan.workload import Workload

VARY = "vary"
SHORTEST_FRACTION = 1 / 16
"""Of the plan's length, that the shortest sample has where nothing is known of the data. Assumed: chats and captions
of a length that is cut at the plan's differ by an order of magnitude."""
PADS_TO = 8
"""The trainer's multiple (``data/batches.py``)."""
NUM_DRAWS = 4
"""Orders that are replayed. A choice: each takes a second for a model of 7 B; more would show a wider range."""
NUM_MICRO_BATCHES = 80
"""How many of each order are replayed. A choice: twice as many reserve as much in most orders, and all together take
seconds."""
NUM_LENGTHS = 128
"""Different lengths of micro batches that are replayed at most; others are rounded up to one of them. With few, one
micro batch in eight of eight samples would have the longest, and an order often begin with it."""
MAX_LENGTHS = 10**7
"""Lengths in a file that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLengths:
    """``known`` lengths in tokens, or evenly spread ones from ``shortest`` to ``longest``; ``source`` in words."""

    source: str
    shortest: int
    longest: int
    known: tuple[int, ...] = ()

    def micro_batches(self, micro_batch: int, *, draw: int = 0, num_drawn: int = NUM_MICRO_BATCHES) -> tuple[int, ...]:
        """Tokens that each of ``num_drawn`` micro batches is padded to: the longest of its samples, rounded up.

        None of n samples is beyond the quantile q of the lengths with probability q**n, so the longest is at the n-th
        root of a uniform number. The numbers are those of ``draw`` whatever the lengths and the micro batch.
        """
        uniform = random.Random(draw)
        step = -(-self.longest // (NUM_LENGTHS * PADS_TO)) * PADS_TO
        in_order = sorted(self.known)
        longest = [self._quantile(uniform.random() ** (1 / micro_batch), in_order) for _ in range(num_drawn)]
        return tuple(min(self.longest, -(-length // step) * step) for length in longest)

    def _quantile(self, fraction: float, in_order: Sequence[int]) -> int:
        number = len(in_order) or self.longest - self.shortest + 1
        place = min(number - 1, int(fraction * number))
        return in_order[place] if in_order else self.shortest + place


def sample_lengths(text: str, workload: Workload) -> SampleLengths:
    """What ``--sample-lengths`` says: ``vary``, SHORTEST-LONGEST in tokens, or a file with a length on each line.

    Longer samples than the plan's are cut, as the trainer does. Raises InputError or UnavailableError.
    """
    if not workload.model.reads_prompt:
        has = "hears a sound" if workload.model.hears_prompt else "reads an image"
        raise InputError(
            f"--sample-lengths {text} is of prompts, and a sample of {workload.model.id} has none: its encoder {has} "
            f"alone; give --target-len, the longest answer"
        )
    least = encoded_tokens(workload)
    most = workload.seq_len
    spread = re.fullmatch(r"(\d{1,18})-(\d{1,18})", text)
    if text == VARY:
        shortest = min(most, max(1, least, round(SHORTEST_FRACTION * most)))
        return SampleLengths(
            source=f"{shortest:,} to {most:,} tokens, evenly (assumed)", shortest=shortest, longest=most
        )
    if spread is None:
        return _of_file(Path(text), least, most)
    said = [int(part) for part in spread.groups()]
    shortest, longest = (min(length, most) for length in said)
    if said[0] > said[1]:
        raise InputError(f"--sample-lengths is {text}; SHORTEST-LONGEST in tokens is needed, the shortest first")
    if shortest < max(1, least):
        encoded = f"; the {encoded_kinds(workload)} of a sample take {least:,}" if least else ""
        raise InputError(
            f"--sample-lengths is {text}; SHORTEST-LONGEST in tokens is needed, the shortest at least "
            f"{max(1, least):,}{encoded}"
        )
    return SampleLengths(source=f"{shortest:,} to {longest:,} tokens, evenly", shortest=shortest, longest=longest)


def _of_file(path: Path, least: int, most: int) -> SampleLengths:
    lines = text_of(path, name=f"--sample-lengths {path}").splitlines()[:MAX_LENGTHS]
    known: list[int] = []
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if not word:
            continue
        if not re.fullmatch(r"\d{1,18}", word) or int(word) < 1:
            raise InputError(
                f"--sample-lengths {path}, line {number} is {word[:40]!r}; a number of tokens, 1 or more, is needed "
                f"on each line (or give vary, or SHORTEST-LONGEST)"
            )
        known.append(max(1, least, min(int(word), most)))
    if not known:
        raise InputError(f"--sample-lengths {path} is empty; a number of tokens is needed on each line")
    source = f"{len(known):,} lengths of {path}"
    return SampleLengths(source=source, shortest=min(known), longest=max(known), known=tuple(known))


def with_sample_lengths(found: Estimate, lengths: SampleLengths, *, num_draws: int = NUM_DRAWS) -> Estimate:
    """``found`` with the device of the fullest: all samples of the plan's length, or ``num_draws`` orders of
    ``lengths``. It runs where all of them do."""
    recipe, cluster = found.recipe, found.cluster
    drawn = tuple(lengths.micro_batches(recipe.micro_batch, draw=draw) for draw in range(num_draws))
    devices = Estimator(found.workload, recipe).devices_for_lengths(recipe, cluster, drawn, found.timeline)
    reserved = [device.reserved_bytes for device in devices]
    varying = VaryingLengths(
        source=lengths.source,
        lengths=drawn,
        fixed_reserved_bytes=found.device.reserved_bytes,
        reserved_bytes=(min(reserved), max(reserved)),
    )
    device = found.device._replace(
        reserved_bytes=varying.reserved_range[1], runs=found.device.runs and all(device.runs for device in devices)
    )
    return replace(found, device=device, varying=varying)

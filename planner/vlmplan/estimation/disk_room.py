"""Whether an output folder has room for a whole run, and what makes it enough."""

from dataclasses import replace

from vlmplan.estimation.record import Estimate
from vlmplan.notes import Caveat
from vlmplan.run.saving import Saving
from vlmplan.units import gib_text


def disk_caveat(found: Estimate, room_bytes: int, whose: str) -> Caveat | None:
    """The caveat that the run needs more than the output folder's room, which is ``whose``, and the most checkpoints
    that do fit; None where it is enough."""
    needed = found.run_disk.peak_bytes
    if needed <= room_bytes:
        return None
    return Caveat(
        f"the output folder needs up to {gib_text(needed)} over the run, but {whose} has {gib_text(room_bytes)}"
        f"{_what_helps(found, room_bytes)}"
    )


def keep_last_key(saving: Saving) -> str:
    """What says how many checkpoints stay."""
    return "save_total_limit" if saving.by_hugging_face and not saving.is_launched else "--keep-last"


def _what_helps(found: Estimate, room_bytes: int) -> str:
    saving, run = found.workload.saving, found.run_disk
    for keep_last in range(min(run.num_at_once - 1, room_bytes // max(1, found.disk.checkpoint_bytes)), 0, -1):
        fewer = found.run_disk_of(replace(saving, keep_last=keep_last)).peak_bytes
        if fewer <= room_bytes:
            return f"; {keep_last_key(saving)} {keep_last} needs {gib_text(fewer)}"
    least = found.run_disk_of(replace(saving, keep_last=1)).peak_bytes
    enough = f"; one checkpoint that stays and one being written need {gib_text(least)}" if run.num_at_once > 1 else ""
    if saving.by_hugging_face and not saving.is_launched and not saving.only_model:
        enough += f"; save_only_model: true makes each {gib_text(found.disk.export_bytes)}, from which no run resumes"
    return enough

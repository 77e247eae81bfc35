"""A run whose memory ran out, in sentences: where, by how much more than planned, and the smallest change that fits."""

from collections.abc import Sequence

from vlmplan.launch.out_of_memory import Correction, Remedy
from vlmplan.plan import Plan
from vlmplan.run.shortage import Shortage
from vlmplan.units import gib_text


def fullest(shortages: Sequence[Shortage]) -> Shortage:
    """The rank that was farthest beyond its plan; who does not know comes last."""
    return max(shortages, key=lambda one: (one.needed_bytes or 0) / (one.planned_bytes or float("inf")))


def shortage_sentence(shortages: Sequence[Shortage]) -> str:
    """What the fullest rank says, and how many others ran out."""
    others = f" ({len(shortages)} ranks ran out; this is the fullest)" if len(shortages) > 1 else ""
    return f"{fullest(shortages).sentence()}{others}"


def host_sentence(plan: Plan) -> str:
    """The sentence for memory that ran out on the host and not on a GPU."""
    needed = gib_text(plan.expected.host_bytes_per_node)
    return f"it was not the GPU's memory; the plan needs {needed} of the host's on every node"


def remedy_sentence(remedy: Remedy, correction: Correction, changed: str) -> str:
    """The smallest change that fits, ``changed`` in words of the command line, or that there is none."""
    numbers = _numbers(remedy, correction)
    if not remedy.fits:
        even_with = f", not even {changed}" if changed else ""
        return f"nothing that can be changed makes it fit{even_with}: {numbers}"
    results = "trains the same but for rounding" if remedy.keeps_results else "trains something else"
    return f"the smallest change that fits is {changed}, which {results}: {numbers}"


def _numbers(remedy: Remedy, correction: Correction) -> str:
    """What the setup of ``remedy`` needs, and how that is known."""
    found = remedy.setup.estimate
    text = f"planned {gib_text(found.device.reserved_bytes)}"
    ratio, limit = correction.ratio_for(found), correction.limit_bytes
    if ratio > 1:
        needed = gib_text(correction.needed_bytes(found))
        text += f", {needed} when raised by the {ratio:.2f} that this run was over its plan"
    if limit is None:
        return text + "; what this run took is not known, so this goes by the plan alone"
    return text + f", of {gib_text(limit)} that there are for it"

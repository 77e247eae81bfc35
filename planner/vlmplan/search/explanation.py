"""Why the first plan is the first: what it saves against the next one, and what that is paid with."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vlmplan.hardware import Cluster
from vlmplan.recipe.choices import Method
from vlmplan.search import Objective, RankedPlan
from vlmplan.units import SECONDS_PER_HOUR, duration_text, gib_text, usd_text

SAME_FRACTION = 0.005
"""Part by which two numbers may differ and still be called the same: what is printed of them rounds it away, and what
is known of them is less certain. A choice."""


class _Difference(NamedTuple):
    """One quantity of the winner against the runner-up's, as texts; ``sign`` is below 0 where the winner needs less."""

    sign: int
    amount: str
    same: str
    where: str = ""


def explanation(plans: Sequence[RankedPlan], objective: Objective) -> str | None:
    """One sentence on ``plans`` (best first); None for a plan that is the only one of its hardware and method.

    The runner-up is the next that differs in hardware or method. What is compared comes in the order in which the
    objective ranks: dollars, hours, bytes a GPU; what both have alike is said only where it should decide.
    """
    rival = runner_up(plans)
    if rival is None:
        return None
    winner = plans[0]
    differences = list(_differences(winner, rival, objective))
    if not differences:
        return f"{label(winner)}: neither price nor speed tell it from {label(rival)}"
    sames = [difference.same for difference in differences if not difference.sign]
    gains = [f"{difference.amount} less{difference.where}" for difference in differences if difference.sign < 0]
    pains = [f"{difference.amount} more{difference.where}" for difference in differences if difference.sign > 0]
    if not differences[0].sign and gains:
        text = f"{sames[0]} as {label(rival)}, and {' and '.join(gains)}"
    elif gains:
        text = f"{' and '.join(gains)} than {label(rival)}"
    else:
        text = f"{' and '.join(sames)} as {label(rival)}" if sames else f"ranked before {label(rival)}"
    unpriced = "; no price is known of that one" if winner.usd is not None and rival.usd is None else ""
    return f"{label(winner)}: {text}" + (f", for {' and '.join(pains)}" if pains else "") + unpriced


def runner_up(plans: Sequence[RankedPlan]) -> RankedPlan | None:
    """The first of the others on other hardware or by another method."""
    return next((plan for plan in plans[1:] if label(plan) != label(plans[0])), None)


def label(plan: RankedPlan) -> str:
    return machine_label(plan.estimate.cluster, plan.estimate.recipe.method)


def machine_label(cluster: Cluster, method: Method) -> str:
    """``2 x rtx-4090 (lora)``, ``2 nodes of 8 x h100-sxm (full)``."""
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.node.num_gpus} x {cluster.node.gpu.id} ({method.value})"


def _differences(winner: RankedPlan, rival: RankedPlan, objective: Objective) -> Iterator[_Difference]:
    """The differences that can be told, first what decides; bytes only where they do, or where all else is the same."""
    money = list(_money(winner, rival))
    time = list(_time(winner, rival))
    memory = _memory(winner, rival)
    if objective is Objective.VRAM:
        yield memory
    yield from (*time, *money) if objective is Objective.TIME else (*money, *time)
    if objective is not Objective.VRAM and not any(one.sign for one in (*money, *time)):
        yield memory


def _money(winner: RankedPlan, rival: RankedPlan) -> Iterator[_Difference]:
    """Dollars; GPU hours where no price is known, as the search ranks."""
    if winner.usd is not None and rival.usd is not None:
        yield _difference(winner.usd, rival.usd, _amount_text, "the same price")
    elif winner.usd is None and rival.usd is None and winner.hours is not None and rival.hours is not None:
        ours, theirs = (plan.hours * plan.estimate.cluster.num_gpus for plan in (winner, rival) if plan.hours)
        yield _difference(ours, theirs, _gpu_time_text, "the same GPU hours")


def _gpu_time_text(hours: float) -> str:
    return f"{duration_text(hours * SECONDS_PER_HOUR)} of GPU time"


def _amount_text(usd: float) -> str:
    return usd_text(usd).replace("less than", "under")


def _time(winner: RankedPlan, rival: RankedPlan) -> Iterator[_Difference]:
    if winner.hours is not None and rival.hours is not None:
        ours, theirs = winner.hours * SECONDS_PER_HOUR, rival.hours * SECONDS_PER_HOUR
        yield _difference(ours, theirs, duration_text, "the same time")


def _memory(winner: RankedPlan, rival: RankedPlan) -> _Difference:
    ours, theirs = winner.estimate.device.device_bytes, rival.estimate.device.device_bytes
    return _difference(ours, theirs, gib_text, "the same memory", " on each GPU")


def _difference(ours: float, theirs: float, text: Callable[[float], str], same: str, where: str = "") -> _Difference:
    more = ours - theirs
    is_same = abs(more) <= SAME_FRACTION * max(ours, theirs)
    return _Difference(0 if is_same else 1 if more > 0 else -1, text(abs(more)), same, where)

"""What of communication a step shows: the rest hides behind computation."""

from vlmplan.communication import OVERLAP_FRACTION, CommunicationSeconds
from vlmplan.timing.rates import RangedValue, Scenario

OVERLAP = RangedValue(0.4, OVERLAP_FRACTION, 0.95)
"""Part of a collective that hides behind computation where an engine overlaps them. Assumed."""
LINK_RATE = RangedValue(0.7, 1.0, 1.1)
"""What links give of what ``communication`` expects of them. Assumed: others share the switch, or nobody does."""


def shown_seconds(communication: CommunicationSeconds, forward: float, backward: float, scenario: Scenario) -> float:
    """Communication that computation of the same phase does not hide: ``forward`` and ``backward`` are the seconds of
    it that run beside communication. Nothing hides what the update sends."""
    rate = LINK_RATE.at(scenario)
    fraction = OVERLAP.at(scenario) / rate
    hidden = min(fraction * communication.forward, forward) + min(fraction * communication.backward, backward)
    return communication.total / rate - hidden

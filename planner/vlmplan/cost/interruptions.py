"""Machines that may be taken away: the hours that a run is billed for, and how often it should save.

Symbols: W hours of training, λ interruptions per hour, M = 1/λ, S hours to start (boot, download), δ hours to save a
checkpoint, τ hours of training between two of them. Interruptions are a Poisson process and only hit a machine that is
there; waiting for the next one is not billed. A run goes on from its last checkpoint on a machine that starts as the
first one did. Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
Generation Computer Systems 22 (2006) 303-312, whose complete model this is.
"""

import math

from vlmplan.units import SECONDS_PER_HOUR

INTERRUPTIONS_PER_DAY = 1.0
"""Of one machine. Assumed, between what is published. Few: AWS's Spot Instance Advisor files its machines by the part
reclaimed in a month, from below 5% to above 20%; Google observed 5 to 15% a day (compute/docs/instances/preemptible,
until 2022). Many: 4.7 a day of V100 machines on AWS, 600 in 3,066 hours of github.com/skypilot-org/spot-traces
preemption/4-node/aws-08-03-2023 (Can't Be Late, NSDI 2024)."""
MOST_INTERRUPTIONS_PER_DAY = 144.0
"""One every ten minutes: hardly time to start."""
SAVE_BYTES_PER_SECOND = 1e9
"""Of one node to the disk that outlives it. Assumed: network volumes take 0.2 to 1 GB/s, NVMe drives 2 and more."""
SAVE_FIXED_SECONDS = 5.0
"""Gathering, making files and waiting for the slowest rank. Assumed."""


def save_hours(num_bytes: float) -> float:
    """Hours to write one checkpoint, of which each node writes that many bytes."""
    return (SAVE_FIXED_SECONDS + num_bytes / SAVE_BYTES_PER_SECOND) / SECONDS_PER_HOUR


def best_interval_hours(saving_hours: float, interruptions_per_hour: float) -> float:
    """√(2 δ M), where saving costs as much as doing again what was lost: per hour δ/τ and λ τ/2.

    J. W. Young, Communications of the ACM 17 (1974) 530; without interruptions infinite.
    """
    return math.sqrt(2 * saving_hours / interruptions_per_hour) if interruptions_per_hour else math.inf


def num_checkpoints(training_hours: float, saving_hours: float, interruptions_per_hour: float) -> int:
    """Equal stretches of about the best length that make the run; each ends with a checkpoint."""
    interval = best_interval_hours(saving_hours, interruptions_per_hour)
    return max(1, round(training_hours / interval))


def billed_hours(
    *,
    training_hours: float,
    starting_hours: float,
    saving_hours: float,
    checkpoints: int,
    interruptions_per_hour: float = 0.0,
) -> float:
    """Expected hours from the first start to the last checkpoint; infinite where that is beyond all floats.

    A stretch of s hours, tried until no interruption falls in it: the tries before last e^{λs} - 1 times on average,
    each attempt lives M hours on average up to its end, so all of them take M (e^{λs} - 1). Starting is such a stretch
    of S hours. Each interruption of the work, e^{λ(τ + δ)} - 1 of them a checkpoint, needs another start, hence

        T = M (e^{λS} - 1) + (W/τ) e^{λS} M (e^{λ(τ + δ)} - 1)

    To first order in λ that is S + W + δ W/τ, and for each interruption S + (τ + δ)/2: a start, and half a stretch.
    """
    work_hours = training_hours / checkpoints + saving_hours
    if not interruptions_per_hour:
        return starting_hours + checkpoints * work_hours
    try:
        start = math.expm1(interruptions_per_hour * starting_hours)
        work = math.expm1(interruptions_per_hour * work_hours)
        return (start + checkpoints * (1 + start) * work) / interruptions_per_hour
    except OverflowError:
        return math.inf

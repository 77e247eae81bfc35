"""The learning rate of every step: linear warmup, then constant, linear or half a cosine down to zero."""

import math


def learning_rate_at(step: int, *, peak: float, num_steps: int, warmup_fraction: float, schedule: str) -> float:
    """The rate of optimizer step ``step`` (from 0) of ``num_steps``.

    >>> [learning_rate_at(step, peak=1.0, num_steps=4, warmup_fraction=0.5, schedule="linear") for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    num_warmup = round(num_steps * warmup_fraction)
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    if schedule == "constant":
        return peak
    progress = (step - num_warmup) / max(1, num_steps - num_warmup)
    return peak * (1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)

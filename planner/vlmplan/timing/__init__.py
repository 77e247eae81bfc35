"""Seconds of an optimizer step.

rates.py     how fast a GPU really is: every efficiency with its range, grade and source
roofline.py  one micro batch on one GPU, operation by operation
update.py    the optimizer on the GPU
host.py      what the host does: CPU Adam, copies over PCIe and to NVMe, images
overlap.py   what of communication computation does not hide
evaluation.py  evaluation between steps
rollout.py   what GRPO does before its steps: answers, log-probabilities, rewards
step.py      a whole step, by what its seconds are spent on, with a range
counted.py   a step whose operations a rehearsal has counted
"""

# pyright: reportUnusedImport=false
from vlmplan.timing.counted import CountedCollectives, CountedWork, timed_work
from vlmplan.timing.evaluation import EvaluationTime, EvaluationWork, evaluation_time
from vlmplan.timing.rates import (
    Rates,
    gpu_rates,
    peak_flops_per_second,
    speed_note,
)
from vlmplan.timing.rollout import GenerationWork, RolloutWork
from vlmplan.timing.roofline import (
    PhaseDemands,
    PhaseSeconds,
    added_demands,
    demands_at,
    micro_batch_seconds,
    phases_between,
    saved_between,
    step_flops,
)
from vlmplan.timing.step import BesidesComputing, StepTime, TimedStep, besides_computing, timed_step

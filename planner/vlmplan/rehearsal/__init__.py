"""A plan's own steps on fake tensors, run by the trainer in a process of its own, beside the estimate of the same plan.

``rehearse`` is all of it. Nothing here imports torch.
"""

# pyright: reportUnusedImport=false
from vlmplan.rehearsal.comparison import Comparison, compared
from vlmplan.rehearsal.run import rehearse

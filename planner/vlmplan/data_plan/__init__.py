"""A plan from the data: what samples make of a micro batch, and what that takes.

lengths.py   samples as a model sees them, and those that are trained on at a limit
covering.py  equal samples that take at least what given ones take
source.py    what ``--data`` decides of a request
sampling.py  the micro batches of a trainer's sampler
data_run.py  the worst of them, the time of all, and padding
hangs.py     whether ranks wait for each other for ever, where some samples have no image
options.py   what packing, lower limits and smaller images would buy, and the largest that fits
"""

# pyright: reportUnusedImport=false
from vlmplan.data_plan.lengths import MostShown
from vlmplan.data_plan.source import DataSource, DataSources, Limits

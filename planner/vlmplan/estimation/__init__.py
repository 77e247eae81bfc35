"""One recipe on one cluster: memory timeline, host, disk, seconds, and whether it fits.

``Estimator`` holds what does not depend on the cluster (the prepared model and its trace), so that a search can ask
for many clusters and sizes cheaply.
"""

# pyright: reportUnusedImport=false
from vlmplan.estimation.answers_at_once import (
    fewer_at_once,
    is_too_large_by_answers,
    refuse_parts_of_groups,
    whole_groups,
    with_answers_of,
)
from vlmplan.estimation.cautions import evaluation_hints
from vlmplan.estimation.disk_room import disk_caveat, keep_last_key
from vlmplan.estimation.estimator import Estimator
from vlmplan.estimation.least_batches import refuse_lone_answer, refuse_too_small
from vlmplan.estimation.making import (
    estimate,
    estimate_with_sizes,
    fitting_estimate,
    sized_estimate,
    sized_recipes,
)
from vlmplan.estimation.packed_samples import packed_samples
from vlmplan.estimation.record import Estimate, VaryingLengths
from vlmplan.estimation.references import has_upper_bound, with_other_models
from vlmplan.estimation.scored_tokens import scored_tokens

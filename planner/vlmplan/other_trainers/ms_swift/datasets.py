"""How many samples ms-swift 4.6 trains on, as far as its options say it: ``--dataset NAME:SUBSET#SAMPLES``.

Sources: ``DatasetSyntax.parse`` in ``dataset/dataset_syntax.py`` and ``post_process`` in ``dataset/dataset_meta.py``: a
data set is cut to so many samples, or repeated until it has them, and gives ``split_dataset_ratio`` of them to
evaluation, one at the least, unless ``val_dataset`` has samples for it.
"""

import re
from collections.abc import Sequence

from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.workload import MAX_NUM_SAMPLES

SAMPLES = re.compile("(.+)#([0-9]+)")


def dataset_samples(settings: Settings) -> dict[str, Value]:
    """``num_samples`` where every data set says its own; a note where only some do. Mixed ones have a number of their
    own, which nothing says."""
    if not settings.mentions("dataset", "#") or settings.is_on("interleave_prob"):
        return {}
    names = settings.names("dataset")
    counts = [int(found[2]) for name in names if (found := SAMPLES.fullmatch(name))]
    if len(counts) < len(names):
        unknown = ", ".join(name for name in names if not SAMPLES.fullmatch(name))
        settings.note(f"dataset says no number of samples of {unknown}: --num-samples says how many there are in all")
        return {}
    trained = sum(counts) - sum(_evaluated(settings, counts))
    if not 1 <= trained <= MAX_NUM_SAMPLES:
        settings.refuse("dataset", f"that is {trained:,} samples to train on; 1 to {MAX_NUM_SAMPLES:,} can be planned")
        return {}
    if settings.is_on("packing"):
        settings.note(
            f"dataset says {trained:,} samples, planned as so many rows; packed, they are fewer: --num-samples"
        )
    return {"num_samples": trained}


def num_evaluated(settings: Settings) -> int | None:
    """What data sets that say their numbers of samples give to evaluation; None where that is not known."""
    if not settings.mentions("dataset", "#") or settings.is_on("interleave_prob"):
        return None
    found = [SAMPLES.fullmatch(name) for name in settings.names("dataset")]
    given = _evaluated(settings, [int(one[2]) for one in found if one])
    return sum(given) if given and all(found) else None


def _evaluated(settings: Settings, counts: Sequence[int]) -> list[int]:
    """What each data set gives to evaluation; none where it has samples of its own, or no part of them is given."""
    if "split_dataset_ratio" not in settings or ("val_dataset" in settings and settings.names("val_dataset")):
        return []
    ratio = settings.number("split_dataset_ratio", 0.0)
    return [max(int(count * ratio), 1) for count in counts] if 0 < ratio < 1 else []

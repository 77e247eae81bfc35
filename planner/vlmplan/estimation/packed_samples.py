"""The samples in the one row of a micro batch without padding: among the tokens of each of them is attention."""

from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Batching
from vlmplan.workload import Workload


def packed_samples(recipe: Recipe, workload: Workload) -> PackedLengths | None:
    """Their lengths; None where each sample has a row of its own.

    A packed row has as many of ``sample_len`` tokens as fit, and one of the rest. Raises InputError for images and
    sounds in packed rows, of which a plan does not know how many there would be (TRL 1.16 refuses images too,
    ``sft_trainer.py``), and for a ``sample_len`` that says nothing.
    """
    if workload.sample_len is not None and recipe.batching is not Batching.PACKED:
        raise InputError(
            f"--sample-len {workload.sample_len} is of samples in packed rows, but --batching is "
            f"{recipe.batching.value}; give --batching packed, or leave it off"
        )
    if workload.has_encoded_inputs and recipe.batching is Batching.PACKED:
        kind = "images" if workload.images_per_sample else "sounds"
        way = "--images-per-sample 0" if workload.images_per_sample else "leave --audio-seconds off"
        raise InputError(
            f"--batching packed is for text: how many {kind} a row has is not known before; give --batching "
            f"padding-free, or {way}"
        )
    if not recipe.batching.is_flat:
        return None
    row_tokens = workload.seq_len
    length = row_tokens if recipe.batching is Batching.PADDING_FREE else workload.sample_len or row_tokens
    count, rest = divmod(row_tokens, length)
    return PackedLengths(((length, count), (rest, 1)) if rest else ((length, count),), recipe.rows)

"""What peft sees of an adapter's matrices where FSDP has each by itself: its shards, or what is gathered.

peft casts what an adapter gets to the type of ``lora_A.weight`` before it calls ``lora_A`` (peft 0.21
``tuners/lora/layer.py`` ``Linear.forward``). That is the type of the shards, or of the computation, by what the
attribute is at that moment:

- FSDP1 with original parameters: a shard from where it is resharded on (``_use_sharded_views``). Where it is not,
  forward leaves the whole one until backward (``skip_use_sharded_views``), behind which it is a shard even if it stays
  whole for the next micro batch. What is gathered ahead is whole already: forward's next from the second iteration on
  (``is_first_iter``), and the first matrix of a layer's last adapter, which the backward of the second one gathers
  (``BACKWARD_PRE``), where that backward is what runs the layer again. Reentrant checkpoints run forward without a
  graph: weights are shards again behind it in any case, and no backward inside a layer begins before that runs again.
- FSDP1 without them: a plain tensor, which is set when the unit is made and whenever a forward gathers
  (``_use_unsharded_views``), and which nothing takes back: in the first forward as it was loaded, later as gathered.
- FSDP2: a shard until its own forward; where that does not reshard, whole until backward.

Sources: torch 2.13 ``distributed/fsdp/_flat_param.py`` and ``_runtime_utils.py``, ``fsdp/_fully_shard/_fsdp_state.py``.
"""

from typing import NamedTuple

from vlmplan.recipe.choices import FlatParameters
from vlmplan.recipe.recipe import Recipe


class AdapterViews(NamedTuple):
    """Whether shards are seen: in forward, in a layer that runs again, and of its last adapter then."""

    in_forward: bool = False
    again: bool = False
    of_last: bool = False


def adapter_views(recipe: Recipe, *, is_first: bool = False) -> AdapterViews:
    """Of any micro batch, or of the first of a run."""
    if recipe.seen_adapter_dtype in (None, recipe.trained_dtype):
        return AdapterViews()
    reshards = recipe.reshard_after_forward
    if not recipe.is_flat:
        return AdapterViews(in_forward=True, again=reshards, of_last=reshards)
    if not recipe.uses_orig_params:
        return AdapterViews(in_forward=is_first)
    is_reentrant = recipe.checkpoint_kind.is_reentrant
    gathers_last = recipe.flat_parameters is FlatParameters.BACKWARD_PRE and not is_reentrant
    return AdapterViews(
        in_forward=is_first or not recipe.prefetches_forward,
        again=reshards or is_reentrant,
        of_last=(reshards or is_reentrant) and not gathers_last,
    )

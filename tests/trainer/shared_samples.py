"""Losses and gradients of samples that all ranks share beside those of one rank that has them whole.

    torchrun --nproc_per_node=2 tests/trainer/shared_samples.py llama,qwen3

Prints a line of JSON for each model type: the largest relative distances over both losses.
"""

import json
import sys

import torch
import torch.distributed as dist
from loss_models import VOCAB_SIZE, batch, distance_fraction, gradients, small_model

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind
from vlmplan_trainer.engines.make import init_gloo
from vlmplan_trainer.losses.loss import language_loss
from vlmplan_trainer.sequence_parallel import part_of_samples, share_attention

SHARED_LOSSES = (LossKind.FULL, LossKind.CHUNKED, LossKind.LIGER)
MICRO_BATCH, NUM_TOKENS = 2, 22
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def whole(kind: str, *, loss_kind: LossKind, **changes):
    """(loss, gradients) of one rank by itself."""
    model, inputs = small_model(kind, **changes), batch(MICRO_BATCH, NUM_TOKENS)
    loss = language_loss(model, inputs, kind=loss_kind)
    return float(loss.detach()), gradients(model, loss)


def shared(model, *, loss_kind: LossKind):
    """The same where each rank has a part, summed over ranks."""
    inputs = batch(MICRO_BATCH, NUM_TOKENS)
    num_items = int((inputs["labels"][:, 1:] != -100).sum())
    part = part_of_samples(inputs, part=dist.get_rank(), num_parts=dist.get_world_size())
    loss = language_loss(model, part, kind=loss_kind, num_items=num_items)
    found, total = gradients(model, loss), loss.detach().clone()
    dist.all_reduce(total)
    for value in found.values():
        dist.all_reduce(value)
    return float(total), found


def forget_groups() -> None:
    """As if no attention had been shared: DeepSpeed does it once in a process."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    del ALL_ATTENTION_FUNCTIONS["sdpa"]
    parallel_state_sp._release_sequence_parallel_groups()


def distances(kind: str) -> dict[str, float]:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": VOCAB_SIZE, **EXPERTS}
    if kind in ("mistral", "mixtral", "ministral3", "phi3"):
        heads["sliding_window"] = None
    expected = [whole(kind, loss_kind=one, **heads) for one in SHARED_LOSSES]
    size = dist.get_world_size()
    recipe = Recipe(
        zero_stage=2, sequence_parallel=size, micro_batch=MICRO_BATCH, attention=AttentionImplementation.SDPA
    )
    model = small_model(kind, **heads)
    share_attention(model, recipe)
    try:
        found = [shared(model, loss_kind=one) for one in SHARED_LOSSES]
    finally:
        forget_groups()
    pairs = list(zip(found, expected, strict=True))
    return {
        "loss": max(abs(mine[0] - theirs[0]) / theirs[0] for mine, theirs in pairs),
        "gradients": max(distance_fraction(mine[1], theirs[1]) for mine, theirs in pairs),
    }


def main(kinds: str) -> None:
    init_gloo()
    for kind in kinds.split(","):
        try:
            found: dict[str, object] = dict(distances(kind))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        if dist.get_rank() == 0:
            print(json.dumps({"kind": kind, **found}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    from vlmplan_trainer.starting import leave_ranks

    main(sys.argv[1])
    leave_ranks()

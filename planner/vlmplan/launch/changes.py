"""Changes of a setup that save memory, those that change the training least first.

Each kind gives its levels for a setup, the smallest first, as options of the command line; none where it does not
apply. Whether a level can run is for the rules to say. The order is a choice: what leaves the result as it is, but for
the order in which numbers are added, before what does not; and among those what costs least time first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.hardware import Cluster, Vendor
from vlmplan.recipe import AttentionImplementation, LossKind, Method, Offload, OptimizerKind, Recipe
from vlmplan.rules import attention_implementations, model_facts
from vlmplan.sample_images import image_tokens
from vlmplan.workload import Workload

Levels = list[dict[str, Any]]
SHARES = ((3, 4), (1, 2), (1, 4))
"""Parts to which text and images are cut. A choice."""
PLAIN_OPTIONS = ("fuses_optimizer", "caches_casts", "upcasts_frozen")
"""Settings of plain PyTorch alone, which DeepSpeed is not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is to be changed."""

    workload: Workload
    recipe: Recipe
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One kind of change. ``keeps_results``: the same model comes out, but for rounding."""

    name: str
    levels: Callable[[Situation], Levels]
    keeps_results: bool


def _expandable_segments(at: Situation) -> Levels:
    is_possible = at.cluster.node.gpu.vendor is not Vendor.CPU and not at.recipe.expandable_segments
    return [{"expandable_segments": True}] if is_possible else []


def _micro_batch(at: Situation) -> Levels:
    """Every smaller micro batch that makes the same global batch."""
    total = at.recipe.micro_batch * at.recipe.grad_accum
    sizes = [size for size in range(at.recipe.micro_batch - 1, 0, -1) if total % size == 0]
    return [{"micro_batch": size, "grad_accum": total // size} for size in sizes]


def _chunked_loss(at: Situation) -> Levels:
    return [{"loss": LossKind.CHUNKED.value}] if at.recipe.loss is LossKind.FULL else []


def _text_checkpointing(at: Situation) -> Levels:
    return [] if at.recipe.activation_checkpointing else [{"activation_checkpointing": True}]


def _vision_checkpointing(at: Situation) -> Levels:
    if at.recipe.vision_activation_checkpointing or not at.workload.images_per_sample:
        return []
    return [{"vision_activation_checkpointing": True}]


def _attention(at: Situation) -> Levels:
    """What keeps less than the present implementation, as far as the model has it."""
    order = (AttentionImplementation.EAGER, AttentionImplementation.SDPA, AttentionImplementation.FLASH_ATTENTION_2)
    known = attention_implementations(model_facts(at.workload.model))
    leaner = order[order.index(at.recipe.attention) + 1 :]
    return [{"attention": kind.value} for kind in leaner if kind in known]


def _stages(at: Situation) -> Levels:
    stage = at.recipe.zero_stage
    if stage is None or at.cluster.num_gpus == 1:
        return []
    return [{"zero_stage": str(more)} for more in range(stage + 1, 4)]


def _offloaded_optimizer(at: Situation) -> Levels:
    if not _can_offload(at) or at.recipe.offload_optimizer is not Offload.NONE:
        return []
    stage = at.recipe.zero_stage or 2
    return [{"offload_optimizer": Offload.CPU.value} | _at_stage(at, stage)]


def _offloaded_parameters(at: Situation) -> Levels:
    if not _can_offload(at) or at.recipe.offload_params is not Offload.NONE:
        return []
    return [{"offload_params": Offload.CPU.value} | _at_stage(at, 3)]


def _can_offload(at: Situation) -> bool:
    """CPU ranks have no other memory to move anything to."""
    return at.cluster.node.gpu.vendor is not Vendor.CPU


def _at_stage(at: Situation, stage: int) -> dict[str, Any]:
    dropped: Mapping[str, Any] = {} if at.recipe.uses_deepspeed else dict.fromkeys(PLAIN_OPTIONS)
    return {"zero_stage": str(stage), **dropped}


def _eight_bit_optimizer(at: Situation) -> Levels:
    return [{"optimizer": OptimizerKind.ADAMW_8BIT.value}] if at.recipe.optimizer is OptimizerKind.ADAMW else []


def _lora(at: Situation) -> Levels:
    return [{"method": Method.LORA.value}] if at.recipe.method is Method.FULL else []


def _qlora(at: Situation) -> Levels:
    """4-bit weights; they are not sharded, so stage 3 becomes 2."""
    if at.recipe.method is Method.QLORA:
        return []
    changes: dict[str, Any] = {"method": Method.QLORA.value}
    if at.recipe.zero_stage == 3:
        changes |= {"zero_stage": "2", "offload_params": Offload.NONE.value}
    return [changes]


def _shorter_text(at: Situation) -> Levels:
    """Less of the tokens that are no image's."""
    images = image_tokens(at.workload)
    text = at.workload.seq_len - images
    return [{"seq_len": images + text * part // whole} for part, whole in SHARES if text * part // whole]


def _smaller_images(at: Situation) -> Levels:
    if not at.workload.images_per_sample:
        return []
    width, height = at.workload.image_width, at.workload.image_height
    return [{"image_size": f"{width * part // whole}x{height * part // whole}"} for part, whole in SHARES]


CHANGES = (
    Change(name="expandable segments", levels=_expandable_segments, keeps_results=True),
    Change(name="smaller micro batches", levels=_micro_batch, keeps_results=True),
    Change(name="chunked loss", levels=_chunked_loss, keeps_results=True),
    Change(name="checkpointing of the language model", levels=_text_checkpointing, keeps_results=True),
    Change(name="checkpointing of the vision tower", levels=_vision_checkpointing, keeps_results=True),
    Change(name="leaner attention", levels=_attention, keeps_results=True),
    Change(name="a higher ZeRO stage", levels=_stages, keeps_results=True),
    Change(name="the optimizer on the host", levels=_offloaded_optimizer, keeps_results=True),
    Change(name="the weights on the host", levels=_offloaded_parameters, keeps_results=True),
    Change(name="an 8-bit optimizer", levels=_eight_bit_optimizer, keeps_results=False),
    Change(name="LoRA", levels=_lora, keeps_results=False),
    Change(name="QLoRA", levels=_qlora, keeps_results=False),
    Change(name="shorter samples", levels=_shorter_text, keeps_results=False),
    Change(name="smaller images", levels=_smaller_images, keeps_results=False),
)

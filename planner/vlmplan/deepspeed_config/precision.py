"""Which precisions a ds_config.json leaves open."""

from collections.abc import Collection, Mapping
from typing import Any

from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.files.json_reader import shown
from vlmplan.recipe.choices import Precision


def open_precisions(
    content: Mapping[str, Any], autos: Collection[str], mistakes: Mistakes
) -> tuple[Precision, ...] | None:
    """The precisions that agree with the file, the one that it means by itself first; None where it says nothing.

    A block that is left out is open where the other one is "auto", as accelerate takes it
    (``DeepSpeedPlugin.set_mixed_precision``). Both blocks on, or 16-bit master weights without 16-bit states, go to
    ``mistakes``.
    """
    bf16, fp16 = (_enabled(content, autos, name) for name in ("bf16", "fp16"))
    is_auto = {"bf16.enabled", "fp16.enabled"} & set(autos)
    if not is_auto and "bf16" not in content and "fp16" not in content:
        return None
    if bf16 and fp16:
        mistakes.add("bf16.enabled and fp16.enabled are both true; one of the two has to be false")
        return None
    block = content.get("bf16", {})
    low_weights = block.get("bf16_master_weights_and_grads", False)
    if bf16 is False and low_weights:
        mistakes.add("bf16.bf16_master_weights_and_grads is true, but bf16.enabled is not")
    if low_weights != block.get("bf16_optimizer_states", False):
        mistakes.add(
            f"bf16.bf16_master_weights_and_grads is {shown(low_weights)}; vlmplan has a memory model of it only with "
            f"the same value for bf16.bf16_optimizer_states"
        )
    in_bf16 = (Precision.BF16_PURE,) if low_weights else (Precision.BF16,)
    if bf16 is None and "bf16_master_weights_and_grads" not in block:
        in_bf16 = (Precision.BF16, Precision.BF16_PURE)
    if bf16 or fp16:
        return in_bf16 if bf16 else (Precision.FP16,)
    opened = [*(in_bf16 if bf16 is None else ()), *((Precision.FP16,) if fp16 is None else ())]
    return (*opened, Precision.FP32)


def _enabled(content: Mapping[str, Any], autos: Collection[str], block: str) -> bool | None:
    """Whether a block is on; None where that is open."""
    others = {"bf16.enabled", "fp16.enabled"}
    if f"{block}.enabled" in autos:
        return None
    if block not in content and others & set(autos):
        return None
    return bool(content.get(block, {}).get("enabled", False))

"""The runs of the campaign, the most telling first: each model, method, engine and size in a run of its own.

A run is options of ``vlmplan estimate``. The first dozen has one of every kind, so that little time on a card already
tests most of the model; the others vary one choice at a time. Every second run is held back from any mending of
formulas (``is_held_back``), by its place in the list, before anything was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmplan.estimation import Estimate, estimate_with_sizes
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.request import parse
from vlmplan.requested import requested_estimate

NUM_STEPS = 8
CARD = "h100-sxm"
"""Of 80 GB: what a dry run plans for."""
START_SECONDS = 12.0
"""Until a run's model is made: DeepSpeed and CUDA, the rest was imported ahead. Assumed."""
HOST_BYTES_PER_SECOND = 1.5e9
"""Weights made in host memory, cast and copied to the card. Assumed."""


@dataclass(frozen=True, slots=True)
class CampaignRun:
    """``needs``: a package that the run imports and that a machine may lack."""

    name: str
    options: Mapping[str, Any]
    needs: str | None = None
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run with its estimate and the plan that the trainer gets."""

    run: CampaignRun
    estimate: Estimate
    plan: Plan

    @property
    def seconds(self) -> float:
        """Of the whole process, roughly: to know whether a slice has room for it."""
        loading = self.estimate.host.peak_bytes / HOST_BYTES_PER_SECOND
        return START_SECONDS + loading + NUM_STEPS * (self.estimate.step_seconds or 0.0)


def planned_run(
    run: CampaignRun, gpu: str = CARD, *, calibration: bool | None = None, uses_nvlink: bool | None = None
) -> PlannedRun:
    """The estimate of a run on this hardware, as ``vlmplan estimate`` has it here; ``calibration`` False: as it has it
    everywhere; ``uses_nvlink`` None: as the catalog has the card. Sizes of DeepSpeed's buckets depend on that."""
    estimate, _ = requested_estimate(parse({**run.options, "gpu": gpu, "calibration": calibration}), ())
    node = estimate.cluster.node
    if uses_nvlink not in (None, node.uses_nvlink):
        cluster = replace(estimate.cluster, node=replace(node, has_nvlink_between_all=uses_nvlink))
        estimate = estimate_with_sizes(estimate.workload, estimate.recipe, cluster)
    return PlannedRun(run, estimate, plan_from_estimate(estimate))


# model, method, engine, tokens, micro batch, images, then what differs from the defaults
_ROWS = """
llama-3.2-1b   full  none 2048 4 0
qwen2-vl-2b    lora  none 1024 4 1
qwen2.5-vl-3b  full  2    1024 1 1 offload_optimizer=cpu
qwen2.5-vl-7b  qlora none 2048 2 1
llama-3.1-8b   lora  none 4096 1 0
qwen3-vl-4b    lora  3    2048 2 2
gemma-3-4b     lora  none 1024 2 1
qwen2-vl-2b    full  3    1024 2 1 offload_optimizer=cpu
llama-3.2-1b   full  1    2048 4 0
llama-3.2-1b   full  none 16384 1 0
qwen2-vl-2b    full  none 2048 2 4
llama-3.2-1b   full  none 1024 2 0 loss=full
qwen3.5-0.8b   full  none 2048 2 1
llama-3.2-1b   full  none 1024 2 0 activation_checkpointing=False
lfm2-8b-a1b    lora  none 2048 2 0
llama-3.2-1b   full  2    2048 4 0
llama-3.2-1b   lora  none 4096 4 0 offload_activations=True
qwen2.5-vl-7b  lora  none 1024 2 1
llama-3.2-1b   full  none 2048 4 0 loss=liger
llama-3.1-8b   qlora none 512  4 0
llama-3.2-1b   full  1    16384 1 0 tiled_mlp=True
qwen2.5-vl-7b  full  none 512  1 1 precision=bf16-pure,optimizer=adafactor
llama-3.2-1b   full  2    2048 4 0 optimizer=muon
llama-3.2-1b   full  none 2048 4 0 precision=fp16
llama-3.2-1b   full  none 2048 4 0 optimizer=lion
llama-3.2-1b   full  none 1024 2 0 precision=fp32
qwen3-1.7b     lora  none 2048 4 0 use_dora=True
llama-3.2-1b   full  none 2048 2 0 attention=eager
qwen3-vl-2b    qlora none 2048 2 1
gemma-3-4b     qlora none 2048 1 2
llama-3.2-1b   full  none 2048 4 0 fsdp=True
qwen3-vl-4b    full  3    1024 1 1 offload_optimizer=cpu
llama-3.2-1b   full  none 2048 4 0 optimizer=torchao-adamw-4bit
llama-3.2-3b   full  3    2048 1 0 offload_optimizer=cpu,offload_params=cpu
smollm2-360m   full  none 2048 8 0 activation_checkpointing=False
qwen3-vl-4b    lora  none 8192 1 4
qwen3.5-2b     lora  none 2048 2 1
qwen2-vl-2b    lora  none 1024 4 1 activation_checkpointing=False
qwen2-vl-2b    lora  none 4096 1 0 videos_per_sample=1,video_frames=8
qwen2-vl-2b    lora  none 1024 4 1 train_vision=False
smolvlm-500m   full  none 4096 2 1
qwen2-vl-2b    full  2    1024 2 1 offload_optimizer=cpu
gemma-4-e2b    lora  none 2048 1 1
qwen2-vl-2b    full  1    1024 2 1
internvl3-1b   full  none 2048 4 1
qwen2.5-vl-3b  lora  2    2048 2 2
llama-3.2-1b   lora  none 2048 4 0 loss=model
qwen2.5-vl-3b  lora  3    2048 2 2
llama-3.2-1b   lora  3    2048 4 0 optimizer=adamw-8bit
qwen2.5-vl-3b  lora  none 16384 1 1
llama-3.2-1b   full  none 2048 4 0 optimizer=paged-adamw-8bit
qwen2.5-vl-3b  qlora none 8192 1 4
llama-3.2-1b   full  3    2048 4 0
llama-3.2-1b   full  0    2048 4 0
llama-3.2-1b   full  2    2048 4 0 precision=fp16
llama-3.2-1b   full  none 2048 4 0 optimizer=adamw-8bit
llama-3.2-1b   full  none 2048 4 0 optimizer=sgd
llama-3.2-1b   full  none 2048 4 0 optimizer=adafactor
llama-3.2-1b   lora  none 2048 8 0
llama-3.2-1b   qlora none 2048 8 0
llama-3.2-3b   lora  none 8192 1 0
llama-3.2-3b   lora  none 4096 2 0 loss=full
llama-3.2-3b   full  none 512  2 0 precision=bf16-pure
llama-3.1-8b   lora  2    2048 1 0
llama-3.1-8b   lora  3    2048 1 0
llama-3.1-8b   qlora none 16384 1 0
llama-3.1-8b   full  none 512  1 0 precision=bf16-pure,optimizer=sgd
gemma-3-4b     lora  3    2048 1 1
gemma-3-4b     full  none 512  1 0 precision=bf16-pure
llama-3.2-1b   full  none 2048 1 0 grad_accum=4
llama-3.2-1b   full  2    2048 1 0 grad_accum=4
llama-3.2-1b   full  none 2048 4 0 expandable_segments=True
deepseek-v2-lite lora none 2048 1 0
gpt-oss-20b    lora  none 1024 1 0
llama-3.2-1b   full  none 2048 4 0 attention=flash_attention_2
llama-3.2-1b   lora  none 2048 8 0 attention=flash_attention_2
"""
NEEDS = {
    "flash_attention_2": "flash_attn",
    "adamw-8bit": "bitsandbytes",
    "paged-adamw-8bit": "bitsandbytes",
    "qlora": "bitsandbytes",
    "torchao-adamw-4bit": "torchao",
    "liger": "liger_kernel",
}


def _runs() -> tuple[CampaignRun, ...]:
    return tuple(_run(place, row) for place, row in enumerate(_ROWS.strip().splitlines()))


def _run(place: int, row: str) -> CampaignRun:
    model, method, stage, tokens, micro_batch, images, *rest = row.split()
    more = dict(pair.split("=") for pair in rest[0].split(",")) if rest else {}
    engine = "plain" if stage == "none" else f"zero{stage}"
    words = [model, method, engine, f"{tokens}x{micro_batch}", f"{images}img", *(f"{k}-{v}" for k, v in more.items())]
    options = {
        "model": model,
        "method": method,
        "zero_stage": stage,
        "seq_len": int(tokens),
        "micro_batch": int(micro_batch),
        "images_per_sample": int(images),
        **{name: _value(value) for name, value in more.items()},
    }
    needed = [NEEDS[value] for value in (method, *more.values()) if value in NEEDS]
    if stage != "none":
        needed.append("deepspeed")
    return CampaignRun("-".join(words).replace("_", "-"), options, needed[0] if needed else None, place % 2 == 1)


def _value(text: str) -> bool | int | str:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdecimal() else text


RUNS = _runs()

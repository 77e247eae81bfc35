"""What the host does: asking for operations, copies over the bus, CPU Adam, images."""

import io
import time
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from vlmplan_trainer.calibrate.clock import Measured, inverted, measured, seconds_of, wait_for
from vlmplan_trainer.probe import configuration, model_class

Found = dict[str, Measured]
NUM_STEPS, NUM_WARM = 40, 5
COPIED_BYTES = 256 * 2**20
JPEG_QUALITY = 90
IMAGE_SIZES = ((640, 480), (1280, 960))


def operations(device: torch.device, asked: dict[str, Any], limit_seconds: float) -> Found:
    """The host's time for one counted operation: forward and backward of a model that is too small to keep a GPU busy,
    by the number of operations that the planner counts in it. On a CPU it holds the small operations themselves.

    And what checkpoints add in forward and in backward for each operation that they run again, besides that operation.
    """
    torch.manual_seed(0)
    config = configuration(asked["config"])
    model = model_class(config)(config).to(device)
    model.train()
    tokens = torch.zeros(1, asked["tokens"], dtype=torch.long, device=device)
    plain = _phase_seconds(model, tokens, limit_seconds / 2)
    num_kernels, num_again = asked["num_kernels"], asked["num_recomputed"]
    found = {"operation_seconds": measured([sum(both) / num_kernels for both in plain])}
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = True
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    checkpointed = _phase_seconds(model, tokens, limit_seconds / 2)
    operations_again = 0.0, found["operation_seconds"].value
    for place, name in enumerate(("checkpoint_forward", "checkpoint_backward")):
        without = median(both[place] for both in plain)
        added = [(both[place] - without) / num_again - operations_again[place] for both in checkpointed]
        found[name] = measured([max(0.0, seconds) for seconds in added])
    return found


def _phase_seconds(model: Any, tokens: Any, limit_seconds: float) -> list[tuple[float, float]]:
    """Seconds of forward and of backward, again and again, until the host has asked for all of it."""
    found: list[tuple[float, float]] = []
    end = time.monotonic() + limit_seconds
    while len(found) < NUM_WARM + NUM_STEPS and (time.monotonic() < end or len(found) <= NUM_WARM):
        wait_for(tokens.device)
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        between = time.perf_counter()
        loss.backward()
        found.append((between - start, time.perf_counter() - between))
        model.zero_grad()
    return found[NUM_WARM:]


def copies(device: torch.device, limit_seconds: float) -> Found:
    """Pinned copies, each way by itself."""
    on_host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    there = seconds_of(lambda: on_device.copy_(on_host, non_blocking=True), device, limit_seconds / 2)
    back = seconds_of(lambda: on_host.copy_(on_device, non_blocking=True), device, limit_seconds / 2)
    return {"copy_to_device": inverted(there, COPIED_BYTES), "copy_to_host": inverted(back, COPIED_BYTES)}


def images(limit_seconds: float) -> Found:
    """Opening JPEGs and making Qwen2-VL's patches of them, by megapixel, on one core as the trainer does."""
    import numpy
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from vlmplan_trainer.data.images import opened

    processor = Qwen2VLImageProcessorPil()
    rng = numpy.random.default_rng(0)
    took: list[float] = []
    for width, height in IMAGE_SIZES:
        coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), dtype=numpy.uint8))
        file = io.BytesIO()
        coarse.resize((width, height)).save(file, "JPEG", quality=JPEG_QUALITY)
        content = file.getvalue()

        def call(content: bytes = content) -> None:
            processor(opened(content, name="a calibration image"), return_tensors="pt")

        one = seconds_of(call, torch.device("cpu"), limit_seconds / len(IMAGE_SIZES))
        took += [1e6 * seconds / (width * height) for seconds in (one.low, one.value, one.high)]
    return {"image_seconds_per_megapixel": measured(took)}


def host_adam(limit_seconds: float) -> Found:
    """DeepSpeed's CPU Adam with all threads of the host, where its kernel is there already."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    from vlmplan_trainer.engines.optimizers import find_ninja

    find_ninja()
    elements = 2**25
    weight = torch.nn.Parameter(torch.ones(elements))
    weight.grad = torch.ones_like(weight)
    optimizer = DeepSpeedCPUAdam([weight], lr=1e-6, adamw_mode=True, fp32_optimizer_states=True)
    took = seconds_of(optimizer.step, torch.device("cpu"), limit_seconds)
    return {"host_adam_bandwidth": inverted(took, 7 * 4 * elements)}

"""What the device itself does: matrix products, attention, elementwise kernels and the optimizer.

Each is measured as the time model counts it: a product takes its operations by a rate and a fixed ramp, causal
attention half of its operations, forward and backward together, everything else the bytes that it reads and writes.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch.nn import functional

from vlmplan_trainer.calibrate.clock import Measured, inverted, measured, seconds_of

Found = dict[str, Measured]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GPU_TOKENS, GPU_LAYERS = (512, 2048, 8192), ((2048, 2048), (2048, 8192), (4096, 4096), (4096, 14336), (5120, 27648))
CPU_TOKENS, CPU_LAYERS = (64, 256), ((256, 256), (256, 1024), (512, 2048))
"""Tokens of a micro batch, and (in, out) features of Linear layers: those of models of 1 to 32 B, and tiny ones."""
SMALL_FEATURES = 64
"""Of a product that is nothing but its ramp."""
GPU_ATTENTION = ((4, 32, 1024, 128), (2, 32, 4096, 128), (1, 32, 8192, 128), (8, 16, 1024, 64))
CPU_ATTENTION = ((1, 4, 256, 64), (2, 4, 128, 64))
"""(samples, heads, tokens, width of a head)."""
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Products of (tokens x width x tokens) in flash attention; backward makes the scores again (arXiv 2307.08691)."""
ADAMW_VALUES = 7
"""Gradient, weight and both moments read, weight and moments written, by torch's one fused kernel."""


def matmuls(device: torch.device, types: Sequence[str], limit_seconds: float) -> Found:
    """Rate of each type over the shapes, and the ramp of the type that comes first."""
    found: Found = {}
    on_gpu = device.type == "cuda"
    shapes = list(product(GPU_TOKENS, GPU_LAYERS) if on_gpu else product(CPU_TOKENS, CPU_LAYERS))
    for name in types:
        each = limit_seconds / len(types) / (len(shapes) + 1)
        small = _product_seconds(SMALL_FEATURES, SMALL_FEATURES, SMALL_FEATURES, TYPES[name], device, each)
        ramp = small.value
        rates = [
            2 * tokens * inside * outside / max(took.value - ramp, took.value / 10)
            for tokens, (inside, outside) in shapes
            for took in [_product_seconds(tokens, inside, outside, TYPES[name], device, each)]
        ]
        found[f"matmul_{name}"] = measured(rates)
        found.setdefault("matmul_ramp", small)
    return found


def _product_seconds(
    tokens: int, inside: int, outside: int, dtype: torch.dtype, device: torch.device, limit_seconds: float
) -> Measured:
    """Seconds of one Linear layer's forward. Random numbers: zeros take less power and so run faster."""
    x = torch.randn(tokens, inside, device=device, dtype=dtype)
    weight = torch.randn(outside, inside, device=device, dtype=dtype)
    out = torch.empty(tokens, outside, device=device, dtype=dtype)
    return seconds_of(lambda: torch.mm(x, weight.t(), out=out), device, limit_seconds)


def attention(device: torch.device, types: Sequence[str], limit_seconds: float) -> Found:
    """Causal attention of each kernel that is there, forward and backward together."""
    found: Found = {}
    shapes = GPU_ATTENTION if device.type == "cuda" else CPU_ATTENTION
    kernels = {"sdpa": _sdpa} | ({"flash_attention_2": _flash} if _has_flash(device) else {})
    cases = [(kernel, name) for kernel in kernels for name in types if not (kernel != "sdpa" and name == "fp32")]
    for kernel, name in cases:
        each = limit_seconds / len(cases) / len(shapes)
        rates = [
            flops / seconds_of(call, device, each).value
            for shape in shapes
            for flops, call in [(causal_flops(shape), kernels[kernel](shape, TYPES[name], device))]
        ]
        found[f"attention_{kernel}_{name}"] = measured(rates)
    return found


def causal_flops(shape: tuple[int, int, int, int]) -> float:
    """FLOPs of forward and backward: half of the scores are masked, and no fused kernel computes them."""
    samples, heads, tokens, width = shape
    whole = 2 * samples * heads * tokens * tokens * width
    return (FORWARD_PRODUCTS + BACKWARD_PRODUCTS) * whole / 2


def _sdpa(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def call() -> None:
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), gradient)

    return call


def _flash(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
    from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]

    samples, heads, tokens, width = shape
    laid_out = (samples, tokens, heads, width)
    q, k, v = (torch.randn(laid_out, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    gradient = torch.randn(laid_out, device=device, dtype=dtype)

    def call() -> None:
        torch.autograd.grad(flash_attn_func(q, k, v, causal=True), (q, k, v), gradient)

    return call


def _has_flash(device: torch.device) -> bool:
    from importlib.util import find_spec

    return device.type == "cuda" and find_spec("flash_attn") is not None


def bandwidth(device: torch.device, limit_seconds: float) -> Found:
    """Elementwise kernels over tensors far larger than any cache, and fused AdamW."""
    elements = 2**27 if device.type == "cuda" else 2**22
    rates = [
        inverted(seconds_of(call, device, limit_seconds / 6), num_bytes)
        for num_bytes, call in _sweeps(elements, device)
    ]
    return {
        "memory_bandwidth": Measured(
            statistics.median(rate.value for rate in rates),
            min(rate.low for rate in rates),
            max(rate.high for rate in rates),
            sum(rate.repetitions for rate in rates),
        ),
        "optimizer_bandwidth": _adamw(elements // 4, device, limit_seconds / 2),
    }


def _sweeps(elements: int, device: torch.device) -> Iterator[tuple[int, Callable[[], object]]]:
    """(bytes read and written, call): a copy, a sum of two, and a scaling in place, as a model's kernels are."""
    one, other, out = (torch.ones(elements, device=device, dtype=torch.bfloat16) for _ in range(3))
    size = elements * one.element_size()
    yield 2 * size, lambda: out.copy_(one)
    yield 3 * size, lambda: torch.add(one, other, out=out)
    yield 2 * size, lambda: out.mul_(1.0)


def _adamw(elements: int, device: torch.device, limit_seconds: float) -> Measured:
    weight = torch.nn.Parameter(torch.ones(elements, device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-6, weight_decay=0.0, fused=True)
    return inverted(seconds_of(optimizer.step, device, limit_seconds), ADAMW_VALUES * 4 * elements)

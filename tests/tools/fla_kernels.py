"""What a step of transformers' models holds with the kernels of gated delta nets, counted on fake tensors.

    pip install --no-deps --target DIR fla-core==0.6.0 triton einops
    PYTHONPATH=$PYTHONPATH:DIR python tests/tools/fla_kernels.py > tests/architecture/fla_kernels.json

flash-linear-attention's code runs as it is, from what transformers calls to what it starts in Triton, which is left
out. causal-conv1d is compiled for a card; what its function keeps and allocates (``CausalConv1dFn`` and
``causal_conv1d.cpp`` of 1.6) is written out here.
"""

import json
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from liger_storages import NoKernel
from torch import Tensor

from vlmplan.architecture.model import Batch

TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
}
KIMI = {
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "linear_num_heads": 4,
    "linear_head_dim": 48,
}
CONFIGS = (
    TEXT,
    {**TEXT, "linear_num_key_heads": 4},
    {**TEXT, "linear_key_head_dim": 64, "linear_value_head_dim": 32, "linear_num_value_heads": 8},
    KIMI,
)
BATCHES = (Batch(micro_batch=2, num_tokens=150), Batch(micro_batch=1, num_tokens=512))


class CausalConv1dFn(torch.autograd.Function):
    """x is (batch, channels, tokens), channels next to each other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        if grad.stride(1) != 1:
            grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        return grad_x, grad_weight.to(weight.dtype)


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    assert bias is None
    assert activation == "silu"
    return CausalConv1dFn.apply(x, weight)


def install() -> None:
    """Before transformers' models are imported, which look for both packages then."""
    package = ModuleType("causal_conv1d")
    vars(package).update(causal_conv1d_fn=causal_conv1d_fn, causal_conv1d_update=None)
    sys.modules["causal_conv1d"] = package
    import triton

    class Launched(NoKernel):
        """Of ``triton.jit`` and what wraps it."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.fn = args[0] if args else None

    def wrapping(*args: Any, **kwargs: Any) -> Any:
        return Launched() if len(args) == 1 and callable(args[0]) and not kwargs else lambda kernel: Launched()

    for name in ("jit", "autotune", "heuristics"):
        setattr(triton, name, wrapping)
    # What imports it is imported with its package.
    place = Path(find_spec("fla").origin).parent / "ops" / "utils" / "cache.py"
    spec = spec_from_file_location("fla.ops.utils.cache", place)
    cache = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(cache)
    cache.fla_cache_autotune = wrapping
    import fla.ops.gated_delta_rule
    import fla.ops.kda  # noqa: F401


def measured(config: dict[str, Any], batch: Batch, *, checkpoints: bool) -> dict[str, int]:
    from family_checks import real_model, switch_checkpointing, text_inputs
    from torch_probe import measured_step

    def build() -> Any:
        return switch_checkpointing(real_model(config), on=checkpoints)

    found = measured_step(build, text_inputs(batch))
    return {name: getattr(found, name) for name in ("forward_live", "forward_peak", "backward_peak")}


if __name__ == "__main__":
    install()
    rows = [
        {
            "config": config,
            "micro_batch": batch.micro_batch,
            "num_tokens": batch.num_tokens,
            "checkpoints": checkpoints,
            **measured(config, batch, checkpoints=checkpoints),
        }
        for config in CONFIGS
        for batch in BATCHES
        for checkpoints in (False, True)
    ]
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")

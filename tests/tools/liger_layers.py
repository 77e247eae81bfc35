"""What a step of transformers' models holds with Liger's own layer kernels, counted on fake tensors.

    pip install --no-deps --target DIR liger-kernel==0.8.5 triton
    PYTHONPATH=$PYTHONPATH:DIR python tests/tools/liger_layers.py > tests/architecture/liger_layers.json

Liger's code puts the kernels into the models and runs as it is; what it starts in Triton is left out.
"""

import json
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

from liger_storages import NoKernel

from family_checks import real_model, switch_checkpointing, text_inputs
from torch_probe import measured_step
from vlmplan.architecture.model import Batch

SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "vocab_size": 1000}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": None, "pad_token_id": 0}
TYPES = ("granite", "llama", "mistral", "qwen2", "qwen3", "smollm3")
KERNELS = {
    "rms_norm": ("_rms_norm_forward_kernel", "_rms_norm_backward_kernel"),
    "swiglu": ("_swiglu_forward_kernel", "_swiglu_backward_kernel"),
    "rope": ("_triton_rope",),
}
BATCH = Batch(micro_batch=2, num_tokens=384)


def measured(config: dict[str, Any], *, checkpoints: bool) -> dict[str, int]:
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    def build() -> Any:
        model = real_model(config)
        _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
        return switch_checkpointing(model, on=checkpoints)

    with ExitStack() as stack:
        for module, names in KERNELS.items():
            for name in names:
                stack.enter_context(patch.object(import_module(f"liger_kernel.ops.{module}"), name, NoKernel()))
        found = measured_step(build, text_inputs(BATCH))
    return {name: getattr(found, name) for name in ("forward_live", "forward_peak", "backward_peak")}


if __name__ == "__main__":
    configs = [{"model_type": name, **SIZES, **HEADS} for name in TYPES]
    rows = [
        {"config": config, "checkpoints": checkpoints, **measured(config, checkpoints=checkpoints)}
        for config in configs
        for checkpoints in (False, True)
    ]
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")

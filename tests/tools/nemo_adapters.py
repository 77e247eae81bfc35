"""What a step of transformers' models holds with NeMo AutoModel's own adapters, counted on fake tensors.

    PYTHONPATH=$PYTHONPATH:CHECKOUT python tests/tools/nemo_adapters.py > tests/architecture/nemo_adapters.json

CHECKOUT is NVIDIA-NeMo/Automodel at 36044ad3. Its code puts the adapters into the models and runs as it is; what it
starts in Triton is left out. Checkpoints are of whole layers, and of their parts.
"""

import json
from typing import Any
from unittest.mock import patch

import torch

from family_checks import real_model, switch_checkpointing, text_inputs
from torch_probe import measured_step
from vlmplan.architecture.model import Batch

SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "vocab_size": 1000}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": None, "pad_token_id": 0}
TYPES = ("llama", "qwen3")
TARGETS = {"all": ["*_proj"], "attention": ["*q_proj", "*v_proj"]}
KINDS = ("none", "whole", "parts")
RANK = 8
BATCH = Batch(micro_batch=2, num_tokens=384)


def measured(config: dict[str, Any], *, targets: str, kind: str) -> dict[str, int]:
    from nemo_automodel.components._peft import lora_mlp
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
    from nemo_automodel.components.distributed.activation_checkpointing import apply_submodule_checkpointing

    def build() -> Any:
        model = real_model(config)
        apply_lora_to_linear_modules(model, PeftConfig(target_modules=TARGETS[targets], dim=RANK))
        if kind == "parts":
            apply_submodule_checkpointing(list(model.model.layers), has_kv_sharing=False)
        return switch_checkpointing(model, on=kind == "whole")

    with (
        patch.object(lora_mlp, "_swiglu_fwd", lambda gate, up: torch.empty_like(gate)),
        patch.object(lora_mlp, "_swiglu_bwd_inplace", lambda *buffers: buffers),
    ):
        found = measured_step(build, text_inputs(BATCH))
    return {name: getattr(found, name) for name in ("forward_live", "forward_peak", "backward_peak")}


if __name__ == "__main__":
    configs = [{"model_type": name, **SIZES, **HEADS} for name in TYPES]
    rows = [
        {"config": config, "targets": targets, "kind": kind, **measured(config, targets=targets, kind=kind)}
        for config in configs
        for targets in TARGETS
        for kind in KINDS
    ]
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")

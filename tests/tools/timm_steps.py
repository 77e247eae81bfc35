"""Write ``tests/architecture/timm_steps.json``: parameters and steps of transformers' own Gemma 3n and FastVLM.

Their vision towers are timm's, which tests do without: what the real modules hold is kept here, and the planner's trees
are held to that. Where timm and torchvision are installed, in two minutes of processor time:

    PYTHONPATH=planner:trainer:tests python tests/tools/timm_steps.py
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
import transformers

from family_checks import real_model, switch_checkpointing, text_inputs
from model_table import packaged_config
from timm_cases import CASES, FIRST_IMAGE, GEMMA3N, IMAGE_TOKEN, PEAKS, SMALL, Case, summary
from torch_probe import measured_step

OUTPUT = Path(__file__).parents[1] / "architecture" / "timm_steps.json"
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **SMALL,
    **{alias: packaged_config(alias) for alias in ("gemma-3n-e2b", "gemma-3n-e4b", "fastvlm-0.5b", "fastvlm-7b")},
}


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and Linears of the real model."""
    with torch.device("meta"):
        model = real_model(config)
    linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return summary(((name, parameter.numel()) for name, parameter in model.named_parameters()), linears)


def step(case: Case) -> dict[str, int]:
    """Bytes above the weights of one step of the real model."""

    def build() -> Any:
        model = real_model(case.config, attention=case.attention)
        for name, parameter in model.named_parameters():
            if case.frozen and name.startswith(case.frozen):
                parameter.requires_grad_(False)
        return switch_checkpointing(model, on=case.checkpoints)

    batch = case.batch
    inputs = text_inputs(batch, vocab_size=90)
    floats: dict[str, tuple[int, ...]] = {}
    if batch.image is not None:
        for index in range(case.images_per_sample):
            start = FIRST_IMAGE + index * batch.image.num_tokens
            inputs["input_ids"][:, start : start + batch.image.num_placeholder_tokens] = IMAGE_TOKEN
        if case.config is GEMMA3N:
            inputs["token_type_ids"] = (inputs["input_ids"] == IMAGE_TOKEN).long()
        floats["pixel_values"] = (batch.num_images, 3, case.side, case.side)
    measured = measured_step(build, inputs, floats=floats)
    return {name: getattr(measured, name) for name in PEAKS}


def found() -> dict[str, Any]:
    """What is kept."""
    return {
        "source": f"transformers {transformers.__version__}, timm {timm.__version__}, torch {torch.__version__}",
        "models": {name: parameters(config) for name, config in CONFIGS.items()},
        "steps": {name: step(case) for name, case in CASES.items()},
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{OUTPUT.name}: {len(CASES)} steps\n")

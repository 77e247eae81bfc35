"""torchtune's recipes, which are not read: torchtune has ended, and what they say is a command for another trainer.

Source: torchtune@bd2a0fc7, ``README.md`` ("development wound down in 2025"), ``recipes/configs`` and
``torchtune/models/*/_model_builders.py`` for the names of models, the parts of them that adapters are on, and what
``quantize_base`` and ``use_dora`` make of these.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.models import packaged_models

TORCHTUNE: Final = "torchtune"
COMPONENT: Final = "_component_"
ENDED: Final = "torchtune, whose development ended in 2025, and which is not read"
TUNE: Final = "tune run"
OF_FILES: Final = "it answers with the command that plans the same for TRL"
OTHERWISE: Final = "say what it trains with the options of vlmplan recommend --for trl"
MODEL: Final = re.compile(r"(?:(?P<packs>q)?(?P<adapts>lora_))?(?P<name>\w+?)(?:_instruct|_base)?")
"""``qlora_llama3_1_8b``."""
PARTS: Final[tuple[tuple[str, str], ...]] = (
    (r"^llama(\d)_(\d)_vision_(\d+)b$", r"llama-\1.\2-\3b-vision"),
    (r"^llama4_(scout|maverick)_\w+$", r"llama-4-\1"),
    (r"^phi4_14b$", "phi-4"),
    (r"^(llama|gemma|phi)(\d)_(\d+b|mini)$", r"\1-\2-\3"),
    (r"^llama(\d)_(\d)_(\d+b)$", r"llama-\1.\2-\3"),
    (r"^qwen2_5_(\w+)$", r"qwen2.5-\1"),
    (r"([_-]\d)_(\d+b)$", r"\1.\2"),
)
"""From names of torchtune's builders to those that vlmplan has for the same models."""
ATTENTION: Final = {"output_proj": "o_proj"}
MLP: Final = ("gate_proj", "up_proj", "down_proj")
FUSED: Final = "qkv_proj,o_proj,gate_up_proj,down_proj"
"""What transformers' Phi has in place of the projections that torchtune adapts."""
OTHER_TASKS: Final[Mapping[str, str]] = {
    "teacher_model": "by distillation",
    "policy_model": "by PPO",
    "quantizer": "with weights as they will be when they are quantised (QAT)",
}
"""By keys that no recipe of fine-tuning or of DPO has."""


def problem_of_torchtune(values: Mapping[str, Any]) -> str:
    """What to use in place of a recipe of torchtune, as the rest of a sentence that names the file."""
    model = values.get("model")
    builder = _component(model).rpartition(".")[2]
    if "optimizer" not in values:
        return f"{ENDED}; without optimizer it trains nothing"
    loss = _component(values.get("loss")).rpartition(".")[2]
    tasks = [task for key, task in OTHER_TASKS.items() if values.get(key) is not None]
    tasks += ["by GRPO"] if "GRPO" in loss else []
    if tasks:
        return f"{ENDED}; it trains {tasks[0]}, which is not planned of it"
    if not builder or not isinstance(model, Mapping):
        return f"{ENDED}; {OTHERWISE}"
    words = ["vlmplan recommend --for trl", *_words(builder, cast(Mapping[str, Any], model), values)]
    return f"{ENDED}; {' '.join(words)} plans the same for TRL, and --out DIR writes it"


def _words(builder: str, model: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The options that mean what the recipe says of the task, the model, its adapters and its samples."""
    found = MODEL.fullmatch(builder)
    assert found is not None  # of any word
    adapts = found["adapts"] is not None
    is_packed = adapts and (found["packs"] is not None or model.get("quantize_base") is True)
    tokenizer = values.get("tokenizer")
    length = cast(Mapping[str, object], tokenizer).get("max_seq_len") if isinstance(tokenizer, Mapping) else None
    return [
        *(["--task dpo"] if _component(values.get("loss")).endswith("DPOLoss") else []),
        f"--model {_model_name(found['name'], builder)}",
        f"--method {'qlora' if is_packed else 'lora' if adapts else 'full'}",
        *(_words_of_adapters(model, is_fused=found["name"].startswith("phi")) if adapts else []),
        *([f"--seq-len {length}"] if isinstance(length, int) else []),
    ]


def _words_of_adapters(model: Mapping[str, Any], *, is_fused: bool) -> list[str]:
    named = model.get("lora_attn_modules")
    attention = [ATTENTION.get(str(name), str(name)) for name in named] if isinstance(named, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    targets = [FUSED] if is_fused else [*attention, *(MLP if model.get("apply_lora_to_mlp") is True else ())]
    rank, alpha = model.get("lora_rank"), model.get("lora_alpha")
    return [
        *([f"--lora-rank {rank}"] if isinstance(rank, int) else []),
        *([f"--lora-alpha {alpha}"] if isinstance(alpha, (int, float)) else []),
        *([f"--lora-targets {','.join(targets)}"] if targets else []),
        *(["--use-dora"] if model.get("use_dora") is True else []),
    ]


def _model_name(name: str, builder: str) -> str:
    """vlmplan's name for the model, or the place of one."""
    for pattern, other in PARTS:
        name = re.sub(pattern, other, name)
    alias = name.replace("_", "-")
    known = packaged_models()
    chat = [f"{alias}{ending}" for ending in ("", "-instruct", "-it", "-base")]
    of_builder = chat if "base" not in builder else [f"{alias}-base", *chat]
    return next((one for one in of_builder if one in known), "NAME")


def _component(section: object) -> str:
    value = cast(Mapping[str, object], section).get(COMPONENT) if isinstance(section, Mapping) else None
    return value if isinstance(value, str) else ""

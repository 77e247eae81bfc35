"""VLM-R1's own trainer on the settings of a case of ``trainers.json``, to be rehearsed:

    vlmplan rehearse --gpu a100-sxm4-80gb:2 -- python tests/rehearsed/vlm_r1_run.py CASE.json VLM-R1/.../grpo_trainer.py

``CASE.json`` holds the settings, ``model_name_or_path`` a folder with the model's configuration; the second file is
``src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py`` of om-ai-lab/VLM-R1 @ 90052f4, which runs as it is but
for three things that transformers 5.23 does otherwise than 4.49: ``from_pretrained`` takes no ``use_cache``, models
have no ``warnings_issued``, and samplers are asked with their dataset. Under ZeRO-3 the reference has
the class of the model.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import Qwen2_5_VLForConditionalGeneration as Model

PROMPT, SIDE = 320, 32
"""Tokens of a prompt, and patches of a side of its image, of 448 pixels."""
VISION_START, IMAGE_TOKEN, WORD = 151652, 151655, 1000
OF_SCRIPT = ("data_file_paths", "image_folders")


def loaded(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Processor:
    """What the trainer asks of one."""

    tokenizer = types.SimpleNamespace(pad_token_id=151643, eos_token_id=151645)
    image_processor = types.SimpleNamespace()

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "Processor":
        return cls()

    def batch_decode(self, ids: torch.Tensor, **_: Any) -> list[str]:
        return ["a"] * len(ids)


class QwenModule:
    """``Qwen2VLModule`` of prompts that are made here: each is an image and words."""

    def get_model_class(self, model_id: str, options: dict[str, Any]) -> type:
        options.pop("use_cache", None)
        options["dtype"] = options.pop("torch_dtype")
        return Model

    def get_processing_class(self) -> type:
        return Processor

    def get_vision_modules_keywords(self) -> list[str]:
        return ["visual"]

    def get_custom_multimodal_keywords(self) -> list[str]:
        return ["pixel_values", "image_grid_thw"]

    def get_custom_processing_keywords(self) -> list[str]:
        return []

    def get_non_generate_params(self) -> list[str]:
        return []

    def is_embeds_input(self) -> bool:
        return False

    def post_model_init(self, model: Any, processing_class: Any) -> None:
        """Nothing, as there."""

    def prepare_prompt(self, processing_class: Any, inputs: list[dict[str, Any]]) -> list[str]:
        return [one["prompt"] for one in inputs]

    def prepare_model_inputs(self, processing_class: Any, prompts: list[str], images: Any, **_: Any) -> Any:
        ids = torch.full((len(prompts), PROMPT), WORD)
        ids[:, 0] = VISION_START
        ids[:, 1 : 1 + SIDE * SIDE // 4] = IMAGE_TOKEN
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.zeros(len(prompts) * SIDE * SIDE, 3 * 2 * 14 * 14),
            "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * len(prompts)),
        }
        return inputs, None


def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    return [float(place) for place in range(len(prompts))]


def main(settings: dict[str, Any], source: Path) -> None:
    for name in ("open_r1", "open_r1.vlm_modules", "open_r1.vlm_modules.vlm_module"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["open_r1.vlm_modules.vlm_module"].__dict__["VLMBaseModule"] = object
    config = loaded("vlm_r1_config", source.with_name("grpo_config.py"))
    trainer = loaded("vlm_r1_trainer", source)
    trainer.AutoModelForCausalLM = Model
    Model.warnings_issued = {}  # pyright: ignore[reportAttributeAccessIssue]

    class Trainer(trainer.VLMGRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return super()._get_train_sampler()

    for name in OF_SCRIPT:
        settings.pop(name, None)
    adapters = None
    if settings.pop("use_peft", False):
        sizes = {name: settings.pop(name) for name in ("lora_alpha", "lora_dropout")}
        adapters = LoraConfig(task_type="CAUSAL_LM", r=settings.pop("lora_r"), **sizes)
    model, attention = settings.pop("model_name_or_path"), settings.pop("attn_implementation")
    freezes = settings.pop("freeze_vision_modules", False)
    Trainer(
        model=model,
        reward_funcs=[reward],
        args=config.GRPOConfig(**settings),
        vlm_module=QwenModule(),
        train_dataset=[{"prompt": str(number)} for number in range(64)],
        peft_config=adapters,
        freeze_vision_modules=freezes,
        attn_implementation=attention,
    ).train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))

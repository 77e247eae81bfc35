"""R1-V's own trainer on the settings of a case of ``trainers.json``, to be rehearsed:

    vlmplan rehearse --gpu a100-sxm4-80gb:2 -- python tests/rehearsed/r1_v_run.py CASE.json R1-V/.../grpo_trainer.py

``CASE.json`` holds the settings, ``model_name_or_path`` a folder with the model's configuration whose name has
Qwen2.5-VL in it; the second file is ``src/r1-v/src/open_r1/trainer/grpo_trainer.py`` of Deep-Agent/R1-V @ bbbbe3d,
which runs as it is but for what TRL 1.16 and transformers 5.23 do otherwise than those that it is made for:
``from_pretrained`` takes no ``use_cache``, models have no ``warnings_issued``, samplers are asked with their dataset,
TRL makes no copy of a model and no card, and a batch of its own has to be as large as a group of answers.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import trl.models
import trl.models.utils
import trl.trainer.utils
import vlm_r1_run as of_vlm_r1
from transformers import BatchFeature
from transformers import Qwen2_5_VLForConditionalGeneration as Model
from trl import GRPOConfig

OF_SCRIPT = ("max_pixels", "max_prompt_length", "torch_dtype")


class Processor(of_vlm_r1.Processor):
    """What the trainer asks of one: each prompt is an image and words."""

    pad_token_id, eos_token_id = 151643, 151645

    def __call__(self, text: list[str], **_: Any) -> BatchFeature:
        inputs, _ = of_vlm_r1.QwenModule().prepare_model_inputs(self, text, None)
        return BatchFeature(inputs)


def without_gradients(model: Any) -> Any:
    """``create_reference_model`` of TRL 0.14."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def main(settings: dict[str, Any], source: Path) -> None:
    trl.models.__dict__.setdefault("create_reference_model", without_gradients)
    for name in ("prepare_deepspeed", "unwrap_model_for_generation"):
        trl.models.__dict__.setdefault(name, getattr(trl.models.utils, name))
    for name in ("generate_model_card", "get_comet_experiment_url"):
        trl.trainer.utils.__dict__.setdefault(name, None)
    trainer = of_vlm_r1.loaded("r1_v_trainer", source)
    load = Model.from_pretrained
    Model.from_pretrained = lambda name, use_cache=None, **more: load(name, **more)  # pyright: ignore
    Model.warnings_issued = {}  # pyright: ignore[reportAttributeAccessIssue]
    trainer.AutoProcessor = Processor
    trainer.maybe_apply_chat_template = lambda example, _: example

    class Trainer(trainer.Qwen2VLGRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    for name in OF_SCRIPT:
        settings.pop(name, None)
    model, attention = settings.pop("model_name_or_path"), settings.pop("attn_implementation")
    samples, answers = settings.pop("per_device_train_batch_size"), settings["num_generations"]
    arguments = GRPOConfig(**settings, per_device_train_batch_size=answers)
    arguments.per_device_train_batch_size, arguments.max_prompt_length = samples, None
    Trainer(
        model=model,
        reward_funcs=[of_vlm_r1.reward],
        args=arguments,
        train_dataset=[{"prompt": str(number), "image": number} for number in range(64)],
        attn_implementation=attention,
    ).train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))

"""What axolotl 0.19.0 makes of ``rl: dpo``, ``kto``, ``grpo``, ``orpo`` and ``simpo``, on the settings of a case of
``trainers.json``, to be rehearsed:

    vlmplan rehearse --gpu a100-sxm4-80gb:1 -- python tests/rehearsed/axolotl_run.py CASE.json .../trainer/utils.py

``CASE.json`` holds the settings, ``base_model`` a folder with the model's configuration, and ``answer`` and
``deepspeed_file`` where there is one; the second file is ``src/axolotl/monkeypatch/trainer/utils.py``, whose
``selective_log_softmax`` and ``entropy_from_logits`` stand in TRL's ``trainer/utils.py`` when a trainer is imported
(``loaders/patch_manager.py``). They run as they are, but their kernels are not launched. The rest is TRL's own trainer
(1.9.0), with the arguments that ``core/builders/rl.py`` gives it, and adapters where ``loaders/model.py`` makes them
(``_load_adapters``): TRL's ``DPOTrainer`` and ``KTOTrainer`` get their configuration, the others a model that has them.
"""

import gc
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

PROMPT = 20


def patch_kernels(path: Path) -> None:
    """Put axolotl's functions into TRL's module, as it does before ``DPOTrainer`` is imported."""
    language, triton = types.ModuleType("triton.language"), types.ModuleType("triton")
    language.__dict__["constexpr"] = int
    kernel = type("Kernel", (), {"__getitem__": lambda *_: lambda *_, **__: None})
    triton.__dict__.update(jit=lambda _: kernel(), language=language, next_power_of_2=lambda number: number)
    registry = types.ModuleType("axolotl.kernels.op_registry")
    registry.__dict__["register_kernel_op"] = lambda _: _unregistered
    names = {"triton": triton, "triton.language": language, "axolotl.kernels.op_registry": registry}
    names |= {name: types.ModuleType(name) for name in ("axolotl", "axolotl.kernels")}
    sys.modules.update(names)
    module = types.ModuleType("axolotl_utils")
    # Where tensors have no data ``view`` raises another error.
    text = path.read_text(encoding="utf-8").replace("except RuntimeError", "except (RuntimeError, ValueError)")
    exec(compile(text, str(path), "exec"), module.__dict__)
    for name in names:
        del sys.modules[name]
    import trl.trainer.utils

    trl.trainer.utils.selective_log_softmax = module.selective_log_softmax
    trl.trainer.utils.entropy_from_logits = module.entropy_from_logits


def _unregistered(function: Any) -> Any:
    """``_UnregisteredOp`` of ``kernels/op_registry.py``, which axolotl falls back to."""
    function.register_fake = lambda fake: fake
    return function


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, 100)}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def adapters_of(case: dict[str, Any]) -> Any:
    from peft import LoraConfig

    if "adapter" not in case:
        return None
    sizes = {"r": case["lora_r"], "lora_alpha": case["lora_alpha"], "target_modules": case["lora_target_modules"]}
    return LoraConfig(task_type="CAUSAL_LM", **sizes)


def loaded(case: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    attention = case["attn_implementation"]
    return AutoModelForCausalLM.from_pretrained(case["base_model"], dtype=torch.bfloat16, attn_implementation=attention)


def adapted(case: dict[str, Any]) -> Any:
    """``load_lora`` in ``loaders/adapter.py``."""
    from peft import get_peft_model

    adapters = adapters_of(case)
    return loaded(case) if adapters is None else get_peft_model(loaded(case), adapters)


def arguments_of(case: dict[str, Any]) -> dict[str, Any]:
    """``_set_base_training_args``."""
    return {
        **({"deepspeed": case["deepspeed_file"]} if "deepspeed_file" in case else {}),
        "output_dir": "out",
        "report_to": "none",
        "save_strategy": "no",
        "bf16": True,
        "remove_unused_columns": False,
        "max_steps": 3,
        "per_device_train_batch_size": case["micro_batch_size"],
        "gradient_accumulation_steps": case["gradient_accumulation_steps"],
        "gradient_checkpointing": case["gradient_checkpointing"],
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "optim": case["optimizer"],
    }


def pairs(answer: int) -> Any:
    from datasets import Dataset

    columns = {"prompt": "w2 " * PROMPT, "chosen": " w3" * answer, "rejected": " w4" * answer}
    return Dataset.from_dict({name: [text] * 64 for name, text in columns.items()})


def dpo(case: dict[str, Any]) -> Any:
    from trl import DPOConfig, DPOTrainer

    class Trainer(DPOTrainer):
        """``training_step`` of ``core/trainers/dpo/trainer.py``."""

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss = super().training_step(*args, **kwargs)
            gc.collect()
            torch.cuda.empty_cache()
            return loss

    models = [loaded(case) for _ in range(1 if "adapter" in case else 2)]
    arguments = DPOConfig(**arguments_of(case), max_length=case["sequence_len"])
    data = {"train_dataset": pairs(case["answer"]), "processing_class": tokenizer()}
    return Trainer(*models, args=arguments, peft_config=adapters_of(case), **data)


def kto(case: dict[str, Any]) -> Any:
    """Answers that are good and bad in turn."""
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    columns = {"prompt": ["w2 " * PROMPT] * 64, "completion": [" w3" * case["answer"]] * 64}
    labels = [bool(place % 2) for place in range(64)]
    arguments = KTOConfig(**arguments_of(case), max_length=case["sequence_len"])
    data = {"train_dataset": Dataset.from_dict(columns | {"label": labels}), "processing_class": tokenizer()}
    return KTOTrainer(loaded(case), args=arguments, peft_config=adapters_of(case), **data)


def orpo(case: dict[str, Any]) -> Any:
    """Behind an answer is the end of the text."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    arguments = ORPOConfig(**arguments_of(case), max_length=case["sequence_len"])
    data = {"train_dataset": pairs(case["answer"] - 1), "processing_class": tokenizer()}
    return ORPOTrainer(adapted(case), args=arguments, **data)


def simpo(case: dict[str, Any]) -> Any:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    arguments = CPOConfig(
        **arguments_of(case),
        max_length=case["sequence_len"],
        loss_type="simpo",
        simpo_gamma=0.5,
        cpo_alpha=case.get("cpo_alpha", 1.0),
    )
    data = {"train_dataset": pairs(case["answer"] - 1), "processing_class": tokenizer()}
    return CPOTrainer(adapted(case), args=arguments, **data)


def grpo(case: dict[str, Any]) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [float(place) for place in range(len(prompts))]

    own = {key: value for key, value in case["trl"].items() if key != "reward_funcs"}
    arguments = GRPOConfig(**arguments_of(case), **own)
    prompts = Dataset.from_dict({"prompt": ["w2 " * PROMPT] * 64})
    return GRPOTrainer(adapted(case), [reward], args=arguments, train_dataset=prompts, processing_class=tokenizer())


def main(case: dict[str, Any], source: Path) -> None:
    patch_kernels(source)
    {"dpo": dpo, "kto": kto, "grpo": grpo, "orpo": orpo, "simpo": simpo}[case["rl"]](case).train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))

"""Files of axolotl with keys by chance, most of which go with each other."""

from random import Random
from typing import Any

LIGER = "axolotl.integrations.liger.LigerPlugin"
CUTS = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
ALWAYS: dict[str, Any] = {"datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
BATCH: dict[str, list[Any]] = {
    "micro_batch_size": [1, 2, 4],
    "gradient_accumulation_steps": [1, 4, None],
    "sequence_len": [512, 2000],
}
ADAPTERS: dict[str, list[Any]] = {
    "lora_r": [8, 32],
    "lora_alpha": [16],
    "lora_target_modules": [["q_proj", "v_proj"], "all-linear", "model.*q_proj"],
}
OTHERS: dict[str, list[Any]] = {
    "batch_size": [None, 8],
    "eval_batch_size": [1, 3],
    "sample_packing": [True, False, None],
    "eval_sample_packing": [True, False],
    "pad_to_sequence_len": [True, False, None],
    "pad_to_multiple_of": [8, 128],
    "batch_flattening": [True, "auto"],
    "multipack_real_batches": [False],
    "excess_length_strategy": ["drop", "truncate"],
    "flash_attention": [True, False],
    "sdp_attention": [True],
    "load_in_8bit": [False],
    "lora_dropout": [0.05, 0.0, None],
    "lora_target_linear": [True, False],
    "lora_mlp_kernel": [True, False],
    "lora_modules_to_save": [["embed_tokens", "lm_head"]],
    "peft_use_dora": [True],
    "peft_use_rslora": [True],
    "peft_init_lora_weights": ["pissa", "gaussian", True],
    "peft_autocast_adapter_dtype": [True, False],
    "loraplus_lr_ratio": [16],
    "bnb_config_kwargs": [{"bnb_4bit_use_double_quant": True}, {"bnb_4bit_use_double_quant": False}],
    "trust_remote_code": [True],
    "bf16": ["auto", True, False],
    "fp16": [True, False],
    "bfloat16": [True],
    "gradient_checkpointing": [True, False, "offload", None, "offload_disk"],
    "activation_offloading": [True, "legacy", "hidden_states", False],
    "optimizer": ["adamw_torch_fused", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "lion_8bit"],
    "max_grad_norm": [1.0, 0.3],
    "val_set_size": [0.0, 0.1, 50],
    "test_datasets": [[{"path": "b", "type": "alpaca"}]],
    "evals_per_epoch": [2, None],
    "eval_steps": [10, 0.1],
    "eval_strategy": ["no", "epoch", "steps"],
    "evaluation_strategy": ["epoch"],
    "saves_per_epoch": [1, 2],
    "save_steps": [5, 0.2],
    "save_strategy": ["no", "epoch", "best", "steps"],
    "save_total_limit": [2, None],
    "load_best_model_at_end": [True, False],
    "early_stopping_patience": [3],
    "metric_for_best_model": ["eval_loss"],
    "num_epochs": [1, 3],
    "max_steps": [10],
    "streaming": [True],
    "group_by_length": [True],
    "curriculum_sampling": [True],
    "warmup_steps": [10],
    "warmup_ratio": [0.1],
    "plugins": [[LIGER], [CUTS], [LIGER, CUTS]],
    "liger_rope": [True, None],
    "liger_rms_norm": [True],
    "liger_glu_activation": [True, False],
    "liger_fused_linear_cross_entropy": [True],
    "tensor_parallel_size": [1],
    "context_parallel_size": [1],
    "image_size": [512],
    "processor_type": ["AutoProcessor"],
    "freeze_mm_modules": [True, False],
}


def file_by_chance(random: Random, model: str) -> dict[str, Any]:
    """The keys and values of a file that trains ``model``."""
    chosen = {**BATCH, **{key: OTHERS[key] for key in random.sample(list(OTHERS), random.randint(3, 12))}}
    adapter = random.choice(("lora", "qlora", None))
    chosen |= {} if adapter is None else ADAPTERS
    file = {"base_model": model, **ALWAYS} | {key: random.choice(values) for key, values in chosen.items()}
    if adapter is not None:
        return file | {"adapter": adapter, "load_in_4bit": adapter == "qlora"}
    if not file.keys() & {"flash_attention", "sdp_attention"}:
        file["attn_implementation"] = "flash_attention_2"
    return file

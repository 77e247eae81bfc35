"""Options of ms-swift's earlier releases: those of 2 under today's names, and those of 3 that are gone.

Sources: ``swift/llm/utils/argument.py`` of 2.6, ``swift/llm/argument/`` of 3.5.
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.settings import Settings

OF_2: Final[Mapping[str, str]] = {
    "sft_type": "tuner_type",
    "batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "dtype": "torch_dtype",
    "lora_target_modules": "target_modules",
    "lora_target_regex": "target_regex",
    "lora_dropout_p": "lora_dropout",
    "lora_modules_to_save": "modules_to_save",
    "quantization_bit": "quant_bits",
    "bnb_4bit_comp_dtype": "bnb_4bit_compute_dtype",
    "use_flash_attn": "attn_impl",
    "template_type": "template",
    "custom_train_dataset_path": "dataset",
    "custom_val_dataset_path": "val_dataset",
    "dataset_test_ratio": "split_dataset_ratio",
    "preprocess_num_proc": "dataset_num_proc",
    "only_save_model": "save_only_model",
    "vit_use_gc": "vit_gradient_checkpointing",
    "deepspeed_config_path": "deepspeed",
}
"""Options that 4.6 calls otherwise."""
GONE: Final = frozenset(
    """train_dataset_sample val_dataset_sample train_dataset_mix_ratio train_dataset_mix_ds self_cognition_sample
    check_dataset_strategy check_model_is_latest add_output_dir_suffix use_loss_scale loss_scale_config_path
    rescale_image neftune_backend""".split()
)
"""Options of 2 that 4.6 does not have."""
WITHOUT_EFFECT: Final = frozenset("tools_prompt eval_datasets eval_datasets_args async_generate".split())
"""Of 3: prompts, what EvalScope asks, and when answers are made."""


def read_older(settings: Settings) -> None:
    """Refuse a file for ms-swift 2 as a whole, whose defaults were others too, and take what release 3 had more."""
    found = {key: name for key, name in OF_2.items() if key in settings}
    if found:
        names = ", ".join(f"{key} is {name} today" for key, name in found.items())
        settings.refuse_whole(
            f"it is for ms-swift 2, whose options ms-swift 4.6 does not take and whose defaults differ (max_length "
            f"2048; -1 is no limit): {names}"
        )
    settings.ignore([*OF_2, *(GONE if found else ())])
    if settings.is_on("use_vllm"):
        settings.only(
            "num_infer_workers vllm_device", f"vLLM on GPUs beside the trainer's: {NOT_PLANNED}; vllm_mode is"
        )
    settings.ignore(WITHOUT_EFFECT | {"num_infer_workers", "vllm_device"})

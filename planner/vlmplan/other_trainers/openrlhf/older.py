"""What OpenRLHF calls its options since 0.10.2, by their names before (commit ed62d0e2 of the parsers in
``openrlhf/cli/train_sft.py``, ``train_dpo.py`` and ``train_rm.py``), and two switches of still older releases:
``--bf16`` (until cd7a434f) and ``--flash_attn`` (until c250c21a)."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from vlmplan.other_trainers.settings import Settings

OLDER: Final[Mapping[str, str]] = {
    **{
        f"{section}.{name}": name
        for section, names in {
            "ckpt": "save_steps",
            "logger": "logging_steps",
            "train": "max_epochs seed",
            "ds": "zero_stage param_dtype zpg adam_offload attn_implementation use_liger_kernel grad_accum_dtype "
            "overlap_comm deepcompile ring_attn_size load_in_4bit packing_samples",
            "model": "aux_loss_coef beta label_smoothing nll_loss_coef",
            "data": "disable_fast_tokenizer dataloader_num_workers dataset dataset_probs dataset_split max_samples "
            "multiturn input_key output_key prompt_key chosen_key rejected_key input_template apply_chat_template "
            "tokenizer_chat_template max_len",
        }.items()
        for name in names.split()
    },
    "ckpt.output_dir": "save_path",
    "ckpt.save_hf": "save_hf_ckpt",
    "ckpt.disable_ds": "disable_ds_ckpt",
    "ckpt.path": "ckpt_path",
    "ckpt.max_num": "max_ckpt_num",
    "ckpt.max_mem": "max_ckpt_mem",
    "ckpt.load_enable": "load_checkpoint",
    "ds.use_universal_ckpt": "use_ds_universal_ckpt",
    "ds.ring_attn_head_stride": "ring_head_stride",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "ds.lora.rank": "lora_rank",
    "ds.lora.alpha": "lora_alpha",
    "ds.lora.dropout": "lora_dropout",
    "ds.lora.target_modules": "target_modules",
    "eval.steps": "eval_steps",
    "eval.dataset": "eval_dataset",
    "eval.split": "eval_split",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.batch_size": "train_batch_size",
    "train.full_determinism_enable": "full_determinism",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "model.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "model.model_name_or_path": "pretrain",
    "model.pretrain_mode_enable": "pretrain_mode",
    "model.ipo_enable": "ipo",
    "model.compute_fp32_loss_enable": "compute_fp32_loss",
    "model.margin_loss_enable": "margin_loss",
    "model.loss_type": "loss",
    "ds.value_head_prefix": "value_head_prefix",
    "ref.model_name_or_path": "ref_pretrain",
    "ref.offload": "ref_offload",
    "adam.lr": "learning_rate",
    "adam.weight_decay": "l2",
    "adam.betas": "adam_betas",
    "logger.wandb.key": "use_wandb",
    "logger.wandb.org": "wandb_org",
    "logger.wandb.group": "wandb_group",
    "logger.wandb.project": "wandb_project",
    "logger.wandb.run_name": "wandb_run_name",
    "logger.tensorboard_dir": "use_tensorboard",
}
BF16, FLASH_ATTN = "bf16", "flash_attn"
SWITCHES: Final = {BF16: ("ds.param_dtype", "bf16"), FLASH_ATTN: ("ds.attn_implementation", "flash_attention_2")}
"""What they became, and as which value."""
MARKS: Final = frozenset(("pretrain", "micro_train_batch_size", "train_batch_size", "save_path"))
"""Options of every script that only older releases have."""


def names_of(keys: Collection[str]) -> Callable[[str], str]:
    """What the release that a script is for calls an option."""
    return (lambda key: OLDER.get(key, key)) if not MARKS.isdisjoint(keys) else str


def make_switches(settings: Settings) -> None:
    """What ``--bf16`` and ``--flash_attn`` stand for, in scripts of releases that have them; where another is not said
    that older releases had beside it, what the last one took."""
    is_older = any(mark in settings for mark in MARKS)
    for switch, (key, value) in SWITCHES.items():
        if is_older and settings.maybe_flag(switch):
            settings.make(key, value)
        elif is_older and key not in settings:
            settings.note(f"neither {OLDER[key]} nor {switch} is said: {value}, which later releases take")

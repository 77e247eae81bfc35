"""Options by the names that other programs have for them: what a beginner types before reading the help."""

from collections.abc import Container, Mapping

import click

from vlmplan.other_trainers.plain_trainer import OPTIONS_OF_SCRIPTS

FAMILIAR: Mapping[str, str] = {
    name: words
    for words, names in {
        "--model": "model_name_or_path model_name base_model",
        "--config": "from from_file config_file",
        "--gpu NAME:COUNT": "gpus num_gpus n_gpus n_gpu gpu_count num_processes nproc_per_node world_size",
        "--num-nodes": "nodes nnodes num_machines",
        "--host-ram": "ram cpu_ram memory",
        "--micro-batch": "per_device_train_batch_size per_device_batch_size micro_batch_size batch_size batch bs",
        "--global-batch": "train_batch_size global_batch_size",
        "--eval-batch": "per_device_eval_batch_size eval_batch_size",
        "--grad-accum": "gradient_accumulation_steps gradient_accumulation accumulation_steps",
        "--activation-checkpointing": "gradient_checkpointing use_gradient_checkpointing",
        "--epochs": "num_train_epochs num_epochs",
        "--seq-len": "sequence_length sequence_len max_tokens context context_length ctx",
        "--data": "dataset dataset_path data_path",
        "--image-size": "resolution image_resolution img_size",
        "--method full": "full",
        "--method lora": "lora peft",
        "--method lora-8bit": "load_in_8bit 8bit",
        "--method qlora": "qlora load_in_4bit 4bit quantization quantization_bit",
        "--lora-rank": "rank r",
        "--precision bf16": "bf16 bfloat16",
        "--precision fp16": "fp16 float16 half",
        "--precision fp32": "fp32 float32",
        "--precision": "mixed_precision",
        "--optimizer": "optim",
        "--optimizer adamw": "adam adamw_torch adamw_torch_fused",
        "--optimizer adamw-8bit": "adamw_8bit adamw_bnb_8bit adam8bit",
        "--optimizer paged-adamw-8bit": "paged_adamw_8bit",
        "--attention flash_attention_2": "flash_attn flash_attention flash_attention_2",
        "--ds-config": "deepspeed deepspeed_config",
        "--zero-stage": "zero stage zero1 zero2 zero3",
        "--offload-optimizer cpu": "cpu_offload offload",
        "--sequence-parallel": "sequence_parallel_size ulysses sp context_parallel context_parallel_size cp",
        "--task dpo": "dpo",
        "--task kto": "kto",
        "--task grpo": "grpo",
        "--objective time": "fastest",
        "--objective cost": "cheapest",
        "--max-usd": "budget max_cost max_price",
        "--max-hours": "max_time time_limit deadline",
        "--pricing interruptible": "spot interruptible preemptible",
        "--out": "output output_dir",
        "--for llamafactory": "llama_factory",
        "--for ms-swift": "swift ms_swift",
    }.items()
    for name in names.split()
}
"""What is given here, by the names of options and the values that trainers, launchers and users have for it."""


def familiar(error: click.NoSuchOption) -> str | None:
    """The option of this command, with its value, that elsewhere has the name of ``error``; None where none has."""
    return None if error.ctx is None else familiar_word(error.option_name.lstrip("-"), error.ctx)


def familiar_word(word: str, ctx: click.Context) -> str | None:
    """The same of a word that is given as a value."""
    words = _words(word.replace("-", "_"))
    here = {flag for parameter in ctx.command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return words if words is not None and words.split()[0] in here else None


def familiar_argument(name: str, known: Container[str]) -> str | None:
    """The argument that elsewhere has this name, such as ``method="qlora"`` for load_in_4bit."""
    option, _, value = (_words(name) or "").removeprefix("--").partition(" ")
    argument = option.replace("-", "_")
    if argument not in known:
        return None
    return f'{argument}="{value}"' if value else argument


def _words(name: str) -> str | None:
    """The option, with its value, that elsewhere has this name, written with ``_``."""
    name = name.casefold()
    return FAMILIAR.get(name) or (f"--{OPTIONS_OF_SCRIPTS[name]}" if name in OPTIONS_OF_SCRIPTS else None)

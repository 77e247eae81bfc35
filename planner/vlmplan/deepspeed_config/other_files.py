"""Files that are given for a ds_config.json and are something else: what they look like."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from vlmplan.deepspeed_config.content import KEYS, is_comment, listed, near_top_key
from vlmplan.deepspeed_config.run_keys import REMOVED_TOP_KEYS, UNREAD_KEYS
from vlmplan.deepspeed_config.zero_keys import ZERO_ALIASES
from vlmplan.errors import InputError
from vlmplan.files import NOT_JSON, text_of
from vlmplan.files.json_reader import JsonDict, parse_json_object

PLAN_COMMANDS = "vlmplan launch, rehearse, explain and diagnose"
"""Commands that have ``--plan``."""
LOOKS: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(names.split()), what)
    for names, what in (
        ("compute_environment distributed_type num_processes mixed_precision deepspeed_config", "accelerate's "
         "configuration (accelerate launch --config_file), which --config takes"),
        ("checkpointer train_loader max_duration", "a configuration of torchtune or LLM-Foundry"),
        ("fsdp fsdp_config fsdp_version fsdp_sharding_strategy", "a configuration of FSDP, as ms-swift and Hugging "
         "Face's Trainer take it"),
        ("weight_map", "the index of a model's weights"),
        ("peft_type lora_alpha target_modules", "an adapter's adapter_config.json"),
        ("schema vlmplan_version recipe workload", f"a plan of vlmplan, which {PLAN_COMMANDS} take with --plan"),
        ("model_type architectures num_hidden_layers hidden_size", "a model's config.json, which --model takes"),
        ("base_model datasets sequence_len adapter", "a configuration of axolotl, which --config takes"),
        ("model_name_or_path finetuning_type template cutoff_len stage dataset", "a configuration of LLaMA-Factory, "
         "which --config takes"),
        ("output_dir per_device_train_batch_size num_train_epochs learning_rate deepspeed", "training arguments of "
         "Hugging Face's Trainer, which --config takes"),
        ("max_new_tokens do_sample temperature bos_token_id eos_token_id", "a model's generation_config.json"),
        ("tensor_model_parallel_size pipeline_model_parallel_size micro_batch_size", "a configuration of Megatron"),
        ("messages conversations prompt completion", "training data"),
    )
)  # fmt: skip
"""Keys that tell a kind of file, and what it is, the surest first."""
SHOWN_KEYS = 4


def read_ds_config(path: Path) -> JsonDict:
    """The JSON object of a file; one in YAML, as other trainers have, is refused by what it looks like.

    Raises UnavailableError if the file cannot be read, InputError if it holds anything else.
    """
    text = text_of(path, name=str(path), otherwise=NOT_JSON)
    if text.startswith("#!"):
        raise InputError(f"{path} is a script, which is no DeepSpeed file; --config takes one that starts a trainer")
    try:
        return parse_json_object(text, source=str(path))
    except InputError:
        _refuse_yaml(text, str(path))
        raise


def _refuse_yaml(text: str, source: str) -> None:
    """Raise InputError for a mapping in YAML's own form, with keys at the beginning of lines."""
    if text.lstrip().startswith(("{", "[")):
        return
    from vlmplan.files.yaml_reader import parse_yaml

    try:
        values = parse_yaml(text, source=source)[0]
    except (InputError, IndexError):
        return
    if isinstance(values, dict) and values:
        names = [str(name) for name in cast(Mapping[object, object], values)]
        if any(name in KEYS for name in names) and looks_like(names).startswith("none"):
            raise InputError(f"{source} is YAML; DeepSpeed reads a ds_config as JSON")
        raise InputError(f"{source} is no DeepSpeed file: {looks_like(names)}")


def refuse_other_files(values: Mapping[str, Any], source: str) -> None:
    """Raise InputError for an object that has keys, but none of DeepSpeed's."""
    names = [name for name, value in values.items() if not is_comment(name, value)]
    known = (KEYS, REMOVED_TOP_KEYS, UNREAD_KEYS, ZERO_ALIASES)
    if not names or any(name in keys for name in names for keys in known) or any(map(near_top_key, names)):
        return
    raise InputError(f"{source} is no DeepSpeed file: {looks_like(names)}")


def looks_like(names: list[str]) -> str:
    """What a file of these keys is."""
    found = max(LOOKS, key=lambda look: len(look[0].intersection(names)))
    if found[0].isdisjoint(names):
        more = ", ..." if len(names) > SHOWN_KEYS else ""
        return f"none of its keys ({', '.join(names[:SHOWN_KEYS])}{more}) is one that DeepSpeed reads"
    told = [name for name in names if name in found[0]]
    return f"with {listed(told[:SHOWN_KEYS])} it looks like {found[1]}"

"""Whose configuration a file is, by its keys."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vlmplan.deepspeed_config.other_files import PLAN_COMMANDS
from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.notes import listed
from vlmplan.other_trainers.ms_swift.preferences import READ_KINDS, kind_of
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.plain_trainer import MODEL_OF_SCRIPTS
from vlmplan.other_trainers.scripts import BY_OPTIONS, OTHER, TRL_DPO, TRL_GRPO, TRL_KTO, TRL_REWARD
from vlmplan.other_trainers.torchtune import TORCHTUNE, problem_of_torchtune
from vlmplan.other_trainers.trl.dpo import OLDER_PROMPT_KEYS, has_its_answers, is_dpo
from vlmplan.other_trainers.trl.grpo import is_grpo
from vlmplan.other_trainers.trl.kto import is_kto
from vlmplan.other_trainers.trl.reward import is_reward
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1, is_vlm_r1

PLAN, PLAN_FILE = "a plan of vlmplan", "plan.json"
CONFIG_SUFFIXES = (".yaml", ".yml", ".sh", ".py", ".ipynb")
"""Of files that trainers are started with; a JSON file is more often something else."""
SHOWN_FILES = 3
"""Of a folder's files that are named. A choice."""
LLAMA_FACTORY_V1 = "LLaMA-Factory v1"
KEYS_OF: Mapping[str, frozenset[str]] = {
    name: frozenset(keys.split())
    for name, keys in {
        "llamafactory": "finetuning_type cutoff_len template lora_target dataset_dir image_max_pixels pure_bf16 stage "
        "disable_gradient_checkpointing quantization_bit flash_attn freeze_vision_tower plot_loss neat_packing "
        "preprocessing_num_workers max_samples",
        "swift": "tuner_type train_type torch_dtype attn_impl split_dataset_ratio freeze_vit freeze_aligner freeze_llm "
        "vit_gradient_checkpointing quant_bits model_author truncation_strategy load_from_cache_file use_chat_template "
        "swift_version lora_dtype",
        "trl": "use_peft lora_r lora_target_modules dataset_name dataset_text_field assistant_only_loss loss_type "
        "completion_only_loss max_seq_length attn_implementation load_in_4bit model_name_or_path dtype padding_free "
        "dataset_mixer dataset_mixture",
        "accelerate": "compute_environment distributed_type main_training_function downcast_bf16 num_machines",
        "axolotl": "base_model micro_batch_size sample_packing sequence_len adapter datasets val_set_size num_epochs "
        "pad_to_sequence_len load_in_4bit lora_target_linear flash_attention optimizer saves_per_epoch lr_scheduler "
        "dataset_prepared_path special_tokens",
        LLAMA_FACTORY_V1: "model_class kernel_config dist_config train_dataset peft_config init_config sample_backend",
        TORCHTUNE: "tokenizer checkpointer enable_activation_checkpointing enable_activation_offloading "
        "max_steps_per_epoch metric_logger quantizer enable_kv_cache",
        "LitGPT": "checkpoint_dir out_dir lora_query lora_projection quantize devices",
        "LLM-Foundry": "train_loader eval_loader max_duration device_train_microbatch_size global_train_batch_size "
        "device_eval_batch_size",
        "lmms-engine": "trainer_type trainer_args model_config dataset_config",
        "NeMo": "exp_manager restore_from_path trainer",
        NEMO_AUTOMODEL: "recipe step_scheduler dist_env distributed loss_fn packed_sequence peft freeze_config dataset "
        "clip_grad_norm validation_dataset",
        "verl": "actor_rollout_ref algorithm critic trainer data reward_model",
        "EasyR1": "worker algorithm trainer data",
        "DeepSpeed": "zero_optimization train_micro_batch_size_per_gpu train_batch_size zero_allow_untested_optimizer",
        PLAN: "schema vlmplan_version workload recipe",
        OTHER: "per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate output_dir "
        "optim bf16 fp16 gradient_checkpointing",
    }.items()
}
"""Keys that tell whose a file is, the surest first."""
READ = (
    "TRL's, LLaMA-Factory's, ms-swift's, axolotl's, NeMo AutoModel's, verl's, EasyR1's, accelerate's and the Trainer's"
)
NOT_READ: Mapping[str, str] = {
    **dict.fromkeys(
        ("LitGPT", "LLM-Foundry", "lmms-engine", "NeMo"),
        f"vlmplan reads {READ}; say what it means with the options of vlmplan estimate",
    ),
    LLAMA_FACTORY_V1: "vlmplan reads the configuration of LLaMA-Factory 0.9, not that of its new engine",
    "DeepSpeed": "vlmplan estimate takes it with --ds-config, beside --model and --gpu",
    PLAN: f"{PLAN_COMMANDS} take it with --plan",
}
SECTIONS_OF_NEMO = frozenset(("recipe", "step_scheduler", "distributed", "dist_env", "loss_fn"))
OWN_KEYS: Mapping[str, str] = {"verl": "actor_rollout_ref", "EasyR1": "worker"}
"""What every configuration of GRPO has that these read."""
NOT_OF_SWIFT = "model_name_or_path"
"""What ms-swift calls ``model``, which has other keys with those that have this one."""
MEGATRON = frozenset(
    """tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size micro_batch_size
    global_batch_size""".split()
)
"""Keys of Megatron in files of ms-swift (``megatron sft``) and of LLaMA-Factory (its adapter for Megatron-core)."""
LEAST_OF_MEGATRON = 2
"""Of them tell it: other trainers have one, too."""


def trainer_of(values: Mapping[str, Any], source: str) -> str:
    """The trainer whose keys these are. Raises InputError where they are of none that is read."""
    _refuse_other_kinds(values, source)
    counts = {name: len(keys.intersection(values)) for name, keys in KEYS_OF.items()}
    if NOT_OF_SWIFT in values:
        counts["swift"] = 0
    best = max(counts, key=lambda name: counts[name] if name != OTHER else min(counts[name], 1))
    if not counts[best]:
        names = ", ".join(shown(key) for key in list(values)[:4])
        raise InputError(f"{source}: none of its keys ({names}) tells whose configuration it is; {READ} are read")
    is_of_others = best in OWN_KEYS and OWN_KEYS[best] not in values and not _is_of_data(values.get("data"))
    if is_of_others or _is_of_a_program(best, values):
        names = ", ".join(shown(key) for key in list(values)[:4])
        raise InputError(
            f"{source}: its keys ({names}) are those of a program of one's own, whose names for things are its own; "
            f"give the program, which is read with the file where it says which, or options of vlmplan estimate"
        )
    if best in OWN_KEYS and OWN_KEYS[best] not in values:
        raise InputError(
            f"{source} looks like a configuration of {best} without {OWN_KEYS[best]}; those of GRPO are read"
        )
    if best == TORCHTUNE:
        raise InputError(f"{source} looks like a configuration of {problem_of_torchtune(values)}")
    if best in NOT_READ:
        kind = best if best == PLAN else f"a configuration of {best}"
        raise InputError(f"{source} looks like {kind}: {NOT_READ[best]}")
    if best != "trl":
        return best
    if is_vlm_r1(values):
        return VLM_R1
    if is_reward(values):
        return TRL_REWARD
    if is_kto(values):
        return TRL_KTO
    alone = {key: value for key, value in values.items() if key not in OLDER_PROMPT_KEYS}
    is_of_answers = is_grpo(alone if has_its_answers(values) else values)
    return TRL_GRPO if is_of_answers else TRL_DPO if is_dpo(values) else best


def folder_problem(folder: Path) -> str:
    """What to give in place of a folder: the file in it that a trainer is started with, or the command for a plan."""
    names: list[str] = []
    with suppress(OSError):  # a folder that may not be looked into
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    if PLAN_FILE in names:
        return f"{folder} is a folder with {PLAN}: {NOT_READ[PLAN]}"
    configs = [name for name in names if name.endswith(CONFIG_SUFFIXES)]
    such = f", such as {listed([str(folder / name) for name in configs[:SHOWN_FILES]], 'or')}" if configs else ""
    return f"{folder} is a folder; the file that a trainer is started with is needed{such}"


def _is_of_a_program(trainer: str, values: Mapping[str, Any]) -> bool:
    """Whether a file with a trainer's words is none of its own: NeMo AutoModel's have one of these sections, those of
    LLaMA-Factory's new engine the name of a model, and so have axolotl's, but where ``--model`` is given."""
    if trainer == NEMO_AUTOMODEL:
        return SECTIONS_OF_NEMO.isdisjoint(values)
    if trainer == LLAMA_FACTORY_V1:
        return "model" not in values
    if trainer != "axolotl":
        return False
    names_another_way = "base_model" not in values and any(key in values for key in MODEL_OF_SCRIPTS)
    return names_another_way or isinstance(values.get("base_model"), Mapping)


def _is_of_data(section: object) -> bool:
    """Whether it is the section of data that verl and EasyR1 have in all their files."""
    return isinstance(section, Mapping) and "train_files" in section


def _refuse_other_kinds(values: Mapping[str, Any], source: str) -> None:
    """Raise InputError for files of trainers that are read, but of a kind that is not."""
    kind = kind_of(values)
    if kind not in (None, *READ_KINDS):
        task = f"is not read; --task {kind} plans it by options" if kind in BY_OPTIONS else "is not planned"
        raise InputError(f"{source} looks like a configuration of swift rlhf for {kind}, which {task}")
    if len(MEGATRON.intersection(values)) >= LEAST_OF_MEGATRON:
        raise InputError(f"{source} looks like a configuration of Megatron, whose parallelism is not planned")

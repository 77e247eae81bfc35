"""Who reads which trainer's keys, and where a trainer's files and names of models are its own."""

from collections.abc import Callable, Collection, Mapping

from vlmplan.other_trainers.axolotl.keys import own_name
from vlmplan.other_trainers.axolotl.reading import AXOLOTL, read_axolotl
from vlmplan.other_trainers.axolotl.shipped import SHIPPED_DEEPSPEED as SHIPPED_BY_AXOLOTL
from vlmplan.other_trainers.llama_factory.reading import LLAMA_FACTORY, read_llama_factory
from vlmplan.other_trainers.llama_factory.reading import OLDER as OLDER_OF_LLAMA_FACTORY
from vlmplan.other_trainers.llama_factory.shipped import SHIPPED_DEEPSPEED as SHIPPED_BY_LLAMA_FACTORY
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.ms_swift.reading import MS_SWIFT, read_ms_swift
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.nemo_automodel.reading import read_nemo_automodel
from vlmplan.other_trainers.older_names import older_names
from vlmplan.other_trainers.openrlhf.common import OPENRLHF
from vlmplan.other_trainers.openrlhf.older import names_of as openrlhf_names
from vlmplan.other_trainers.openrlhf.pairs import read_openrlhf_dpo
from vlmplan.other_trainers.openrlhf.samples import read_openrlhf_sft
from vlmplan.other_trainers.openrlhf.scores import read_openrlhf_rm
from vlmplan.other_trainers.plain_trainer import TRAINER, read_plain_trainer
from vlmplan.other_trainers.programs import (
    TRAINER_RUN,
    TRL_DPO_RUN,
    TRL_GRPO_RUN,
    TRL_KTO_RUN,
    TRL_REWARD_RUN,
    TRL_RUN,
    UNSLOTH_DPO_RUN,
    UNSLOTH_GRPO_RUN,
    UNSLOTH_RUN,
)
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.scripts import (
    OF_TRL,
    OTHER,
    TRL_DPO,
    TRL_GRPO,
    TRL_KTO,
    TRL_REWARD,
)
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.shipped_deepspeed import ShippedFiles
from vlmplan.other_trainers.started_modules import EASYR1_RUN, OPENRLHF_DPO, OPENRLHF_RM, OPENRLHF_SFT, VERL_RUN
from vlmplan.other_trainers.trl.dpo import read_trl_dpo
from vlmplan.other_trainers.trl.grpo import read_trl_grpo
from vlmplan.other_trainers.trl.kto import read_trl_kto
from vlmplan.other_trainers.trl.program import (
    read_trainer_program,
    read_trl_dpo_program,
    read_trl_grpo_program,
    read_trl_kto_program,
    read_trl_program,
    read_trl_reward_program,
)
from vlmplan.other_trainers.trl.reward import read_trl_reward
from vlmplan.other_trainers.trl.sft import OLDER as OLDER_OF_TRL
from vlmplan.other_trainers.trl.sft import TRL, read_trl
from vlmplan.other_trainers.unsloth.reading import UNSLOTH, read_unsloth, read_unsloth_dpo, read_unsloth_grpo
from vlmplan.other_trainers.verl.easyr1 import EASYR1, read_easyr1
from vlmplan.other_trainers.verl.easyr1 import OLDER as OLDER_OF_EASYR1
from vlmplan.other_trainers.verl.reading import VERL, read_verl
from vlmplan.other_trainers.vision_scripts.internvl import INTERNVL, internvl_name, read_internvl
from vlmplan.other_trainers.vision_scripts.llava import LLAVA, llava_name, read_llava
from vlmplan.other_trainers.vision_scripts.other_series import READERS as OTHER_SERIES
from vlmplan.other_trainers.vision_scripts.qwen_finetune import QWEN_FINETUNE, read_qwen_finetune
from vlmplan.other_trainers.vision_scripts.qwen_series import OLDER as OLDER_OF_SERIES
from vlmplan.other_trainers.vision_scripts.qwen_series import QWEN_SERIES, read_qwen_series
from vlmplan.other_trainers.vision_scripts.r1_v import R1_V, read_r1_v
from vlmplan.other_trainers.vision_scripts.shipped import SHIPPED_DEEPSPEED as SHIPPED_BESIDE_SCRIPTS
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1, read_vlm_r1, vlm_r1_name
from vlmplan.workload import ModelFiles

READERS: Mapping[str, tuple[str, Callable[[Settings, ModelFiles | None, Surroundings], TrainerConfig]]] = {
    "trl": (TRL, read_trl),
    TRL_DPO: (TRL, read_trl_dpo),
    TRL_REWARD: (TRL, read_trl_reward),
    TRL_KTO: (TRL, read_trl_kto),
    TRL_GRPO: (TRL, read_trl_grpo),
    "llamafactory": (LLAMA_FACTORY, read_llama_factory),
    "swift": (MS_SWIFT, read_ms_swift),
    "axolotl": (AXOLOTL, read_axolotl),
    OTHER: (TRAINER, read_plain_trainer),
    QWEN_FINETUNE: (QWEN_FINETUNE, read_qwen_finetune),
    QWEN_SERIES: (QWEN_SERIES, read_qwen_series),
    **{name: (name, reader) for name, reader in OTHER_SERIES.items()},
    LLAVA: (LLAVA, read_llava),
    INTERNVL: (INTERNVL, read_internvl),
    VLM_R1: (VLM_R1, read_vlm_r1),
    R1_V: (R1_V, read_r1_v),
    TRL_RUN: (TRL, read_trl_program),
    TRL_DPO_RUN: (TRL, read_trl_dpo_program),
    TRL_REWARD_RUN: (TRL, read_trl_reward_program),
    TRL_KTO_RUN: (TRL, read_trl_kto_program),
    TRL_GRPO_RUN: (TRL, read_trl_grpo_program),
    TRAINER_RUN: (TRAINER, read_trainer_program),
    UNSLOTH_RUN: (UNSLOTH, read_unsloth),
    UNSLOTH_DPO_RUN: (UNSLOTH, read_unsloth_dpo),
    UNSLOTH_GRPO_RUN: (UNSLOTH, read_unsloth_grpo),
    VERL_RUN: (VERL, read_verl),
    EASYR1_RUN: (EASYR1, read_easyr1),
    NEMO_AUTOMODEL: (NEMO_AUTOMODEL, read_nemo_automodel),
    OPENRLHF_SFT: (OPENRLHF, read_openrlhf_sft),
    OPENRLHF_DPO: (OPENRLHF, read_openrlhf_dpo),
    OPENRLHF_RM: (OPENRLHF, read_openrlhf_rm),
}
NAMES: Mapping[str, Callable[[Collection[str]], Callable[[str], str]]] = {
    "axolotl": lambda _: own_name,
    OPENRLHF_SFT: openrlhf_names,
    OPENRLHF_DPO: openrlhf_names,
    OPENRLHF_RM: openrlhf_names,
    "llamafactory": older_names(OLDER_OF_LLAMA_FACTORY),
    QWEN_SERIES: older_names(OLDER_OF_SERIES),
    EASYR1_RUN: older_names(OLDER_OF_EASYR1),
    **dict.fromkeys(OF_TRL, older_names(OLDER_OF_TRL)),
}
"""What trainers call keys otherwise, by the keys of a file: axolotl those of ``TrainingArguments``, older releases of
others their own."""
SHIPPED_FILES: Mapping[str, ShippedFiles] = {
    "llamafactory": SHIPPED_BY_LLAMA_FACTORY,
    "axolotl": SHIPPED_BY_AXOLOTL,
    LLAVA: SHIPPED_BESIDE_SCRIPTS,
    QWEN_FINETUNE: SHIPPED_BESIDE_SCRIPTS,
}
"""DeepSpeed files of trainers' checkouts, by their paths there."""
MODEL_KEYS = (
    *("model_name_or_path", "model", "model_id_or_path", "model_id", "base_model", "model_name"),
    *("actor_rollout_ref.model.path", "worker.actor.model.model_path", "model.model_name_or_path", "pretrain"),
    *("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config"),
)
SAME_MODELS: Mapping[str, Callable[[str, str], str]] = {
    LLAVA: llava_name,
    INTERNVL: internvl_name,
    VLM_R1: vlm_r1_name,
    R1_V: vlm_r1_name,
}
"""What transformers' own model is called, by the trainer, the name that it has there, and the file
that says it."""
NESTED = (VERL_RUN, EASYR1_RUN, NEMO_AUTOMODEL)
"""Trainers whose keys have levels."""

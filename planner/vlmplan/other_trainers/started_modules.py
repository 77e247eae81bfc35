"""The modules of trainers that scripts start with ``python -m``, and whose keys their options are."""

from collections.abc import Mapping

VERL_RUN, EASYR1_RUN = "verl", "EasyR1"
OPENRLHF_SFT, OPENRLHF_DPO, OPENRLHF_RM = "OpenRLHF sft", "OpenRLHF dpo", "OpenRLHF rm"
OF_VERL: Mapping[tuple[str, ...], str] = {
    ("verl", "trainer", "main_ppo"): VERL_RUN,
    ("recipe", "dapo", "main_dapo"): VERL_RUN,
    ("verl", "trainer", "main"): EASYR1_RUN,
}
"""The modules that verl and EasyR1, whose package has the same name, are started by."""
OF_OPENRLHF: Mapping[tuple[str, ...], str] = {
    ("openrlhf", "cli", "train_sft"): OPENRLHF_SFT,
    ("openrlhf", "cli", "train_dpo"): OPENRLHF_DPO,
    ("openrlhf", "cli", "train_rm"): OPENRLHF_RM,
}
"""The modules that OpenRLHF is started by."""
NOT_OF_OPENRLHF: Mapping[str, str] = {
    "openrlhf.cli.train_ppo_ray": "with PPO, GRPO or others on Ray, where actor, critic, reference, reward model and "
    "vLLM take turns, which is not planned; its train_sft, train_dpo and train_rm are, and GRPO of TRL and verl",
    "openrlhf.cli.train_ppo": "with PPO, where actor, critic, reference and reward model share GPUs, which is not "
    "planned; its train_sft, train_dpo and train_rm are, and GRPO of TRL and verl",
}
"""Those that are not planned, and what they train."""

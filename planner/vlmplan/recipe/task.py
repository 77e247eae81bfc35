"""What a run optimises: the samples themselves, preferences between two answers (DPO, or a model that scores), answers
that are good or bad (KTO), or rewards of answers (GRPO).

Names and defaults are those of TRL 1.16 (``trl/trainer/dpo_config.py``, ``reward_config.py``, ``kto_config.py``,
``grpo_config.py``), whose trainers run them; GRPO can be verl's too, that of EasyR1, which is built on it, Unsloth's,
VLM-R1's, R1-V's or ms-swift's.
"""

from dataclasses import dataclass
from typing import Final

from vlmplan.errors import InputError, require_within
from vlmplan.recipe.task_choices import (
    Generation,
    IdleOffload,
    KTOLoss,
    Reference,
    ReferenceShards,
    TaskKind,
    TaskTrainer,
)
from vlmplan.units import MAX_COUNT

SFT: Final = "sft"
"""The ``--task`` that a recipe without a ``TrainingTask`` has."""
DEFAULT_COMPLETION_TOKENS: Final = 512
"""``GRPOConfig.max_completion_length``."""
DPO_BETA: Final = 0.1
GRPO_BETA: Final = 0.04
"""How much the reference counts where nothing else is said: ``DPOConfig.beta`` and ``KTOConfig.beta``; in GRPO with a
reference that of DeepSeekMath (arXiv 2402.03300, section 4.2), as ``GRPOConfig``'s is 0, which means none."""


READ_BY: Final = {
    TaskTrainer.UNSLOTH: ("scoring_batch",),
    TaskTrainer.OPENRLHF: ("reference_shards",),
    TaskTrainer.MS_SWIFT: ("idle_offload", "sync_buffer_mib", "sync_groups"),
}
"""Fields of ``OF_VERL`` by which other trainers than verl do something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """A task and what it needs beside a recipe. What a task does not read has its default there.

    ``reference`` None: as TRL has it by itself, see ``Recipe.reference``. Of the tokens of a row ``completion_tokens``
    are of the answer, which alone is scored; None: 512 in GRPO, and all but the first in DPO and KTO.
    """

    kind: TaskKind
    reference: Reference | None = None
    completion_tokens: int | None = None
    num_generations: int = 8
    """Answers to each prompt, over all GPUs."""
    steps_per_generation: int | None = None
    """Micro batches whose answers are generated together; None: those of an optimizer step (``grad_accum``)."""
    num_iterations: int = 1
    """Times that generated answers are trained on before the next are (``num_iterations``; verl's ``ppo_epochs``)."""
    generation: Generation = Generation.TRANSFORMERS
    vllm_memory: float | None = None
    """Part of a GPU's whole memory that vLLM takes (``vllm_gpu_memory_utilization``); None: what its weights and all
    answers need, which an estimate says."""
    vllm_sleep_level: int = 0
    """vLLM's memory while the trainer trains: 0 stays, 1 weights go to the host, 2 weights are dropped; the cache is
    dropped in both."""
    vllm_tensor_parallel: int = 1
    reward_params: int = 0
    """Parameters of reward models, all together; 0: functions alone."""
    kto_loss: KTOLoss = KTOLoss.KTO
    reentrant_checkpoints: bool | None = False
    """Written answers: checkpoints of activations are reentrant, as TRL's own scripts force with adapters under stage 3
    (``dpo_trainer.py``, ``reward_trainer.py``, ``kto_trainer.py``); those of this project's trainer are not. None: as
    that script has them, see ``Recipe.has_reentrant_checkpoints``."""

    disables_dropout: bool | None = None
    """TRL: whether every dropout of the model and of its adapters is switched off (``disable_dropout``); None: see
    ``switches_dropout_off``."""

    router_loss: bool = True
    """TRL: the loss by which routers of experts are kept even, as the model's configuration weighs it, is added; else
    its weight is 0 (``router_aux_loss_coef``)."""

    trainer: TaskTrainer = TaskTrainer.TRL
    scoring_batch: int | None = None
    """verl, Unsloth: rows of a forward that looks up log-probabilities (``log_prob_micro_batch_size_per_gpu``); None:
    those of a micro batch, and with Unsloth all that are generated at once."""
    idle_offload: IdleOffload = IdleOffload.NONE
    reference_shards: ReferenceShards = ReferenceShards.GPU
    sync_buffer_mib: int = 0
    """verl: the buffer on the GPU through which weights go to vLLM (``update_weights_bucket_megabytes``); ms-swift: the
    same to a server (``SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE``)."""
    sync_groups: int = 0
    """ms-swift: groups of layers whose weights are gathered and sent one after another (``move_model_batches``); 0: all
    weights at once."""

    def __post_init__(self) -> None:
        least = {"completion_tokens": 1, "num_generations": 2, "steps_per_generation": 1, "vllm_tensor_parallel": 1}
        least |= {"num_iterations": 1, "scoring_batch": 1, "num_generations": 1 if self.is_of_verl else 2}
        most = dict.fromkeys([*least, "reward_params", "sync_buffer_mib", "sync_groups"], MAX_COUNT) | {
            "reward_params": 10**13
        }
        for name in most:
            require_within(TASK_OPTION_NAMES[name], getattr(self, name), least=least.get(name, 0), most=most[name])
        if self.vllm_memory is not None and not 0 < self.vllm_memory <= 1:
            raise InputError(f"--vllm-memory-utilization is {self.vllm_memory:g}; above 0 and at most 1 is needed")
        if self.vllm_sleep_level not in (0, 1, 2):
            raise InputError(f"--vllm-sleep-level is {self.vllm_sleep_level}; 0, 1 or 2 is needed")

    @property
    def is_dpo(self) -> bool:
        return self.kind is TaskKind.DPO

    @property
    def is_reward(self) -> bool:
        return self.kind is TaskKind.REWARD

    @property
    def has_pairs(self) -> bool:
        """Whether a sample is a chosen and a rejected answer to one prompt."""
        return self.kind in (TaskKind.DPO, TaskKind.REWARD)

    @property
    def is_kto(self) -> bool:
        return self.kind is TaskKind.KTO

    @property
    def reads_reference(self) -> bool:
        """Whether its loss is of written answers and a reference's log-probabilities of them: DPO and KTO."""
        return self.kind in (TaskKind.DPO, TaskKind.KTO)

    @property
    def estimates_kl(self) -> bool:
        """Whether the model and the reference run over answers to other prompts, too, without gradients."""
        return self.is_kto and self.kto_loss is KTOLoss.KTO

    @property
    def is_grpo(self) -> bool:
        return self.kind is TaskKind.GRPO

    @property
    def is_of_verl(self) -> bool:
        """Whether verl trains it, or EasyR1."""
        return self.trainer in (TaskTrainer.VERL, TaskTrainer.VERL_ENGINE, TaskTrainer.EASYR1)

    @property
    def is_of_llama_factory(self) -> bool:
        return self.trainer is TaskTrainer.LLAMA_FACTORY

    @property
    def is_of_openrlhf(self) -> bool:
        return self.trainer is TaskTrainer.OPENRLHF

    @property
    def has_own_loss(self) -> bool:
        """Whether what is looked up of preferences is made by the recipe's loss, and not by TRL's."""
        return self.trainer is not TaskTrainer.TRL

    @property
    def copies_logits(self) -> bool:
        """Whether logits of good and of bad answers are copied apart before a reference runs: LLaMA-Factory's KTO."""
        return self.is_kto and self.is_of_llama_factory

    @property
    def estimates_kl_last(self) -> bool:
        """Whether a model runs over answers to other prompts behind its own answers, and not before these."""
        return self.estimates_kl and self.is_of_llama_factory

    @property
    def is_of_ms_swift(self) -> bool:
        return self.trainer is TaskTrainer.MS_SWIFT

    @property
    def is_ms_swifts_grpo(self) -> bool:
        return self.is_of_ms_swift and self.is_grpo

    @property
    def is_of_axolotl(self) -> bool:
        return self.trainer is TaskTrainer.AXOLOTL

    @property
    def is_of_unsloth(self) -> bool:
        return self.trainer is TaskTrainer.UNSLOTH

    @property
    def is_of_vlm_r1(self) -> bool:
        return self.trainer is TaskTrainer.VLM_R1

    @property
    def scores_rows(self) -> bool:
        """Whether a micro batch generates its own answers, and looks them up of whole logits row by row."""
        return self.trainer in (TaskTrainer.VLM_R1, TaskTrainer.R1_V)

    @property
    def runs_reference_within(self) -> bool:
        """Whether the reference runs between a micro batch's forward and its backward."""
        return self.reads_reference or self.trainer is TaskTrainer.R1_V

    def reads(self, name: str) -> bool:
        """Whether its trainer does something by the field of ``OF_VERL``."""
        if self.is_of_verl:
            return name != "sync_groups"
        return name in READ_BY.get(self.trainer, ()) and (self.is_grpo or not self.is_of_ms_swift)

    @property
    def has_entropies(self) -> bool:
        """Whether the entropy of every token is looked up with old log-probabilities, under autocast, as verl does."""
        return self.trainer in (TaskTrainer.VERL, TaskTrainer.VERL_ENGINE)

    @property
    def rows_per_sample(self) -> int:
        """Rows of the model's input for one sample of a micro batch: the chosen and the rejected answer of a pair."""
        return 2 if self.has_pairs else 1

    @property
    def least_micro_batch(self) -> int:
        """Samples of a micro batch at the least: TRL's answers to other prompts are those of the others; LLaMA-Factory
        (``data/processor/feedback.py``) and ms-swift (``pipelines/train/kto.py``) take them from elsewhere."""
        return 2 if self.estimates_kl and self.trainer in (TaskTrainer.TRL, TaskTrainer.AXOLOTL) else 1

    @property
    def samples_per_prompt(self) -> int:
        """Samples that one entry of the dataset makes: its answers, as often as they are trained on."""
        return self.num_generations * self.num_iterations if self.is_grpo else 1

    @property
    def uses_vllm_here(self) -> bool:
        """Whether vLLM has a part of the training GPUs."""
        return self.is_grpo and self.generation is Generation.VLLM

    def answer_tokens(self, seq_len: int, *, least_prompt: int = 1) -> int:
        """Scored tokens of a row of ``seq_len``. Raises InputError where no ``least_prompt`` is left before them."""
        default = DEFAULT_COMPLETION_TOKENS if self.is_grpo else seq_len - least_prompt
        tokens = default if self.completion_tokens is None else self.completion_tokens
        if not 1 <= tokens <= seq_len - least_prompt:
            of_images = f", of which images take {least_prompt:,}" if least_prompt > 1 else ""
            raise InputError(
                f"--max-completion-tokens is {tokens:,}, but a row (--seq-len) has {seq_len:,} tokens, prompt and "
                f"answer together{of_images}; give fewer, or a larger --seq-len"
            )
        return tokens


TASK_OPTION_NAMES = {
    "kind": "--task",
    "reference": "--reference",
    "completion_tokens": "--max-completion-tokens",
    "num_generations": "--num-generations",
    "steps_per_generation": "--steps-per-generation",
    "num_iterations": "--num-iterations",
    "generation": "--generation",
    "vllm_memory": "--vllm-memory-utilization",
    "vllm_sleep_level": "--vllm-sleep-level",
    "vllm_tensor_parallel": "--vllm-tensor-parallel",
    "reward_params": "--reward-model-parameters",
    "kto_loss": "--kto-loss",
    "reentrant_checkpoints": "--reentrant-checkpoints",
    "disables_dropout": "--disable-dropout",
    "router_loss": "--router-loss",
    "trainer": "--task-trainer",
    "scoring_batch": "--scoring-batch",
    "idle_offload": "--idle-offload",
    "reference_shards": "--reference-shards",
    "sync_buffer_mib": "--sync-buffer-mib",
    "sync_groups": "--sync-groups",
}
"""The option of the command line for each field."""
_OF_ALL: Final = ("kind", "trainer", "disables_dropout")
_OF_ANSWERS: Final = ("reference", "completion_tokens", "reference_shards", "router_loss")
_OF_WRITTEN_ANSWERS: Final = ("reentrant_checkpoints",)


def kinds_reading(name: str) -> tuple[TaskKind, ...]:
    """The tasks that read a field of ``TrainingTask``.

    >>> [kind.value for kind in kinds_reading("reference")]
    ['dpo', 'kto', 'grpo']
    """
    if name in _OF_ALL:
        return tuple(TaskKind)
    if name == "kto_loss":
        return (TaskKind.KTO,)
    if name in _OF_WRITTEN_ANSWERS:
        return (TaskKind.DPO, TaskKind.REWARD, TaskKind.KTO)
    return (TaskKind.DPO, TaskKind.KTO, TaskKind.GRPO) if name in _OF_ANSWERS else (TaskKind.GRPO,)


OF_VERL: Final = ("scoring_batch", "idle_offload", "reference_shards", "sync_buffer_mib", "sync_groups")
"""What verl does, and of others what ``READ_BY`` says."""
OF_VLLM: Final = ("vllm_memory", "vllm_sleep_level", "vllm_tensor_parallel")
"""What only vLLM on the same GPUs reads."""

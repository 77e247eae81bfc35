"""The choices of a task: what is trained, by whom, and where its second model and its answers come from.

Names are those of TRL 1.16 (``trl/trainer/dpo_config.py``, ``kto_config.py``, ``grpo_config.py``) or of the trainers.
"""

from typing import Final

from vlmplan.units import Choice


class TaskKind(Choice):
    """What TRL trains beside samples as they are."""

    DPO = "dpo"
    """``DPOTrainer``: a sample is a pair of answers to one prompt, so that a micro batch has two rows for each."""
    REWARD = "reward"
    """``RewardTrainer``: a sample is such a pair, and the model scores each of its rows by one number."""
    KTO = "kto"
    """``KTOTrainer``: a sample is one answer, with a label that says whether it is desirable."""
    GRPO = "grpo"
    """``GRPOTrainer``: a sample of a micro batch is one answer, which the model has generated itself."""


class Reference(Choice):
    """The source of log-probabilities of the model before training."""

    NONE = "none"
    """They are not needed (GRPO with ``beta`` 0, reward models)."""
    ADAPTER_OFF = "adapter-off"
    """The trained model with its adapters switched off."""
    ADAPTER_COPY = "adapter-copy"
    """The trained model with a copy of its adapters as they are before training (``model.add_adapter("ref")``): what
    a run that starts from trained adapters is held to."""
    COPY = "copy"
    """A second model."""
    PRECOMPUTED = "precomputed"
    """Computed once before training (``precompute_ref_log_probs``), and read with the samples."""

    @property
    def is_trained_model(self) -> bool:
        """Whether it runs the modules of the trained model, with other adapters or with none."""
        return self in (Reference.ADAPTER_OFF, Reference.ADAPTER_COPY)


class TaskTrainer(Choice):
    """Who trains the task."""

    TRL = "trl"
    VERL = "verl"
    """verl's ``ActorRolloutRefWorker`` with FSDP, up to 0.7 and 0.8.0.dev."""
    VERL_ENGINE = "verl-engine"
    """verl's ``FSDPEngine``, from 0.9 on: gradients of a step's micro batches are added up whole, and vLLM's weights
    are awake before those that are sent are made."""
    LLAMA_FACTORY = "llamafactory"
    """LLaMA-Factory's ``CustomDPOTrainer`` and ``CustomKTOTrainer``: whole logits, a second model in 16 bit."""
    MS_SWIFT = "ms-swift"
    """ms-swift's ``DPOTrainer`` and ``KTOTrainer``, whose loss is of whole logits, row by row, and its ``GRPOTrainer``,
    which looks up old log-probabilities always."""
    AXOLOTL = "axolotl"
    """axolotl's ``AxolotlDPOTrainer``, ``AxolotlKTOTrainer`` and ``AxolotlGRPOTrainer``, TRL's of 1.9 with kernels of
    its own: their losses are of whole logits."""
    EASYR1 = "easyr1"
    """EasyR1's ``FSDPWorker``, made of an earlier one of verl: no autocast around its forward, and no entropies."""
    OPENRLHF = "openrlhf"
    """OpenRLHF's ``DPOTrainer``: its own loss, and a second model beside adapters too."""
    UNSLOTH = "unsloth"
    """Unsloth's ``GRPOTrainer``, which is TRL's with its own log-probabilities, and vLLM that shares the weights."""
    VLM_R1 = "vlm-r1"
    """VLM-R1's ``VLMGRPOTrainer``: each micro batch generates its own answers, by transformers, and its loss is of
    whole logits."""
    R1_V = "r1-v"
    """R1-V's ``Qwen2VLGRPOTrainer``: the same, and the reference runs while all that backward needs is kept."""


class IdleOffload(Choice):
    """What verl moves to host memory while nothing computes with it, and back for it (``param_offload``,
    ``optimizer_offload``); ms-swift while vLLM generates alone (``offload_model``, ``offload_optimizer``)."""

    NONE = "none"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    ALL = "all"

    @classmethod
    def of(cls, *, weights: bool, optimizer: bool) -> "IdleOffload":
        if weights and optimizer:
            return cls.ALL
        return cls.WEIGHTS if weights else cls.OPTIMIZER if optimizer else cls.NONE

    @property
    def has_weights(self) -> bool:
        return self in (IdleOffload.WEIGHTS, IdleOffload.ALL)

    @property
    def has_optimizer(self) -> bool:
        return self in (IdleOffload.OPTIMIZER, IdleOffload.ALL)


class ReferenceShards(Choice):
    """Where verl's second model has its shards, and in which type, or OpenRLHF's under ZeRO-3."""

    GPU = "gpu"
    """On the GPU, in bfloat16."""
    HOST = "host"
    """In host memory, in bfloat16: each unit comes to the GPU for its forward."""
    HOST_FLOAT32 = "host-float32"
    """The same in float32."""


class KTOLoss(Choice):
    """``KTOConfig.loss_type``."""

    KTO = "kto"
    """It estimates how far the model is from the reference, by forwards without gradients of both over answers to other
    prompts of the micro batch."""
    APO_ZERO = "apo-zero-unpaired"
    """It does without."""


KTO_LOSSES: Final = {KTOLoss.KTO: "kto", KTOLoss.APO_ZERO: "apo_zero_unpaired"}
"""What TRL calls them."""


class Generation(Choice):
    """What generates GRPO's answers."""

    TRANSFORMERS = "transformers"
    """The trained model itself, by ``generate``."""
    VLLM = "vllm"
    """vLLM on the same GPUs (``vllm_mode="colocate"``)."""
    SERVER = "server"
    """vLLM on GPUs of its own (``vllm_mode="server"``), which a plan does not have."""

"""What Unsloth makes of a program's keywords in training on rewards.

Sources: unsloth 2026.10.9 (``models/rl.py``, ``models/rl_replacements.py``, ``models/loader.py``) and unsloth_zoo
2026.10.9 (``rl_replacements.py``, ``fused_losses/chunked_logprob.py``, ``vllm_utils.py``).
"""

from typing import Final

from vlmplan.architecture.families import has_family
from vlmplan.architecture.families.build import build_model
from vlmplan.notes import Caveat
from vlmplan.other_trainers.adapters import EMBEDDINGS
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Surroundings, sees
from vlmplan.other_trainers.programs.unsloth_runs import STANDBY
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.grpo import (
    WITHOUT_EFFECT,
    answer_lengths,
    generated_at_once,
    refuse_what_has_no_plan,
)
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind, TaskTrainer
from vlmplan.units import DType, gib_text
from vlmplan.workload import ModelFiles

MICRO_BATCH, ACCUMULATION, NUM_GENERATIONS = 4, 2, 8
LOSS: Final = "dapo"
"""``loss_type`` where nothing is said, as TRL has it from 0.22 on."""
BETA: Final = 0.001
WITHOUT_BETA: Final = frozenset(("dapo", "dr_grpo"))
"""Values of ``loss_type`` with which ``beta`` is 0 where nothing is said ('Resolve the None loss_type / beta')."""
MEMORY: Final = 0.5
"""``gpu_memory_utilization`` of ``from_pretrained``."""
SLEEP_LEVEL: Final = 2
"""Of standby, in which nothing goes to the host: weights stay where they are, and the cache goes."""
OWN_KEYS: Final = (
    *("fast_inference", "use_vllm", "vllm_sampling_params", "data_seed"),
    *("unsloth_num_chunks", "unsloth_logit_chunk_multiplier"),  # of a loss that is no longer made so
)
SCORES_IN_PARTS: Final = (
    "log-probabilities of all answers that are generated at once are planned in one forward; Unsloth takes fewer of "
    "them where its own estimate of that is more than 80% of the memory that is free: --scoring-batch plans it"
)
SMALLER_PROMPTS: Final = (
    "without vLLM Unsloth computes a prompt once for all of its answers where a model lets it, which takes less than "
    "is planned"
)
IN_STANDBY: Final = (
    "UNSLOTH_VLLM_STANDBY: vLLM's cache is there while answers are generated alone, and planned with what they need; "
    "Unsloth gives it 71 to 88% of the GPU, whatever gpu_memory_utilization says"
)
NO_REFERENCE: Final = (
    "beta is not said: with loss_type dapo, which is taken where nothing is said, it is 0, and no reference runs; "
    "Unsloth 2026.9 and before took bnpo and 0.001, which has one: --reference adapter-off plans it"
)
CORRECTED: Final = (
    "vllm_importance_sampling_correction: answers are looked up once more before the training, which is not planned, "
    "and where top_p, top_k or min_p leave words out, all logits stay until backward"
)
"""``grpo_truncated_support_kwargs`` and ``grpo_scorer_keeps_logits``; off unless it is said."""
REWARDED: Final = Caveat(
    "planned from Unsloth's own loss and vLLM that shares the weights, the rest as transformers, peft and TRL train "
    "it; what Unsloth has published of GRPO's memory is of versions before the one that is planned"
)


def rewarded_options(settings: Settings, model: ModelFiles | None, around: Surroundings) -> dict[str, Value]:
    """What the keywords of ``GRPOConfig`` and of loading mean for answers and rewards."""
    own: dict[str, Value] = {
        "task": TaskKind.GRPO.value,
        "task_trainer": TaskTrainer.UNSLOTH.value,
        "loss": LossKind.UNSLOTH.value,
        "num_generations": settings.count("num_generations", NUM_GENERATIONS, least=2),
        "num_iterations": settings.count("num_iterations", 1, least=1),
        **_lengths(settings),
        **_micro_batch(settings, around),
        **generated_at_once(settings, around, micro_batch=MICRO_BATCH),
        **_generation(settings, model),
    }
    own["reference"] = _reference(settings).value
    refuse_what_has_no_plan(settings, loss=LOSS)
    settings.only("modules_to_save", f"heads and embeddings that are trained on rewards: {NOT_PLANNED}")
    if EMBEDDINGS.intersection(settings.names("target_modules")):
        settings.refuse("target_modules", f"heads and embeddings that are trained on rewards: {NOT_PLANNED}")
    own |= _scoring(settings, own)
    settings.ignore((*WITHOUT_EFFECT, *OWN_KEYS, STANDBY))
    settings.note(REWARDED)
    if settings.is_on("vllm_importance_sampling_correction"):
        settings.note(CORRECTED)
    _note_older_loss(settings, own, model)
    return own


def _note_older_loss(settings: Settings, own: dict[str, Value], model: ModelFiles | None) -> None:
    """What the loss of earlier releases took, which a program cannot say that it has."""
    if model is None or not has_family(model.config):
        return
    words = build_model(model.config).head.weight.shape[0]
    rows, answer = own["micro_batch"], own["max_completion_tokens"]
    assert isinstance(rows, int)
    assert isinstance(answer, int)
    kept = gib_text(rows * answer * words * DType.BFLOAT16.num_bytes)
    settings.note(f"unsloth_zoo 2026.10.8 and before keep all logits of answers until backward: {kept} more")


def _reference(settings: Settings) -> Reference:
    """A forward with adapters off where ``beta`` is not 0; a loss that is not said has none."""
    losses = {name.casefold() for name in settings.names("loss_type", LOSS)}
    usual = 0.0 if losses <= WITHOUT_BETA else BETA
    if settings.number("beta", usual) != 0:
        return Reference.ADAPTER_OFF
    if "beta" not in settings:
        settings.note(NO_REFERENCE)
    return Reference.NONE


def _lengths(settings: Settings) -> dict[str, Value]:
    """Of a prompt and its answer, which vLLM and the model have room for up to ``max_seq_length``."""
    lengths = answer_lengths(settings)
    room = settings.maybe_count("max_seq_length", least=1)
    whole, answer = lengths["seq_len"], lengths["max_completion_tokens"]
    assert isinstance(whole, int)
    assert isinstance(answer, int)
    return lengths if room is None or not answer < room < whole else {**lengths, "seq_len": room}


def _micro_batch(settings: Settings, around: Surroundings) -> dict[str, Value]:
    """``per_device_train_batch_size``, which becomes ``num_generations`` where the answers of a step are no whole
    groups ('We will change the batch size')."""
    micro_batch = settings.count("per_device_train_batch_size", MICRO_BATCH, least=1)
    accumulation = settings.count("gradient_accumulation_steps", ACCUMULATION, least=1)
    answers = settings.count("num_generations", NUM_GENERATIONS, least=2)
    is_said = any(key in settings for key in ("steps_per_generation", "generation_batch_size"))
    if is_said or micro_batch * accumulation * (around.num_gpus or 1) % answers == 0:
        return {"micro_batch": micro_batch}
    settings.note(
        f"per_device_train_batch_size {micro_batch} makes no whole groups of {answers} answers: Unsloth takes {answers}"
    )
    return {"micro_batch": answers}


def _generation(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """vLLM in the process of the trainer, or the model itself. Of models that see there is no standby ('unstable for
    multimodal models')."""
    if not settings.flag("fast_inference", False):
        if settings.flag("use_vllm", False):
            settings.refuse("use_vllm", f"without fast_inference vLLM shares no weights: {NOT_PLANNED}")
        settings.note(SMALLER_PROMPTS)
        return {"generation": Generation.TRANSFORMERS.value}
    settings.only("vllm_mode", f"a server: {NOT_PLANNED}", "colocate")
    options: dict[str, Value] = {"generation": Generation.VLLM.value}
    if settings.flag(STANDBY, False) and not sees(model):
        settings.note(IN_STANDBY)
        return {**options, "vllm_sleep_level": SLEEP_LEVEL, "expandable_segments": False}
    return {**options, "vllm_memory_utilization": settings.number("gpu_memory_utilization", MEMORY, most=1.0)}


def _scoring(settings: Settings, own: dict[str, Value]) -> dict[str, Value]:
    """``unsloth_grpo_mini_batch`` says in how many parts answers are looked up."""
    parts = settings.maybe_count("unsloth_grpo_mini_batch", least=1)
    if parts is None:
        settings.note(SCORES_IN_PARTS)
        return {}
    micro_batch = own["micro_batch"]
    steps = own.get("steps_per_generation", settings.count("gradient_accumulation_steps", ACCUMULATION, least=1))
    assert isinstance(micro_batch, int)
    assert isinstance(steps, int)
    return {"scoring_batch": -(-micro_batch * steps // parts)}

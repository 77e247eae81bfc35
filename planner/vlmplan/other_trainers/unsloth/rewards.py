"""What Unsloth makes of a program's keywords in training on rewards.

Sources: unsloth 2026.8.19 (github:unslothai/unsloth @ 015bdef0d94a: ``models/rl.py``, ``models/rl_replacements.py``,
``models/loader.py``) and unsloth_zoo 2026.8.13 (github:unslothai/unsloth-zoo @ ce232d6cef9c: ``rl_replacements.py``,
``vllm_utils.py``).
"""

from typing import Final

from vlmplan.notes import Caveat
from vlmplan.other_trainers.assembled import Surroundings, sees
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
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
from vlmplan.workload import ModelFiles

MICRO_BATCH, ACCUMULATION, NUM_GENERATIONS = 4, 2, 8
BETA: Final = 0.001
MEMORY: Final = 0.5
"""``gpu_memory_utilization`` of ``from_pretrained``."""
SLEEP_LEVEL: Final = 2
"""Of standby, in which nothing goes to the host: weights stay where they are, and the cache goes."""
OWN_KEYS: Final = "fast_inference use_vllm unsloth_num_chunks vllm_sampling_params data_seed".split()
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
    has_reference = settings.number("beta", BETA) != 0
    own["reference"] = (Reference.ADAPTER_OFF if has_reference else Reference.NONE).value
    refuse_what_has_no_plan(settings, loss="bnpo")
    settings.only("unsloth_logit_chunk_multiplier", f"another number of chunks: {NOT_PLANNED}")
    settings.only("modules_to_save", f"heads and embeddings that are trained on rewards: {NOT_PLANNED}")
    own |= _scoring(settings, own)
    settings.ignore((*WITHOUT_EFFECT, *OWN_KEYS, STANDBY))
    settings.note(REWARDED)
    return own


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

"""ms-swift's ``swift rlhf`` (4.6.0) with ``rlhf_type`` grpo: what its keys mean.

``GRPOTrainer`` of ``rlhf_trainers/grpo_trainer.py`` is TRL's with a pipeline of its own: answers of
``steps_per_generation`` micro batches are generated at once, by transformers, by vLLM in the trainer's processes
(colocate) or by a server; old log-probabilities are looked up always, then the reference's, of one micro batch after
the other. Weights go to vLLM by groups of layers (``move_model_batches``), and the trainer's may wait on the host
meanwhile (``offload_model``, ``offload_optimizer``).

Sources: ``RLHFArguments`` in ``arguments/rlhf_args.py``, ``rlhf_trainers/args_mixin.py``, ``arguments.py`` and
``rollout_mixin.py``.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from vlmplan.architecture.images import image_shape
from vlmplan.data_rules import FOR_LONGEST
from vlmplan.deepspeed_config.auto import PREFETCH
from vlmplan.deepspeed_config.content import ZERO
from vlmplan.errors import InputError
from vlmplan.notes import Caveat
from vlmplan.other_trainers.evaluated import leave_evaluation_out
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments
from vlmplan.other_trainers.meaning import Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.grpo import DEFAULT_PROMPT_TOKENS
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task import DEFAULT_COMPLETION_TOKENS, GRPO_BETA
from vlmplan.recipe.task_choices import Generation, IdleOffload, Reference, TaskKind, TaskTrainer
from vlmplan.workload import DEFAULT_IMAGE_SIZE, ModelFiles

REWARDS: Final = "grpo"
NUM_GENERATIONS: Final = 8
VLLM_MEMORY: Final = 0.9
"""``vllm_gpu_memory_utilization`` where nothing is said."""
BUCKET_VARIABLE, BUCKET_MIB = "SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE", 512
"""Which weights go to a server in, and its default."""
LOSSES: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real")
"""Made of one log-probability for each token (``_compute_loss_and_metrics``)."""
SEVERAL_TURNS: Final = Caveat(
    "multi_turn_scheduler: a row has several turns, whose tokens no key says; it is planned with one answer of "
    "max_completion_length, so give --seq-len and --max-completion-tokens of whole rows"
)


class Images(NamedTuple):
    """The image that each prompt is taken to have: of a ``model`` that sees, of ``size`` where a limit says it."""

    model: ModelFiles | None
    size: Value | None

    @property
    def num_tokens(self) -> int:
        if self.model is None or not sees(self.model):
            return 0
        width, height = DEFAULT_IMAGE_SIZE if self.size is None else map(int, str(self.size).split("x"))
        with suppress(InputError):
            return image_shape(self.model.config, self.model.preprocessor, width=width, height=height).num_tokens
        return 0


def reward_options(
    settings: Settings, arguments: Arguments, method: Method, images: Images, around: Surroundings
) -> dict[str, Value]:
    """What the keys of ``swift rlhf`` mean for ``rlhf_type`` grpo; of ``arguments`` evaluation is left out."""
    leave_evaluation_out(settings, arguments.options)
    if "grad_accum" not in arguments.options:  # ``_set_default``
        arguments.options["grad_accum"] = 1
    _refuse_what_has_no_plan(settings)
    _note_rewards(settings)
    has_entropies = settings.flag("log_entropy", False) or settings.number("top_entropy_quantile", 1.0, most=1.0) < 1
    generation = _generation(settings, around)
    return {
        "task": TaskKind.GRPO.value,
        "task_trainer": TaskTrainer.MS_SWIFT.value,
        "loss": (LossKind.TEMPERED_ENTROPY if has_entropies else LossKind.TEMPERED).value,
        "num_generations": settings.count("num_generations", NUM_GENERATIONS, least=2),
        "num_iterations": settings.count("num_iterations", 1, least=1),
        "reference": _reference(settings, method).value,
        **generation,
        **_generated_at_once(settings, arguments, around),
        **_lengths(settings, images, is_colocated=generation["generation"] == Generation.VLLM.value),
    }


def _refuse_what_has_no_plan(settings: Settings) -> None:
    for name in settings.names("loss_type", "grpo"):
        if name not in LOSSES:
            settings.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
    settings.only("teacher_model", f"a teacher on the same GPUs: {NOT_PLANNED}; teacher_model_server is")
    settings.only("advantage_reweight", f"a second forward of the model over a teacher's prompt: {NOT_PLANNED}")
    if settings.number("sdar_loss_coef", 0.0) > 0:
        settings.refuse("sdar_loss_coef", f"a second forward of the model over a teacher's prompt: {NOT_PLANNED}")
    settings.only("chord_sft_dataset", f"samples of fine-tuning beside rewards (CHORD): {NOT_PLANNED}")
    settings.only("ref_adapters", "a reference with adapters of its own is not planned")
    settings.only("sync_ref_model", f"a reference that follows the model: {NOT_PLANNED}")
    if settings.is_on("packing"):
        settings.refuse("packing", "answers are planned as they are; padding_free puts a micro batch in one row")
    if settings.maybe_flag("use_liger_kernel"):
        settings.refuse("use_liger_kernel", f"Liger's loss of GRPO: {NOT_PLANNED}; leave it off")


def _note_rewards(settings: Settings) -> None:
    if settings.is_on("reward_model"):
        names = ", ".join(settings.names("reward_model"))
        settings.note(f"{names} rewards: its weights are not counted; --reward-model-parameters says how many it has")
    if settings.is_on("multi_turn_scheduler"):
        settings.note(SEVERAL_TURNS)
    if settings.is_on("vllm_engine_kwargs"):
        settings.note("vllm_engine_kwargs is handed to vLLM: what it changes of weights and caches is not planned")


def _reference(settings: Settings, method: Method) -> Reference:
    """``RLHFArguments.__post_init__``: adapters are switched off for it, else there is a second model."""
    name = settings.text("ref_model", "") if "ref_model" in settings else ""
    if not settings.number("beta", GRPO_BETA):
        settings.ignore(("ref_model",))
        return Reference.NONE
    if name and method is not Method.FULL:
        settings.refuse("ref_model", "ms-swift takes it without adapters alone, which it switches off")
    elif name and name != settings.text("model", ""):
        settings.refuse("ref_model", "a reference other than model is not planned")
    return Reference.COPY if method is Method.FULL else Reference.ADAPTER_OFF


def _generation(settings: Settings, around: Surroundings) -> dict[str, Value]:
    """What generates, and what is moved for it (``_init_rollout``, ``_init_grpo``)."""
    if not settings.flag("use_vllm", False):
        if settings.maybe_flag("ds3_gather_for_generation") is False:
            settings.refuse("ds3_gather_for_generation", f"answers of a sharded model: {NOT_PLANNED}")
        settings.only("vllm_mode", "it goes with use_vllm true")
        return {"generation": Generation.TRANSFORMERS.value}
    mode = settings.text("vllm_mode", "")
    groups = settings.maybe_count("move_model_batches", least=1)
    options: dict[str, Value] = {} if groups is None else {"sync_groups": groups}
    if mode == "server":
        size = around.environment.get(BUCKET_VARIABLE, "")
        flat = settings.flag("enable_flattened_weight_sync", True)
        options["sync_buffer_mib"] = (int(size) if size.isdigit() else BUCKET_MIB) if flat else 0
        return {"generation": Generation.SERVER.value, **options}
    if mode != "colocate":
        settings.refuse_whole("use_vllm is true, and ms-swift needs vllm_mode too: colocate or server")
    moved = IdleOffload.of(
        weights=settings.flag("offload_model", False), optimizer=settings.flag("offload_optimizer", False)
    )
    return {
        "generation": Generation.VLLM.value,
        "vllm_memory_utilization": settings.number("vllm_gpu_memory_utilization", VLLM_MEMORY, most=1.0),
        "vllm_tensor_parallel": settings.count("vllm_tensor_parallel_size", 1, least=1),
        "vllm_sleep_level": settings.count("sleep_level", 0),
        "idle_offload": moved.value,
        **options,
    }


def _generated_at_once(settings: Settings, arguments: Arguments, around: Surroundings) -> dict[str, Value]:
    """``_init_generation_batch_params``: micro batches, or answers over all GPUs, or both where they are the same."""
    steps = settings.maybe_count("steps_per_generation", least=1)
    batch = settings.maybe_count("generation_batch_size", least=1)
    if batch is None:
        return {} if steps is None else {"steps_per_generation": steps}
    if around.num_gpus is None:
        settings.refuse("generation_batch_size", "of how many GPUs is not known; give --gpu NAME:COUNT")
        return {}
    of_all = int(arguments.options["micro_batch"]) * around.num_gpus
    if batch % of_all or steps not in (None, batch // of_all):
        wanted = f"a multiple of the {of_all} answers of a micro batch" if steps is None else f"{of_all * steps}"
        settings.refuse("generation_batch_size", f"{wanted} is needed")
        return {}
    return {"steps_per_generation": batch // of_all}


def _lengths(settings: Settings, images: Images, *, is_colocated: bool) -> dict[str, Value]:
    """A prompt has ``max_length`` tokens at the most, and with its answer no more than vLLM in the trainer's processes
    lets a sequence have (``vllm_max_model_len``)."""
    older = next((key for key in ("response_length", "max_new_tokens") if key in settings), None)
    answer = settings.count(older or "max_completion_length", DEFAULT_COMPLETION_TOKENS, least=1)
    usual = DEFAULT_PROMPT_TOKENS + images.num_tokens
    prompt = settings.maybe_count("max_length", least=1)
    if prompt is None:
        prompt = usual
        settings.note(f"how long prompts are is not in the file: {prompt:,} tokens before the answer; {FOR_LONGEST}")
    limit = settings.maybe_count("vllm_max_model_len", least=2) if is_colocated else None
    if limit is not None and prompt + answer > limit:
        settings.note(f"vllm_max_model_len: no prompt with its answer is longer than {limit:,} tokens")
        answer = max(1, min(answer, limit - min(prompt, usual, limit - 1)))
        prompt = limit - answer
    return {"seq_len": prompt + answer, "max_completion_tokens": answer}


def without_prefetch(config: TrainerConfig) -> TrainerConfig:
    """``config`` with ZeRO-3 that fetches nothing ahead (``GRPOConfig.__post_init__``)."""
    ds_config = config.ds_config
    if ds_config is None or ds_config.zero_stage != 3:
        return config
    section: dict[str, Any] = {**ds_config.content.get(ZERO, {}), "stage3_prefetch_bucket_size": 0}
    content = {**ds_config.content, ZERO: section}
    return replace(config, ds_config=replace(ds_config, content=content, autos=ds_config.autos - {PREFETCH}))

"""Preferences and rewards: what TRL's DPOTrainer, RewardTrainer, KTOTrainer and GRPOTrainer can do with a recipe, and
what is planned of it."""

from collections.abc import Mapping

from vlmplan.notes import listed
from vlmplan.recipe.choices import AttentionImplementation, Batching, LossKind, Method, OptimizerKind, Precision
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskTrainer
from vlmplan.rules.base import RuleBook, RuleContext

TASK_RULES = RuleBook()
LOSSES_OF_TRAINERS = {
    TaskTrainer.VERL: (LossKind.VERL, LossKind.VERL_FUSED),
    TaskTrainer.VERL_ENGINE: (LossKind.VERL_QUOTIENT, LossKind.VERL_FUSED),
    TaskTrainer.EASYR1: (LossKind.VERL,),
}
OF_LLAMA_FACTORY = (LossKind.LOG_SOFTMAX,)
OF_VERL = (LossKind.VERL, LossKind.VERL_QUOTIENT, LossKind.VERL_FUSED)


@TASK_RULES.error("trl 1.16 dpo_trainer.py: 'padding_free=True is temporarily unavailable'; grpo_trainer.py pads both")
def answers_are_padded(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.task is None or recipe.task.is_of_verl or recipe.task.is_of_openrlhf or not recipe.batching.is_flat:
        return None
    if recipe.task.is_of_ms_swift and recipe.batching is Batching.PADDING_FREE:
        return None
    return (
        f"--batching {recipe.batching.value} does not go with --task {recipe.task.kind.value}: TRL pads its rows; "
        f"leave it off"
    )


@TASK_RULES.error("trl 1.16 dpo_trainer.py, grpo_trainer.py: rows whole on every rank")
def rows_of_tasks_are_whole(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.task is None or recipe.sequence_parallel == 1:
        return None
    return (
        f"--sequence-parallel {recipe.sequence_parallel} is not planned with --task {recipe.task.kind.value}; "
        f"leave it off"
    )


@TASK_RULES.error("vlmplan: a second model under FSDP2 and its forward are not planned")
def tasks_are_not_sharded_by_torch(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.task is None or recipe.task.is_of_verl or not recipe.fsdp:
        return None
    return f"--fsdp is not planned with --task {recipe.task.kind.value}; give --zero-stage 3"


@TASK_RULES.error("verl@b178a3cd workers/fsdp_workers.py, actor/dp_actor.py: FSDP, rows without padding, its own loss")
def verl_trains_its_own_way(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.is_of_verl:
        return None
    losses = [loss.value for loss in LOSSES_OF_TRAINERS[task.trainer]]
    wanted = {
        "--task grpo": task.is_grpo,
        "--fsdp": recipe.fsdp,
        "--generation vllm": task.generation is Generation.VLLM,
        "--batching padding-free": recipe.batching is Batching.PADDING_FREE,
        "--attention flash_attention_2": recipe.attention is AttentionImplementation.FLASH_ATTENTION_2,
        f"--loss {' or '.join(losses)}": recipe.loss.value in losses,
    }
    lacks = _lacks(task, wanted)
    if lacks is not None:
        return lacks
    others = {
        "--offload-activations": recipe.offload_activations,
        "--tiled-mlp": recipe.tiled_mlp,
        "--liger-layers": recipe.liger_layers,
        "--sequence-parallel": recipe.sequence_parallel > 1,
    }
    given = [option for option, is_so in others.items() if is_so]
    return f"{listed(given)} is not planned with --task-trainer {task.trainer.value}; leave it off" if given else None


@TASK_RULES.error("EasyR1@b44b311b verl/utils/torch_functional.py AnyPrecisionAdamW: of weights in bfloat16")
def compensations_are_of_easyr1(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.optimizer is not OptimizerKind.ANY_PRECISION_ADAMW:
        return None
    is_its = recipe.task is not None and recipe.task.trainer is TaskTrainer.EASYR1
    if is_its and recipe.is_flat and recipe.precision is Precision.BF16_PURE:
        return None
    return (
        f"--optimizer {recipe.optimizer.value} is of --task-trainer easyr1 with --flat-parameters backward-pre and "
        f"--precision bf16-pure; give another"
    )


@TASK_RULES.error(
    "unsloth 2026.10.9 models/rl_replacements.py, rl.py: one process, rows padded or packed, its own loss"
)
def unsloth_trains_its_own_way(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.is_of_unsloth:
        return None
    wanted = {
        "--task grpo": task.is_grpo,
        "--method lora or qlora": recipe.method in (Method.LORA, Method.QLORA),
        "--zero-stage none": recipe.zero_stage is None and not recipe.fsdp,
        "--generation vllm or transformers": task.generation is not Generation.SERVER,
        f"--loss {LossKind.UNSLOTH.value}": recipe.loss is LossKind.UNSLOTH,
    }
    return _lacks(task, wanted)


@TASK_RULES.error("unsloth_zoo 2026.10.9 rl_replacements.py: no other trainer has this loss")
def loss_of_unsloth_is_of_unsloth(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.loss is not LossKind.UNSLOTH or (recipe.task is not None and recipe.task.is_of_unsloth):
        return None
    return (
        f"--loss {recipe.loss.value} is of --task grpo with --task-trainer unsloth; give --loss chunked, full or model"
    )


@TASK_RULES.error("VLM-R1@90052f4 trainer/grpo_trainer.py: generate of transformers for each micro batch, its own loss")
def vlm_r1_trains_its_own_way(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.scores_rows:
        return None
    wanted = {
        "--task grpo": task.is_grpo,
        "--method full or lora": recipe.method in (Method.FULL, Method.LORA),
        "--generation transformers": task.generation is Generation.TRANSFORMERS,
        "--steps-per-generation 1": task.steps_per_generation == 1,
        "--num-iterations 1": task.num_iterations == 1,
        f"--loss {LossKind.ROWS.value}": recipe.loss is LossKind.ROWS,
    }
    return _lacks(task, wanted)


@TASK_RULES.error("VLM-R1@90052f4 trainer/grpo_trainer.py: is_deepspeed_zero3_enabled comes before is_peft_model")
def vlm_r1_has_a_second_model_under_zero_3(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.scores_rows or recipe.zero_stage != 3 or not recipe.trains_adapters:
        return None
    if recipe.reference is Reference.NONE:
        return None
    return (
        f"--zero-stage 3 with --method lora and a reference: --task-trainer {task.trainer.value} loads a second model "
        f"there, which is not planned beside adapters; give --zero-stage 2"
        + (", or --reference none" if task.is_of_vlm_r1 else "")
    )


@TASK_RULES.error("R1-V@bbbbe3d trainer/grpo_trainer.py compute_loss: ref_model runs whatever beta is")
def r1_v_has_a_reference(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or task.trainer is not TaskTrainer.R1_V or recipe.reference is not Reference.NONE:
        return None
    return "--reference none is not had by --task-trainer r1-v, which runs one always; give copy or adapter-off"


@TASK_RULES.error("VLM-R1@90052f4 trainer/grpo_trainer.py _get_per_token_logps: no other trainer has this loss")
def loss_of_vlm_r1_is_of_vlm_r1(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.loss is not LossKind.ROWS or (recipe.task is not None and recipe.task.scores_rows):
        return None
    return (
        f"--loss {recipe.loss.value} is of --task grpo with --task-trainer vlm-r1 or r1-v; give --loss chunked, full "
        f"or model"
    )


@TASK_RULES.error("verl@b178a3cd utils/torch_functional.py: no other trainer has this loss")
def loss_of_verl_is_of_verl(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.loss not in OF_VERL or (recipe.task is not None and recipe.task.is_of_verl):
        return None
    return f"--loss {recipe.loss.value} is of --task grpo with --task-trainer verl; give --loss chunked, full or model"


@TASK_RULES.error("LLaMA-Factory 0.9.5 train/dpo/trainer.py, train/kto/trainer.py: log-probabilities of all logits")
def llama_factory_has_one_loss(context: RuleContext) -> str | None:
    recipe = context.recipe
    is_its = recipe.task is not None and recipe.task.is_of_llama_factory
    if recipe.task is not None and is_its and not recipe.task.reads_reference:
        kind = recipe.task.kind.value
        return f"--task-trainer llamafactory trains --task dpo or kto, but --task is {kind}; leave it off"
    if is_its == (recipe.loss in OF_LLAMA_FACTORY):
        return None
    if is_its:
        return f"--loss {recipe.loss.value} is not had by --task-trainer llamafactory; give --loss log-softmax"
    others = "chunked, full or model"
    return f"--loss log-softmax is of --task dpo or kto with --task-trainer llamafactory; give --loss {others}"


@TASK_RULES.error("LLaMA-Factory 0.9.5 train/kto/trainer.py, axolotl 0.19.0 core/builders/rl.py: no key of loss_type")
def other_trainers_have_one_loss_of_labels(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or not (task.is_of_llama_factory or task.is_of_axolotl) or not task.is_kto or task.estimates_kl:
        return None
    return f"--kto-loss {task.kto_loss.value} is not had by --task-trainer {task.trainer.value}; give --kto-loss kto"


@TASK_RULES.error("OpenRLHF@3c3be623 trainer/dpo_trainer.py, rm_trainer.py: one loss, and one engine, DeepSpeed's")
def openrlhf_trains_its_own_way(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None:
        return None
    if not task.is_of_openrlhf:
        is_its = recipe.loss is LossKind.OPENRLHF
        return f"--loss openrlhf is not had by --task-trainer {task.trainer.value}; leave it off" if is_its else None
    wanted = {
        "--task dpo or reward": task.has_pairs,
        f"--loss {LossKind.OPENRLHF.value}": task.is_reward or recipe.loss is LossKind.OPENRLHF,
        "--reference copy": task.is_reward or recipe.reference is Reference.COPY,
        "--method full": task.is_dpo or not recipe.trains_adapters,
        "--zero-stage 0, 1, 2 or 3": recipe.uses_deepspeed,
    }
    return _lacks(task, wanted)


@TASK_RULES.error("peft disable_adapter, by which TRL asks the reference: weights of the model itself stay as trained")
def a_reference_has_no_trained_weights_of_its_own(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.task is None or not recipe.trains_full_parts:
        return None
    full = "vision" if recipe.full_vision else "projector"
    return f"--full-{full} is not planned with --task {recipe.task.kind.value}; leave it off"


@TASK_RULES.error("vlmplan: evaluations are planned of samples as they are, of TRL's trainers, and of written answers")
def tasks_of_other_trainers_are_not_evaluated(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or recipe.evaluation is None or task.trainer is TaskTrainer.TRL:
        return None
    by = f"--task {task.kind.value} and --task-trainer {task.trainer.value}"
    if not task.reads_reference or task.is_of_openrlhf:
        return f"--eval-batch is not planned with {by}; leave it off"
    if recipe.fsdp:
        return f"--eval-batch is not planned with {by} and --fsdp; leave it off"
    return None


@TASK_RULES.error("trl 1.16 {dpo,kto,reward,grpo}_trainer.py: without compute_metrics the loss alone, of GRPO always")
def tasks_are_evaluated_for_their_loss(context: RuleContext) -> str | None:
    task, evaluation = context.recipe.task, context.recipe.evaluation
    if task is None or evaluation is None:
        return None
    others = {
        f"--eval-keeps {evaluation.kept.value}": evaluation.kept is not Kept.LOSS,
        "--eval-new-tokens": bool(evaluation.new_tokens),
        "--no-eval-loss": not evaluation.computes_loss,
    }
    given = [option for option, is_so in others.items() if is_so]
    kind = task.kind.value
    return f"{listed(given)} does not go with --task {kind}, evaluated for its loss; leave it off" if given else None


@TASK_RULES.error("trl 1.16 grpo_config.py num_generations_eval: no other trainer generates answers to be rewarded")
def rewarded_answers_alone_have_groups(context: RuleContext) -> str | None:
    task, evaluation = context.recipe.task, context.recipe.evaluation
    if evaluation is None or evaluation.generations is None or (task is not None and task.is_grpo):
        return None
    return "--eval-generations goes with --task grpo; leave it off"


@TASK_RULES.error("trl 1.16 dpo_trainer.py: 'PEFT + DeepSpeed ZeRO-3 requires reentrant checkpointing', there alone")
def reentrant_checkpoints_are_of_sharded_adapters(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.task is None or not recipe.task.reentrant_checkpoints:
        return None
    if recipe.shards_checkpointed_adapters:
        return None
    return (
        "--reentrant-checkpoints is what TRL does with adapters under ZeRO-3; give --zero-stage 3, --method lora and "
        "--activation-checkpointing, or leave it off"
    )


@TASK_RULES.error("trl 1.16 dpo_config.py, reward_config.py, kto_config.py, grpo_config.py: disable_dropout")
def dropout_is_switched_off_by_trl(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or task.disables_dropout is None or task.trainer in (TaskTrainer.TRL, TaskTrainer.UNSLOTH):
        return None
    option = "--disable-dropout" if task.disables_dropout else "--no-disable-dropout"
    return f"{option} is TRL's, but --task-trainer is {task.trainer.value}, which has no key for it; leave it off"


@TASK_RULES.error("trl 1.16 vllm_generation.py: 'tensor_parallel_size must divide world size evenly'", counts_gpus=True)
def generating_gpus_divide_all(context: RuleContext) -> str | None:
    task, num_gpus = context.recipe.task, context.num_gpus
    if task is None or num_gpus is None or num_gpus % task.vllm_tensor_parallel == 0:
        return None
    return f"--vllm-tensor-parallel {task.vllm_tensor_parallel} does not divide {num_gpus} GPU(s); give a divisor"


@TASK_RULES.error("vllm device_allocator/cumem.py: 'Expandable segments are not compatible with memory pool'")
def sleep_needs_the_native_allocator(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is not None and (task.is_of_verl or task.is_of_ms_swift):
        return None  # verl's vLLM is another process; ms-swift switches segments off around it
    if task is None or not task.uses_vllm_here or not task.vllm_sleep_level or not context.recipe.expandable_segments:
        return None
    return (
        f"--vllm-sleep-level {task.vllm_sleep_level} does not go with --expandable-segments, which vLLM's sleep mode "
        f"refuses; give --no-expandable-segments"
    )


@TASK_RULES.error("trl 1.16 generation/vllm_generation.py: 'vLLM does not support in-flight 8-bit quantization.'")
def vllm_packs_no_weights_in_eight_bits(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or not task.uses_vllm_here or context.recipe.method is not Method.LORA_8BIT:
        return None
    return (
        "--method lora-8bit does not go with --generation vllm, for which TRL refuses weights in 8 bits; give --method "
        "qlora, or --generation transformers"
    )


@TASK_RULES.error("vllm runs on GPUs; there is no sleep and no utilisation on CPU ranks")
def vllm_is_for_gpus(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or task.generation is not Generation.VLLM or not context.is_on_cpu:
        return None
    return "--generation vllm is for GPUs, but --gpu names CPU ranks; give --generation transformers"


def _lacks(task: TrainingTask, wanted: Mapping[str, bool]) -> str | None:
    """That options are missing without which the task's trainer is not planned; ``wanted`` says which are there."""
    missing = [option for option, is_there in wanted.items() if not is_there]
    if not missing:
        return None
    return f"--task-trainer {task.trainer.value} is planned with {listed(missing)}; give what is missing"

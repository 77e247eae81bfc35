"""A plan as the arguments of TRL's configurations: every number is the plan's."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch_cases import cpu_plan
from vlmplan.architecture.tape import Tape
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.launch.run_steps import prompts_at_once, task_steps
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Method, Precision
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import KTOLoss, Reference, TaskKind
from vlmplan.run.training import TrainerOptions
from vlmplan_trainer.trl_training.arguments import trl_arguments

DPO = TrainingTask(kind=TaskKind.DPO)
KTO = TrainingTask(kind=TaskKind.KTO)
REWARD = TrainingTask(kind=TaskKind.REWARD)
GRPO = TrainingTask(kind=TaskKind.GRPO, num_generations=5, completion_tokens=300)


def plan_of(task: TrainingTask, num_ranks: int = 2, **recipe: object) -> Plan:
    settings = {"zero_stage": 2, "micro_batch": 3, "grad_accum": 5, "gradient_clipping": 0.7} | recipe
    return cpu_plan(num_ranks, task=task, **settings)


def arguments(plan: Plan, *, is_vision: bool = False, **options: object) -> dict:
    task = plan.recipe.task
    assert task is not None
    given = TrainerOptions(output_dir=Path("run"), train_data=Path("data.jsonl"), **options)
    return trl_arguments(plan, given, task, num_steps=11, folder=Path("somewhere"), is_vision=is_vision)


def test_engine_and_batch_are_those_of_the_plan():
    plan = plan_of(DPO)
    made = arguments(plan, seed=13, weight_decay=0.17)
    assert made["deepspeed"] == plan.ds_config
    assert (made["per_device_train_batch_size"], made["gradient_accumulation_steps"]) == (3, 5)
    assert (made["max_grad_norm"], made["max_steps"]) == (0.7, 11)
    assert (made["seed"], made["weight_decay"]) == (13, 0.17)
    assert made["deepspeed"]["train_batch_size"] == 3 * 5 * 2


def test_the_model_comes_with_its_checkpoints_and_nobody_is_told_of_the_run():
    made = arguments(plan_of(DPO))
    assert made["gradient_checkpointing"] is False
    assert made["report_to"] == []
    assert (made["save_strategy"], made["remove_unused_columns"]) == ("no", False)


@pytest.mark.parametrize(
    ("recipe", "types"),
    [
        ({"precision": Precision.BF16}, (True, False)),
        ({"precision": Precision.FP16}, (False, True)),
        ({"precision": Precision.FP32}, (False, False)),
        ({"precision": Precision.BF16_PURE}, (False, False)),
        ({"precision": Precision.BF16, "zero_stage": None, "uses_autocast": False}, (False, False)),
    ],
)
def test_mixed_precision_is_the_plans(recipe: dict, types: tuple[bool, bool]):
    made = arguments(plan_of(DPO, **recipe))
    assert (made["bf16"], made["fp16"]) == types


def test_learning_rates_are_by_method_where_none_is_given():
    assert arguments(plan_of(DPO))["learning_rate"] == 1e-5
    assert arguments(plan_of(DPO, method=Method.LORA))["learning_rate"] == 1e-4
    assert arguments(plan_of(DPO), learning_rate=0.3)["learning_rate"] == 0.3


def test_dpo_has_rows_of_the_plans_length_and_the_plans_reference():
    made = arguments(plan_of(DPO))
    assert made["max_length"] == plan_of(DPO).workload.seq_len
    assert (made["beta"], made["precompute_ref_log_probs"]) == (0.1, False)
    made = arguments(plan_of(replace(DPO, reference=Reference.PRECOMPUTED)), beta=0.3)
    assert (made["beta"], made["precompute_ref_log_probs"]) == (0.3, True)


def test_kto_has_dpos_reference_and_weights_of_its_own():
    made = arguments(plan_of(KTO))
    assert (made["beta"], made["precompute_ref_log_probs"], made["loss_type"]) == (0.1, False, "kto")
    assert "desirable_weight" not in made
    assert arguments(plan_of(KTO), desirable_weight=1.3)["desirable_weight"] == 1.3
    other = replace(KTO, kto_loss=KTOLoss.APO_ZERO, reference=Reference.PRECOMPUTED)
    made = arguments(plan_of(other), undesirable_weight=0.7)
    assert (made["loss_type"], made["undesirable_weight"]) == ("apo_zero_unpaired", 0.7)
    assert made["precompute_ref_log_probs"] is True


def test_a_reward_model_has_rows_of_the_plans_length_and_draws_scores_to_0_as_asked():
    made = arguments(plan_of(REWARD))
    assert (made["max_length"], made["center_rewards_coefficient"]) == (plan_of(REWARD).workload.seq_len, None)
    assert arguments(plan_of(REWARD), center_rewards_coefficient=0.03)["center_rewards_coefficient"] == 0.03
    assert "beta" not in made


@pytest.mark.parametrize("task", [DPO, KTO, REWARD])
def test_dropout_is_switched_off_unless_adapters_are_to_drop_out(task: TrainingTask):
    """TRL's own default switches off that of adapters too, whoever asked for it."""
    for method, dropout, is_off in ((Method.FULL, 0.0, True), (Method.LORA, 0.0, True), (Method.LORA, 0.1, False)):
        plan = plan_of(task, method=method, lora_dropout=dropout)
        assert arguments(plan)["disable_dropout"] is is_off
        assert tape_for(Tape, plan.recipe).switches_dropout_off is is_off
    assert arguments(plan_of(GRPO, method=Method.LORA, lora_dropout=0.1))["disable_dropout"] is False


@pytest.mark.parametrize("task", [DPO, KTO, REWARD, GRPO])
@pytest.mark.parametrize("is_off", [False, True])
def test_dropout_is_switched_off_as_somebody_says(task: TrainingTask, is_off: bool):
    plan = plan_of(replace(task, disables_dropout=is_off))
    assert arguments(plan)["disable_dropout"] is is_off
    assert tape_for(Tape, plan.recipe).switches_dropout_off is is_off


@pytest.mark.parametrize("task", [DPO, KTO, GRPO])
def test_the_loss_of_routers_is_weighed_as_the_model_says_unless_it_is_left_out(task: TrainingTask):
    assert "router_aux_loss_coef" not in arguments(plan_of(task))
    assert arguments(plan_of(replace(task, router_loss=False)))["router_aux_loss_coef"] == 0.0


def test_grpo_answers_as_long_and_as_often_as_planned():
    made = arguments(plan_of(GRPO), temperature=0.6)
    assert (made["num_generations"], made["max_completion_length"]) == (5, 300)
    assert (made["steps_per_generation"], made["beta"], made["temperature"]) == (5, 0.0, 0.6)
    made = arguments(plan_of(replace(GRPO, steps_per_generation=10, reference=Reference.COPY)))
    assert (made["steps_per_generation"], made["beta"]) == (10, 0.04)


def test_text_leaves_no_weight_without_a_gradient():
    assert arguments(plan_of(DPO))["ddp_find_unused_parameters"] is False
    assert arguments(plan_of(DPO), is_vision=True)["ddp_find_unused_parameters"] is None


def test_an_indexer_has_weights_without_a_gradient():
    plan = plan_of(DPO)
    config = {"model_type": "deepseek_v4"}
    plan = replace(plan, workload=replace(plan.workload, model=replace(plan.workload.model, config=config)))
    assert arguments(plan)["ddp_find_unused_parameters"] is True


def test_steps_are_those_of_trls_samplers():
    plan = plan_of(DPO)  # 2 ranks x 3 pairs in a micro batch, 5 of them in a step
    plan = replace(plan, workload=replace(plan.workload, epochs=7))
    assert task_steps(plan, DPO, 2 * 3 * 5 * 2 + 5) == 7 * 2
    assert task_steps(plan, REWARD, 2 * 3 * 5 * 2 + 5) == 7 * 2
    assert task_steps(plan, DPO, 2 * 3 * (5 * 2 + 1)) == 7 * 3  # a step for what is left of an epoch
    plan = replace(plan, workload=replace(plan.workload, epochs=1.5))
    assert task_steps(plan, DPO, 2 * 3 * (5 * 2 + 1)) == 5
    plan = plan_of(GRPO)
    plan = replace(plan, workload=replace(plan.workload, epochs=7))
    assert prompts_at_once(plan, GRPO) == 2 * 3 * 5 // 5
    assert task_steps(plan, GRPO, 6 * 4 + 5) == 7 * 4  # a generation is one step
    plan = plan_of(replace(GRPO, steps_per_generation=10, num_iterations=3))
    plan = replace(plan, workload=replace(plan.workload, epochs=7))
    assert task_steps(plan, plan.recipe.task, 12 * 4 + 11) == 7 * 4 * 2 * 3  # two steps on a generation, three times
    assert arguments(plan)["num_iterations"] == 3


def test_answers_are_generated_with_a_cache_whatever_the_configuration_says():
    assert arguments(plan_of(GRPO))["generation_kwargs"] == {"use_cache": True}

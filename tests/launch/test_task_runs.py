"""What DPO, KTO and GRPO need of the user, and what launch does not do for them, is said before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch_cases import asked, cpu_plan, sound_facts
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.launch.preflight import preflight
from vlmplan.launch.prepared import planned
from vlmplan.launch.task_runs import beta_of, reference_warnings, task_problems
from vlmplan.recipe.choices import Method, Precision
from vlmplan.recipe.task import DPO_BETA, GRPO_BETA, TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind
from vlmplan.request import parse

DPO = TrainingTask(kind=TaskKind.DPO)
KTO = TrainingTask(kind=TaskKind.KTO)
REWARD = TrainingTask(kind=TaskKind.REWARD)
GRPO = TrainingTask(kind=TaskKind.GRPO, num_generations=2)


def plan_of(task: TrainingTask | None, **recipe: object):
    return cpu_plan(2, **{"zero_stage": 2, "micro_batch": 2, "task": task} | recipe)


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text("")
    return path


def problems(plan, folder: Path, **options: object) -> list[str]:
    return list(task_problems(plan, asked(folder, **options)))


def test_what_is_given_as_needed_has_no_problem(tmp_path: Path, rewards: Path):
    data = tmp_path / "data.jsonl"
    assert problems(plan_of(DPO), tmp_path, train_data=data, beta=0.3) == []
    assert problems(plan_of(GRPO), tmp_path, train_data=data, rewards=rewards) == []
    assert problems(plan_of(REWARD), tmp_path, train_data=data, center_rewards_coefficient=0.01) == []
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.0}
    assert problems(plan_of(KTO), tmp_path, train_data=data, eval_data=data, beta=0.3, **weights) == []
    assert problems(plan_of(None), tmp_path) == []


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"eval_data": Path("x")}, None),
        ({"monitor": ("csv",)}, "--monitor is for"),
        ({"group_by_length": True}, "--group-by-length is for"),
        ({"merge_adapters": True}, None),
        ({"beta": 0.0}, None),
    ],
)
def test_options_of_supervised_fine_tuning_are_refused(tmp_path: Path, options: dict, part: str | None):
    found = problems(plan_of(DPO), tmp_path, train_data=tmp_path / "data.jsonl", **options)
    assert len(found) == (0 if part is None else 1)
    assert part is None or part in found[0]


def test_pairs_and_answers_are_evaluated(tmp_path: Path, rewards: Path):
    data = tmp_path / "data.jsonl"
    assert problems(plan_of(GRPO), tmp_path, train_data=data, rewards=rewards, eval_data=data) == []
    assert problems(plan_of(REWARD), tmp_path, train_data=data, eval_data=data) == []


def test_options_of_tasks_are_refused_without_one(tmp_path: Path, rewards: Path):
    given = {"rewards": rewards, "temperature": 0.7, "beta": 0.1, "center_rewards_coefficient": 0.1}
    found = problems(plan_of(None), tmp_path, **given)
    flags = ["--rewards", "--temperature", "--beta", "--center-rewards-coefficient"]
    assert [sentence.split()[0] for sentence in found] == flags


def test_options_of_another_task_are_refused_with_the_tasks_that_have_them(tmp_path: Path, rewards: Path):
    given = {"train_data": tmp_path / "data.jsonl", "rewards": rewards, "beta": 0.1}
    assert problems(plan_of(REWARD), tmp_path, **given) == [
        "--rewards goes with --task grpo, but --task is reward",
        "--beta goes with --task grpo, dpo or kto, but --task is reward",
    ]
    [found] = problems(plan_of(DPO), tmp_path, train_data=given["train_data"], center_rewards_coefficient=0.1)
    assert found == "--center-rewards-coefficient goes with --task reward, but --task is dpo"
    [found] = problems(plan_of(DPO), tmp_path, train_data=given["train_data"], desirable_weight=2.0)
    assert found == "--desirable-weight goes with --task kto, but --task is dpo"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"generation": Generation.VLLM}, "--generation vllm is planned, not launched"),
        ({"reward_params": 7}, "--reward-model-parameters are planned, not launched"),
        ({"num_generations": 3}, "--num-generations 3 does not divide the 4 answers"),
    ],
)
def test_what_is_only_planned_is_not_launched(tmp_path: Path, rewards: Path, changes: dict, part: str):
    plan = plan_of(replace(GRPO, **changes))
    [found] = problems(plan, tmp_path, train_data=tmp_path / "data.jsonl", rewards=rewards)
    assert part in found


def test_grpo_needs_a_file_of_rewards(tmp_path: Path):
    data = tmp_path / "data.jsonl"
    [found] = problems(plan_of(GRPO), tmp_path, train_data=data)
    assert found.startswith("--task grpo needs --rewards FILE: a Python file of yours")
    [found] = problems(plan_of(GRPO), tmp_path, train_data=data, rewards=tmp_path / "none.py")
    assert "is no file" in found


def test_fp16_without_a_scaled_loss_is_refused(tmp_path: Path):
    plan = plan_of(DPO, zero_stage=0, precision=Precision.FP16)
    [found] = problems(plan, tmp_path, train_data=tmp_path / "data.jsonl")
    assert "DeepSpeed does not scale the loss there" in found


def test_beta_and_the_reference_belong_together(tmp_path: Path, rewards: Path):
    with_copy = replace(GRPO, reference=Reference.COPY)
    given = {"train_data": tmp_path / "data.jsonl", "rewards": rewards}
    [found] = problems(plan_of(GRPO), tmp_path, beta=0.1, **given)
    assert "the plan has no reference" in found
    [found] = problems(plan_of(with_copy), tmp_path, beta=0.0, **given)
    assert "the plan has a reference (copy)" in found
    assert problems(plan_of(with_copy), tmp_path, beta=0.1, **given) == []
    assert beta_of(plan_of(GRPO).recipe, None) == 0
    assert beta_of(plan_of(with_copy).recipe, None) == GRPO_BETA
    assert beta_of(plan_of(DPO).recipe, None) == DPO_BETA
    assert beta_of(plan_of(DPO, method=Method.LORA).recipe, 0.7) == 0.7


def test_what_a_run_is_held_to_is_said_where_it_is_not_the_adapter_that_it_starts_from(tmp_path: Path):
    started = asked(tmp_path, adapter=tmp_path / "adapter")
    for reference, is_other in [(None, True), (Reference.PRECOMPUTED, True), (Reference.ADAPTER_COPY, False)]:
        recipe = plan_of(replace(DPO, reference=reference), method=Method.LORA).recipe
        assert problems(plan_of(replace(DPO, reference=reference), method=Method.LORA), tmp_path) == problems(
            plan_of(DPO, method=Method.LORA), tmp_path, adapter=tmp_path / "adapter"
        )
        found = list(reference_warnings(recipe, started))
        assert ["the reference is the model without adapters" in one for one in found] == [True] * is_other
        assert list(reference_warnings(recipe, asked(tmp_path))) == []
    assert list(reference_warnings(plan_of(REWARD, method=Method.LORA).recipe, started)) == []


@pytest.mark.parametrize(
    ("more", "reference"),
    [
        ({"task": "dpo"}, Reference.ADAPTER_COPY),
        ({"task": "kto"}, Reference.ADAPTER_COPY),
        ({"task": "dpo", "reference": "adapter-off"}, Reference.ADAPTER_OFF),
        ({"task": "dpo", "method": "full"}, Reference.COPY),
        ({"task": "grpo"}, Reference.NONE),
        ({"task": "reward"}, Reference.NONE),
    ],
)
def test_a_run_from_an_adapter_is_held_to_it_unless_another_reference_is_asked_for(
    tmp_path: Path, more: dict, reference: Reference
):
    given = {"model": "qwen2.5-0.5b", "gpu": "h100-sxm:1", "zero_stage": "none", "method": "lora", "micro_batch": 2}
    trainer = asked(tmp_path, adapter=tmp_path / "adapter")
    plan, _ = planned(parse({**given, **more}), (), trainer)
    assert plan.recipe.reference is reference
    without, _ = planned(parse({**given, **more}), (), asked(tmp_path))
    assert without.recipe.reference is not Reference.ADAPTER_COPY


def test_launch_says_which_packages_are_missing_and_how_to_get_them(tmp_path: Path):
    facts = sound_facts()
    facts = replace(facts, packages={**facts.packages, "trl": None, "datasets": None})
    found = preflight(plan_of(DPO), asked(tmp_path), facts, Catalog(shipped_catalog())).problems
    assert found == ('training needs trl, datasets, not installed here: pip install "vlmplan[rl]"',)

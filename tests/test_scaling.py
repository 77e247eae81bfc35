"""Up to 1,024 GPUs: what must fall, rise or stay when machines are added."""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import shipped_gpus, shortened, workload
from vlmplan.answers.scaling import paying_text
from vlmplan.cli.estimate import estimate as command
from vlmplan.estimation import Estimator, estimate_with_sizes
from vlmplan.hardware import Cluster, Node
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.scaling import NODE_COUNTS, PAYING_FRACTION, Scaling, ScalingPoint, nodes_paying, scaling
from vlmplan.workload import Workload

FILES = shortened("tinyllama-1.1b", num_hidden_layers=2)
SMALL_BUCKETS = ZeroSettings(reduce_bucket_size=5_000_000, stage3_prefetch_bucket_size=5_000_000)


@cache
def estimator(method: Method, stage: int | None) -> Estimator:
    return Estimator(Workload(model=FILES, seq_len=256), Recipe(method=method, zero_stage=stage))


def found(
    stage: int | None = 3,
    *,
    method: Method = Method.FULL,
    rate: float | None = 50e9,
    gpus: int = 8,
    usd_per_hour: float | None = None,
    **changes: object,
) -> Scaling:
    recipe = Recipe(**{"method": method, "zero_stage": stage, "zero": SMALL_BUCKETS, "grad_accum": 4} | changes)
    node = Node(gpu=shipped_gpus()["a100-sxm4-80gb"], num_gpus=gpus)
    on = Cluster(node=node, inter_node_bytes_per_second=rate)
    result = scaling(estimator(method, stage), recipe, on, usd_per_hour=usd_per_hour)
    assert result is not None
    return result


RECIPES = st.fixed_dictionaries(
    {
        "stage": st.integers(0, 3),
        "method": st.sampled_from([Method.FULL, Method.LORA]),
        "rate": st.floats(1e8, 1e12),
        "gpus": st.sampled_from([1, 2, 8]),
        "grad_accum": st.integers(1, 64),
        "micro_batch": st.integers(1, 4),
    }
)


@pytest.mark.sweep
@settings(max_examples=40, deadline=None)
@given(RECIPES)
def test_a_thousand_gpus_have_a_time_and_wait_for_no_less_than_nothing(values: dict[str, object]):
    curves = found(**values)
    assert curves.weak[-1].num_gpus == 128 * values["gpus"]
    for point in (*curves.strong, *curves.weak):
        assert 0 < point.step_seconds < math.inf
        assert 0 <= point.communication_seconds < point.step_seconds
        assert 0 < point.efficiency <= 1
        assert point.samples_per_second > 0


@pytest.mark.sweep
@settings(max_examples=40, deadline=None)
@given(RECIPES)
def test_more_machines_with_more_samples_are_never_slower_than_fewer(values: dict[str, object]):
    # From two on: the step from one to several is where a slow network comes in.
    for few, many in pairwise(found(**values).weak[1:]):
        assert many.samples_per_second >= few.samples_per_second
        assert many.communication_seconds >= few.communication_seconds * (1 - 1e-9)


def test_strong_scaling_keeps_the_samples_and_ends_where_a_gpu_has_none():
    curves = found(grad_accum=4, micro_batch=2)
    assert {point.samples_per_step for point in curves.strong} == {2 * 4 * 8}
    assert [point.num_nodes for point in curves.strong] == [1, 2, 4, 8]
    assert (curves.strong[-1].micro_batch, curves.strong[-1].grad_accum) == (1, 1)


def test_weak_scaling_keeps_what_a_gpu_does():
    curves = found(grad_accum=4, micro_batch=2)
    assert {(point.micro_batch, point.grad_accum) for point in curves.weak} == {(2, 4)}
    assert [point.num_nodes for point in curves.weak] == list(NODE_COUNTS)


def test_samples_that_do_not_divide_are_rounded_up():
    (*_, last) = found(gpus=1, micro_batch=5, grad_accum=7).strong
    assert (last.num_gpus, last.micro_batch, last.grad_accum) == (32, 2, 1)


def test_a_slower_network_never_makes_a_point_faster_nor_lets_more_nodes_pay():
    slow, fast = (found(rate=rate) for rate in (1e9, 100e9))
    for before, after in zip(fast.weak, slow.weak, strict=True):
        assert after.step_seconds >= before.step_seconds
    assert nodes_paying(slow.weak) <= nodes_paying(fast.weak)


def test_hpz_waits_less_for_a_slow_network():
    plain, secondary = (found(rate=3e9, hpz=hpz, method=Method.LORA).weak for hpz in (1, 8))
    assert secondary[0].communication_seconds == pytest.approx(plain[0].communication_seconds, rel=0.2)
    for one, other in zip(plain[1:], secondary[1:], strict=True):
        assert other.communication_seconds < one.communication_seconds / 3


def test_node_counts_whose_gpus_hpz_does_not_divide_are_left_out():
    assert [point.num_gpus for point in found(gpus=1, hpz=4).weak] == [4, 8, 16, 32, 64, 128]


def test_plain_pytorch_goes_on_as_ddp():
    alone, *several = found(None, gpus=1).weak
    assert [point.num_gpus for point in several] == [2, 4, 8, 16, 32, 64, 128]
    assert alone.communication_seconds == 0 < min(point.communication_seconds for point in several)


def test_usd_is_of_all_nodes_for_the_run():
    curves = found(usd_per_hour=11.0)
    for point in curves.weak:
        assert point.usd == pytest.approx(point.run_seconds / 3600 * 11.0 * point.num_nodes)
    assert all(point.usd is None for point in found().weak)


def test_offloading_to_several_hosts_may_make_a_gpu_faster_but_never_more_than_fully_efficient():
    curves = found(2, offload_optimizer=Offload.CPU)
    assert max(point.efficiency for point in curves.weak) == 1


def test_unknown_speed_has_no_curve():
    node = Node(gpu=shipped_gpus()["gtx-1080-ti"], num_gpus=2)
    recipe = Recipe(zero_stage=2)
    known = scaling(estimator(Method.FULL, 2), recipe, Cluster(node=node))
    assert known is None or known.weak


def point(num_nodes: int, speed: float) -> ScalingPoint:
    return ScalingPoint(
        num_nodes=num_nodes,
        num_gpus=num_nodes,
        micro_batch=1,
        grad_accum=1,
        verdict=Verdict.FITS,
        step_seconds=num_nodes / speed,
        communication_seconds=0.0,
        run_seconds=1.0,
        efficiency=1.0,
        usd=None,
    )


def test_another_node_pays_while_it_brings_half_of_itself():
    assert PAYING_FRACTION == 0.5
    assert nodes_paying(()) is None
    assert nodes_paying([point(1, 1)]) == 1
    assert nodes_paying([point(1, 1), point(2, 1.5), point(4, 2.24)]) == 2
    assert nodes_paying([point(1, 1), point(2, 1.5), point(4, 2.26)]) == 4
    assert nodes_paying([point(1, 1), point(2, 1.4), point(4, 4)]) == 1
    assert "Beyond 1 node another" in paying_text((point(1, 1), point(2, 1.4)))
    assert "up to the 2 looked at" in paying_text((point(1, 1), point(2, 2)))
    alone = replace(point(1, 1), num_gpus=8)
    assert paying_text((alone,)) == "8 samples a step are too few for another node to have one on every GPU."


OPTIONS = ["--model", "smollm2-135m", "--gpu", "a100-sxm4-80gb:8", "--zero-stage", "2", "--grad-accum", "8"]


@pytest.mark.sweep
def test_the_command_shows_what_it_gives_as_json():
    runner = CliRunner()
    shown = runner.invoke(command, [*OPTIONS, "--scaling"], standalone_mode=False)
    assert shown.return_value == 0
    assert "strong scaling" in shown.output
    assert "weak scaling" in shown.output
    document = json.loads(runner.invoke(command, [*OPTIONS, "--scaling", "--json"], standalone_mode=False).output)
    curves = document["scaling"]
    assert [one["num_nodes"] for one in curves["weak"]] == list(NODE_COUNTS)
    assert set(curves["num_nodes_paying"]) == {"strong", "weak"}
    assert curves["strong"][0]["step_seconds"] == pytest.approx(document["step_seconds"])


def test_scaling_is_shown_only_where_it_is_asked_for():
    assert "scaling" not in json.loads(CliRunner().invoke(command, [*OPTIONS, "--json"], standalone_mode=False).output)


def test_sizes_are_chosen_for_each_number_of_machines_as_an_estimate_of_it_has_them():
    node = Node(gpu=shipped_gpus()["a100-sxm4-80gb"], num_gpus=4)
    on, recipe = Cluster(node=node, inter_node_bytes_per_second=12.5e9), Recipe(zero_stage=2, micro_batch=2)
    found = estimate_with_sizes(workload("qwen2-vl-2b"), recipe, on)
    scaled = scaling(Estimator(found.workload, found.recipe), found.recipe, on, node_counts=(1, 4), chooses_sizes=True)
    assert scaled is not None
    again = estimate_with_sizes(found.workload, recipe, replace(on, num_nodes=4))
    assert [point.step_seconds for point in scaled.weak] == [found.step_seconds, again.step_seconds]
    assert again.recipe.zero != found.recipe.zero


def test_gpus_that_share_a_sample_train_on_it_once():
    point = found().weak[0]
    assert point.samples_per_step == point.num_gpus * point.micro_batch * point.grad_accum
    assert replace(point, sequence_parallel=4).samples_per_step * 4 == point.samples_per_step

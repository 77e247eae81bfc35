"""Samples of different lengths: what is drawn, and that the allocator holds more for them, up to the whole GPU."""

import json
import random
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from planned import cluster, shortened, workload
from vlmplan.cli.command_line import cli
from vlmplan.errors import InputError, UnavailableError
from vlmplan.estimation import Estimator
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.sample_lengths import PADS_TO, SampleLengths, sample_lengths, with_sample_lengths
from vlmplan.workload import Workload

FILES = shortened("tinyllama-1.1b", num_hidden_layers=4)
SEQ_LEN = 1024
ON = cluster("a100-sxm4-80gb", 4)


def estimated(**changes):
    recipe = Recipe(**{"zero_stage": 2, "expandable_segments": False, "loss": LossKind.FULL} | changes)
    on = cluster("a100-sxm4-80gb") if recipe.zero_stage is None else ON
    return Estimator(Workload(model=FILES, seq_len=SEQ_LEN), recipe).estimate(recipe, on)


def lengths(shortest, longest=SEQ_LEN):
    return SampleLengths(source="test", shortest=shortest, longest=longest)


@given(st.integers(1, 5000), st.integers(0, 60_000), st.integers(1, 8))
def test_micro_batches_are_as_long_as_their_longest_sample_padded_and_never_longer_than_the_longest(least, more, size):
    spread = lengths(least, least + more)
    found = spread.micro_batches(size)
    assert found == spread.micro_batches(size)
    assert all(least <= length <= least + more for length in found)
    assert all(length % PADS_TO == 0 or length == least + more for length in found)


@given(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8))
def test_more_samples_make_no_micro_batch_of_the_same_order_shorter(draw, size, more):
    known = SampleLengths(source="test", shortest=8, longest=80, known=(8, 16, 16, 40, 80))
    for spread in (lengths(1), known):
        fewer, larger = (spread.micro_batches(number, draw=draw) for number in (size, size + more))
        assert all(long >= short for short, long in zip(fewer, larger, strict=True))


@pytest.mark.parametrize("size", [1, 3])
def test_a_micro_batch_is_as_long_as_the_longest_of_samples_that_are_drawn(size):
    """Of n samples the longest is at n/(n+1) of an even spread, on average."""
    drawn = lengths(0, 8000).micro_batches(size, num_drawn=20_000)
    assert sum(drawn) / len(drawn) == pytest.approx(8000 * size / (size + 1), rel=0.02)


@pytest.mark.parametrize("stage", [None, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_samples_of_one_length_reserve_what_the_estimate_has(stage, accumulation):
    found = estimated(zero_stage=stage, grad_accum=accumulation)
    devices = Estimator(found.workload, found.recipe).devices_for_lengths(
        found.recipe, found.cluster, [[SEQ_LEN] * 4], found.timeline
    )
    assert devices == [found.device]


def varying_reserved(seed):
    """What a random setup has with fewer and with more samples in a micro batch, on a card that is never full."""
    drawn = random.Random(seed)
    files = shortened(drawn.choice(["tinyllama-1.1b", "qwen2.5-0.5b"]), num_hidden_layers=2)
    job = Workload(model=files, seq_len=drawn.choice([256, 512, 1000, 1024, 2048]))
    fewer = drawn.randint(1, 4)
    larger = fewer + drawn.choice([1, fewer])
    spread = lengths(drawn.randint(1, job.seq_len), job.seq_len)
    recipe = Recipe(
        zero_stage=drawn.choice([None, 2, 3]),
        method=drawn.choice([Method.FULL, Method.LORA]),
        activation_checkpointing=drawn.random() < 0.5,
        grad_accum=drawn.choice([1, 2]),
        expandable_segments=False,
        loss=LossKind.FULL,
    )
    on = cluster("a100-sxm4-80gb", 1 if recipe.zero_stage is None else 4)
    for size in (fewer, larger):
        sized = replace(recipe, micro_batch=size)
        yield with_sample_lengths(Estimator(job, sized).estimate(sized, on), spread).varying


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(200))
def test_more_samples_in_a_micro_batch_never_plan_less(seed):
    """Within the range of the fewer, unless the allocator has less for more samples that all have one length too, whose
    tensors fit its segments better (``test_larger_tensors_may_reserve_less``)."""
    fewer, larger = varying_reserved(seed)
    same = min(1, larger.fixed_reserved_bytes / fewer.fixed_reserved_bytes)
    assert larger.reserved_range[1] >= same * fewer.reserved_bytes[0]


@pytest.mark.sweep
@pytest.mark.parametrize("stage", [None, 2, 3])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_samples_of_different_lengths_reserve_more(stage, method):
    fixed = estimated(zero_stage=stage, method=method, micro_batch=4, activation_checkpointing=False)
    found = with_sample_lengths(fixed, lengths(64), num_draws=1)
    assert found.varying.reserved_range == (fixed.device.reserved_bytes, found.device.reserved_bytes)
    assert found.device.reserved_bytes > fixed.device.reserved_bytes
    assert found.peak_allocated_bytes == fixed.peak_allocated_bytes


def test_expandable_segments_follow_the_tensors_whatever_the_lengths():
    fixed = estimated(expandable_segments=True)
    found = with_sample_lengths(fixed, lengths(64))
    assert found.device == fixed.device


def test_a_gpu_that_is_full_gives_back_what_nothing_lives_on():
    """Reserved bytes grow with every new length until the GPU ends, and the run goes on."""
    recipe = Recipe(expandable_segments=False, loss=LossKind.FULL, micro_batch=6, activation_checkpointing=False)
    on = cluster("rtx-3060-12gb")
    job = Workload(model=FILES, seq_len=SEQ_LEN)
    fixed = Estimator(job, recipe).estimate(recipe, on)
    free = with_sample_lengths(Estimator(job, recipe).estimate(recipe, cluster()), lengths(64), num_draws=1)
    found = with_sample_lengths(fixed, lengths(64), num_draws=1)
    assert free.device.device_bytes > on.node.gpu.usable_bytes > found.device.device_bytes
    assert found.device.runs
    assert found.verdict is not Verdict.DOES_NOT_FIT


# What the option says


def test_vary_is_from_a_sixteenth_of_the_plans_length():
    found = sample_lengths("vary", Workload(model=FILES, seq_len=SEQ_LEN))
    assert (found.shortest, found.longest) == (SEQ_LEN // 16, SEQ_LEN)
    assert "assumed" in found.source


def test_samples_with_images_are_no_shorter_than_their_images():
    job = workload("qwen2-vl-2b", seq_len=1024)  # 448 x 448: 16 x 16 tokens
    assert sample_lengths("vary", job).shortest == 16 * 16
    with pytest.raises(InputError, match=r"--sample-lengths is 64-1024.*at least 256; the images of a sample take 256"):
        sample_lengths("64-1024", job)


def test_longer_samples_than_the_plans_are_cut(tmp_path):
    job = Workload(model=FILES, seq_len=SEQ_LEN)
    assert sample_lengths("100-9999", job).longest == SEQ_LEN
    path = tmp_path / "lengths.txt"
    path.write_text("7\n\n300\n5000\n")  # rounded up to 1,024 / 128
    found = sample_lengths(str(path), job)
    assert found.known == (7, 300, SEQ_LEN)
    assert set(found.micro_batches(1)) <= {8, 304, SEQ_LEN}


@pytest.mark.parametrize("text", ["12x", "0", "-3", "1.5", "NaN", "{}"])
def test_a_line_that_is_no_length_is_named(tmp_path, text):
    path = tmp_path / "lengths.txt"
    path.write_text(f"12\n{text}\n")
    with pytest.raises(InputError, match="line 2 is "):
        sample_lengths(str(path), Workload(model=FILES))


def test_files_without_lengths_and_spreads_that_run_backwards_are_refused(tmp_path):
    job = Workload(model=FILES)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        sample_lengths(str(tmp_path / "empty.txt"), job)
    with pytest.raises(UnavailableError, match="does not exist"):
        sample_lengths(str(tmp_path / "none.txt"), job)
    for text in ("900-100", "0-100", f"{SEQ_LEN + 2}-{SEQ_LEN + 1}"):
        with pytest.raises(InputError, match="SHORTEST-LONGEST"):
            sample_lengths(text, job)


@pytest.mark.long
@pytest.mark.sweep
def test_estimate_shows_the_range_in_text_and_json():
    words = ["estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090", "--method", "lora"]
    bare, said = (CliRunner().invoke(cli, [*words, *more]) for more in ((), ("--sample-lengths", "64-512")))
    assert "--sample-lengths vary" in bare.stdout
    assert "after 80 micro batches of 64 to 512 tokens" in said.stdout
    assert "in 4 orders of them" in said.stdout
    answer = json.loads(CliRunner().invoke(cli, [*words, "--sample-lengths", "64-512", "--json"]).stdout)
    fixed, most = answer["reserved_range"]
    assert fixed <= most == answer["peak_reserved_bytes"]
    assert (answer["sample_lengths"]["orders"], answer["sample_lengths"]["micro_batches"]) == (4, 80)
    assert max(fixed, answer["sample_lengths"]["reserved_bytes"][1]) == most
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["reserved_range"] is None

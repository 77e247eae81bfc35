"""An estimate as text: the numbers are those of the estimate, bars add up to them, 80 columns are enough for bars."""

import re
from dataclasses import replace
from functools import cache

import pytest

from calibrations import calibration
from planned import cluster, shipped_gpus, workload
from search_cases import card
from search_cases import cluster as cluster_of
from vlmplan.answers.estimate import (
    document,
    heading,
    print_estimate,
    print_memory,
    verdict_line,
    workload_text,
)
from vlmplan.answers.setups import engine_text, precision_text, recipe_text
from vlmplan.estimation import Estimate, estimate
from vlmplan.memory.device import Verdict
from vlmplan.notes import Caveat, caveats
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.render.bars import LETTERS
from vlmplan.render.lines import PIPE_COLUMNS
from vlmplan.timing.step import HOST_LAUNCHES
from vlmplan.units import GIB, counted, duration_text, gib_text

PLAIN = Recipe()
SHARDED = Recipe(zero_stage=2)
OFFLOADED = Recipe(zero_stage=3, offload_optimizer=Offload.CPU, offload_params=Offload.CPU, loss=LossKind.FULL)
CASES = {
    "plain": ("qwen2-vl-2b", PLAIN, "a100-sxm4-80gb", 1),
    "sharded": ("qwen2-vl-2b", SHARDED, "a100-sxm4-80gb", 4),
    "offloaded": ("qwen2-vl-2b", OFFLOADED, "rtx-4090", 2),
    "adapters": ("smollm2-135m", Recipe(method=Method.QLORA), "t4", 1),
    "far too large": ("llama-3.1-70b", PLAIN, "rtx-3060-12gb", 1),
    "tiny": ("smollm2-135m", Recipe(method=Method.LORA), "h100-sxm", 1),
}


@cache
def case(name: str) -> Estimate:
    alias, recipe, gpu_id, num_gpus = CASES[name]
    return estimate(workload(alias), recipe, cluster(gpu_id, num_gpus))


def printed(found: Estimate, capsys: pytest.CaptureFixture[str], *notes: str) -> str:
    print_estimate(found, notes)
    return capsys.readouterr().out


def bars(found: Estimate, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The bar of each phase by its name."""
    print_memory(found)
    lines = capsys.readouterr().out.splitlines()
    names = {phase.name for phase in found.timeline.phases}
    return {line.split()[0]: line.split("  ")[-1] for line in lines if line.split()[0] in names}


# Bars


@pytest.mark.parametrize("name", CASES)
def test_segments_of_a_bar_add_up_to_the_bytes_of_the_phase(name: str, capsys):
    found = case(name)
    drawn = bars(found, capsys)
    usable = found.device.usable_bytes
    fullest = max(usable, *(phase.peak.total for phase in found.timeline.phases))
    longest = max(len(text) - 1 for text in drawn.values())
    assert longest + len("|") <= PIPE_COLUMNS
    assert longest > PIPE_COLUMNS / 2
    cell = fullest / longest
    for phase in found.timeline.phases:
        text = drawn[phase.name]
        assert abs(len(re.findall("[A-Z]", text)) * cell - phase.peak.total) <= cell / 2 * 1.001
        for component, num_bytes in phase.peak.as_json().items():
            assert abs(text.count(LETTERS[component]) * cell - num_bytes) <= cell * 1.001
        assert abs(text.index("|") * cell - usable) <= cell / 2 * 1.001


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_bars_take_the_whole_width_and_no_more(name: str, width: int, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    print_memory(case(name))
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) == width


@pytest.mark.parametrize("name", CASES)
def test_phases_stand_in_the_order_of_the_run_with_what_they_leave_and_their_peak(name: str, capsys):
    print_memory(case(name))
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["phase", "after", "peak"]
    for phase, line in zip(case(name).timeline.phases, lines, strict=False):
        texts = [phase.name, gib_text(phase.resident.total), gib_text(phase.peak.total)]
        assert re.split(r"  +", line)[:3] == texts


@pytest.mark.parametrize("name", CASES)
def test_legend_names_what_is_drawn_and_nothing_else(name: str, capsys):
    print_memory(case(name))
    lines = capsys.readouterr().out.splitlines()
    peaks = [phase.peak.as_json() for phase in case(name).timeline.phases]
    legend = " ".join(lines[1 + len(peaks) :])
    for component, letter in LETTERS.items():
        assert (f"{letter} {component.replace('_', ' ')}" in legend) == any(peak.get(component) for peak in peaks)


# The whole


@pytest.mark.parametrize("name", CASES)
def test_piped_text_has_no_colour_and_no_gigabytes_of_10_to_the_9(name: str, capsys):
    text = printed(case(name), capsys)
    assert "\x1b" not in text
    assert text.isascii()
    # Names of cards carry their makers' GB.
    assert not re.search(r"\bGB\b", text.replace(case(name).cluster.node.gpu.name, ""))


@pytest.mark.parametrize("name", CASES)
def test_components_of_the_table_are_those_of_the_highest_phase(name: str, capsys):
    found = case(name)
    text = printed(found, capsys)
    peak = found.timeline.peak_phase
    for component, num_bytes in peak.peak.as_json().items():
        share = f"{num_bytes / peak.peak.total:.1%}"
        line = rf"^{component.replace('_', ' ')} +{re.escape(gib_text(num_bytes))} +{re.escape(share)}$"
        assert bool(re.search(line, text, re.MULTILINE)) == bool(num_bytes)
    allocated = rf"^allocated, at the peak of {peak.name} +{re.escape(gib_text(found.peak_allocated_bytes))} +100.0%$"
    assert re.search(allocated, text, re.MULTILINE)
    shown = "without pages kept for later" if found.recipe.expandable_segments else "as nvidia-smi shows it"
    device = rf"^device, {shown} +{re.escape(gib_text(found.device.device_bytes))}$"
    assert re.search(device, text, re.MULTILINE)


def test_what_is_printed_of_host_disk_and_time_is_in_the_estimate(capsys):
    found = case("offloaded")
    text = printed(found, capsys, "a note of the hardware")
    for num_bytes in (
        found.host.load_bytes,
        found.host.steady_bytes,
        found.disk.checkpoint_bytes,
        found.disk.export_bytes,
    ):
        assert gib_text(num_bytes) in text
    assert f"{found.tokens_per_second:,.0f} tokens/s" in text
    assert f"{found.num_steps:,} steps" in text
    assert "note: a note of the hardware" in text


def test_step_is_shown_with_its_range_its_bound_and_the_shares_of_its_parts(capsys):
    found = case("offloaded")
    timed = found.timed
    text = printed(found, capsys)
    step, least, most = map(duration_text, (timed.expected.total, timed.fast_seconds, timed.slow_seconds))
    samples = counted(found.samples_per_step, "sample")
    line = f"step: {step} for {samples} (at best {least}, at worst {most}), bound by {timed.bound}"
    assert line in text
    for seconds in (timed.expected.as_json(), timed.as_json()):
        for name, one in seconds.items():
            share = one / sum(seconds.values())
            assert (f"{name.replace('_', ' ')} {share:.1%}" in text) == (share >= 1 / 1000)


def test_a_step_that_waits_for_the_host_says_how_its_host_is_measured(capsys):
    plain, measured = card("h100-sxm"), card("h100-sxm", calibration=calibration("h100-sxm", operation_seconds=30e-6))
    small = workload("smollm2-135m", seq_len=64)
    waiting, known = (estimate(small, PLAIN, cluster_of(gpu)) for gpu in (plain, measured))
    assert waiting.timed.bound == known.timed.bound == HOST_LAUNCHES
    assert "vlmplan calibrate measures the machine" in printed(waiting, capsys)
    assert "vlmplan calibrate" not in printed(known, capsys)
    busy = estimate(workload("llama-3.1-8b", seq_len=4096), PLAIN, cluster_of(plain))
    assert busy.timed.bound != HOST_LAUNCHES != busy.timed.slow_bound
    assert "vlmplan calibrate" not in printed(busy, capsys)


def test_a_step_that_only_a_slow_host_keeps_waiting_says_so(capsys):
    found = estimate(workload("llama-3.2-1b", seq_len=2048), PLAIN, cluster_of(card("h100-sxm")))
    assert found.timed.bound != HOST_LAUNCHES == found.timed.slow_bound
    assert "operations, by which a step at worst is bound: vlmplan calibrate measures" in printed(found, capsys)


def test_a_run_has_the_range_of_its_steps_and_its_evaluations_with_them(capsys):
    evaluated = PLAIN.with_changes(evaluation=Evaluation(batch=1, samples=100))
    alone, more = (estimate(workload("smollm2-135m"), recipe, cluster("h100-sxm")) for recipe in (PLAIN, evaluated))
    for found in (alone, more):
        least, most = found.run_seconds_range
        assert least / found.run_seconds == pytest.approx(found.timed.fast_seconds / found.step_seconds)
        assert most / found.run_seconds == pytest.approx(found.timed.slow_seconds / found.step_seconds)
        assert f"(at best {duration_text(least)}, at worst {duration_text(most)})\n" in printed(found, capsys)
    assert alone.run_seconds_range[1] == pytest.approx(alone.num_steps * alone.timed.slow_seconds)
    assert more.run_seconds_range[1] > alone.run_seconds_range[1]


def test_unknown_speed_is_said_and_leaves_no_time(capsys):
    slow = card("rtx-4090", memory_bandwidth_bytes_per_second=None)
    found = estimate(workload("smollm2-135m"), PLAIN, cluster_of(slow))
    text = printed(found, capsys)
    assert "time: not known of bf16 on this hardware" in text
    assert "samples/s" not in text


def test_swap_is_named_only_where_something_is_swapped(capsys):
    swapped = OFFLOADED.with_changes(offload_optimizer=Offload.NVME, offload_params=Offload.NVME, nvme_path="/nvme")
    assert "swapped to NVMe" in printed(estimate(workload("smollm2-135m"), swapped, cluster("rtx-4090", 2)), capsys)
    assert "swapped" not in printed(case("offloaded"), capsys)


# Single lines


def verdict_of(usable_bytes: int) -> str:
    gpu = card("rtx-4090", memory_bytes=usable_bytes)
    recipe = PLAIN.with_changes(method=Method.LORA)
    return re.sub(r"\x1b\[\d+m", "", verdict_line(estimate(workload("smollm2-135m"), recipe, cluster_of(gpu))))


def test_verdict_says_what_is_free_or_short():
    recipe = PLAIN.with_changes(method=Method.LORA)
    device = estimate(workload("smollm2-135m"), recipe, cluster("rtx-4090")).device.device_bytes
    ample, scarce, short = (verdict_of(device + spare) for spare in (8 * GIB, GIB // 4, -GIB // 4))
    assert ample.startswith("fits:")
    assert "8.00 GiB free" in ample
    assert scarce.startswith("tight:")
    assert "0.25 GiB free" in scarce
    assert short.startswith("does not fit:")
    assert "0.25 GiB short" in short


def test_host_that_is_too_small_is_said_beside_the_verdict():
    found = estimate(workload("smollm2-135m"), PLAIN, cluster("rtx-4090", host_ram_bytes=GIB))
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert f"the host has 1.00 GiB of the {gib_text(found.host.peak_bytes)} that it needs" in verdict_line(found)


@pytest.mark.parametrize(
    ("recipe", "num_gpus", "text"),
    [
        (PLAIN, 1, "plain PyTorch"),
        (PLAIN, 2, "DDP"),
        (Recipe(zero_stage=0), 1, "ZeRO-0"),
        (Recipe(zero_stage=2, offload_optimizer=Offload.CPU), 2, "ZeRO-2, optimizer on cpu"),
        (OFFLOADED, 2, "ZeRO-3, optimizer on cpu, weights on cpu"),
    ],
)
def test_engine_is_its_stage_and_what_is_offloaded(recipe: Recipe, num_gpus: int, text: str):
    assert engine_text(recipe, num_gpus) == text


def test_recipe_in_words_names_everything_that_decides():
    recipe = Recipe(
        method=Method.LORA,
        lora_rank=7,
        optimizer=OptimizerKind.ADAMW_8BIT,
        micro_batch=3,
        grad_accum=5,
        activation_checkpointing=False,
        attention=AttentionImplementation.EAGER,
        loss=LossKind.FULL,
    )
    assert recipe_text(recipe, num_gpus=1, sees=False) == (
        "lora r7, bf16 (bf16 weights, fp32 adapters, autocast), plain PyTorch, adamw-8bit, micro batch 3 x 5, "
        "no checkpointing, eager attention, full loss, expandable segments"
    )
    assert "adamw" not in recipe_text(PLAIN, num_gpus=1, sees=False)


DECIDING = {
    "loss": list(LossKind),
    "attention": list(AttentionImplementation),
    "activation_checkpointing": [True, False],
    "precision": list(Precision),
    "expandable_segments": [True, False],
    "lora_rank": [8, 16],
    "lora_targets": ["all-linear", "attention", "q_proj,v_proj"],
    "train_embeddings": [True, False],
    "zero_stage": [None, 0, 1, 2],
    "method": list(Method),
}


@pytest.mark.parametrize("name", DECIDING)
def test_two_recipes_that_differ_in_what_decides_differ_in_words(name: str):
    base = Recipe(method=Method.LORA, zero_stage=0)
    texts = [recipe_text(base.with_changes(**{name: value}), num_gpus=1, sees=False) for value in DECIDING[name]]
    assert len(set(texts)) == len(DECIDING[name])


def test_checkpointing_of_one_part_is_said_where_the_other_part_runs():
    recipe = Recipe(activation_checkpointing=True, vision_activation_checkpointing=False)
    assert ", checkpointing of language alone, " in recipe_text(recipe, num_gpus=1, sees=True)
    assert ", checkpointing, " in recipe_text(recipe, num_gpus=1, sees=False)
    turned = Recipe(activation_checkpointing=False, vision_activation_checkpointing=True)
    assert ", checkpointing of vision alone, " in recipe_text(turned, num_gpus=1, sees=True)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (Recipe(), "bf16 (fp32 weights, autocast)"),
        (Recipe(zero_stage=2), "bf16 (bf16 weights, fp32 master copy)"),
        (Recipe(precision=Precision.BF16_PURE), "bf16-pure (bf16 weights)"),
        (Recipe(precision=Precision.FP32, zero_stage=1), "fp32 (fp32 weights)"),
        (
            Recipe(method=Method.QLORA, upcasts_frozen=True),
            "bf16 (4-bit weights, others fp32, fp32 adapters, autocast)",
        ),
        (Recipe(method=Method.LORA, zero_stage=3), "bf16 (bf16 weights, bf16 adapters, fp32 master copy)"),
        (Recipe(fsdp=True), "bf16 (bf16 weights in fp32 shards)"),
        (Recipe(fsdp=True, method=Method.LORA), "bf16 (bf16 weights, bf16 adapters in fp32 shards)"),
    ],
)
def test_precision_in_words_says_the_types_of_weights_and_of_what_is_trained(recipe: Recipe, text: str):
    assert precision_text(recipe) == text


def test_heading_names_model_counts_and_all_machines():
    found = estimate(workload("smollm2-135m"), SHARDED, cluster("h100-sxm", 8, num_nodes=2))
    card_name = shipped_gpus()["h100-sxm"].name
    assert heading(found) == f"smollm2-135m: 135 M parameters, 135 M trained; 2 nodes of 8 x {card_name}"


def test_heading_says_which_parts_are_trained_and_which_are_frozen():
    asked = workload("qwen2-vl-2b")
    adapters = estimate(asked, Recipe(method=Method.LORA), cluster("rtx-4090"))
    frozen = estimate(asked, Recipe(method=Method.LORA, train_vision=False), cluster("rtx-4090"))
    assert " trained in vision, projector and language; " in heading(adapters)
    assert " trained in projector and language (vision frozen); " in heading(frozen)
    assert set(document(adapters)["trained_params_by_part"]) == {"vision", "projector", "language"}
    assert document(frozen)["trained_params_by_part"]["vision"] == 0


def test_what_changes_the_answer_stands_under_the_verdict_and_the_rest_below_the_numbers(capsys):
    found = estimate(workload("smollm2-135m"), PLAIN, cluster("rtx-4090"))
    print_estimate(found, [Caveat("the GPU is taken"), "a default was taken"], ["--freeze-vision: less"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:5]] == ["fits", "caution", "setup", "hint"]
    assert lines[2] == "caution: the GPU is taken"
    assert lines[-1] == "note: a default was taken"


def test_an_answer_without_images_is_headlined_so():
    asked = workload("smollm2-135m")
    blind = replace(asked, model=replace(asked.model, not_counted=("images",)))
    found = estimate(blind, PLAIN, cluster("rtx-4090"))
    assert re.sub(r"\x1b\[\d+m", "", verdict_line(found)).startswith("fits without images: ")
    assert document(found)["verdict"] == "fits"
    assert document(found)["not_counted"] == ["images"]
    (caveat,) = document(found)["caveats"]
    assert caveat.startswith("not counted: images, which vlmplan does not describe for llama")
    assert caveats(found.cautions) == [caveat]


def test_workload_in_words_counts_samples_tokens_images_and_epochs():
    found = case("sharded")
    asked = replace(found.workload, images_per_sample=2, epochs=1.5, num_samples=12_345)
    assert workload_text(replace(found, workload=asked)) == (
        "12,345 samples of 1,024 tokens with 2 images of 448x448, 1.5 epochs, 4 samples a step"
    )
    shown = replace(asked, video_frames=4)
    assert "2 images of 448x448 (as such, videos of up to 4 frames)" in workload_text(replace(found, workload=shown))
    assert "image" not in workload_text(case("adapters"))
    assert "1 epoch," in workload_text(case("adapters"))

"""What is suggested fits by the planner's own numbers, smaller changes do not, and the command means exactly it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_calls import isolate, request_of_words
from vlmplan.catalog import load_catalog
from vlmplan.changes.change import Change
from vlmplan.changes.kinds import Space, all_changes
from vlmplan.cli.launch import launch
from vlmplan.cli.option_words import words_of
from vlmplan.launch.facts import FLASH_ATTENTION
from vlmplan.launch.out_of_memory import Planner, Remedy, correction_of, smallest_remedy
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.recipe.choices import Offload
from vlmplan.request import Request, parse
from vlmplan.requested import requested_estimate
from vlmplan.run.shortage import Shortage, read_shortages, remove_shortages, write_shortage
from vlmplan.units import GIB, MIB
from vlmplan.versions import needed_packages

RTX_3080 = {"model": "qwen2-vl-2b", "gpu": "rtx-3080-10gb", "method": "lora", "micro_batch": 4, "grad_accum": 2}
RTX_4090 = {"model": "qwen2-vl-2b", "gpu": "rtx-4090:2", "zero_stage": "2", "seq_len": 2048, "global_batch": 4}


def planned(**given: Any) -> Plan:
    return plan_of(parse(given))


def plan_of(request: Request) -> Plan:
    found, _ = requested_estimate(request, ())
    return plan_from_estimate(found, base=request.ds_config)


def shortage_of(plan: Plan, *, ratio: float, phase: str = "backward", total_bytes: int | None = None) -> Shortage:
    """What a rank writes that needed ``ratio`` times the plan of a phase, on a card that has no more for tensors."""
    (expected,) = (item for item in plan.expected.phases if item.name == phase)
    needed = round(expected.peak_bytes * ratio)
    total = plan.hardware.usable_bytes if total_bytes is None else total_bytes
    free = 3 * MIB
    held = min(needed - 5 * MIB, total - 2 * 3 * 5 * MIB)
    return Shortage(
        rank=0,
        phase=phase,
        step=1,
        is_on_host=False,
        allocated_bytes=held,
        peak_allocated_bytes=held,
        reserved_bytes=held,
        peak_reserved_bytes=held,
        requested_bytes=needed - held,
        free_bytes=free,
        total_bytes=total,
        planned_bytes=expected.peak_bytes,
    )


def remedied(plan: Plan, shortage: Shortage, **known: Any) -> tuple[Planner, Remedy]:
    planner = Planner(plan, load_catalog())
    return planner, smallest_remedy(planner, correction_of(shortage, plan, **known))


# -- what is suggested -----------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_what_costs_least_time_is_suggested_and_less_than_it_does_not_fit():
    plan = planned(**RTX_3080)
    shortage = shortage_of(plan, ratio=1.4)
    planner, remedy = remedied(plan, shortage)
    correction = correction_of(shortage, plan)
    assert correction.ratio == pytest.approx(1.4)
    assert remedy.fits
    assert remedy.keeps_results
    segments_alone = {"expandable_segments": True}
    others_alone = {name: value for name, value in remedy.changed.items() if name not in segments_alone}
    assert remedy.changed == segments_alone | others_alone != segments_alone
    assert correction.needed_bytes(remedy.setup.estimate) <= shortage.obtainable_bytes
    less = planner.setup(planner.request.with_options(others_alone))
    segments = planner.setup(planner.request.with_options(segments_alone))
    assert less is not None
    assert segments is not None
    assert not correction.fits(less.estimate)
    assert not correction.fits(segments.estimate)


@pytest.mark.sweep
def test_a_run_within_its_plan_on_a_card_that_others_use_gets_what_they_leave():
    plan = planned(**RTX_3080)
    shortage = shortage_of(plan, ratio=1.0, total_bytes=7 * GIB)
    _, remedy = remedied(plan, shortage)
    assert correction_of(shortage, plan).ratio == pytest.approx(1)
    assert remedy.fits
    assert remedy.setup.estimate.device.reserved_bytes <= shortage.obtainable_bytes


@pytest.mark.sweep
def test_fragments_alone_are_answered_with_segments_that_grow():
    plan = planned(**RTX_3080)
    tensors = shortage_of(plan, ratio=1.0)
    held = plan.expected.peak_reserved_bytes * 3 // 2
    _, remedy = remedied(plan, replace(tensors, reserved_bytes=held, free_bytes=MIB))
    assert remedy.changed == {"expandable_segments": True}


def test_a_combination_has_only_what_it_needs():
    plan = planned(**RTX_4090, expandable_segments=True)
    shortage = shortage_of(plan, ratio=1.0, total_bytes=5 * GIB)
    correction = correction_of(shortage, plan)
    planner, remedy = remedied(plan, shortage)
    assert remedy.fits
    assert len(remedy.changed) > 1
    for name in remedy.changed:
        without = remedy.setup.request.with_options({name: planner.request.option(name)})
        setup = planner.setup(without)
        assert setup is None or not correction.fits(setup.estimate), name


@pytest.mark.sweep
def test_nothing_is_moved_to_a_host_that_has_no_room():
    plan = planned(**RTX_4090, expandable_segments=True)
    shortage = shortage_of(plan, ratio=1.0, total_bytes=17 * GIB)
    _, moved = remedied(plan, shortage, host_ram_bytes=512 * GIB)
    _, kept = remedied(plan, shortage, host_ram_bytes=8 * GIB)
    assert moved.setup.estimate.recipe.offload_optimizer is Offload.CPU
    assert kept.setup.estimate.recipe.offload_optimizer is Offload.NONE
    assert kept.setup.estimate.host.peak_bytes <= 8 * GIB


@pytest.mark.sweep
def test_nothing_is_suggested_that_is_not_installed():
    plan = planned(**RTX_3080)
    packages = dict.fromkeys(needed_packages(plan.recipe, plan.workload), "1.2.3")
    planner = Planner(plan, load_catalog(), packages={**packages, "deepspeed": None})
    assert planner.setup(planner.request) is not None
    flash, zero = {"attention": "flash_attention_2"}, {"zero_stage": "2", "fuses_optimizer": None, "caches_casts": None}
    assert planner.setup(planner.request.with_options(flash)) is None
    assert planner.setup(planner.request.with_options(zero)) is None
    planner = Planner(plan, load_catalog(), packages={**packages, FLASH_ATTENTION: "2.8.3"})
    assert planner.setup(planner.request.with_options(flash)) is not None


@pytest.mark.sweep
def test_where_nothing_fits_the_leanest_that_was_tried_says_so():
    plan = planned(**RTX_3080 | {"method": "qlora", "expandable_segments": True})
    shortage = shortage_of(plan, ratio=1.0, total_bytes=GIB // 2)
    _, remedy = remedied(plan, shortage)
    assert not remedy.fits
    assert not remedy.keeps_results
    least = correction_of(shortage, plan).needed_bytes(remedy.setup.estimate)
    assert shortage.obtainable_bytes < least < plan.expected.peak_reserved_bytes


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


def replanned(request: Request) -> dict[str, Any]:
    """The plan that ``vlmplan launch`` makes of the command line for this request."""
    return plan_of(request_of_words(launch, *words_of(launch, request.options()))).as_json()


DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 7e6},
    "steps_per_print": 11,
}
PLANS = {
    "lora": RTX_3080,
    "full": RTX_4090 | {"gpu": "rtx-4090:2", "num_nodes": 2, "epochs": 1.5, "image_size": "448x224"},
    "text": {"model": "smollm2-135m", "gpu": "cpu:1", "precision": "fp32", "loss": "full", "attention": "eager"},
    "as a search has it": RTX_3080 | {"caches_casts": False, "fuses_optimizer": True, "expandable_segments": True},
    "host": {"model": "smollm2-135m", "gpu": "rtx-4090:2", "host_ram": 48.3, "offload_optimizer": "cpu"},
    "processor": {"model": "smollm2-135m", "gpu": "cpu:2", "host_ram": 12, "precision": "fp32"},
    "ds_config": {"model": "qwen2-vl-2b", "gpu": "rtx-4090:2", "ds_config": Path("ds.json")},
}


@pytest.mark.sweep
@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("name", PLANS)
def test_the_options_of_a_plan_lead_back_to_it(name: str):
    Path("ds.json").write_text(json.dumps(DS_CONFIG))
    plan = planned(**PLANS[name])
    planner = Planner(plan, load_catalog())
    setup = planner.setup(planner.request)
    assert setup is not None
    assert (setup.ds_config is not None) is (name == "ds_config")
    request = setup.request
    if setup.ds_config is not None:
        Path("again.json").write_text(json.dumps(dict(setup.ds_config)))
        request = request.with_options({"ds_config": Path("again.json")})
    again, known = replanned(request), plan.as_json()
    for key in ("model", "workload", "hardware", "recipe", "ds_config", "expected", "environment"):
        assert again[key] == known[key], key


def every_change(space: Space) -> list[Change]:
    """The smallest of every kind, and of those of which one is taken every one that is no combination."""
    single = [one for (one,) in (group for group in (*space.results, *space.samples) if len(group) == 1)]
    return [*(levels[0] for levels in space.kinds), *space.engines, *single]


@pytest.mark.sweep
@pytest.mark.usefixtures("_place")
def test_every_change_leads_to_a_plan_whose_command_means_the_same():
    """Kinds that do not apply to one of the plans apply to another."""
    seen: set[str] = set()
    fast = {"expandable_segments": True}  # the native allocator is replayed, which takes longer
    for given in (RTX_3080 | {"loss": "full", "activation_checkpointing": False} | fast, RTX_4090 | fast, RTX_3080):
        planner = Planner(planned(**given), load_catalog())
        for change in every_change(all_changes(planner.trials().known_setup(planner.request))):
            setup = None if change.name in seen else planner.setup(planner.request.with_options(change.options))
            if setup is not None:
                seen.add(change.name)
                again, found = replanned(setup.request), setup.estimate
                assert again["recipe"] == found.recipe.as_json(), change.name
                assert again["workload"]["seq_len"] == found.workload.seq_len
                assert again["expected"]["peak_device_bytes"] == found.device.device_bytes
    some = {"activation checkpointing", "micro batch 2 x 4", "chunked loss", "expandable segments", "ZeRO-3", "LoRA"}
    assert some <= seen
    assert len(seen) > 3 * len(some)


# -- what a rank leaves ----------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_what_a_rank_wrote_is_read_and_what_is_not_sound_is_not_believed(tmp_path: Path):
    shortages = [replace(shortage_of(planned(**RTX_3080), ratio=1.1), rank=rank) for rank in (2, 11)]
    for shortage in shortages:
        write_shortage(shortage, tmp_path)
    (tmp_path / "out_of_memory-3.json").write_text('{"schema": "vlmplan.out_of_memory/1", "rank": 3}')
    (tmp_path / "out_of_memory-5.json").write_text("")
    assert read_shortages(tmp_path) == shortages
    remove_shortages(tmp_path)
    assert not list(tmp_path.iterdir())

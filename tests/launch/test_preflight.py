"""Everything that keeps a plan from running is named before it starts, and nothing else is."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch_cases import a100, asked, cpu_plan, driver, gpu_plan, sound_facts
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.errors import InputError, UnavailableError
from vlmplan.launch.facts import TorchSight, available_ram_bytes, port_problem
from vlmplan.launch.hosts import hostfile_problems, read_hostfile
from vlmplan.launch.preflight import disk_bytes, model_problems, preflight
from vlmplan.machine.host import free_bytes_at, host_ram_bytes
from vlmplan.models import find_model
from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AttentionImplementation,
    Batching,
    CheckpointKind,
    InputGradients,
    LossKind,
    Method,
    OptimizerKind,
)
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.run.training import CHECKPOINTS, MANIFEST
from vlmplan.units import GIB, MIB
from vlmplan.versions import CHECKED_VERSIONS, installed_version, needed_packages

CATALOG = Catalog(shipped_catalog())


def found(plan, folder: Path, facts=None, hostfile=None, **options):
    return preflight(plan, asked(folder, **options), facts or sound_facts(), CATALOG, hostfile=hostfile)


def only(problems, *parts: str) -> None:
    """There is one sentence, and it has these parts."""
    assert len(problems) == 1, problems
    assert not [part for part in parts if part not in problems[0]], problems
    assert not problems[0].endswith(".")


# -- what can run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [gpu_plan(), gpu_plan(Recipe(zero_stage=None), 1), cpu_plan(2), cpu_plan(1)])
def test_a_machine_that_is_the_plans_has_no_problem(plan, tmp_path):
    result = found(plan, tmp_path)
    assert (result.problems, result.warnings) == ((), ())


def test_a_plan_of_cpu_ranks_asks_for_no_gpu(tmp_path):
    none = sound_facts(driver=None, driver_problem="no driver", torch_sight=None)
    assert found(cpu_plan(), tmp_path, none).problems == ()
    assert len(found(gpu_plan(), tmp_path, none).problems) == 1


def test_every_problem_is_named_at_once(tmp_path):
    facts = sound_facts(free_disk_bytes=0, available_ram_bytes=0, driver=driver(a100(0)))
    result = found(gpu_plan(), tmp_path, facts, train_data=tmp_path / "none.jsonl")
    assert len(result.problems) == 4


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"input_gradients": InputGradients.ALL}, "--input-gradients"),
        ({"checkpoint_kind": CheckpointKind.REENTRANT}, "--checkpoint-kind"),
        ({"liger_layers": True}, "--liger-layers"),
    ],
)
def test_what_is_planned_for_other_trainers_alone_is_refused_before_machines_are_rented(changes, option, tmp_path):
    recipe = Recipe(zero_stage=2, micro_batch=2).with_changes(**changes)
    only(found(gpu_plan(recipe), tmp_path).problems, option, "planned for other trainers")


def test_rows_of_samples_that_see_each_other_are_not_trained_on(tmp_path):
    made = gpu_plan(Recipe(zero_stage=2, micro_batch=2, batching=Batching.PACKED))
    of_nets = replace(made.workload, model=find_model("qwen3.5-0.8b"))
    only(found(replace(made, workload=of_nets), tmp_path).problems, "--batching packed", "qwen3_5", "see those before")
    assert found(made, tmp_path).problems == ()


def test_the_head_of_trls_trainer_is_refused_before_anything_starts(tmp_path):
    recipe = Recipe(zero_stage=2, micro_batch=2, loss=LossKind.TRL)
    problems = found(gpu_plan(recipe), tmp_path).problems
    only(problems, "--loss trl", "planned for TRL's SFTTrainer")


def test_samples_with_sound_are_launched(tmp_path):
    plan = gpu_plan()
    heard = replace(plan, workload=replace(plan.workload, audios_per_sample=1, audio_seconds=5))
    assert found(heard, tmp_path).problems == found(plan, tmp_path).problems


# -- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"driver": driver(a100(0))}, ["for 2 GPUs", "has 1", "--gpu local"]),
        ({"visible_devices": "3"}, ["for 2 GPUs", "has 1 with CUDA_VISIBLE_DEVICES=3"]),
        ({"visible_devices": "GPU-1,GPU-2"}, ["by number", "GPU-1,GPU-2"]),
        ({"driver": None, "driver_problem": "the driver sleeps"}, ["NVIDIA A100-SXM4-80GB", "the driver sleeps"]),
        ({"torch_problem": "torch is broken", "torch_sight": None}, ["torch is broken"]),
        ({"torch_sight": TorchSight(is_available=False, num_gpus=0)}, ["built for CPUs only", "pytorch.org"]),
        (
            {"torch_sight": TorchSight(is_available=False, num_gpus=0, cuda="13.0")},
            [f"torch {CHECKED_VERSIONS['torch']}", "CUDA 13.0", "driver 580.95.05"],
        ),
        ({"torch_sight": TorchSight(is_available=True, num_gpus=1, cuda="13.0")}, ["for 2 GPUs", "torch sees 1"]),
        (
            {"driver": driver(a100(0), a100(1, name="Tesla T4", total_bytes=15360 * MIB, pci_device_id="1EB8"))},
            ["GPU 1 is", "T4", "the plan is for NVIDIA A100-SXM4-80GB"],
        ),
        (
            {"driver": driver(a100(0), a100(1, total_bytes=77 * GIB, free_bytes=77 * GIB))},
            ["GPU 1 has", "can be used", "79.00 GiB"],
        ),
    ],
)
def test_gpus_that_are_not_the_plans_are_refused(changes, parts, tmp_path):
    only(found(gpu_plan(), tmp_path, sound_facts(**changes)).problems, *parts)


def test_where_the_plans_cards_are_not_the_first_ones_it_is_said_how_they_are_chosen(tmp_path):
    t4 = {"name": "Tesla T4", "total_bytes": 15360 * MIB, "pci_device_id": "1EB8"}
    mixed = sound_facts(driver=driver(a100(0, **t4), a100(1), a100(2, **t4), a100(3)))
    only(found(gpu_plan(), tmp_path, mixed).problems, "GPU 0 is Tesla T4", "CUDA_VISIBLE_DEVICES=1,3 in front of")
    assert found(gpu_plan(), tmp_path, replace(mixed, visible_devices="1,3")).problems == ()
    fewer = found(gpu_plan(), tmp_path, replace(mixed, visible_devices="0,1")).problems
    only(fewer, "GPU 0 is Tesla T4", "--gpu local")


@given(missing_bytes=st.integers(-GIB, GIB))
def test_a_gpu_must_have_the_planned_bytes_free(tmp_path_factory, missing_bytes: int):
    plan = gpu_plan(peak_device_bytes=32 * GIB)
    cards = a100(0), a100(1, free_bytes=32 * GIB - missing_bytes)
    problems = found(plan, tmp_path_factory.mktemp("run"), sound_facts(driver=driver(*cards))).problems
    assert len(problems) == (missing_bytes > 0)


def test_only_the_cards_that_will_be_used_are_looked_at(tmp_path):
    busy = sound_facts(driver=driver(a100(0), a100(1), a100(2, free_bytes=0)))
    assert found(gpu_plan(), tmp_path, busy).problems == ()
    only(found(gpu_plan(), tmp_path, replace(busy, visible_devices="1,2")).problems, "GPU 2 has 0 free")


def test_a_plan_that_does_not_fit_is_not_started(tmp_path):
    plan = gpu_plan(verdict="does_not_fit", peak_device_bytes=80 * GIB)
    problems = found(plan, tmp_path).problems
    assert any("80.00 GiB of the 79.00 GiB" in problem for problem in problems)
    assert any("tight" in text for text in found(gpu_plan(verdict="tight"), tmp_path).warnings)


# -- packages --------------------------------------------------------------------------------------------------------


def test_packages_that_the_plan_needs_and_no_others_are_missed(tmp_path):
    bare = sound_facts(packages={})
    only(found(gpu_plan(), tmp_path, bare).problems, "torch, transformers", "deepspeed", 'pip install "vlmplan[train]"')
    lacks_peft = sound_facts(packages={**sound_facts().packages, "peft": None})
    assert found(gpu_plan(), tmp_path, lacks_peft).problems == ()
    lora = gpu_plan(Recipe(zero_stage=2, micro_batch=3, method=Method.LORA))
    only(found(lora, tmp_path, lacks_peft).problems, "training needs peft")


def needed(plan: Plan) -> set[str]:
    return set(needed_packages(plan.recipe, plan.workload))


def test_each_part_of_a_recipe_asks_for_its_package():
    plain = needed(gpu_plan(Recipe(zero_stage=None), 1))
    assert needed(gpu_plan()) - plain == {"deepspeed"}
    qlora = Recipe(zero_stage=None, method=Method.QLORA)
    assert needed(gpu_plan(qlora, 1)) - plain == {"peft", "bitsandbytes", "accelerate"}
    eight_bit = Recipe(zero_stage=None, optimizer=OptimizerKind.ADAMW_8BIT)
    assert needed(gpu_plan(eight_bit, 1)) - plain == {"bitsandbytes"}


def test_flash_attention_has_to_be_installed_where_it_is_planned(tmp_path):
    plan = gpu_plan(Recipe(zero_stage=2, micro_batch=3, attention=AttentionImplementation.FLASH_ATTENTION_2))
    assert found(plan, tmp_path).problems == ()
    without = sound_facts(packages={**sound_facts().packages, "flash-attn": None})
    only(found(plan, tmp_path, without).problems, "flash_attention_2", "pip install flash-attn")


def test_another_version_is_a_warning_and_another_build_is_none(tmp_path):
    other = {**sound_facts().packages, "torch": "2.99.0", "transformers": CHECKED_VERSIONS["transformers"] + "+local"}
    result = found(gpu_plan(), tmp_path, sound_facts(packages=other))
    assert result.problems == ()
    only(result.warnings, f"torch 2.99.0 (plan: {CHECKED_VERSIONS['torch']})")
    assert "transformers" not in result.warnings[0]


# -- memory and disk -------------------------------------------------------------------------------------------------


@given(needed=st.integers(1, 2 * GIB), free=st.integers(0, GIB), more=st.integers(0, GIB))
def test_the_hosts_memory_has_to_hold_the_plan(tmp_path_factory, needed: int, free: int, more: int):
    facts = sound_facts(available_ram_bytes=free, host_ram_bytes=free + more)
    plan = gpu_plan(host_bytes_per_node=needed)
    assert len(found(plan, tmp_path_factory.mktemp("run"), facts).problems) == (needed > free)


def test_a_run_that_goes_on_needs_host_memory_for_reading_its_checkpoint(tmp_path):
    plan = gpu_plan(host_bytes_per_node=3 * GIB, resume_host_bytes=7 * GIB)
    facts = sound_facts(available_ram_bytes=5 * GIB, host_ram_bytes=6 * GIB)
    assert found(plan, tmp_path, facts).problems == ()
    assert any("7.00 GiB of host RAM" in one for one in found(plan, tmp_path, facts, resume=True).problems)
    older = gpu_plan(host_bytes_per_node=3 * GIB, resume_host_bytes=None)
    assert found(older, tmp_path, facts, resume=True).problems == ()


def test_adapters_of_layers_that_share_a_weight_are_not_merged(tmp_path):
    plan = cpu_plan(method=Method.LORA)
    config = {**plan.workload.model.config, "model_type": "zamba2"}
    for changes, is_refused in (({}, True), ({"tie_word_embeddings": False}, False)):
        model = replace(plan.workload.model, config=config | changes)
        tied = replace(plan, workload=replace(plan.workload, model=model))
        problems = list(model_problems(tied, asked(tmp_path, merge_adapters=True)))
        assert any("an adapter each" in one for one in problems) is is_refused
        assert not any("an adapter each" in one for one in model_problems(tied, asked(tmp_path)))


def test_a_run_writes_what_it_keeps_one_more_on_the_way_and_the_result(tmp_path):
    plan = gpu_plan(checkpoint_bytes=7, export_bytes=11, num_steps=100)
    assert disk_bytes(plan, asked(tmp_path)) == 7 + 11
    assert disk_bytes(plan, asked(tmp_path, save_every=5, keep_last=3)) == 3 * 7 + 11
    assert disk_bytes(plan, asked(tmp_path, save_every=40, keep_last=3)) == 3 * 7 + 11  # after 40, 80 and 100 steps
    assert disk_bytes(plan, asked(tmp_path, save_every=60, keep_last=3)) == 2 * 7 + 11
    large = gpu_plan(checkpoint_bytes=7, export_bytes=3, num_steps=100)
    assert disk_bytes(large, asked(tmp_path, save_every=5, keep_last=3)) == (3 + 1) * 7
    assert disk_bytes(plan, asked(tmp_path, merge_adapters=True)) == 7 + 11 + 2 * plan.num_params


def test_a_run_whose_result_is_the_best_evaluation_keeps_two_of_them_and_needs_what_it_is_evaluated_on(tmp_path):
    best = Recipe(evaluation=Evaluation(batch=1, early_stopping_patience=3))
    plan = gpu_plan(best, checkpoint_bytes=7, export_bytes=11, num_steps=100)
    assert disk_bytes(plan, asked(tmp_path)) == 7 + 2 * 11
    assert disk_bytes(plan, asked(tmp_path, save_every=5, keep_last=3)) == (3 + 1) * 7 + 2 * 11
    only(found(plan, tmp_path).problems, "--early-stopping-patience needs --eval-data")


def test_a_run_that_goes_on_needs_room_for_what_is_not_there_yet(tmp_path):
    plan = gpu_plan(checkpoint_bytes=7, export_bytes=2, num_steps=100)
    needs = {}
    for step in range(5, 25, 5):
        needs[step // 5 - 1] = disk_bytes(plan, asked(tmp_path, save_every=5, keep_last=3, resume=True))
        place = tmp_path / "out" / CHECKPOINTS / f"step-{step}"
        place.mkdir(parents=True)
        (place / MANIFEST).touch()
    assert needs == {0: 4 * 7, 1: 3 * 7, 2: 2 * 7, 3: 7}


def test_the_most_checkpoints_that_there_is_room_for_are_named(tmp_path):
    plan = gpu_plan(checkpoint_bytes=7 * GIB, export_bytes=GIB, num_steps=100)
    facts = sound_facts(free_disk_bytes=5 * 7 * GIB)
    [problem] = found(plan, tmp_path, facts, save_every=5, keep_last=9).problems
    assert "writes up to 70.00 GiB" in problem
    assert "or --keep-last 4, which needs 35.00 GiB" in problem


def test_the_disk_has_to_hold_what_is_written(tmp_path):
    plan = gpu_plan(checkpoint_bytes=7 * GIB, export_bytes=11 * GIB)
    assert found(plan, tmp_path, sound_facts(free_disk_bytes=18 * GIB)).problems == ()
    only(found(plan, tmp_path, sound_facts(free_disk_bytes=18 * GIB - 1)).problems, "--output-dir", "18.00 GiB")
    swap = gpu_plan(nvme_swap_bytes=6 * GIB, num_nodes=1)
    only(found(swap, tmp_path, sound_facts(free_nvme_bytes=5 * GIB)).problems, "--nvme-path", "6.00 GiB")


def test_this_machine_can_be_asked(tmp_path):
    assert free_bytes_at(tmp_path / "not" / "yet" / "there") == pytest.approx(free_bytes_at(tmp_path), rel=0.1)
    available = available_ram_bytes()
    assert available is None or available > 0
    assert host_ram_bytes() > 0
    assert installed_version("pytest") == pytest.__version__
    assert installed_version("no-such-package-at-all") is None


# -- data, model, folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        (" \n\t\n", "is empty"),
        ("{}\n" * 5, "has 5 samples"),
        ("[" + ",\n".join(["{}"] * 5) + "]", "has 5 samples"),
        ("[{}\n,\n{]", "d.jsonl[1] is not JSON: "),
    ],
)
def test_data_that_cannot_make_one_step_is_refused(content, part: str, tmp_path):
    data = tmp_path / "d.jsonl"
    if content is not None:
        data.write_text(content)
    only(found(gpu_plan(), tmp_path, train_data=data).problems, f"--train-data {data}", part)


def test_other_files_have_to_be_there_and_hold_something(tmp_path):
    (tmp_path / "empty").mkdir()
    only(found(gpu_plan(), tmp_path, eval_data=tmp_path / "empty").problems, "--eval-data", "no file of samples")
    only(found(gpu_plan(), tmp_path, image_folder=tmp_path / "no").problems, "--image-folder", "is no folder")
    only(found(gpu_plan(), tmp_path, eval_data=tmp_path / "e.jsonl").problems, "--eval-data", "does not exist")
    few = {"train_data": None, "dummy_data": 2 * 3 - 1}
    only(found(gpu_plan(), tmp_path, **few).problems, "--dummy-data is 5", "6 samples")


def test_another_number_of_samples_than_planned_is_said(tmp_path):
    only(found(gpu_plan(), tmp_path, train_data=None, dummy_data=100).warnings, "100 samples", "2,310")


def test_options_of_speech_are_refused_for_models_that_hear_none(tmp_path: Path):
    result = found(gpu_plan(), tmp_path, language="german", speech_task="translate")
    assert [problem.split(" is for Whisper")[0] for problem in result.problems] == ["--language", "--speech-task"]


def test_options_of_samples_in_files_are_named_where_samples_are_made_up(tmp_path: Path):
    given = {"train_data": None, "dummy_data": 2310, "skip_bad_samples": True, "image_folder": tmp_path}
    only(found(gpu_plan(), tmp_path, **given).warnings, "--skip-bad-samples and --image-folder change nothing here")
    read = tmp_path / "data.jsonl"
    assert not any("change nothing" in said for said in found(gpu_plan(), tmp_path, **given, eval_data=read).warnings)


@pytest.mark.parametrize(
    ("evaluation", "parts"),
    [
        (None, ("20 samples, evaluated after every epoch, 3 samples of a GPU", "the plan has no evaluation")),
        (Evaluation(batch=4), ("20 samples", "does not say how many are evaluated")),
        (Evaluation(batch=4, samples=100), ("20 samples", "are for 100")),
    ],
)
def test_evaluations_that_the_plan_counts_otherwise_are_said(evaluation, parts, tmp_path):
    data = tmp_path / "eval.jsonl"
    data.write_text("{}\n" * 20)
    made = gpu_plan(Recipe(zero_stage=2, micro_batch=3, evaluation=evaluation))
    only(found(made, tmp_path, eval_data=data).warnings, f"--eval-data {data} has", *parts)


def test_evaluations_that_the_plan_counts_as_they_are_done_are_not_mentioned(tmp_path):
    data = tmp_path / "eval.jsonl"
    data.write_text("{}\n" * 20)
    made = gpu_plan(Recipe(zero_stage=2, micro_batch=3, evaluation=Evaluation(batch=4, samples=20)))
    assert not found(made, tmp_path, eval_data=data).warnings
    only(found(made, tmp_path).warnings, "nothing is evaluated without --eval-data")


def test_a_model_that_is_nowhere_is_refused(tmp_path):
    plan = gpu_plan()
    model = plan.workload.model
    unknown = replace(plan, workload=replace(plan.workload, model=replace(model, hub_id=None)))
    only(found(unknown, tmp_path).problems, "no checkpoint of qwen2-vl-2b")
    away = replace(plan, workload=replace(plan.workload, model=replace(model, hub_id=str(tmp_path / "model"))))
    only(found(away, tmp_path).problems, f"{tmp_path / 'model'} is not on this machine")


# -- several nodes ---------------------------------------------------------------------------------------------------


def hostfile_of(folder: Path, text: str, name: str = "hosts") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_several_nodes_need_a_hostfile_with_enough_slots(tmp_path):
    plan = gpu_plan(num_nodes=2)
    only(found(plan, tmp_path).problems, "2 nodes", "--hostfile")
    hosts = hostfile_of(tmp_path, "# two\nnode-1 slots=2\n\nnode-2 slots=4\n")
    result = found(plan, tmp_path, hostfile=hosts)
    assert result.problems == ()
    only(result.warnings, "the other nodes were not looked at")
    fewer = hostfile_of(tmp_path, "node-1 slots=2\nnode-2 slots=1\n", "fewer")
    only(found(plan, tmp_path, hostfile=fewer).problems, "node-2 1 slot;", "2 GPUs per node")
    one = hostfile_of(tmp_path, "node-1 slots=8\n", "one")
    only(found(plan, tmp_path, hostfile=one).problems, "names 1 of the 2 nodes")
    only(found(plan, tmp_path, sound_facts(has_pdsh=False), hosts).problems, "pdsh")
    only(found(gpu_plan(), tmp_path, hostfile=hosts).problems, "--hostfile", "one node")


def test_a_machine_that_does_not_train_needs_no_gpu(tmp_path):
    hosts = hostfile_of(tmp_path, "node-1 slots=2\nnode-2 slots=2\n")
    outside = sound_facts(host_name="login", driver=None, driver_problem="no driver", torch_sight=None)
    assert found(gpu_plan(num_nodes=2), tmp_path, outside, hosts).problems == ()
    inside = replace(outside, host_name="node-2.elsewhere")
    only(found(gpu_plan(num_nodes=2), tmp_path, inside, hosts).problems, "no driver")


def test_hosts_are_names_and_addresses_with_or_without_a_user(tmp_path):
    hosts = ["node-1", "node_2.cluster", "10.0.0.1", "user@node-3", "fe80::1"]
    text = "".join(f"{host} slots=8 # a comment\n" for host in hosts)
    assert list(read_hostfile(hostfile_of(tmp_path, text))) == hosts


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("node-1 4\n", 'hosts:1 is "node-1 4"'),
        ("a slots=1\n\na slots=2\n", "hosts:3 names a a second"),
        ("-oProxyCommand=touch${IFS}x slots=1\n", "HOST a name or an address"),
        ("^file slots=1\n", "hosts:1 is"),
        ("a,b slots=1\n", "hosts:1 is"),
        ("a@-b slots=1\n", "hosts:1 is"),
        ("a slots=99999999999999999999\n", "hosts:1 is"),
    ],
)
def test_a_hostfile_that_deepspeed_would_not_read_is_refused(text: str, part: str, tmp_path):
    with pytest.raises(InputError, match=part):
        read_hostfile(hostfile_of(tmp_path, text))
    with pytest.raises(UnavailableError, match="does not exist"):
        read_hostfile(tmp_path / "none")


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 9)), st.integers(1, 4), st.integers(1, 9))
def test_hosts_beyond_those_that_are_used_do_not_matter(slots, num_nodes: int, per_node: int):
    used = dict(list(slots.items())[:num_nodes])
    sizes = {"num_nodes": num_nodes, "gpus_per_node": per_node}
    problems = hostfile_problems(slots, **sizes)
    assert problems == hostfile_problems(used, **sizes)
    assert (not problems) == (len(used) == num_nodes and all(count >= per_node for count in used.values()))


@pytest.mark.parametrize("port", ["0", "70000", "-1", "x", "\u0663"])
def test_a_master_port_that_is_none_is_refused(port: str, tmp_path):
    problem = port_problem(port)
    assert problem is not None
    assert f"MASTER_PORT is {port}; a port from 1 to 65535" in problem
    only(found(gpu_plan(), tmp_path, sound_facts(port_problem=problem)).problems, "MASTER_PORT")


def test_a_master_port_that_is_taken_is_refused_and_a_free_one_is_not():
    assert port_problem(None) is None
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        problem = port_problem(port)
        assert problem is not None
        assert f"MASTER_PORT is {port}, where ranks cannot meet (Address already in use)" in problem
    assert port_problem(port) is None

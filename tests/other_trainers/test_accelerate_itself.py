"""FSDP as accelerate itself makes it: of files that are read, through its launcher, and of files that are written."""

import json
import os
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import BackwardPrefetch, CPUOffloadPolicy, ShardingStrategy
from transformers import TrainingArguments

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.fsdp import layer_classes
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, Precision
from vlmplan.workload import Workload
from written_setups import READS, cluster_of, within

FILE = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 4, "num_machines": 1}
ALWAYS = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_sync_module_states": False,  # for which the plugin looks for a GPU
    "fsdp_cpu_ram_efficient_loading": False,
}
SHARED = {"fsdp_offload_params": st.booleans(), "fsdp_activation_checkpointing": st.booleans()}
FIRST = st.fixed_dictionaries(
    {},
    optional={
        "fsdp_version": st.just(1),
        "fsdp_sharding_strategy": st.sampled_from(("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", 1, "2", "5")),
        "fsdp_reshard_after_forward": st.sampled_from(("FULL_SHARD", "SHARD_GRAD_OP")),
        "fsdp_use_orig_params": st.booleans(),
        "fsdp_backward_prefetch": st.sampled_from(("NO_PREFETCH", "BACKWARD_PRE", "BACKWARD_POST")),
        "fsdp_forward_prefetch": st.booleans(),
        **SHARED,
    },
)
SECOND = st.fixed_dictionaries(
    {"fsdp_version": st.just(2)},
    optional={
        "fsdp_reshard_after_forward": st.booleans(),
        "fsdp_use_orig_params": st.booleans(),
        "fsdp_backward_prefetch": st.just("BACKWARD_PRE"),
        **SHARED,
    },
)
PREFETCHES = {
    None: "on-demand",
    BackwardPrefetch.BACKWARD_PRE: "backward-pre",
    BackwardPrefetch.BACKWARD_POST: "backward-post",
}
RESHARDED = (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)


def options_of(plugin: Any) -> dict[str, Any]:
    """What a plugin means, as options."""
    is_second, offload = plugin.fsdp_version == 2, plugin.cpu_offload
    place = "cpu" if (isinstance(offload, CPUOffloadPolicy) if is_second else offload.offload_params) else "none"
    found = {"offload_params": place, "offload_optimizer": place}
    if is_second:
        return found | {"reshard_after_forward": plugin.reshard_after_forward}
    return found | {
        "reshard_after_forward": plugin.sharding_strategy in RESHARDED,
        "flat_parameters": PREFETCHES[plugin.backward_prefetch],
        "uses_orig_params": plugin.use_orig_params,
        "prefetches_forward": plugin.forward_prefetch,
    }


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(section=FIRST | SECOND)
def test_a_file_means_what_accelerates_launcher_hands_on(section: Mapping[str, Any], tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump({**FILE, "fsdp_config": {**ALWAYS, **section}}), encoding="utf-8")
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(path), "x.py"]))
    variables = {name: value for name, value in prepare_multi_gpu_env(arguments).items() if name.startswith("FSDP_")}
    with mock.patch.dict(os.environ, variables):
        plugin = FullyShardedDataParallelPlugin()
    asked = Asked(model="qwen2.5-0.5b", num_gpus=4, find_model=find_model, method=Method.FULL)
    options = read_trainer_config(path, asked).options
    expected = options_of(plugin)
    assert {name: options.get(name) for name in expected} == expected
    assert ("flat_parameters" in options) is (plugin.fsdp_version == 1)
    assert options.get("activation_checkpointing", False) is plugin.activation_checkpointing


def arguments_of(tool: Tool, written: Mapping[str, Any]) -> dict[str, Any]:
    """``fsdp`` and ``fsdp_config`` as ``TrainingArguments`` get them."""
    if tool is Tool.MS_SWIFT:
        return json.loads(written["fsdp"])
    return {name: written[name] for name in ("fsdp", "fsdp_config")}


@pytest.mark.parametrize("offload", [Offload.NONE, Offload.CPU])
@pytest.mark.parametrize("reshards", [True, False])
@pytest.mark.parametrize("tool", [Tool.TRL, Tool.TRANSFORMERS, Tool.MS_SWIFT, Tool.LLAMA_FACTORY])
def test_what_is_written_of_fsdp_is_what_accelerates_plugin_makes_of_it(tool: Tool, reshards: bool, offload: Offload):
    recipe = Recipe(
        fsdp=True,
        precision=Precision.BF16,
        reshard_after_forward=reshards,
        offload_params=offload,
        offload_optimizer=offload,
    )
    recipe = within(tool, usual(tool, READS).applied_to(recipe), READS)
    assert recipe.fsdp
    written = settings_for(tool, recipe, Workload(model=READS), cluster_of(2)).settings
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, **arguments_of(tool, written))
    assert arguments.fsdp_plugin_args is not None
    plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    assert plugin.fsdp_version == 2
    assert options_of(plugin) == {
        "reshard_after_forward": recipe.reshard_after_forward,
        "offload_params": recipe.offload_params.value,
        "offload_optimizer": recipe.offload_optimizer.value,
    }
    assert set(plugin.transformer_cls_names_to_wrap) == set(layer_classes(READS.config) or ())
    assert not plugin.activation_checkpointing


@pytest.mark.parametrize(
    ("section", "extra", "argument"),
    [
        ("deepspeed_config", {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, "zero_stage"),
        ("fsdp_config", {"fsdp_backward_prefetch_policy": "BACKWARD_PRE"}, "fsdp_backward_prefetch"),
    ],
)
def test_keys_that_accelerate_drops_change_nothing_and_are_named(tmp_path, section, extra, argument):
    kind = section.partition("_")[0].upper()
    path = tmp_path / "accelerate.yaml"
    own = {**FILE, "distributed_type": kind}
    usual_keys = ALWAYS if kind == "FSDP" else {"zero3_init_flag": False}
    path.write_text(yaml.safe_dump({**own, section: usual_keys | extra}), encoding="utf-8")
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    _validate_launch_command(arguments)
    assert getattr(arguments, argument) is None
    asked = Asked(num_gpus=4, find_model=find_model)
    found = read_trainer_config(path, asked)
    assert any(f"{section}.{', '.join(sorted(extra))}" in note and "takes no notice" in note for note in found.notes)
    path.write_text(yaml.safe_dump({**own, section: usual_keys}), encoding="utf-8")
    without = read_trainer_config(path, asked)
    assert (found.options, found.ds_config) == (without.options, without.ds_config)

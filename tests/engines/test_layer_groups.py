"""FSDP2's groups are those that accelerate makes of a model, and those of the bundled trainer's engine."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers.modeling_layers import GradientCheckpointingLayer

from planned import of_few_layers, shortened, workload
from seeing_families import FAMILIES
from vlmplan.architecture.families import build_model
from vlmplan.engines.flat_units import flat_units
from vlmplan.engines.layer_groups import LayerGroups, layer_groups
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, LossKind, Method, ShardUnits
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.fsdp2 import shard
from vlmplan_trainer.models.adapters import add_adapters, quantize
from vlmplan_trainer.models.packing import packing
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.probe import configuration, model_class

FSDP = Recipe(fsdp=True)
NUM_LAYERS = 2
NUM_RANKS = 2
sweep = pytest.mark.sweep
MODELS = [
    "qwen2.5-0.5b",
    *(
        pytest.param(name, marks=sweep)
        for name in ("qwen2.5-vl-3b", "tinyllama-1.1b", "mixtral-8x7b", "gemma-3-4b", "glm-4.1v-9b", "gpt2")
    ),
]
Groups = list[list[str]]


@pytest.fixture(scope="module")
def mesh():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    yield init_device_mesh("cpu", (NUM_RANKS,))
    torch.distributed.destroy_process_group()


def of_meta(alias: str) -> torch.nn.Module:
    with torch.device("meta"):
        config = configuration(dict(of_few_layers(alias, NUM_LAYERS).config))
        return model_class(config)._from_config(config)


def sharded_groups(model: torch.nn.Module, prefix: str = "") -> Groups:
    """Names of the weights of each of FSDP2's parameter groups, in their order."""
    names = {id(weight): name.removeprefix(prefix) for name, weight in model.named_parameters()}
    found: dict[int, list[str]] = {}
    for module in model.modules():
        for group in _param_groups(module):
            found[id(group)] = [names[id(one.sharded_param)] for one in group.fsdp_params]
    return sorted(found.values())


def _param_groups(module: torch.nn.Module) -> Iterator:
    if isinstance(module, torch.distributed.fsdp.FSDPModule):
        yield from module._get_fsdp_state()._fsdp_param_groups


def planned(alias: str, recipe: Recipe) -> LayerGroups:
    return layer_groups(Estimator(workload(of_few_layers(alias, NUM_LAYERS)), recipe).table, recipe, NUM_RANKS)


def planned_groups(alias: str, recipe: Recipe = FSDP) -> Groups:
    groups = planned(alias, recipe)
    return sorted([entry.name for entry in group.weights] for group in groups.all if group.weights)


def sharded_by_accelerate(model: torch.nn.Module, mesh: DeviceMesh, precision: str = "no") -> torch.nn.Module:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    layers = {type(one).__name__ for one in model.modules() if isinstance(one, GradientCheckpointingLayer)}
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=sorted(layers),
        cpu_ram_efficient_loading=False,
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh={("all",): mesh},
        parallelism_config=SimpleNamespace(fsdp_dim_names=["all"]),
        mixed_precision=precision,
        is_main_process=True,
    )
    return fsdp2_prepare_model(accelerator, model)


@pytest.mark.parametrize("alias", MODELS)
def test_groups_are_those_of_accelerate_and_of_the_bundled_trainer(alias: str, mesh):
    theirs = sharded_groups(sharded_by_accelerate(of_meta(alias), mesh))
    bundled = LossModule(of_meta(alias), loss=LossKind.CHUNKED)
    shard(bundled, FSDP, mesh)
    assert planned_groups(alias) == theirs == sharded_groups(bundled, "model.")


@pytest.mark.parametrize(
    "units",
    [ShardUnits.LAYERS, ShardUnits.LANGUAGE_LAYERS, ShardUnits.LAST_WHOLE, ShardUnits.LANGUAGE_LAST_WHOLE],
)
def test_with_layers_as_units_alone_the_root_has_all_else(units: ShardUnits, mesh):
    recipe = replace(FSDP, shard_units=units)
    bundled = LossModule(of_meta("qwen2.5-vl-3b"), loss=LossKind.CHUNKED)
    shard(bundled, recipe, mesh)
    groups = planned_groups("qwen2.5-vl-3b", recipe)
    assert groups == sharded_groups(bundled, "model.")
    root = next(group for group in groups if "model.language_model.embed_tokens.weight" in group)
    assert "model.language_model.norm.weight" in root
    assert any("visual.blocks" in name for name in root) is units.of_language_alone


@pytest.mark.parametrize("alias", ["qwen2.5-0.5b", "tinyllama-1.1b"])
def test_an_embedding_that_the_head_does_not_share_is_a_unit_of_verls(alias: str, mesh):
    recipe = replace(FSDP, shard_units=ShardUnits.EMBEDDING_TOO)
    bundled = LossModule(of_meta(alias), loss=LossKind.CHUNKED)
    shard(bundled, recipe, mesh)
    groups = planned_groups(alias, recipe)
    assert groups == sharded_groups(bundled, "model.")
    assert (["model.embed_tokens.weight"] in groups) is (alias == "tinyllama-1.1b")


@pytest.mark.sweep
@pytest.mark.parametrize(("alias", "is_tied"), [("qwen2.5-0.5b", True), ("tinyllama-1.1b", False)])
def test_trained_copies_of_embeddings_are_in_the_groups_of_their_originals(alias: str, is_tied: bool, mesh):
    """Of a head that shares its weight, whose group is whole from the embedding on, and of one that does not."""
    recipe = replace(FSDP, method=Method.LORA, train_embeddings=True)
    model = of_meta(alias)
    adapted = add_adapters(model, Parts(model), recipe)
    bundled = LossModule(adapted, loss=LossKind.CHUNKED)
    shard(bundled, recipe, mesh)
    groups = sharded_groups(bundled, "model.base_model.model.")
    named = sorted([name.replace(".default.", ".") for name in group] for group in groups)
    assert planned_groups(alias, recipe) == named
    assert any("modules_to_save" in name for group in named for name in group)
    assert planned(alias, recipe).gathers_head_alone is not is_tied


TINY = {"hidden_size": 60, "intermediate_size": 84, "num_attention_heads": 3, "num_key_value_heads": 3}
TINY |= {"head_dim": 20, "vocab_size": 41}
ADAPTED = "q_proj,down_proj"


@pytest.mark.filterwarnings("ignore:Found .* non-floating")
@pytest.mark.parametrize("shards", [True, False])
def test_4_bit_weights_are_sharded_by_accelerate_where_they_are_kept_in_a_float_type(shards: bool, mesh):
    """A column of bfloat16, in the groups of their layers; in bytes they are in none. Adapters are float32."""
    from peft import LoraConfig, get_peft_model

    files = shortened("tinyllama-1.1b", num_hidden_layers=NUM_LAYERS, **TINY)
    recipe = replace(FSDP, method=Method.QLORA, lora_rank=7, lora_targets=ADAPTED, shards_packed=shards)
    config = configuration(dict(files.config))
    model = model_class(config)._from_config(config, dtype=torch.bfloat16)
    quantize(model, packing(recipe), torch.device("cpu"))
    adapted = get_peft_model(model, LoraConfig(r=7, target_modules=ADAPTED.split(",")))
    theirs = sharded_by_accelerate(adapted, mesh, "bf16")
    names = {id(weight): name for name, weight in theirs.named_parameters()}
    sharded = [one for module in theirs.modules() for group in _param_groups(module) for one in group.fsdp_params]
    found = {
        names[id(one.sharded_param)].removeprefix("base_model.model.").replace(".default.", "."): (
            str(one.sharded_param.dtype).removeprefix("torch."),
            one.padded_sharded_param_size.numel(),
        )
        for one in sharded
    }
    groups = layer_groups(Estimator(workload(files), recipe).table, recipe, NUM_RANKS)
    entries = [entry for group in groups.all for entry in group.weights]
    assert found == {one.name: (groups.held_dtype(one).torch_name, groups.shard_numel(one)) for one in entries}
    assert any("mlp.up_proj.weight" in name for name in found) is shards


def test_each_matrix_of_an_adapter_may_be_a_unit_and_what_is_planned_counts_them(mesh):
    recipe = replace(FSDP, method=Method.LORA, shard_units=ShardUnits.ADAPTERS_TOO, lora_targets=ADAPTED)
    model = of_meta("tinyllama-1.1b")
    bundled = LossModule(add_adapters(model, Parts(model), recipe), loss=LossKind.CHUNKED)
    shard(bundled, recipe, mesh)
    apart = [group for group in sharded_groups(bundled) if all("lora_" in name for name in group)]
    assert [len(group) for group in apart] == [1] * (2 * 2 * NUM_LAYERS)
    assert [group.num_apart for group in planned("tinyllama-1.1b", recipe).layers] == [2 * 2] * NUM_LAYERS


@sweep
def test_flat_units_of_adapters_are_those_of_pefts_policy(mesh):
    from peft import LoraConfig, get_peft_model
    from peft.utils.other import fsdp_auto_wrap_policy
    from torch.distributed.fsdp import FullyShardedDataParallel

    alias, device = "qwen2.5-0.5b", torch.device("cpu")
    model = of_meta(alias).to_empty(device=device).to(torch.bfloat16)
    model.tie_weights()
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    wrapped = FullyShardedDataParallel(model, auto_wrap_policy=fsdp_auto_wrap_policy(model), device_id=device)
    handles = [one._handle for one in FullyShardedDataParallel.fsdp_modules(wrapped)]
    flat = FSDP.with_changes(
        method=Method.LORA,
        flat_parameters=FlatParameters.ON_DEMAND,
        shard_units=ShardUnits.LAYERS,
        uses_orig_params=False,
    )
    table = Estimator(workload(of_few_layers(alias, NUM_LAYERS)), flat).table
    units = flat_units(table, flat, NUM_RANKS).all
    theirs = [(len(one.flat_param._fqns), one.flat_param._unpadded_unsharded_size.numel()) for one in handles if one]
    assert sorted((len(unit.weights), unit.numel) for unit in units) == sorted(theirs)


def test_stacks_of_a_model_have_labels_of_their_own():
    """By which their layers are told apart: Video-LLaVA has two towers of one shape."""
    for said in FAMILIES.values():
        labels = [one.label for _, one in build_model(said.config).stacks() if one.can_checkpoint]
        assert len(labels) == len(set(labels)), said.config["model_type"]

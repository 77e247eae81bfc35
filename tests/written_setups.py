"""Setups as other trainers take them, for tests: recipes within a tool's limits, their files, and what those mean."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from vlmplan.catalog import load_catalog
from vlmplan.hardware import Cluster
from vlmplan.models import find_model
from vlmplan.other_trainers.writing import Tool, WrittenSetup, behaviour, evaluated_by, usual
from vlmplan.other_trainers.writing.record import DS_CONFIG_FILE
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AdapterDtype,
    AttentionImplementation,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Kept, Moment
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.request import parse, requested_cluster
from vlmplan.request.setup import RequestedSetup, requested_setup
from vlmplan.workload import ModelFiles, Workload

SEES, READS = find_model("Qwen/Qwen2.5-VL-3B-Instruct"), find_model("Qwen/Qwen2.5-0.5B")
CARD = "a100-sxm4-80gb"
OF_ADAPTERS = (
    *("lora_rank", "lora_targets", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "train_embeddings"),
    "adapter_dtype",
)
SIZES = st.integers(1, 3 * 5 * 7 * 10**6).map(lambda size: 2 * size)

EVALUATIONS = st.builds(
    Evaluation,
    batch=st.integers(1, 64),
    samples=st.sampled_from((1, 77, 1000)),
    kept=st.sampled_from(Kept),
    accumulation=st.none() | st.integers(1, 9),
    every=st.sampled_from((Moment.EPOCH, 50, 0.25)),
    early_stopping_patience=st.none() | st.integers(1, 9),
    load_best_model_at_end=st.booleans(),
) | st.builds(
    Evaluation,
    batch=st.integers(1, 64),
    early_stopping_patience=st.integers(1, 9),
    early_stopping_threshold=st.floats(0, 4),
)

ANY_RECIPE = st.fixed_dictionaries(
    {
        "method": st.sampled_from(Method),
        "lora_rank": st.integers(1, 256),
        "lora_alpha": st.none() | st.integers(1, 512),
        "lora_dropout": st.sampled_from((0.0, 0.05, 0.1)),
        "lora_targets": st.sampled_from(("all-linear", "q_proj,v_proj", "q_proj", "attention")),
        "use_rslora": st.booleans(),
        "use_dora": st.booleans(),
        "use_double_quant": st.booleans(),
        "train_embeddings": st.booleans(),
        "adapter_dtype": st.sampled_from(AdapterDtype),
        "weight_dtype": st.sampled_from(WeightDtype),
        "uses_autocast": st.booleans(),
        "caches_casts": st.booleans(),
        "upcasts_frozen": st.booleans(),
        "fuses_optimizer": st.booleans(),
        "expandable_segments": st.booleans(),
        "train_vision": st.booleans(),
        "train_projector": st.booleans(),
        "train_language": st.booleans(),
        "precision": st.sampled_from(Precision),
        "evaluation": st.none() | EVALUATIONS,
        "optimizer": st.sampled_from(OptimizerKind),
        "zero_stage": st.sampled_from((None, None, 0, 1, 2, 3)),
        "fsdp": st.sampled_from((False, False, True)),
        "dp_shard_size": st.sampled_from((None, None, 2)),
        "reshard_after_forward": st.booleans(),
        "offload_optimizer": st.sampled_from(Offload),
        "offload_params": st.sampled_from(Offload),
        "liger_layers": st.booleans(),
        "compiled_norms": st.booleans(),
        "fused_adapters": st.booleans(),
        "offload_activations": st.booleans(),
        "tiled_mlp": st.booleans(),
        "linear_attention": st.sampled_from(LinearAttention),
        "hpz": st.sampled_from((1, 1, 2)),
        "nvme_path": st.just("/nvme"),
        "micro_batch": st.integers(1, 64),
        "grad_accum": st.integers(1, 64),
        "activation_checkpointing": st.booleans(),
        "vision_activation_checkpointing": st.booleans(),
        "attention": st.sampled_from(AttentionImplementation),
        "loss": st.sampled_from(LossKind),
        "gradient_clipping": st.sampled_from((0.0, 0.5, 1.0)),
        "zero": st.builds(
            ZeroSettings,
            reduce_bucket_size=SIZES,
            allgather_bucket_size=SIZES,
            overlap_comm=st.booleans(),
            contiguous_gradients=st.booleans(),
            round_robin_gradients=st.booleans(),
            stage3_prefetch_bucket_size=st.integers(0, 10**9),
            stage3_param_persistence_threshold=st.integers(0, 10**9),
            stage3_max_live_parameters=st.integers(0, 10**10),
            sub_group_size=SIZES,
        ),
    }
).map(lambda values: Recipe(**values))


def within(tool: Tool, recipe: Recipe, model: ModelFiles) -> Recipe:
    """The recipe with what the tool does by itself, and without what no engine does; within all limits if it trains the
    tool's usual parts."""
    stage = None if recipe.fsdp else recipe.zero_stage
    params = recipe.offload_params if stage == 3 else Offload.NONE
    optimizer = recipe.offload_optimizer if stage in (1, 2, 3) else Offload.NONE
    if recipe.fsdp:
        params = optimizer = Offload.CPU if recipe.offload_params is Offload.CPU else Offload.NONE
        recipe = recipe.with_changes(optimizer=OptimizerKind.ADAMW)
    recipe = recipe.with_changes(
        zero_stage=stage,
        reshard_after_forward=recipe.reshard_after_forward or not recipe.fsdp,
        offload_params=params,
        offload_optimizer=Offload.CPU if optimizer is Offload.NVME and stage != 3 else optimizer,
        dp_shard_size=recipe.dp_shard_size if recipe.fsdp and tool is Tool.AXOLOTL else None,
        hpz=recipe.hpz if stage == 3 and params is Offload.NONE else 1,
        train_embeddings=recipe.train_embeddings and recipe.trains_adapters,
        loss=usual(tool, model).loss,
        evaluation=recipe.evaluation and evaluated_by(tool, recipe.evaluation, model),
    )
    return behaviour(tool, recipe, model).applied_to(recipe)


def cluster_of(num_gpus: int, num_nodes: int = 1) -> Cluster:
    request = parse({"gpu": f"{CARD}:{num_gpus}", "num_nodes": num_nodes})
    return requested_cluster(request.hardware, load_catalog())[0]


def write(written: WrittenSetup, folder: Path) -> Path:
    """Its files in ``folder``; the one that ``vlmplan check`` is asked of."""
    keys = folder / "train.yaml"
    keys.write_text(yaml.safe_dump(dict(written.settings), sort_keys=False), encoding="utf-8")
    if written.deepspeed is not None:
        (folder / DS_CONFIG_FILE).write_text(json.dumps(written.deepspeed), encoding="utf-8")
    if written.tool is not Tool.LLAMA_FACTORY:
        return keys
    script = folder / "train.sh"
    exports = "".join(f'export {name}="{value}"\n' for name, value in written.environment.items())
    script.write_text(f"{exports}{shlex.join(written.command)}\n", encoding="utf-8")
    return script


def meaning(written: WrittenSetup, folder: Path, num_gpus: int, num_nodes: int) -> RequestedSetup:
    """What ``vlmplan check`` makes of the files and of the options beside them."""
    asked: dict[str, Any] = {"gpu": f"{CARD}:{num_gpus}", "num_nodes": num_nodes}
    request = parse({"config": write(written, folder), **asked, **written.options})
    machine = requested_cluster(request.hardware, load_catalog())
    return requested_setup(request, machine, find_model(str(request.model)))


def without_what_has_no_effect(recipe: Recipe, model: ModelFiles) -> Recipe:
    """One recipe for all that do the same: settings that nothing reads have one value."""
    usual = Recipe()
    changes: dict[str, Any] = {"zero": recipe.zero.read_by(recipe.zero_stage)}
    if recipe.optimizer is OptimizerKind.MUON and recipe.zero_stage == 3:  # which has no choice
        changes["zero"] = replace(changes["zero"], reduce_scatter=False)
    if recipe.method is Method.FULL:
        changes |= {name: getattr(usual, name) for name in OF_ADAPTERS}
    else:
        changes |= {"lora_alpha": recipe.adapter_alpha}
    if recipe.method is not Method.QLORA:
        changes |= {"use_double_quant": True}
    if not recipe.activation_checkpointing:
        changes |= {"checkpoint_kind": usual.checkpoint_kind}
    if recipe.autocast is None:
        changes |= {"caches_casts": False, "uses_autocast": True}
    if recipe.optimizer is not OptimizerKind.ADAMW:
        changes |= {"fuses_optimizer": False}
    if model is not SEES:
        parts = ("train_vision", "train_projector", "train_language")
        changes |= {"vision_activation_checkpointing": True} | dict.fromkeys(parts, True)
    if Offload.NVME not in (recipe.offload_optimizer, recipe.offload_params):
        changes |= {"nvme_path": None}
    return recipe.with_changes(**changes)


def sample(model: ModelFiles, **changes: Any) -> Workload:
    """Samples of one image each where the model sees, whatever ``changes`` say of images where it does not."""
    if model is not SEES:
        changes = {name: value for name, value in changes.items() if not name.startswith("image")}
    return Workload(model=model, **{"seq_len": 2 * 3 * 5 * 7, "images_per_sample": int(model is SEES), **changes})

"""Timelines and estimates of packaged models in one line, for tests."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import vlmplan
from model_table import packaged_config
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import CPU_KERNELS, Cluster, Gpu, Node
from vlmplan.machine.cpu import cpu_gpu
from vlmplan.memory.timeline import StartedRun, Timeline
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload

MODELS = Path(vlmplan.__file__).parent / "data" / "models"


@cache
def model_files(alias: str) -> ModelFiles:
    config = packaged_config(alias)
    preprocessor = MODELS / alias / "preprocessor_config.json"
    return ModelFiles(
        id=alias,
        config=config,
        preprocessor=json.loads(preprocessor.read_text()) if preprocessor.exists() else None,
    )


def shortened(alias: str, **changes: Any) -> ModelFiles:
    """The model with other values in config.json, such as fewer layers."""
    files = model_files(alias)
    return ModelFiles(id=files.id, config={**files.config, **changes}, preprocessor=files.preprocessor)


def of_few_layers(alias: str, num_layers: int = 3) -> ModelFiles:
    """The model with so many layers of each tower: as quick to compute as there are few."""
    config = model_files(alias).config
    changes: dict[str, Any] = {"num_hidden_layers": num_layers} if "text_config" not in config else {}
    for tower in ("text_config", "vision_config"):
        if tower in config:
            name = "depth" if "depth" in config[tower] else "num_hidden_layers"
            changes[tower] = {**config[tower], name: num_layers}
    return shortened(alias, **changes)


def workload(alias: str | ModelFiles, **changes: Any) -> Workload:
    files = model_files(alias) if isinstance(alias, str) else alias
    images = 1 if files.model_type in IMAGE_MODEL_TYPES else 0
    return Workload(**{"model": files, "images_per_sample": images, **changes})


OF_OTHERS = (
    *(LossKind.TRL, LossKind.VERL, LossKind.VERL_QUOTIENT, LossKind.VERL_FUSED, LossKind.LOG_SOFTMAX, LossKind.UNSLOTH),
    *(LossKind.ROWS, LossKind.BRADLEY_TERRY),
    *(LossKind.OPENRLHF, LossKind.SELECTIVE, LossKind.AXOLOTL, LossKind.AXOLOTL_ANSWERS),
    *(LossKind.TEMPERED, LossKind.TEMPERED_ENTROPY),
)
BUNDLED_LOSSES = tuple(kind for kind in LossKind if kind not in OF_OTHERS)
"""Those that the bundled trainer has."""


def cpu_cluster(num_ranks: int) -> Cluster:
    """So many CPU ranks on a host of 64 GiB."""
    return Cluster(node=Node(gpu=cpu_gpu(num_ranks), num_gpus=num_ranks, host_ram_bytes=64 * GIB))


def cluster(gpu_id: str = "a100-sxm4-80gb", num_gpus: int = 1, num_nodes: int = 1, **node: Any) -> Cluster:
    """Cards of the shipped catalog."""
    gpu = shipped_gpus()[gpu_id]
    return Cluster(node=Node(gpu=gpu, num_gpus=num_gpus, **node), num_nodes=num_nodes)


def decided(**fields: Any) -> DecidedRecipe:
    """What is decided of a recipe, by its fields and as it has them."""
    plain = {"zero_stage": PLAIN} if fields.get("zero_stage", 0) is None else {}
    return DecidedRecipe(**(fields | plain))


def decided_fields(one: DecidedRecipe) -> dict[str, Any]:
    """The inverse of ``decided``."""
    fields = {name: getattr(one, name) for name in one.names}
    return fields | ({"zero_stage": None} if one.zero_stage == PLAIN else {})


@cache
def shipped_gpus() -> dict[str, Gpu]:
    return {gpu.id: gpu for gpu in Catalog(shipped_catalog(), []).gpus}


def rehearsed_timeline(
    files: ModelFiles,
    recipe: Recipe,
    *,
    num_ranks: int,
    rank: int | None = 0,
    seq_len: int = 1024,
    image_side: int = 448,
    **tape: Any,
) -> Timeline:
    """The timeline of a rank (None: the fullest) without library workspaces: what is counted on fake tensors."""
    model = prepared_model(files.config, recipe)
    image = None
    if image_side and files.model_type in IMAGE_MODEL_TYPES:
        image = image_shape(files.config, files.preprocessor, width=image_side, height=image_side)
    batch = Batch(
        micro_batch=recipe.micro_batch,
        num_tokens=-(-seq_len // recipe.sequence_parallel),
        images_per_sample=1 if image else 0,
        image=image,
        sequence_parallel=recipe.sequence_parallel,
    )
    backend = AttentionBackend(
        implementation=recipe.attention.value,
        compute_capability=CPU_KERNELS,
        sequence_parallel=recipe.sequence_parallel,
    )
    recorder = Tape(autocast=recipe.autocast, keeps_linear_inputs=recipe.keeps_linear_inputs, **tape)
    recorder.outputs.has_encoded = recipe.transformers_version.returns_encoded
    recorder.tiles_mlps = recipe.tiled_mlp
    trace = model.run(recorder, batch, backend, loss=recipe.loss)
    return memory_timeline(ParameterTable(model), trace, recipe, num_ranks=num_ranks, rank=rank)


def memory_timeline(
    table: ParameterTable, trace: Trace, recipe: Recipe, *, num_ranks: int = 1, rank: int | None = None
) -> Timeline:
    """Phases of training ``table``'s model on ``num_ranks`` GPUs, each running ``trace`` as its micro batch."""
    return StartedRun(table, recipe, num_ranks=num_ranks, rank=rank).timeline(trace, recipe)

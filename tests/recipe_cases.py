"""Recipes, clusters and plans for the tests of what is written from them."""

from hypothesis import strategies as st

from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.hardware import Cluster, Gpu, Node, Vendor
from vlmplan.plan import Expectation, Plan, PlannedHardware, PlannedOffer
from vlmplan.plan.record import ExpectedPhase
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AdapterDtype,
    AttentionImplementation,
    BatchesOnGpu,
    CheckpointKind,
    InputGradients,
    LinearAttention,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Kept, Moment
from vlmplan.recipe.libraries import TorchVersion, TransformersVersion
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import (
    Generation,
    IdleOffload,
    KTOLoss,
    Reference,
    ReferenceShards,
    TaskKind,
    TaskTrainer,
)
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload

SIZES = st.integers(1, 2 * 3 * 5 * 7 * 10**8)

EVALUATIONS = st.builds(
    Evaluation,
    batch=st.integers(1, 64),
    samples=st.integers(1, 5000),
    kept=st.sampled_from(Kept),
    accumulation=st.none() | st.integers(1, 64),
    new_tokens=st.integers(0, 5000),
    beams=st.integers(1, 8),
    computes_loss=st.booleans(),
    fuses_loss=st.booleans(),
    generations=st.none() | st.integers(1, 16),
    every=st.sampled_from([Moment.EPOCH, 500, 0.25]),
    on_start=st.booleans(),
    delay=st.floats(0, 100),
    after_training=st.booleans(),
    early_stopping_patience=st.none() | st.integers(1, 9),
    load_best_model_at_end=st.booleans(),
) | st.builds(
    Evaluation,
    batch=st.integers(1, 64),
    early_stopping_patience=st.integers(1, 9),
    early_stopping_threshold=st.floats(0, 4),
)

TASKS = st.builds(
    TrainingTask,
    kind=st.sampled_from(TaskKind),
    reference=st.none() | st.sampled_from(Reference),
    completion_tokens=st.none() | st.integers(1, 4096),
    num_generations=st.integers(2, 64),
    steps_per_generation=st.none() | st.integers(1, 16),
    num_iterations=st.integers(1, 4),
    generation=st.sampled_from(Generation),
    vllm_memory=st.floats(0.05, 0.95),
    vllm_sleep_level=st.integers(0, 2),
    vllm_tensor_parallel=st.integers(1, 8),
    reward_params=st.integers(0, 7 * 10**9),
    kto_loss=st.sampled_from(KTOLoss),
    reentrant_checkpoints=st.booleans(),
    disables_dropout=st.none() | st.booleans(),
    router_loss=st.booleans(),
    trainer=st.sampled_from(TaskTrainer),
    scoring_batch=st.none() | st.integers(1, 64),
    idle_offload=st.sampled_from(IdleOffload),
    reference_shards=st.sampled_from(ReferenceShards),
    sync_buffer_mib=st.integers(0, 4096),
)

ZERO_SETTINGS = st.builds(
    ZeroSettings,
    reduce_bucket_size=SIZES,
    allgather_bucket_size=SIZES,
    overlap_comm=st.booleans(),
    contiguous_gradients=st.booleans(),
    reduce_scatter=st.booleans(),
    round_robin_gradients=st.booleans(),
    stage3_prefetch_bucket_size=st.integers(0, 10**9),
    stage3_param_persistence_threshold=st.integers(0, 10**9),
    stage3_max_live_parameters=st.integers(0, 10**10),
    stage3_max_reuse_distance=st.integers(0, 10**10),
    sub_group_size=SIZES,
)

DEEPSPEED_RECIPES = st.builds(
    Recipe,
    method=st.sampled_from(Method),
    lora_rank=st.integers(1, 256),
    lora_alpha=st.none() | st.integers(1, 512),
    lora_dropout=st.floats(0, 0.9),
    use_rslora=st.booleans(),
    use_dora=st.booleans(),
    lora_init=st.sampled_from(("default", "gaussian", "pissa", "pissa_niter_4", "olora")),
    loraplus_lr_ratio=st.none() | st.sampled_from((1.0, 16.0)),
    lora_exclude=st.none() | st.sampled_from(("o_proj", "regex:.*up_proj")),
    use_double_quant=st.booleans(),
    adapter_dtype=st.sampled_from(AdapterDtype),
    weight_dtype=st.sampled_from(WeightDtype),
    uses_autocast=st.booleans(),
    train_vision=st.booleans(),
    precision=st.sampled_from(Precision),
    optimizer=st.sampled_from(OptimizerKind),
    zero_stage=st.integers(0, 3),
    offload_optimizer=st.sampled_from(Offload),
    offload_params=st.sampled_from(Offload),
    gradient_as_bucket_view=st.booleans(),
    hpz=st.integers(1, 64),
    liger_layers=st.booleans(),
    compiled_norms=st.booleans(),
    fused_adapters=st.booleans(),
    offload_activations=st.booleans(),
    tiled_mlp=st.booleans(),
    linear_attention=st.sampled_from(LinearAttention),
    torch_version=st.sampled_from(TorchVersion),
    transformers_version=st.sampled_from(TransformersVersion),
    batches_on_gpu=st.sampled_from(BatchesOnGpu),
    input_gradients=st.sampled_from(InputGradients),
    checkpoint_kind=st.sampled_from(CheckpointKind),
    evaluation=st.none() | EVALUATIONS,
    task=st.none() | TASKS,
    nvme_path=st.just("/nvme"),
    micro_batch=st.integers(1, 64),
    grad_accum=st.integers(1, 64),
    attention=st.sampled_from(AttentionImplementation),
    loss=st.sampled_from(LossKind),
    gradient_clipping=st.floats(0, 10),
    zero=ZERO_SETTINGS,
)
RECIPES = DEEPSPEED_RECIPES | DEEPSPEED_RECIPES.map(lambda recipe: recipe.with_changes(zero_stage=None))


def card(**changes: object) -> Gpu:
    known: dict[str, object] = {
        "id": "a100-sxm4-80gb",
        "name": "NVIDIA A100-SXM4-80GB",
        "vendor": Vendor.NVIDIA,
        "memory_bytes": 80 * GIB,
        "supports_bf16": True,
        "compute_capability": (8, 0),
        "supports_flash_attention_2": True,
    }
    return Gpu(**(known | changes))


def cluster(num_gpus: int = 4, num_nodes: int = 1, **changes: object) -> Cluster:
    return Cluster(node=Node(gpu=card(**changes), num_gpus=num_gpus), num_nodes=num_nodes)


def plan(recipe: Recipe | None = None, num_gpus: int = 4, num_nodes: int = 1, **changes: object) -> Plan:
    recipe = recipe or Recipe(zero_stage=2, micro_batch=3)
    total = num_gpus * num_nodes
    known: dict[str, object] = {
        "workload": Workload(
            model=ModelFiles(
                id="qwen2-vl-2b",
                hub_id="Qwen/Qwen2-VL-2B-Instruct",
                config={"model_type": "qwen2_vl", "vision_config": {"depth": 32}},
                preprocessor={"patch_size": 14},
                notes=("a note",),
            ),
            seq_len=1155,
            images_per_sample=1,
            num_samples=2310,
            epochs=1.5,
        ),
        "recipe": recipe,
        "hardware": PlannedHardware(
            gpu_id="a100-sxm4-80gb",
            gpu_name="NVIDIA A100-SXM4-80GB",
            vendor="nvidia",
            gpus_per_node=num_gpus,
            num_nodes=num_nodes,
            usable_bytes=79 * GIB,
        ),
        "expected": Expectation(
            verdict="fits",
            peak_phase="step",
            peak_allocated_bytes=2 * 3 * 5 * GIB,
            peak_reserved_bytes=31 * GIB,
            peak_device_bytes=32 * GIB,
            components_at_peak={"weights": 2 * 3 * GIB, "gradients": 2 * 3 * 4 * GIB},
            phases=(ExpectedPhase(name="load", resident_bytes=7, peak_bytes=11),),
            host_bytes_per_node=13,
            checkpoint_bytes=17,
            export_bytes=19,
            nvme_swap_bytes=0,
            flops_per_step=23,
            num_steps=29,
            step_seconds=0.5,
            usd=1.25,
        ),
        "num_params": 2_208_985_600,
        "num_trainable_params": 2_208_985_600,
        "ds_config": deepspeed_config(recipe, num_gpus=total),
        "offer": PlannedOffer(provider="somebody", usd_per_hour=4.2, pricing="on_demand", as_of="2026-11-01"),
        "environment": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    }
    return Plan(**(known | changes))

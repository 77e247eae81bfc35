"""The keys of a ds_config.json that DeepSpeed 0.19.8 reads: their kinds, and what the memory model knows of them.

Sources: ``deepspeed/runtime/zero/config.py``, ``zero/offload_config.py``, ``precision_config.py``, ``constants.py``,
``config.py``. Inside ``zero_optimization`` and the precision blocks DeepSpeed refuses unknown keys; at the top level it
ignores them without a word.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from vlmplan.json_reader import JsonObject, shown


class Kind(Enum):
    FLAG = "flag"
    COUNT = "count"
    NUMBER = "number"
    TEXT = "text"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Key:
    """What a key may hold. ``only`` is the one value that the memory model knows, where there is just one."""

    kind: Kind
    least: int = 0
    only: Any = None

    def check(self, values: JsonObject, key: str) -> Any:
        """The value, whole numbers as int. Raises InputError for another kind, or for what is not modelled."""
        value = self._read(values, key)
        if self.only is not None and value != self.only:
            values.complain(key, f"vlmplan has a memory model of {shown(self.only)} only")
        return value

    def _read(self, values: JsonObject, key: str) -> Any:
        if self.kind is Kind.FLAG:
            return values.flag(key)
        if self.kind is Kind.COUNT:
            return values.count(key, least=self.least)
        if self.kind is Kind.NUMBER:
            return values.number(key, least=self.least)
        return values.text(key) if self.kind is Kind.TEXT else values.mapping(key)


FLAG, COUNT, SIZE, NUMBER, TEXT, OBJECT = (
    Key(Kind.FLAG),
    Key(Kind.COUNT),
    Key(Kind.COUNT, least=1),
    Key(Kind.NUMBER),
    Key(Kind.TEXT),
    Key(Kind.OBJECT),
)
ALWAYS, NEVER = Key(Kind.FLAG, only=True), Key(Kind.FLAG, only=False)

ZERO_KEYS: dict[str, Key] = {
    "stage": COUNT,
    "contiguous_gradients": FLAG,
    "reduce_scatter": FLAG,
    "reduce_bucket_size": SIZE,
    "allgather_bucket_size": SIZE,
    "overlap_comm": FLAG,
    "round_robin_gradients": FLAG,
    "sub_group_size": SIZE,
    "stage3_prefetch_bucket_size": COUNT,
    "stage3_param_persistence_threshold": COUNT,
    "stage3_max_live_parameters": COUNT,
    "stage3_max_reuse_distance": COUNT,
    "offload_param": OBJECT,
    "offload_optimizer": OBJECT,
    "stage3_gather_16bit_weights_on_model_save": FLAG,
    "allgather_partitions": FLAG,
    "load_from_fp32_weights": FLAG,
    "elastic_checkpoint": FLAG,
    "ignore_unused_parameters": FLAG,
    "override_module_apply": FLAG,
    "log_trace_cache_warnings": FLAG,
    "enable_sanity_checks": FLAG,
    "pipeline_loading_checkpoint": FLAG,
    "save_muon_momentum_buffer_in_memory": FLAG,
    "leaf_module": OBJECT,
    "stage3_model_persistence_threshold": Key(Kind.COUNT, only=2**63 - 1),
    "stage3_module_granularity_threshold": Key(Kind.COUNT, only=0),
    "stage3_use_all_reduce_for_fetch_params": NEVER,
    "stage3_allgather_sequential": NEVER,
    "use_multi_rank_bucket_allreduce": ALWAYS,
    "compute_grad_norm": ALWAYS,
    "legacy_stage1": NEVER,
    "parameter_alignment": NEVER,
    "memory_efficient_linear": FLAG,
    "zero_hpz_partition_size": SIZE,
    "zero_quantized_weights": NEVER,
    "zero_quantized_nontrainable_weights": NEVER,
    "zero_quantized_gradients": NEVER,
}
"""``zero_optimization``, under the names that DeepSpeed documents."""

ZERO_ALIASES: dict[str, str] = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "module_granularity_threshold": "stage3_module_granularity_threshold",
    "use_all_reduce_for_fetch_params": "stage3_use_all_reduce_for_fetch_params",
    "allgather_sequential": "stage3_allgather_sequential",
}
"""Field names that DeepSpeed takes as well (``populate_by_name``), and a deprecated one."""

DEPRECATED_OFFLOADS: dict[str, str] = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
"""Deprecated switches: true means ``{"device": "cpu"}``."""
DEPRECATED_WITHOUT_EFFECT = "cpu_offload_use_pin_memory"

MICS = "DeepSpeed has removed MiCS; zero_hpz_partition_size keeps weights whole within a node in its place"
"""``_REMOVED_ZERO_CONFIG_KEYS`` in ``runtime/config.py``: 0.19.8 refuses the file."""

UNMODELLED_ZERO_KEYS: dict[str, str] = {
    "zenflow": "ZenFlow's asynchronous updates are not in vlmplan's memory model",
    "mics_shard_size": MICS,
    "mics_hierarchical_params_gather": MICS,
    "zeropp_loco_param": "DeepSpeed has removed LoCo",
}

OFFLOAD_PARAM_KEYS: dict[str, Key] = {
    "device": TEXT,
    "nvme_path": TEXT,
    "buffer_count": COUNT,
    "buffer_size": COUNT,
    "max_in_cpu": COUNT,
    "pin_memory": FLAG,
}

OFFLOAD_OPTIMIZER_KEYS: dict[str, Key] = {
    "device": TEXT,
    "nvme_path": TEXT,
    "buffer_count": COUNT,
    "pin_memory": FLAG,
    "pipeline_read": FLAG,
    "pipeline_write": FLAG,
    "fast_init": FLAG,
    "ratio": Key(Kind.NUMBER, only=1.0),
    "super_offload": NEVER,
    "cpuadam_cores_perc": NUMBER,
}

BF16_KEYS: dict[str, Key] = {
    "enabled": FLAG,
    "immediate_grad_update": FLAG,
    "check_grad_overflow": FLAG,
    "bf16_master_weights_and_grads": FLAG,
    "bf16_optimizer_states": FLAG,
}

FP16_KEYS: dict[str, Key] = {
    "enabled": FLAG,
    "auto_cast": FLAG,
    "loss_scale": NUMBER,
    "initial_scale_power": COUNT,
    "loss_scale_window": SIZE,
    "hysteresis": COUNT,
    "consecutive_hysteresis": FLAG,
    "min_loss_scale": SIZE,
    "fp16_master_weights_and_grads": NEVER,
}

TOP_KEYS: dict[str, Key | None] = {
    "train_batch_size": SIZE,
    "train_micro_batch_size_per_gpu": SIZE,
    "gradient_accumulation_steps": SIZE,
    "gradient_clipping": NUMBER,
    "zero_optimization": None,
    "bf16": OBJECT,
    "bfloat16": OBJECT,
    "fp16": OBJECT,
    "optimizer": OBJECT,
    "scheduler": OBJECT,
    "zero_allow_untested_optimizer": FLAG,
    "zero_force_ds_cpu_optimizer": FLAG,
    "prescale_gradients": FLAG,
    "wall_clock_breakdown": FLAG,
    "memory_breakdown": FLAG,
    "dump_state": FLAG,
    "disable_allgather": FLAG,
    "steps_per_print": None,
    "gradient_predivide_factor": NUMBER,
    "gradient_allreduce_op": Key(Kind.TEXT, only="mean"),
    "managed_gradient_accumulation": ALWAYS,
    "communication_data_type": None,
    "seq_parallel_communication_data_type": None,
    "data_types": OBJECT,
    "activation_checkpointing": OBJECT,
    "aio": OBJECT,
    "checkpoint": OBJECT,
} | dict.fromkeys(
    """autotuning comet comms_logger compile csv_monitor data_efficiency dataloader_drop_last
    datastates_ckpt disable_python_gc expert_parallel flops_profiler hybrid_engine log_level pipeline
    sequence_parallel_size tensor_parallel tensorboard timers torch_autocast use_data_before_expert_parallelism
    vocabulary_size wandb weight_quantization""".split()
)
"""Keys at the top level; None: not looked at, or looked at apart."""

REMOVED_TOP_KEYS = frozenset(
    """nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop""".split()
)
"""DeepSpeed 0.19.8 refuses these (``_REMOVED_TOP_LEVEL_CONFIG_KEYS``)."""

UNMODELLED_SWITCHES: dict[str, str] = {
    "torch_autocast": "enabled",
    "hybrid_engine": "enabled",
    "expert_parallel": "enabled",
    "compile": "deepcompile",
    "data_efficiency": "enabled",
    "activation_checkpointing": "cpu_checkpointing",
}
"""Blocks that change memory in ways the model does not follow, and the key that turns each on."""

UNMODELLED_BLOCKS = ("tensor_parallel", "weight_quantization")

SECTIONS_WITH_AUTO = frozenset(("optimizer", "scheduler", "data_types", "pipeline", "autotuning", "tensor_parallel"))
"""Where "auto" is harmless: the trainer builds optimizer and scheduler itself, the rest has "auto" of its own."""

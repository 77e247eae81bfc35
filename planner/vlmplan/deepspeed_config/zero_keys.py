"""The keys of ``zero_optimization``, as DeepSpeed 0.19.8 reads them.

Names, defaults and limits are those of ``deepspeed/runtime/zero/config.py`` and ``zero/offload_config.py``, which a
test compares. ``source`` is where the key is used.
"""

from typing import Any

from vlmplan.deepspeed_config.keys import Effect, Key, Kind, table

ENGINES12, STAGE3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
COORDINATOR = "runtime/zero/partitioned_param_coordinator.py"
PARTITIONING = "runtime/zero/partition_parameters.py"
SWAPPER = "runtime/swap_tensor/partitioned_param_swapper.py"
LATENCY = "as large as makes the fixed latency of a collective 5% of its time on these links, 10 to 200 million"
MODELLED, NONE, REFUSED = Effect.MODELLED, Effect.NONE, Effect.REFUSED


def _zero(name: str, kind: Kind, default: Any, effect: Effect, source: str, about: str, **more: Any) -> Key:
    path = f"zero_optimization.{name}"
    return Key(path=path, kind=kind, default=default, effect=effect, source=source, about=about, **more)


_F, _C, _O = Kind.FLAG, Kind.COUNT, Kind.OBJECT


def _off(name: str, source: str, about: str, *, default: Any = False, kind: Kind = Kind.FLAG) -> Key:
    """A key of which only the default can be planned."""
    return _zero(name, kind, default, REFUSED, source, about, only=(default,))


ZERO = (
    _zero("stage", Kind.ANY, 0, MODELLED, "runtime/engine.py",
          "What is divided among the ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.",
          planned="--zero-stage; recommend takes the stage that is cheapest among those that fit", only=(0, 1, 2, 3)),
    _zero("contiguous_gradients", _F, True, MODELLED, ENGINES12,
          "Gradients are copied into one reduce bucket as they come, instead of being reduced where they are.",
          planned="true: without it a reduction makes a flat copy of every bucket"),
    _zero("reduce_scatter", _F, True, MODELLED, ENGINES12,
          "Each rank is sent only its part of the mean gradients (stages 1 and 2), instead of all of them.",
          planned="true: half the bytes of an all-reduce"),
    _zero("reduce_bucket_size", _C, 500_000_000, MODELLED, f"{ENGINES12}, {STAGE3}",
          "Elements of gradients that are collected before they are reduced; a buffer of this size is allocated in "
          "the gradients' type, and a second one with overlap_comm (stages 1 and 2).", least=1,
          planned=f"{LATENCY} elements and no more than are trained; 10 million where memory is short"),
    _zero("allgather_bucket_size", _C, 500_000_000, MODELLED, "runtime/zero/utils.py",
          "Elements of updated weights that ranks send one another at a time at the end of a step (stages 1, 2).",
          least=1, planned=f"{LATENCY} elements and no more than are trained; 10 million where memory is short"),
    _zero("overlap_comm", _F, None, MODELLED, f"{ENGINES12}, {STAGE3}",
          "Gradients are reduced on a stream of their own while backward goes on. Stages 1 and 2 then need a second "
          "reduce bucket. Left out: on at stage 3, off below.", takes_null=True,
          planned="true on several GPUs; false where memory is short, but for stage 1, which would keep all "
                  "gradients"),
    _zero("round_robin_gradients", _F, False, MODELLED, ENGINES12,
          "Stages 1 and 2 deal parameters to partitions in turns, so that ranks copy gradients to the host at the "
          "same time.", planned="false: partitions follow the order of the model"),
    _zero("sub_group_size", _C, 1_000_000_000, MODELLED, STAGE3,
          "Elements of a rank's shards that stage 3 updates at a time: a group is full with the parameter that "
          "reaches this, so 0 makes every parameter a group of its own. Float32 copies of one group's gradients "
          "exist.", planned="100 million: 0.6 GB of temporaries in a step"),
    _zero("stage3_prefetch_bucket_size", _C, 50_000_000, MODELLED, COORDINATOR,
          "Elements of weights that stage 3 gathers ahead of the module that needs them; 0 gathers nothing ahead.",
          planned="the elements of the largest layer: the next layer comes while this one computes; 0 where memory "
                  "is short"),
    _zero("stage3_param_persistence_threshold", _C, 100_000, MODELLED, "runtime/zero/parameter_offload.py",
          "Weights of stage 3 with fewer elements than this stay whole on every GPU: norms and biases.",
          planned='10 times the hidden size, which transformers fills in for "auto": norms and biases stay whole'),
    _zero("stage3_max_live_parameters", _C, 1_000_000_000, MODELLED, COORDINATOR,
          "Elements of gathered weights above which stage 3 gathers nothing ahead.",
          planned="three times the largest layer; 0 where memory is short"),
    _zero("stage3_max_reuse_distance", _C, 1_000_000_000, MODELLED, COORDINATOR,
          "Stage 3 keeps a weight whole after use if it is needed again within this many elements of others.",
          planned="twice the largest layer, so that a layer that is recomputed keeps its weights until its "
                  "backward; 0 where memory is short"),
    _zero("offload_param", _O, None, MODELLED, PARTITIONING, "Where stage 3 keeps the shards of weights between uses.",
          planned="written where --offload-params is not none", takes_null=True),
    _zero("offload_optimizer", _O, None, MODELLED, f"{ENGINES12}, {STAGE3}",
          "Where optimizer states live; with a device the update runs on the host.",
          planned="written where --offload-optimizer is not none", takes_null=True),
    _zero("memory_efficient_linear", _F, True, MODELLED, "runtime/zero/linear.py",
          "Stage 3 replaces F.linear, so that autograd keeps no view of a gathered weight.",
          planned="true: a view would keep every gathered weight of a layer that is not checkpointed"),
    _zero("zero_hpz_partition_size", _C, 1, MODELLED, PARTITIONING,
          "ZeRO++'s hpZ (stage 3): ranks that keep a second copy of all weights between them, so that gathering "
          "again in backward stays within a node.", least=1, planned="--hpz; recommend tries the GPUs of a node"),
    _zero("stage3_gather_16bit_weights_on_model_save", _F, False, NONE, "runtime/engine.py",
          "save_16bit_model gathers the weights of stage 3 and writes them whole.",
          planned="true at stage 3, so that other tools that read this file save whole weights"),
    _zero("allgather_partitions", _F, True, NONE, "runtime/engine.py",
          "Once chose all-gather over broadcasts; 0.19.8 reads it and uses it nowhere."),
    _zero("load_from_fp32_weights", _F, True, NONE, ENGINES12,
          "Master weights come from the float32 copies of a checkpoint."),
    _zero("elastic_checkpoint", _F, False, NONE, ENGINES12, "A former form of checkpoints for other numbers of ranks."),
    _zero("ignore_unused_parameters", _F, True, NONE, ENGINES12, "Parameters without a gradient are no error."),
    _zero("override_module_apply", _F, True, NONE, PARTITIONING,
          "Stage 3 gathers weights in nn.Module.apply while a model is built."),
    _zero("log_trace_cache_warnings", _F, False, NONE, COORDINATOR,
          "Warns when stage 3 meets modules in another order than before."),
    _zero("enable_sanity_checks", _F, False, NONE, STAGE3, "Checks of DeepSpeed on itself, for those who debug it."),
    _zero("pipeline_loading_checkpoint", _F, False, NONE, STAGE3, "Loads a checkpoint of stage 3 piece by piece."),
    _zero("save_muon_momentum_buffer_in_memory", _F, False, NONE, STAGE3,
          "Only for the optimizer Muon under NVMe offload."),
    _off("leaf_module", "runtime/zero/leaf_module_config.py", "Modules whose weights stage 3 gathers as one.",
         default={}, kind=Kind.OBJECT),
    _off("stage3_model_persistence_threshold", "runtime/zero/parameter_offload.py",
         "Elements that may stay whole in all through stage3_param_persistence_threshold.",
         default=2**63 - 1, kind=Kind.COUNT),
    _off("stage3_module_granularity_threshold", "runtime/zero/parameter_offload.py",
         "Fine-grained modules are gathered as one.", default=0, kind=Kind.COUNT),
    _off("stage3_use_all_reduce_for_fetch_params", PARTITIONING, "Gathers weights by an all-reduce."),
    _off("stage3_allgather_sequential", PARTITIONING, "Gathers weight by weight, without a flat buffer."),
    _off("use_multi_rank_bucket_allreduce", ENGINES12, "One all-reduce for the buckets of several ranks.",
         default=True),
    _off("compute_grad_norm", ENGINES12, "Takes the norm of all gradients, which clipping needs.", default=True),
    _off("legacy_stage1", "runtime/engine.py", "A former stage 1, which 0.19.8 no longer has."),
    _off("parameter_alignment", ENGINES12, "Pads flat buffers so that each parameter begins at 16 bytes."),
    _off("zero_quantized_weights", PARTITIONING, "ZeRO++: weights travel quantized."),
    _off("zero_quantized_nontrainable_weights", PARTITIONING, "ZeRO++: frozen weights are kept quantized."),
    _off("zero_quantized_gradients", STAGE3, "ZeRO++: gradients travel quantized."),
    _zero("zenflow", Kind.OBJECT, None, REFUSED, "runtime/zenflow/zenflow_stage_1_and_2.py",
          "ZenFlow: updates that run beside the next steps.", takes_null=True),
)  # fmt: skip


def _offload(block: str, name: str, kind: Kind, default: Any, effect: Effect, about: str, **more: Any) -> Key:
    source = {"offload_param": SWAPPER}.get(block, "runtime/swap_tensor/optimizer_utils.py")
    return _zero(f"{block}.{name}", kind, default, effect, source, about, **more)


def _both(block: str, what: str, option: str, buffers: int) -> tuple[Key, ...]:
    return (
        _offload(block, "device", Kind.TEXT, "none", MODELLED, f"Where {what} live: none (the GPU), cpu or nvme.",
                 planned=option, words=("none", "cpu", "nvme")),
        _offload(block, "nvme_path", Kind.TEXT, None, MODELLED, "The folder on every node's NVMe drive.",
                 planned="--nvme-path, under nvme", takes_null=True),
        _offload(block, "buffer_count", Kind.COUNT, buffers, NONE,
                 "Host buffers between GPU and NVMe; a plan counts DeepSpeed's own number.",
                 planned=f"{buffers} under nvme: DeepSpeed's default"),
        _offload(block, "pin_memory", Kind.FLAG, True, NONE,
                 "Host memory is page-locked, for copies at the full rate of PCIe, as a plan counts them.",
                 planned="true: copies from other memory are slower"),
    )  # fmt: skip


OFFLOAD = (
    *_both("offload_param", "the shards of weights", "--offload-params", 5),
    _offload("offload_param", "buffer_size", Kind.COUNT, 100_000_000, NONE,
             "Elements of a buffer under nvme, which has to hold the largest shard of one weight.",
             planned="100 million under nvme, or the largest shard of a weight where that is more"),
    _offload("offload_param", "max_in_cpu", Kind.COUNT, 1_000_000_000, NONE,
             "Elements that stay in host memory under nvme.", planned="1 billion under nvme: DeepSpeed's default"),
    *_both("offload_optimizer", "optimizer states", "--offload-optimizer", 4),
    _offload("offload_optimizer", "pipeline_read", Kind.FLAG, False, REFUSED,
             "Reads the next group from NVMe while this one is updated.", only=(False,)),
    _offload("offload_optimizer", "pipeline_write", Kind.FLAG, False, REFUSED,
             "Writes the last group to NVMe while this one is updated.", only=(False,)),
    _offload("offload_optimizer", "fast_init", Kind.FLAG, False, NONE, "Makes the files on NVMe without a first read."),
    _offload("offload_optimizer", "ratio", Kind.NUMBER, 1.0, REFUSED, "Part of the states that is offloaded.",
             only=(1.0,)),
    _offload("offload_optimizer", "super_offload", Kind.FLAG, False, REFUSED, "Offload for chips with shared memory.",
             only=(False,)),
    _offload("offload_optimizer", "cpuadam_cores_perc", Kind.NUMBER, 0.8, NONE,
             "Cores of the update; only with super_offload.", most=1.0),
)  # fmt: skip

ZERO_KEYS = table(ZERO, OFFLOAD)

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

REMOVED_ZERO_KEYS: dict[str, str] = {
    "mics_shard_size": MICS,
    "mics_hierarchical_params_gather": MICS,
    "zeropp_loco_param": "DeepSpeed has removed LoCo",
}

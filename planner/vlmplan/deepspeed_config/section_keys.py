"""The keys of the other sections of a ds_config.json, as DeepSpeed 0.19.8 reads them.

A section that is off changes nothing, whatever else it says; on, it is refused by the key that turns it on, where it
matters. A test compares the names with DeepSpeed's own classes and with what it asks a section for.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.deepspeed_config.keys import Effect, Key, Kind, table

MODELLED, NONE, REFUSED = Effect.MODELLED, Effect.NONE, Effect.REFUSED
F, C, N, T, A = Kind.FLAG, Kind.COUNT, Kind.NUMBER, Kind.TEXT, Kind.ANY
TEXTS, OBJECT = Kind.TEXTS, Kind.OBJECT

Names = Mapping[str, tuple[Kind, Any]]
"""Keys of a section by name: kind and default."""


def _section(name: str, source: str, about: str, keys: Names, *, on: str = "", detail: str = "") -> list[Key]:
    """A section and its keys, which change nothing; ``on`` is the one that turns it on, which is refused."""
    section = Key(path=name, kind=OBJECT, default={}, effect=NONE, source=source, about=about)
    more = detail or f"Of {name}: {about[0].lower()}{about[1:]}"
    inner = [
        Key(path=f"{name}.{key}", kind=kind, default=default, effect=NONE, source=source, about=more,
            takes_null=default is None)
        for key, (kind, default) in keys.items()
    ]  # fmt: skip
    switches = [_only(f"{name}.{on}", source, f"Turns on {name}: {about[0].lower()}{about[1:]}")] if on else []
    return [section, *switches, *inner]


def _only(path: str, source: str, about: str, *values: Any, kind: Kind = F) -> Key:
    """A key of which only these values can be planned; without any, false."""
    values = values or (False,)
    nothing = values == (None,)
    return Key(path=path, kind=A if nothing else kind, default=values[0], effect=REFUSED, source=source, about=about,
               only=values, takes_null=nothing)  # fmt: skip


def _refused(section: str, source: str, about: str, names: str) -> list[Key]:
    """Keys that no plan can take."""
    return [
        Key(path=f"{section}.{name}", kind=A, default=None, effect=REFUSED, source=source, about=about)
        for name in names.split()
    ]


MONITORS = [
    *_section("tensorboard", "monitor/config.py", "Curves for TensorBoard; launch --monitor has its own.",
              {"enabled": (F, False), "output_path": (T, ""), "job_name": (T, "DeepSpeedJobName")}),
    *_section("csv_monitor", "monitor/config.py", "Curves as CSV; launch --monitor has its own.",
              {"enabled": (F, False), "output_path": (T, ""), "job_name": (T, "DeepSpeedJobName")}),
    *_section("wandb", "monitor/config.py", "Curves for Weights & Biases; launch --monitor has its own.",
              {"enabled": (F, False), "group": (T, None), "team": (T, None), "project": (T, "deepspeed")}),
    *_section("comet", "monitor/config.py", "Curves for Comet.",
              {"enabled": (F, False), "samples_log_interval": (C, 100), "online": (F, None)}
              | dict.fromkeys("project workspace api_key experiment_name experiment_key mode".split(), (T, None))),
]  # fmt: skip

PROFILERS = [
    *_section("comms_logger", "comm/config.py", "Times every collective, and waits for each.",
              {"prof_all": (F, True), "prof_ops": (TEXTS, []), "verbose": (F, False), "debug": (F, False)},
              on="enabled"),
    *_section("flops_profiler", "profiling/config.py", "Counts FLOPs with hooks on every module.",
              {"recompute_fwd_factor": (N, 0.0), "profile_step": (C, 1), "module_depth": (A, -1),
               "top_modules": (C, 1), "detailed": (F, True), "output_file": (T, None)}, on="enabled"),
    *_section("autotuning", "autotuning/config.py", "Starts many runs to compare settings.",
              {"fast": (F, True), "results_dir": (T, "autotuning_results"), "exps_dir": (T, "autotuning_exps"),
               "overwrite": (F, True), "start_profile_step": (C, 3), "end_profile_step": (C, 5),
               "metric": (T, "throughput"), "metric_path": (T, None), "tuner_type": (T, "gridsearch"),
               "tuner_early_stopping": (C, 5), "tuner_num_trials": (C, 50), "arg_mappings": (OBJECT, None),
               "model_info_path": (T, None), "mp_size": (C, 1), "max_train_batch_size": (C, None),
               "min_train_batch_size": (C, 1), "max_train_micro_batch_size_per_gpu": (C, 1024),
               "min_train_micro_batch_size_per_gpu": (C, 1), "num_tuning_micro_batch_sizes": (C, 3)}, on="enabled"),
    *_refused("autotuning", "autotuning/config.py", "What autotuning knows of the model.", "model_info"),
    *_section("timers", "utils/config.py", "When DeepSpeed takes the time of a step.", {"throughput": (OBJECT, {})}),
    Key(path="timers.throughput.enabled", kind=F, default=True, effect=NONE, source="utils/config.py",
        about="Measures samples per second."),
    Key(path="timers.throughput.synchronized", kind=F, default=True, effect=NONE, source="utils/config.py",
        about="Waits for the GPU before it takes the time of a step."),
]  # fmt: skip

STORAGE = [
    *_section("checkpoint", "runtime/model_checkpointing/config.py", "How checkpoints are written.",
              {"use_node_local_storage": (F, False), "parallel_write": (OBJECT, {}),
               "checkpoint_serialization": (F, True)}),
    Key(path="checkpoint.tag_validation", kind=T, default="WARN", effect=NONE, source="runtime/engine.py",
        about="Whether all ranks must name a checkpoint alike.",
        words=("WARN", "IGNORE", "FAIL", "Warn", "Ignore", "Fail", "warn", "ignore", "fail")),
    Key(path="checkpoint.parallel_write.pipeline_stage", kind=F, default=False, effect=NONE,
        source="runtime/engine.py", about="Only for models that are a PipelineModule."),
    _only("checkpoint.load_universal", "runtime/engine.py",
          "Reads checkpoints in the form for any number of ranks; launch --resume sets it itself."),
    _only("checkpoint.writer", "runtime/model_checkpointing/config.py", "Writers with buffers of their own.", None),
    *_section("aio", "runtime/swap_tensor/aio_config.py", "How NVMe is read and written.", {}),
    *[
        Key(path=f"aio.{name}", kind=kind, default=default, effect=NONE, source="runtime/swap_tensor/aio_config.py",
            about=about, planned=f"{str(default).lower()} under nvme: DeepSpeed's default", least=kind is C)
        for name, kind, default, about in (
            ("block_size", C, 1_048_576, "Bytes of one request to the NVMe drive."),
            ("queue_depth", C, 8, "Requests that wait at the drive."),
            ("intra_op_parallelism", C, 1, "Threads that read or write."),
            ("single_submit", F, False, "Hands requests over one at a time."),
            ("overlap_events", F, True, "Hands over new requests while others run."),
        )
    ],
    _only("aio.use_gds", "runtime/swap_tensor/aio_config.py", "Moves data from NVMe to the GPU past the host."),
]  # fmt: skip

TYPES = [
    *_section("data_types", "runtime/config.py", "Other element types than those of the model.", {}),
    _only("data_types.grad_accum_dtype", "runtime/engine.py",
          "The type in which gradients are kept over micro batches; left out: their own.", None),
    _only("data_types.param_dtype", "runtime/engine.py", "The type of weights, where not that of bf16 or fp16.", None),
    _only("data_types.buffer_dtype", "runtime/engine.py", "The type that buffers are cast to.", None),
    _only("data_types.keep_in_fp32_modules", "runtime/keep_in_fp32.py", "Modules that stay in float32.", "auto",
          kind=A),
    *_section("torch_autocast", "runtime/torch_autocast.py",
              "torch.autocast with float32 weights under DeepSpeed.",
              {"lower_precision_safe_modules": (TEXTS, [])}, on="enabled"),
    Key(path="torch_autocast.dtype", kind=T, default=None, effect=NONE, source="runtime/torch_autocast.py",
        about="The type of torch.autocast.", words=("bfloat16", "bf16", "torch.bfloat16", "float16", "fp16",
                                                    "torch.float16", "half")),
    *_section("weight_quantization", "inference/config.py", "Weights that are quantized as they are made.",
              {"enabled": (F, True), "num_bits": (C, 8), "q_groups": (C, 1)}),
    Key(path="weight_quantization.q_type", kind=T, default="symmetric", effect=NONE, source="inference/config.py",
        about="How weights are quantized.", words=("symmetric", "asymmetric")),
    _only("weight_quantization.quantized_initialization", "runtime/zero/partition_parameters.py",
          "Quantizes weights as they are made.", {}, kind=OBJECT),
    _only("weight_quantization.post_init_quant", "inference/quantization", "Quantizes weights after.", {}, kind=OBJECT),
]  # fmt: skip

CHECKPOINTING = (
    "Of deepspeed.checkpointing, which the trainer does not call: it takes torch's (--activation-checkpointing)."
)
PARALLELISM = [
    *_section("activation_checkpointing", "runtime/activation_checkpointing/config.py", CHECKPOINTING,
              {"partition_activations": (F, False), "cpu_checkpointing": (F, False), "number_checkpoints": (C, None),
               "contiguous_memory_optimization": (F, False), "synchronize_checkpoint_boundary": (F, False),
               "profile": (F, False)}, detail=CHECKPOINTING),
    *_section("tensor_parallel", "runtime/tensor_parallel/config.py", "Layers that are divided among ranks.",
              {"tp_overlap_comm": (F, False), "keep_module_on_host": (F, False)}),
    _only("tensor_parallel.autotp_size", "runtime/engine.py", "Ranks among which every layer is divided.", 0, 1,
          kind=C),
    *_refused("tensor_parallel", "runtime/tensor_parallel/config.py", "Of tensor parallelism.",
              "dtype vocab_parallel_lm_head vocab_parallel_ce_backend tensor_parallel tp injection_policy_tuple "
              "partition_config preset_model replace_with_kernel_inject kernel_inject"),
    *_section("expert_parallel", "module_inject/auto_ep_config.py", "Experts that are divided among ranks.", {},
              on="enabled"),
    *_refused("expert_parallel", "module_inject/auto_ep_config.py", "Of expert parallelism.",
              "autoep_size expert_tensor_parallel_size validate_folding_routing async_split_plan preset_model "
              "moe_layer_pattern expert_pattern router_pattern use_grouped_mm disable_triton_grouped_mm route_norm "
              "route_scale score_apply combine_impl row_weighting_impl gate_up_impl comm_backend comm_num_sm "
              "comm_qp_margin comm_max_tokens_per_rank num_expert_groups num_limited_groups score_func top_k "
              "load_balance_coeff routed_scaling_factor expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr "
              "has_shared_experts shared_experts_pattern shared_experts_gate_pattern expert_activation"),
    *_section("hybrid_engine", "runtime/hybrid_engine.py", "An engine that also generates.",
              {"inference_tp_size": (C, 1), "release_inference_cache": (F, False), "pin_parameters": (F, True),
               "tp_gather_partition_size": (C, 8), "enable_cuda_graph": (F, False)}, on="enabled"),
    Key(path="hybrid_engine.max_out_tokens", kind=C, default=512, effect=NONE, source="runtime/hybrid_engine.py",
        about="Of an engine that also generates.", least=1),
    *_section("compile", "compile/config.py", "torch.compile with DeepSpeed's own passes.",
              {"autoep_non_moe": (F, False), "free_activation": (F, False), "free_activation_threshold": (C, 10485760),
               "offload_activation": (F, False), "offload_activation_pin_memory": (F, True),
               "offload_opt_states": (F, False), "double_buffer": (F, True), "symmetric_memory": (F, False),
               "debug_log": (F, False), "offload_parameters": (F, False), "sync_before_reduce": (F, False),
               "sync_after_reduce": (F, False), "sync_before_allgather": (F, False), "sync_after_allgather": (F, False),
               "keep_int_input_tensors": (F, True), "keep_all_input_tensors": (F, False)}, on="deepcompile"),
    *_refused("compile", "compile/config.py", "Passes over the compiled graph.", "passes"),
    *_section("data_efficiency", "runtime/data_pipeline/config.py", "Samples and tokens that are left out.",
              {"seed": (C, 1234)}, on="enabled"),
    *_refused("data_efficiency", "runtime/data_pipeline/config.py", "Samples and tokens that are left out.",
              "data_sampling data_routing"),
]  # fmt: skip

SECTION_KEYS = table(MONITORS, PROFILERS, STORAGE, TYPES, PARALLELISM)

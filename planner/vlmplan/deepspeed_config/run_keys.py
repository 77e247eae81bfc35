"""The keys at the top of a ds_config.json and those of its precision blocks, as DeepSpeed 0.19.8 reads them.

Sources: ``deepspeed/runtime/config.py``, ``constants.py`` and ``precision_config.py``; a test compares the names with
the keys that ``DeepSpeedConfig`` asks for.
"""

from typing import Any

from vlmplan.deepspeed_config.keys import Effect, Key, Kind, table

ENGINE, CONFIG = "runtime/engine.py", "runtime/config.py"
MODELLED, NONE, REFUSED = Effect.MODELLED, Effect.NONE, Effect.REFUSED


def _key(path: str, kind: Kind, default: Any, effect: Effect, source: str, about: str, **more: Any) -> Key:
    return Key(path=path, kind=kind, default=default, effect=effect, source=source, about=about, **more)


def _off(path: str, kind: Kind, default: Any, source: str, about: str) -> Key:
    """A key of which only the default can be planned."""
    return _key(path, kind, default, REFUSED, source, about, only=(default,), takes_null=default is None)


_F, _C, _N, _T, _O = Kind.FLAG, Kind.COUNT, Kind.NUMBER, Kind.TEXT, Kind.OBJECT

TOP = (
    _key("train_batch_size", _C, None, MODELLED, CONFIG, "Samples of an optimizer step over all GPUs.",
         planned="micro batch x accumulation x GPUs; --global-batch", least=1, takes_null=True),
    _key("train_micro_batch_size_per_gpu", _C, None, MODELLED, CONFIG, "Samples of one forward pass on a GPU.",
         planned="--micro-batch; recommend takes the fastest that fits", least=1, takes_null=True),
    _key("gradient_accumulation_steps", _C, None, MODELLED, CONFIG, "Micro batches of an optimizer step.",
         planned="--grad-accum, or what makes --global-batch", least=1, takes_null=True),
    _key("gradient_clipping", _N, 1.0, MODELLED, ENGINE,
         "The norm that all gradients together are scaled down to; 0 clips nothing.",
         planned="1.0: DeepSpeed's default"),
    _key("zero_optimization", Kind.ANY, {}, MODELLED, "runtime/zero/config.py",
         "ZeRO: what ranks divide among themselves. An old true means stage 1.", planned="every size as a number"),
    _key("bf16", _O, {}, MODELLED, "runtime/precision_config.py", "Training in bfloat16.", planned="--precision",
         takes_null=True),
    _key("bfloat16", _O, {}, MODELLED, "runtime/precision_config.py", "A former name of bf16."),
    _key("fp16", _O, {}, MODELLED, "runtime/precision_config.py", "Training in float16.", planned="--precision"),
    _key("optimizer", _O, {}, MODELLED, CONFIG, "The optimizer that DeepSpeed would build.",
         planned="written of Muon alone: the trainer builds --optimizer and hands it over"),
    _key("scheduler", _O, {}, NONE, "runtime/lr_schedules.py",
         "The schedule of the learning rate that DeepSpeed would build; the trainer has its own (launch --schedule, "
         "--warmup-fraction)."),
    _key("zero_allow_untested_optimizer", _F, False, NONE, ENGINE,
         "Lets ZeRO run with optimizers that DeepSpeed has not tested.",
         planned="true exactly for SGD, Adafactor and bitsandbytes' optimizers, whatever a file says"),
    _key("zero_force_ds_cpu_optimizer", _F, True, NONE, ENGINE,
         "Refuses any optimizer but DeepSpeed's on the host under optimizer offload.",
         planned="true: the trainer passes DeepSpeedCPUAdam, whatever a file says"),
    _key("wall_clock_breakdown", _F, False, NONE, ENGINE,
         "Times forward, backward and step apart. It waits for the GPU at each, which a plan's seconds do not hold.",
         planned="false"),
    _key("dump_state", _F, False, NONE, ENGINE, "Prints the engine's settings at the start.", planned="false"),
    _key("steps_per_print", _C, None, NONE, ENGINE, "Steps between two lines of progress.", least=1, takes_null=True),
    _key("dataloader_drop_last", _F, False, NONE, ENGINE, "Of DeepSpeed's data loader; the trainer has its own."),
    _key("disable_allgather", _F, False, NONE, CONFIG, "0.19.8 reads it and uses it nowhere."),
    _key("use_data_before_expert_parallelism", _F, False, NONE, ENGINE, "The order of ranks under expert parallelism."),
    _key("vocabulary_size", _C, None, NONE, CONFIG, "Only for a warning where it is no multiple of 8.",
         takes_null=True),
    _key("log_level", _T, None, NONE, CONFIG, "How much DeepSpeed logs.", takes_null=True),
    _key("seq_parallel_communication_data_type", _T, "fp32", NONE, ENGINE,
         "The type in which gradients are reduced under sequence parallelism, as float32 is planned.", words=("fp32",),
         takes_null=True),
    _key("pipeline", _O, {}, NONE, "runtime/pipe/engine.py", "Only for models that are a PipelineModule."),
    _key("sequence_parallel_size", _C, 1, MODELLED, CONFIG, "Ranks among which the tokens of a sample are divided.",
         planned="--sequence-parallel", least=1),
    _off("communication_data_type", _T, None, ENGINE, "The type in which gradients are reduced; left out: their own."),
    _off("prescale_gradients", _F, False, ENGINE, "Divides gradients before they are reduced, not after."),
    _off("gradient_predivide_factor", _N, 1.0, ENGINE, "What gradients are divided by before they are reduced."),
    _key("gradient_allreduce_op", _T, "mean", REFUSED, ENGINE, "Whether ranks' gradients are averaged or added.",
         words=("mean",)),
    _off("managed_gradient_accumulation", _F, True, ENGINE, "DeepSpeed counts the micro batches of a step."),
    _off("memory_breakdown", _F, False, ENGINE,
         "Prints memory at every step, and resets the counters of peak memory that a run is measured by."),
    _off("disable_python_gc", _F, False, ENGINE, "Stops Python's garbage collector."),
    _off("datastates_ckpt", Kind.ANY, False, "datastates/config.py", "Checkpoints copied in the background."),
    _off("allgather_size", _C, 500_000_000, "runtime/zero/config.py",
         'Read only beside "zero_optimization": true; zero_optimization.allgather_bucket_size is its place.'),
)  # fmt: skip

PRECISION = (
    _key("bf16.enabled", _F, False, MODELLED, "runtime/bf16_optimizer.py",
         "Weights and gradients in bfloat16, with float32 master weights in the optimizer.",
         planned="--precision bf16"),
    _key("bf16.bf16_master_weights_and_grads", _F, False, MODELLED, ENGINE,
         "Master weights and their gradients in bfloat16 too.", planned="true for --precision bf16-pure"),
    _key("bf16.bf16_optimizer_states", _F, False, MODELLED, ENGINE, "Optimizer states in bfloat16 too.",
         planned="true for --precision bf16-pure"),
    _key("bf16.check_grad_overflow", _F, True, NONE, ENGINE, "Leaves out a step whose gradients are not finite.",
         planned="true: DeepSpeed's default"),
    _key("bf16.immediate_grad_update", _F, False, NONE, "runtime/bf16_optimizer.py",
         "Of an optimizer that is used only with gradients in another type than the weights."),
    _key("fp16.enabled", _F, False, MODELLED, "runtime/fp16/loss_scaler.py",
         "Weights and gradients in float16, with float32 master weights and a scaled loss.",
         planned="--precision fp16"),
    _key("fp16.auto_cast", _F, False, NONE, ENGINE, "Casts floating-point inputs of the model to float16."),
    _key("fp16.loss_scale", _N, 0, NONE, "runtime/fp16/loss_scaler.py", "The scale of the loss; 0 adapts it.",
         planned="0: adapted"),
    _key("fp16.initial_scale_power", _C, 16, NONE, "runtime/fp16/loss_scaler.py",
         "The first scale, as a power of two.", planned="16: DeepSpeed's default"),
    _key("fp16.loss_scale_window", _C, 1000, NONE, "runtime/fp16/loss_scaler.py",
         "Steps without overflow after which the scale doubles.", planned="1000: DeepSpeed's default", least=1),
    _key("fp16.hysteresis", _C, 2, NONE, "runtime/fp16/loss_scaler.py", "Overflows before the scale halves.",
         planned="2: DeepSpeed's default"),
    _key("fp16.consecutive_hysteresis", _F, False, NONE, "runtime/fp16/loss_scaler.py",
         "Counts overflows anew after a step without one."),
    _key("fp16.min_loss_scale", _C, 1, NONE, "runtime/fp16/loss_scaler.py", "The least scale.",
         planned="1: DeepSpeed's default", least=1),
    _off("fp16.fp16_master_weights_and_grads", _F, False, ENGINE, "Master weights in float16, on the host only."),
)  # fmt: skip

BUILT = "launch refuses to start with another than its own"
OPTIMIZER = (
    _key("optimizer.type", _T, None, MODELLED, CONFIG, "Which optimizer.",
         planned="--optimizer; Muon is written, others are not", takes_null=True),
    _key("optimizer.params", _O, {}, NONE, CONFIG, "The settings of the optimizer."),
    _key("optimizer.params.lr", _N, None, NONE, ENGINE, f"The learning rate; {BUILT} --learning-rate."),
    _key("optimizer.params.weight_decay", _N, None, NONE, ENGINE, f"Weight decay; {BUILT} --weight-decay."),
    _key("optimizer.params.betas", Kind.ANY, None, NONE, ENGINE, f"Decay of both moments; {BUILT}, 0.9 and 0.999."),
    _key("optimizer.params.eps", _N, None, NONE, ENGINE, f"Added to the root of the second moment; {BUILT}, 1e-8."),
    _key("optimizer.params.torch_adam", _F, False, NONE, ENGINE, "torch's Adam instead of DeepSpeed's."),
    _key("optimizer.params.max_grad_norm", _N, None, NONE, ENGINE,
         "DeepSpeed stops where it is to build an optimizer with it; gradient_clipping takes its place."),
    _off("optimizer.params.adam_w_mode", _F, True, ENGINE, "Weight decay apart from the gradient: AdamW."),
    _off("optimizer.params.bias_correction", _F, True, ENGINE, "Corrects the first steps of both moments."),
    _off("optimizer.params.amsgrad", _F, False, ENGINE, "A third state: the largest second moment."),
    _key("optimizer.params.momentum", _N, None, NONE, ENGINE, "The momentum of SGD or Muon, as the trainer sets it.",
         planned="0.95 with Muon"),
    _key("optimizer.params.muon_lr", _N, None, NONE, ENGINE, "Muon's learning rate where AdamW has its own.",
         planned="50 times the trainer's default, with Muon"),
    _key("optimizer.params.adam_lr", _N, None, NONE, ENGINE, "The learning rate of what Muon leaves to AdamW.",
         planned="the trainer's default, with Muon; launch has its own --learning-rate"),
    _key("optimizer.params.ns_method", _T, "gram", REFUSED, "runtime/zero/muon/original_muon.py",
         "How Muon makes an update orthogonal.", words=("gram",), planned="gram: DeepSpeed's default"),
    _off("optimizer.params.per_head_muon", _F, False, "__init__.py",
         "Muon makes the rows of each attention head orthogonal by themselves."),
    _off("optimizer.legacy_fusion", _F, False, CONFIG, "A former kernel of the update."),
    _key("scheduler.type", _T, None, NONE, "runtime/lr_schedules.py",
         "Which schedule, of DeepSpeed or torch; the trainer has its own (launch --schedule).", takes_null=True),
    _key("scheduler.params", _O, {}, NONE, "runtime/lr_schedules.py",
         "The schedule's settings; the trainer has its own (launch --warmup-fraction)."),
)  # fmt: skip

RUN_KEYS = table(TOP, PRECISION, OPTIMIZER)

REMOVED_TOP_KEYS = frozenset(
    """nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop""".split()
)
"""DeepSpeed 0.19.8 refuses these (``_REMOVED_TOP_LEVEL_CONFIG_KEYS``)."""

UNREAD_KEYS: dict[str, str] = {
    "comms_config": "comms_logger",
    "monitor_config": "tensorboard, wandb, csv_monitor or comet",
    "aio.thread_count": "aio.intra_op_parallelism",
}
"""Keys that DeepSpeed does not read and that published files have all the same (LLaMA-Factory's
``examples/deepspeed``; of ``aio``, ``get_aio_config`` takes what it asks for alone), and where what they mean has its
place. Nothing comes of them."""

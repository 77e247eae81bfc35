"""What the options of OpenRLHF's programs mean alike (OpenRLHF@3c3be623), which hierarchical names are those of.

Sources there: the parsers of ``openrlhf/cli/train_sft.py`` and ``train_dpo.py`` for names and defaults;
``get_train_ds_config`` in ``utils/deepspeed/deepspeed_utils.py`` and ``DeepspeedStrategy`` beside it for the engine;
``models/actor.py`` for the model's types, adapters and attention. DeepSpeed leaves out what is "auto" (0.19.8
``DeepSpeedConfigModel``), so that its own defaults are those of a run here, and not what transformers makes of them.
"""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.data_rules import NOT_KNOWN, DataRules
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.hugging_face import ATTENTION, NOT_PLANNED, Arguments
from vlmplan.other_trainers.idle_kinds import SCHEDULERS
from vlmplan.other_trainers.meaning import Surroundings, sees
from vlmplan.other_trainers.openrlhf.older import make_switches
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import ALL_LINEAR, BatchesOnGpu, Batching, InputGradients, LossKind, Method, Precision
from vlmplan.run.saving import Interval, Saving
from vlmplan.workload import ModelFiles

OPENRLHF: Final = "OpenRLHF"
FLASH: Final = "flash_attention_2"
STAGES: Final = (0, 1, 2, 3)
MAX_SAMPLES: Final = 1_000_000
PRECISIONS: Final = {"bf16": Precision.BF16, "fp16": Precision.FP16}
EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of models with experts."""
NUMBERS: Final = (
    *("adam.lr", "adam.eps", "adam.weight_decay", "muon.lr", "muon.momentum", "lr_warmup_ratio", "min_lr_ratio"),
    *("ckpt.max_mem", "model.beta", "model.label_smoothing", "model.nll_loss_coef"),
)
WHOLE: Final = ("train.seed", "local_rank", "logger.logging_steps", "eval.steps", "muon.ns_steps")
WITHOUT_EFFECT: Final = frozenset(
    """ckpt.path ckpt.load_enable ds.use_universal_ckpt adam.betas muon.nesterov muon.no_nesterov
    model.gradient_checkpointing_reentrant data.disable_fast_tokenizer model.pretrain_mode_enable
    ds.ring_attn_head_stride data.dataset data.dataset_probs data.dataset_split eval.split data.multiturn data.input_key
    data.output_key data.prompt_key data.chosen_key data.rejected_key data.input_template data.apply_chat_template
    data.tokenizer_chat_template logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project
    logger.wandb.run_name logger.tensorboard_dir use_ms model.ipo_enable""".split()
)
"""Options that change neither the bytes of a GPU in training nor the seconds of a step."""


def arguments_of(settings: Settings, *, max_epochs: int, micro_batch: int = 8) -> Arguments:
    """The engine, batches and what becomes of checkpoints."""
    make_switches(settings)
    precision = settings.text("ds.param_dtype", "bf16")
    if precision not in PRECISIONS:
        settings.refuse("ds.param_dtype", f"one of {', '.join(PRECISIONS)} is needed")
    clipping = settings.number("max_norm", 1.0)
    epochs = settings.count("train.max_epochs", max_epochs, least=1)
    options: dict[str, Value] = {
        "micro_batch": settings.count("train.micro_batch_size", micro_batch, least=1),
        "global_batch": settings.count("train.batch_size", 128, least=1),
        "epochs": float(epochs),
        "activation_checkpointing": settings.flag("model.gradient_checkpointing_enable", False),
        "batches_on_gpu": BatchesOnGpu.TURN.value,
    }
    return Arguments(
        options=options,
        precision=PRECISIONS.get(precision),
        gradient_clipping=clipping,
        deepspeed=_ds_config(settings, clipping, precision),
        saving=_saving(settings),
        loader_workers=settings.count("data.dataloader_num_workers", 0),
        output_dir=settings.text("ckpt.output_dir", "./ckpt"),
    )


def _ds_config(settings: Settings, clipping: float, precision: str) -> JsonDict:
    """``get_train_ds_config`` without what is "auto"."""
    stage = settings.count("ds.zero_stage", 2)
    if stage not in STAGES:
        settings.refuse("ds.zero_stage", "0, 1, 2 or 3 is needed")
    offloads = settings.flag("ds.adam_offload", False)
    zero: JsonDict = {
        "stage": stage,
        "offload_optimizer": {"device": "cpu" if offloads else "none", "pin_memory": True},
    }
    partition = settings.count("ds.zpg", 1, least=1)
    if stage == 3:
        zero |= {"zero_hpz_partition_size": partition, "reduce_scatter": True}
    if settings.flag("ds.overlap_comm", False):
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    optimizer = settings.text("optim", "adam")
    if optimizer not in ("adam", "muon"):
        settings.refuse("optim", "adam or muon is needed")
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "gradient_clipping": clipping,
        "optimizer": {"type": "Muon" if optimizer == "muon" else "AdamW", "params": {}},
    }


def _saving(settings: Settings) -> Saving:
    """DeepSpeed's files and, with ``ckpt.save_hf``, the model beside them; the model when training has ended."""
    every = settings.number("ckpt.save_steps", -1.0, least=-1.0)
    most = settings.count("ckpt.max_num", 3, least=1)
    writes_model, leaves_states = settings.flag("ckpt.save_hf", False), settings.flag("ckpt.disable_ds", False)
    never = every <= 0 or (leaves_states and not writes_model)
    return Saving(
        interval=Interval.NEVER if never else Interval.STEPS,
        every=max(every, 1.0),
        keep_last=most,
        only_model=leaves_states,
        by_hugging_face=writes_model,
    )


def model_options(settings: Settings, model: ModelFiles | None) -> tuple[dict[str, Value], Method]:
    """The model with its adapters, its attention and how samples lie in a micro batch, and the method."""
    name = settings.text("model.model_name_or_path", "")
    if not name and model is None and "model.model_name_or_path" not in settings:
        settings.refuse_whole("model.model_name_or_path is missing; one is needed, or --model")
    _refuse_models(settings, model)
    packs = settings.flag("ds.packing_samples", False)
    options: dict[str, Value] = {
        "loss": LossKind.OPENRLHF.value,
        "attention": _attention(settings, packs=packs),
        **({"model": name} if name else {}),
        **({"batching": Batching.PADDING_FREE.value} if packs else {}),
        **({"liger_layers": True} if settings.flag("ds.use_liger_kernel", False) else {}),
    }
    method = _method(settings)
    return options | (_adapters(settings) if method is not Method.FULL else {}), method


def _refuse_models(settings: Settings, model: ModelFiles | None) -> None:
    settings.only("model.aux_loss_coef", f"the loss of routers: {NOT_PLANNED}", "0.0")
    settings.ignore(("ds.experts_implementation",))
    if model is None:
        return
    text: Mapping[str, Any] = model.config.get("text_config") or model.config
    if sees(model):
        settings.refuse_whole(
            f"the model is of type {model.model_type}, which sees: what OpenRLHF trains of it on text is {NOT_PLANNED}"
        )
    elif any(isinstance(text.get(key), int) for key in EXPERTS):
        settings.refuse_whole(
            f"the model is of type {model.model_type}, which has experts: OpenRLHF computes the loss of their routers "
            f"in every forward and keeps what that takes until the next (output_router_logits): {NOT_PLANNED}"
        )


def _attention(settings: Settings, *, packs: bool) -> Value:
    """Where samples are packed it is flash attention, whatever else was asked for."""
    name = settings.text("ds.attn_implementation", FLASH)
    if packs and "flash_attention" not in name:
        return FLASH
    if name not in ATTENTION:
        settings.refuse("ds.attn_implementation", f"{NOT_PLANNED}; one of {', '.join(ATTENTION)} is planned")
        return FLASH
    return ATTENTION[name].value


def _method(settings: Settings) -> Method:
    adapts, packs = settings.count("ds.lora.rank", 0) > 0, settings.flag("ds.load_in_4bit", False)
    if not packs:
        return Method.LORA if adapts else Method.FULL
    if not adapts:
        settings.refuse("ds.load_in_4bit", "without adapters it trains what is not packed alone; set ds.lora.rank")
    if settings.count("ds.zero_stage", 2) == 3:
        settings.refuse("ds.load_in_4bit", f"with ds.zero_stage 3, which leaves norms in float32: {NOT_PLANNED}")
    return Method.QLORA


def _adapters(settings: Settings) -> dict[str, Value]:
    """Adapters on every Linear but the head unless modules are named. A hook makes results of the embedding need
    gradients (``enable_input_require_grads``)."""
    targets = settings.names("ds.lora.target_modules") if "ds.lora.target_modules" in settings else []
    if targets == [ALL_LINEAR]:
        settings.refuse("ds.lora.target_modules", "peft gets a list with that name, which no module has; leave it out")
    return {
        "lora_rank": settings.count("ds.lora.rank", 0, least=1),
        "lora_alpha": settings.count("ds.lora.alpha", 16, least=1),
        "lora_dropout": settings.number("ds.lora.dropout", 0.0),
        "lora_targets": ",".join(targets) or ALL_LINEAR,
        "input_gradients": InputGradients.ALWAYS.value,
    }


def refuse_what_has_no_plan(settings: Settings, arguments: Arguments, around: Surroundings) -> None:
    """What no program of it is planned with, and values that no run begins with."""
    settings.only("ds.ring_attn_size", f"samples that GPUs share: {NOT_PLANNED}; 1 is", "1")
    settings.only("ds.tensor_parallel_size", f"weights that GPUs share in a layer: {NOT_PLANNED}; 1 is", "1")
    settings.only("ds.grad_accum_dtype", f"gradients in a type of their own: {NOT_PLANNED}; leave it out")
    settings.only("ds.deepcompile", f"what DeepSpeed compiles: {NOT_PLANNED}")
    settings.only("train.full_determinism_enable", f"deterministic kernels of attention: {NOT_PLANNED}")
    micro_batch, batch = arguments.options["micro_batch"], arguments.options["global_batch"]
    assert isinstance(micro_batch, int)
    assert isinstance(batch, int)
    if around.num_gpus is not None and batch % (micro_batch * around.num_gpus):
        settings.refuse(
            "train.batch_size",
            f"a multiple of train.micro_batch_size {micro_batch} on {around.num_gpus} GPUs is needed: "
            f"{micro_batch * around.num_gpus}, or more",
        )
    for key in NUMBERS:
        settings.check_number(key, 0)
    for key in WHOLE:
        settings.check_number(key, is_whole=True)
    settings.check_choice("lr_scheduler", SCHEDULERS)
    settings.ignore((*NUMBERS, *WHOLE, "lr_scheduler"))
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore(("ds.lora.rank", "ds.lora.alpha", "ds.lora.dropout", "ds.lora.target_modules"))
    if "eval.dataset" in settings:
        settings.note(
            "it evaluates between epochs, or after every eval.steps steps: that takes less of a GPU than training, "
            "without gradients, and its time is not counted"
        )
    settings.ignore(("eval.dataset",))


def data_rules_of(settings: Settings, *, packs: bool, prefers: bool = False) -> DataRules:
    """Samples are cut at ``data.max_len``, and a micro batch is padded to its longest."""
    most = settings.maybe_count("data.max_samples", least=1) or MAX_SAMPLES
    return DataRules(pads_to=1, pads=not packs, most_samples=most, prefers=prefers, learns=NOT_KNOWN)

"""Scripts and notebooks of Unsloth: ``FastLanguageModel`` and its like, with TRL's trainer.

Defaults and rules of unsloth 2026.10.9 (``models/loader.py``, ``models/llama.py``, ``models/vision.py``,
``models/rl.py``, ``trainer.py``) and unsloth_zoo 2026.10.9 (``training_utils.py``, ``peft_utils.py``,
``gradient_checkpointing.py``, ``fused_losses/fused_linear.py``). What is planned is the same training by transformers,
peft and TRL alone, with what of Unsloth's these have too: see ``PLANNED_AS``.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from vlmplan.architecture.images import image_shape
from vlmplan.data_rules import FOR_LARGEST, NOT_KNOWN, DataRules
from vlmplan.notes import Caveat, listed
from vlmplan.other_trainers.adapters import EMBEDDINGS, copied_embeddings
from vlmplan.other_trainers.assembled import assembled, without_limit
from vlmplan.other_trainers.batching import trl_batching
from vlmplan.other_trainers.evaluated import METRICS, PATIENCE, THRESHOLD, EvaluationRules, by_metrics, when
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments, Defaults, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.meaning import OF_PROCESSOR, Meaning, Surroundings, sees
from vlmplan.other_trainers.processors import image_size
from vlmplan.other_trainers.programs.gathered import ARGUMENTS_KEY
from vlmplan.other_trainers.programs.parsed_arguments import PLAIN_ARGUMENTS
from vlmplan.other_trainers.programs.unsloth_runs import ADAPTERS_KEY, CLASS_KEY, COLLATOR
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import dpo_options
from vlmplan.other_trainers.trl.program import left_trained_parts
from vlmplan.other_trainers.unsloth.differences import note_differences
from vlmplan.other_trainers.unsloth.names import makers_name
from vlmplan.other_trainers.unsloth.rewards import rewarded_options
from vlmplan.other_trainers.unsloth.targets import REWRITTEN, adapted_modules, has_experts
from vlmplan.recipe.choices import LossKind, Method, Precision, WeightDtype
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.run.saving import Interval, Saving
from vlmplan.workload import ModelFiles

UNSLOTH: Final = "Unsloth 2026.10.9"
LEAST_TAKEN, MOST_TAKEN = 0.89, 1.04
"""Of what is planned, that published runs of Unsloth took: the memory of cards of 8 to 80 GB, and the plans of the most
tokens that fit on each, Llama 3.1 8B and Llama 3.3 70B in 4 bits with adapters of rank 32 on all Linears, one sample
(https://unsloth.ai/docs/basics/unsloth-benchmarks). Measured; ``tests/other_trainers/unsloth/published.yaml`` has them.
"""
NUM_NOTEBOOKS, LEAST_OF_NOTEBOOKS, MEDIAN_OF_NOTEBOOKS, MOST_OF_NOTEBOOKS = 26, 0.27, 1.15, 1.54
"""How many of Unsloth's notebooks print their peak, and how much of what is planned they took. Measured;
``tests/measured/later.md`` has each."""
PLANNED_AS: Final = (
    "planned as transformers, peft and TRL train it without Unsloth, whose own kernels are in no number; "
)
OF_LLAMA: Final = (
    f"published runs of Unsloth on Llama in 4 bits took {LEAST_TAKEN:.2f} to {MOST_TAKEN:.2f} of what is planned so"
)
OF_NOTEBOOKS: Final = (
    f"{NUM_NOTEBOOKS} of Unsloth's notebooks, whose lengths had to be assumed, took {LEAST_OF_NOTEBOOKS:.2f} to "
    f"{MOST_OF_NOTEBOOKS:.2f} of what is planned so, {MEDIAN_OF_NOTEBOOKS:.2f} at the median"
)
OF_TASKS: Final = "no published run of Unsloth is held against such a plan"
WITHOUT_PADDING: Final = (
    "padding_free is not said: Unsloth drops the padding of text in most such runs, which takes less than is planned "
    "where samples are not all as long"
)
"""``_should_auto_padding_free`` (``trainer.py``), and ``utils/padding_choice.py`` for small micro batches."""
OF_OLD_GPUS: Final = "where torch's attention keeps all scores, as on a T4, its attention by xformers keeps none; "
"""``select_attention_backend`` (``utils/attention_dispatch.py``)."""
OF_TOWERS: Final = "it checkpoints towers, too, of which transformers checkpoints none, and takes less; "
LEAST_OFFLOADED: Final = 512
"""``apply_unsloth_gradient_checkpointing``: below so many tokens nothing is moved to the host."""
LENGTH: Final = 2048
DPO_LENGTH: Final = 1024
"""``max_length`` of TRL's ``DPOConfig``."""
LOGGING_STEPS: Final = 1
"""``logging_steps`` where Unsloth's own defaults are taken (``models/rl.py``)."""
OWN_DEFAULTS: Final = Defaults(
    micro_batch=4,
    accumulation=2,
    checkpointing=None,
    bf16=None,
    optimizer="adamw_8bit",
    logging_steps=LOGGING_STEPS,
    evaluation=EvaluationRules(
        batch=4,
        when=partial(when, default_steps=LOGGING_STEPS),
        kept=by_metrics,
        patience=PATIENCE,
        threshold=THRESHOLD,
    ),
)
"""Of ``SFTConfig`` and its like, which Unsloth replaces (``models/rl.py``: 'Edit GA / bsz and weight_decay')."""
PLAIN_DEFAULTS: Final = Defaults(
    checkpointing=None, bf16=None, evaluation=EvaluationRules(kept=by_metrics, patience=PATIENCE, threshold=THRESHOLD)
)
"""Of transformers' ``TrainingArguments``, which stay."""
WITHOUT_BF16: Final = "planned in fp16, in which Unsloth trains on a GPU that does not compute in bf16"
DTYPES: Final = ("bfloat16", "float16")
WITHOUT_EFFECT: Final = frozenset(
    """token device_map rope_scaling fix_tokenizer trust_remote_code resize_model_vocab revision use_exact_model_name
    random_state max_lora_rank disable_log_stats gpu_memory_utilization float8_kv_cache fullgraph auto_model
    attn_implementation unsloth_force_compile return_logits cache_dir local_files_only max_length
    whisper_language whisper_task temporary_location task_type embedding_learning_rate
    dataset_text_field dataset_num_proc dataset_kwargs dataset_batch_size assistant_only_loss completion_only_loss
    truncation_mode shuffle_dataset eval_packing eos_token pad_token chat_template_path model_init_kwargs
    max_prompt_length max_completion_length padding_value label_pad_token_id generate_during_eval is_encoder_decoder
    ensure_weight_tying layers_pattern loss_type disable_dropout device_map_planner_kwargs on_model_resolved
    prefetch_depth loraplus_lr_ratio context_parallel_backend context_parallel_rotate_method""".split()
)
NOT_THE_SAME: Final = (
    "load_in_8bit load_in_fp8 qat_scheme unsloth_tiled_mlp text_only float8_training offload_layers block_swap_layers "
    "checkpoint_skip_layers"
)
ONE_RANK: Final = "context_parallel_size"
OF_ADAPTERS: Final = "layers_to_transform finetune_last_n_layers loftq_config rank_pattern alpha_pattern"
SIZES: Final = tuple("r lora_alpha lora_dropout use_rslora use_dora init_lora_weights".split())
PARTS: Final = ("vision_layers", "language_layers", "attention_modules", "mlp_modules", "audio_layers")
INITS: Final = ("true", "false", "gaussian")
"""Of adapters, that take no other bytes."""


def read_unsloth(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What Unsloth makes of a program's keywords in supervised fine-tuning. Raises InputError with everything that is
    wrong."""
    own = trl_batching(settings, sees=sees(model))
    packs = settings.flag("packing", False)
    if not packs and not sees(model) and "padding_free" not in settings:
        settings.note(WITHOUT_PADDING)
    return _read(settings, model, around, own, DataRules(pads_to=1, packs=packs, learns=NOT_KNOWN))


def read_unsloth_dpo(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What Unsloth makes of them in training on preferences."""
    own = dpo_options(settings)
    own["seq_len"] = settings.count("max_length", DPO_LENGTH, least=1)
    return _read(settings, model, around, own, DataRules(pads_to=1))


def read_unsloth_grpo(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What Unsloth makes of them in training on rewards."""
    if settings.flag("full_finetuning", False):
        settings.refuse("full_finetuning", f"on rewards: {NOT_PLANNED}; adapters are")
    return _read(settings, model, around, rewarded_options(settings, model, around), DataRules())


def _whole_logits(settings: Settings) -> dict[str, Value]:
    """With functions of metrics all logits are made in training, too (``models/rl.py``: ``UNSLOTH_RETURN_LOGITS``)."""
    given = [key for key in METRICS if settings.maybe_flag(key)]
    if not given:
        return {}
    settings.note(f"{listed(given)}: Unsloth makes all logits then, in training too")
    return {"loss": LossKind.MODEL.value}


def _read(
    settings: Settings,
    model: ModelFiles | None,
    around: Surroundings,
    own: dict[str, Value],
    data_rules: DataRules,
) -> TrainerConfig:
    arguments = _arguments(settings, around)
    options: dict[str, Value] = {"loss": LossKind.TRL.value, **liger_options(settings, fuses_loss=False)}
    name = settings.text("model_name", "")
    options |= {"model": makers_name(name)} if name else {}
    method = _method(settings, name)
    length = _length(settings, model)
    options |= {} if length is None else {"seq_len": length}
    is_rewarded = own.get("task") == TaskKind.GRPO.value
    settings.only(NOT_THE_SAME, NOT_PLANNED)
    settings.only(ONE_RANK, NOT_PLANNED, 1)
    if not is_rewarded:
        settings.only("fast_inference", NOT_PLANNED)
    if method is not Method.FULL:
        options |= _adapters(settings, model, method)
    options |= left_trained_parts(settings, model) | _whole_logits(settings)
    is_fast = settings.mentions(CLASS_KEY, "FastLanguageModel")
    is_rewritten = is_fast and model is not None and model.model_type in REWRITTEN
    is_alone = around.num_gpus in (None, 1)
    has_buffers = is_rewritten or is_alone
    options |= _bounded_images(settings, model)
    options |= _images(settings, model, length or LENGTH) | _checkpoints(settings, length or LENGTH, has_buffers) | own
    is_half = (around.precision or arguments.precision) is Precision.FP16
    weights = _weights(settings, method, is_half=is_half)
    if not is_rewarded:
        is_published = method is Method.QLORA and is_rewritten and not is_half
        is_published = is_published and "offload_activations" in options
        held = OF_TASKS if "task" in own else OF_LLAMA if is_published else OF_NOTEBOOKS
        settings.note(_without_its_kernels(model, is_half=is_half, held=held))
    note_differences(settings, model, method, name, is_alone=is_alone)
    _ignore_the_rest(settings)
    meaning = Meaning(
        trainer=UNSLOTH,
        model=model,
        method=method,
        options=options,
        weights=weights,
        use_double_quant=True if method is Method.QLORA else None,
        without_autocast=Precision.BF16,
        data_rules=data_rules,
    )
    if "expandable_segments" not in own:
        around = replace(around, environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True", **around.environment})
    return assembled(settings, arguments, meaning, around)


def _without_its_kernels(model: ModelFiles | None, *, is_half: bool, held: str) -> Caveat:
    """What a plan without Unsloth's kernels may be off by. ``held``: what such plans have been held against."""
    less = (OF_TOWERS if sees(model) else "") + (OF_OLD_GPUS if is_half else "")
    return Caveat(PLANNED_AS + less + held)


def _ignore_the_rest(settings: Settings) -> None:
    """What changes nothing that is planned, or is read already."""
    settings.ignore((*WITHOUT_EFFECT, *(f"finetune_{part}" for part in PARTS), CLASS_KEY, ADAPTERS_KEY, ARGUMENTS_KEY))
    settings.ignore((COLLATOR, "resize", "target_modules", "target_parameters", "modules_to_save", "bias"))
    settings.ignore((*SIZES, *OF_ADAPTERS.split()))  # 'Full finetuning is enabled, so .get_peft_model has no effect'


def _arguments(settings: Settings, around: Surroundings) -> Arguments:
    """The trainer's arguments. Autocast is on whatever they say: to what type follows from the model's (``rl.py``:
    'Mixed precision training'), which is float16 on a GPU without bf16, whatever is said (``models/loader.py``: 'Device
    does not support bfloat16'). Where no folder is said nothing is saved ('saving_check')."""
    kind = settings.text(ARGUMENTS_KEY, "")
    arguments = read_arguments(settings, PLAIN_DEFAULTS if kind in PLAIN_ARGUMENTS else OWN_DEFAULTS)
    dtype = settings.text("dtype", "")
    if dtype and dtype not in DTYPES:
        settings.refuse("dtype", f"{NOT_PLANNED}; one of {', '.join(DTYPES)}, or None, is")
    lacks_bf16 = around.precision is None and around.computes_in_bf16() is False
    if lacks_bf16:
        settings.note(WITHOUT_BF16)
    is_half = lacks_bf16 or arguments.precision is Precision.FP16 or dtype == "float16"
    arguments.precision = Precision.FP16 if is_half else Precision.BF16
    says_saving = any(key in settings for key in ("output_dir", "save_strategy", "save_steps"))
    if kind not in PLAIN_ARGUMENTS and not says_saving:
        arguments.saving = Saving(interval=Interval.NEVER, writes_result=False, by_hugging_face=True)
    return arguments


def _method(settings: Settings, name: str) -> Method:
    """Weights are packed in 4 bits unless something else is said (``load_in_4bit = True``)."""
    if settings.flag("full_finetuning", False):
        settings.ignore(("load_in_4bit", "load_in_16bit"))  # 'disabling LoRA / QLoRA'
        return Method.FULL
    if ADAPTERS_KEY not in settings:
        settings.refuse_whole(
            "no get_peft_model puts adapters on the model, and full_finetuning is not said: nothing would be trained"
        )
    is_wide = settings.flag("load_in_16bit", False)
    is_packed = settings.flag("load_in_4bit", True)
    if is_wide and is_packed:
        settings.refuse("load_in_16bit", "load_in_4bit is True unless said otherwise: write load_in_4bit = False")
    return Method.QLORA if is_packed and not name.casefold().endswith("-bf16") else Method.LORA


def _length(settings: Settings, model: ModelFiles | None) -> int | None:
    if settings.is_null("max_seq_length"):
        settings.note(f"max_seq_length is None: {without_limit(model)}")
        return None
    return settings.count("max_seq_length", LENGTH, least=1)


def _adapters(settings: Settings, model: ModelFiles | None, method: Method) -> dict[str, Value]:
    settings.only("bias", f"biases that are trained: {NOT_PLANNED}", "none")
    settings.only("init_lora_weights", NOT_PLANNED, *INITS)
    settings.only(OF_ADAPTERS, NOT_PLANNED)
    options: dict[str, Value] = {
        "lora_rank": settings.count("r", 16, least=1),
        "lora_alpha": settings.count("lora_alpha", 16, least=1),
        "lora_dropout": settings.number("lora_dropout", 0.0),
        "use_rslora": settings.flag("use_rslora", False),
        "use_dora": settings.flag("use_dora", False),
    }
    if "loraplus_lr_ratio" in settings:
        options["loraplus_lr_ratio"] = settings.number("loraplus_lr_ratio", 1.0, least=1.0)
    if model is not None and has_experts(model.config) and method is Method.QLORA:
        settings.refuse_whole("weights of experts in 4 bits: " + NOT_PLANNED + "; load_in_4bit = False is")
    targets = _without_embeddings(settings)
    with settings.kept():
        options |= adapted_modules(
            loader=settings.text(CLASS_KEY, "FastLanguageModel"),
            targets=targets,
            parts={part: settings.flag(f"finetune_{part}", default) for part, default in _parts(settings).items()},
            stacked=settings.names("target_parameters"),
            model=model,
        )
    copies = copied_embeddings(settings, "modules_to_save")
    return options | ({"train_embeddings": True} if len(targets) < len(settings.names("target_modules")) else copies)


def _without_embeddings(settings: Settings) -> list[str]:
    """Modules that adapters are put on: Unsloth moves embedding and head to ``modules_to_save``
    (``_redirect_embedding_targets``)."""
    targets = settings.names("target_modules")
    adapted = [name for name in targets if name not in EMBEDDINGS]
    if targets and not adapted:
        settings.refuse("target_modules", "no Linear is left that adapters are put on")
    elif len(adapted) < len(targets):
        settings.note("target_modules: Unsloth trains embed_tokens and lm_head whole, as modules_to_save would have it")
    return adapted


def _parts(settings: Settings) -> dict[str, bool]:
    """``FastLanguageModel`` leaves the layers of images out where it puts adapters on a model that has some."""
    sees_by_default = settings.text(CLASS_KEY, "FastLanguageModel") != "FastLanguageModel"
    return {part: sees_by_default if part == "vision_layers" else part != "audio_layers" for part in PARTS}


def _checkpoints(settings: Settings, length: int, has_buffers: bool) -> dict[str, Value]:
    """``"unsloth"``: inputs of checkpointed layers wait in host memory (``UnslothCheckpointFunction``; on several GPUs,
    of models that Unsloth has not rewritten, by ``non_reentrant_offload_hooks``, without buffers). ``False`` holds
    unless the arguments say ``gradient_checkpointing`` (``models/_gc_config_default.py``)."""
    mode = settings.text("use_gradient_checkpointing", "unsloth").casefold()
    if mode not in ("unsloth", "true", "false"):
        settings.refuse("use_gradient_checkpointing", 'one of "unsloth", True, False is needed')
    offloads = mode == "unsloth" and length >= LEAST_OFFLOADED
    if offloads and has_buffers:
        settings.note(
            'use_gradient_checkpointing "unsloth": inputs of checkpointed layers wait in host memory, as planned; '
            "Unsloth keeps that of the last layer, and one or two buffers of such a size, on the GPU"
        )
    is_said = mode == "false" and "gradient_checkpointing" in settings
    is_on = mode != "false" or (is_said and settings.flag("gradient_checkpointing", False))
    if not is_said:
        settings.ignore(("gradient_checkpointing",))
    return {"activation_checkpointing": is_on, **({"offload_activations": True} if offloads else {})}


def _weights(settings: Settings, method: Method, *, is_half: bool) -> WeightDtype:
    """Loaded in 16 bits, weights stay so but in full fine-tuning in float32 (``prepare_model_for_training``)."""
    wide = settings.maybe_flag("float32_mixed_precision")
    if method is Method.FULL and (wide or is_half):
        return WeightDtype.FLOAT32
    return WeightDtype.MODEL


def _bounded_images(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """How large the program's own processor lets images be, where none of Unsloth's has made them smaller before."""
    said = [key for key in settings.keys if key.startswith(OF_PROCESSOR) and key not in settings.own_keys]
    if COLLATOR not in settings or not said or not sees(model):
        return image_size(settings, model)
    settings.ignore(said)
    settings.note(
        f"{listed(said)}: images are planned as {COLLATOR} leaves them, and not what the processor makes of them "
        f"then: --image-size"
    )
    return {}


def _images(settings: Settings, model: ModelFiles | None, length: int) -> dict[str, Value]:
    """How large ``UnslothVisionDataCollator`` lets images be (``unsloth_zoo/vision_utils.py``)."""
    if model is None or not sees(model) or COLLATOR not in settings:
        return {}
    said: Any = settings.raw("resize") if "resize" in settings else "min"
    value = _default_size(model) if said == "min" else said
    if value == "max":
        return {}
    sides = cast(list[Any], value) if isinstance(value, list) else []
    if len(sides) == 2 and all(isinstance(side, int) for side in sides):
        return {"image_size": f"{sides[0]}x{sides[1]}"}
    side = cast(Any, value)
    if isinstance(side, bool) or not isinstance(side, int) or side < 1:
        settings.refuse("resize", 'a number of pixels, two of them, "min" or "max" is needed')
        return {}
    tokens = image_shape(model.config, model.preprocessor, width=side, height=side).num_tokens
    if tokens >= length:
        settings.note(
            f"{COLLATOR} lets images be {side} pixels wide, of which one may take {tokens:,} tokens: {FOR_LARGEST}"
        )
        return {}
    settings.note(
        f"{COLLATOR} makes images {side} pixels wide that are wider; every image is taken as {side}x{side}, and one "
        f"that is higher than wide takes more: --image-size"
    )
    return {"image_size": f"{side}x{side}"}


def _default_size(model: ModelFiles) -> Any:
    """``vision_config.image_size``, where two sides are of every image, or 512 where there is none."""
    vision = model.config.get("vision_config")
    size: Any = cast(Mapping[str, Any], vision).get("image_size") if isinstance(vision, Mapping) else None
    is_given = isinstance(size, (int, list)) and bool(cast(Any, size))
    return cast(Any, size) if is_given else 512

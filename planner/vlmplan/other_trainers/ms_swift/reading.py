"""ms-swift's training (4.6.0): options of ``swift sft`` and ``swift rlhf``, a YAML or JSON file of them, or a run's
``args.json``.

Sources: ``arguments/sft_args.py``, ``arguments/tuner_args.py``, ``arguments/base_args/`` and ``trainers/arguments.py``
for keys and defaults, ``pipelines/train/tuner.py`` for what is adapted, ``config/`` for its DeepSpeed files.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.data_rules import NOT_KNOWN, OF_EVERY_IMAGE, DataRules, Learnt, LearntRule, loader_workers_of
from vlmplan.files import text_of
from vlmplan.files.json_reader import parse_json_object
from vlmplan.notes import listed
from vlmplan.other_trainers.adapters import EMBEDDINGS, copied_embeddings, lora_options, packed_storage
from vlmplan.other_trainers.assembled import assembled, largest_image, without_limit
from vlmplan.other_trainers.batching import ms_swift_batching
from vlmplan.other_trainers.evaluated import without_evaluated_shards
from vlmplan.other_trainers.hugging_face import (
    ATTENTION,
    NOT_PLANNED,
    Arguments,
    Defaults,
    attention_option,
    read_arguments,
)
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.loaded_adapters import AdapterKeys, take_loaded_or_written
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.ms_swift.datasets import dataset_samples
from vlmplan.other_trainers.ms_swift.evaluation import EVALUATION
from vlmplan.other_trainers.ms_swift.older import read_older
from vlmplan.other_trainers.ms_swift.preferences import KIND, OF_RLHF, check_kind, preference_options
from vlmplan.other_trainers.ms_swift.rewards import REWARDS, Images, reward_options, without_prefetch
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    REGEX,
    AttentionImplementation,
    InputGradients,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.lora_targets import is_lora_init, linears_by_class
from vlmplan.workload import ModelFiles

MS_SWIFT: Final = "ms-swift 4.6.0"
NAMED_FSDP2: Mapping[str, Any] = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": True},
}
"""``config/fsdp2.json``, as far as it decides memory or time."""
LEARNT: Mapping[str, Learnt] = {
    "default": Learnt.ANSWERS,
    "last_round": Learnt.LAST_ROUND,
    "all": Learnt.EVERYTHING,
}
"""``loss_scale`` without more behind it."""
DEFAULTS = Defaults(
    hands_on=False,
    micro_batch=1,
    accumulation=None,
    checkpointing=True,
    bf16=None,
    loader_workers=loader_workers_of("ms-swift"),
    keeps_best=True,
    writes_result=False,
    evaluation=EVALUATION,
)
PIXEL_VARIABLES = frozenset(
    f"{kind}{limit}"
    for kind in ("", "IMAGE_", "VIDEO_")
    for limit in ("MAX_PIXELS", "MIN_PIXELS", "TOTAL_PIXELS", "MAX_TOKEN_NUM", "MIN_TOKEN_NUM")
) - {"IMAGE_MAX_PIXELS", "IMAGE_MIN_PIXELS"}
"""What limits images and frames (``patch_qwen_vl_utils`` in ``model/models/qwen.py``)."""
LEAST_SAMPLES_A_STEP = 16
"""Without ``gradient_accumulation_steps`` so many are accumulated at the least."""
ATTENTION_NAMES: Mapping[str, AttentionImplementation] = {
    **ATTENTION,
    "flash_attn": AttentionImplementation.FLASH_ATTENTION_2,
}
TYPES: Mapping[str, tuple[Precision, WeightDtype]] = {
    "bfloat16": (Precision.BF16, WeightDtype.MODEL),
    "float16": (Precision.FP16, WeightDtype.MODEL),
    "float32": (Precision.FP16, WeightDtype.FLOAT32),
}
"""What ``torch_dtype`` makes of bf16 and fp16 where they are not said (``_init_mixed_precision``)."""
WITHOUT_EFFECT = frozenset(
    """ENV dataset val_dataset cached_dataset cached_val_dataset split_dataset_ratio dataset_num_proc
    load_from_cache_file
    dataset_shuffle val_dataset_shuffle streaming interleave_prob stopping_strategy shuffle_buffer_size download_mode
    columns strict disable_auto_column_mapping model_name model_author custom_dataset_info external_plugins
    custom_register_path enable_npu_model_patch load_args load_data_args packing_num_proc packing_strategy lazy_tokenize
    use_hf ignore_args_error use_swift_lora template system agent_template norm_bbox use_chat_template padding_side
    loss_scale is_binary_loss_scale template_backend response_prefix enable_thinking preserve_thinking
    add_non_thinking_prefix disable_ignore_empty_think model_type model_revision local_repo_path init_strategy
    temperature top_k top_p repetition_penalty num_beams stream stop_words logprobs top_logprobs
    max_new_tokens structured_outputs_regex hqq_axis bnb_4bit_compute_dtype bnb_4bit_quant_type
    bnb_4bit_use_double_quant lora_bias lora_dtype add_version create_checkpoint_symlink
    ddp_timeout ddp_backend check_model acc_strategy train_dataloader_shuffle max_epochs aligner_lr vit_lr
    use_logits_to_keep ds3_gather_for_generation resume_only_model eval_metric early_stop_interval eval_use_evalscope
    eval_dataset eval_dataset_args eval_limit eval_generation_config extra_eval_args router_aux_loss_coef
    enable_channel_loss max_shard_size use_flash_ckpt callbacks mrl_dims ckpt_dir logging_dir rope_scaling
    max_model_len swift_version model_kwargs merge_lora safe_serialization adapter_act
    adapter_length model_suffix model_dir local_world_size global_world_size rank local_rank
    model_info model_meta template_meta hub training_args _val_dataset_exists ray_exp_name device_groups""".split()
)
OF_A_RUN: Final = frozenset(("global_world_size", "swift_version", "local_world_size"))
"""Keys of the ``args.json`` that it writes of a run: everything that its object of arguments holds by then
(``save_args``), also what it has made of them itself."""
ADAPTER: Final = "adapters"
KEYS_OF_ADAPTERS: Final = AdapterKeys(names={"r": "lora_rank"}, pattern=lambda text: [REGEX + text])
OF_ADAPTERS = tuple(
    """lora_rank lora_alpha lora_dropout use_rslora target_modules modules_to_save use_dora init_weights lorap_lr_ratio
    target_regex adapters""".split()
)
OF_OTHER_TECHNIQUES = tuple(
    "galore_ lisa_ lora_ga_ vera_ boft_ fourier_ adalora_ llamapro_ reft_ decision_ swanlab_".split()
)
"""How keys begin that are read only where another key, which is refused, asks for it, or that watch a run."""


def read_ms_swift(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``swift sft`` and ``swift rlhf`` make of these keys and variables. Raises InputError with everything that is
    wrong."""
    settings.only("task_type", "causal_lm is planned", "causal_lm")
    read_older(settings)
    kind = check_kind(settings)
    arguments = read_arguments(settings, DEFAULTS)
    with settings.kept():
        _named_sharding(arguments, settings, around)
    weights = _types(settings, arguments)
    options: dict[str, Value] = {"loss": LossKind.MODEL.value, **liger_options(settings)}
    options["input_gradients"] = InputGradients.LANGUAGE.value
    options |= _model(settings)
    options |= _samples(settings, model, around) | dataset_samples(settings)
    options |= attention_option(settings, "attn_impl", ATTENTION_NAMES)
    options |= ms_swift_batching(settings, options.get("attention"), sees=sees(model))
    options |= _parts(settings, model)
    method = _method(settings)
    if method is not Method.FULL:
        options |= _adapters(settings, model, around)
        if options["lora_targets"] != ALL_LINEAR and sees(model):
            settings.note("modules that target_modules names are adapted in every part of the model, frozen or not")
            options |= {"train_vision": True, "train_projector": True, "train_language": True}
    images = Images(model, options.get("image_size"))
    options |= _of_task(settings, arguments, kind, method, images, around)
    settings.ignore((*OF_ADAPTERS, *(OF_RLHF if kind else ())))
    options |= _vision_checkpoints(settings, model)
    options |= _accumulation(arguments, around)
    _refuse_techniques(settings)
    doubles = settings.flag("bnb_4bit_use_double_quant", True) if method is Method.QLORA else None
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore_all_of(*OF_OTHER_TECHNIQUES)
    without_autocast = Precision.FP32 if weights is WeightDtype.FLOAT32 else Precision.BF16_PURE
    meaning = Meaning(
        trainer=MS_SWIFT, method=method, options=options, weights=weights, without_autocast=without_autocast
    )
    meaning.model = model
    meaning.packed_storage = packed_storage(settings)
    meaning.use_double_quant, meaning.data_rules = doubles, _data_rules(settings, model, around)
    found = without_evaluated_shards(assembled(settings, arguments, meaning, around))
    return without_prefetch(found) if kind == REWARDS else found


def _model(settings: Settings) -> dict[str, Value]:
    name = settings.text("model", settings.text("model_id_or_path", "") if "model_id_or_path" in settings else "")
    return {"model": name} if name else {}


def _vision_checkpoints(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    vision = settings.maybe_flag("vit_gradient_checkpointing")
    return {} if vision is None or not sees(model) else {"vision_activation_checkpointing": vision}


def _of_task(
    settings: Settings,
    arguments: Arguments,
    kind: str,
    method: Method,
    images: Images,
    around: Surroundings,
) -> dict[str, Value]:
    """Of ``swift rlhf``, by what it trains on."""
    if kind == REWARDS:
        return reward_options(settings, arguments, method, images, around)
    return preference_options(settings, arguments, method, kind) if kind else {}


def _named_sharding(arguments: Arguments, settings: Settings, around: Surroundings) -> None:
    """``fsdp`` is a name, a file or JSON, which holds ``fsdp`` and ``fsdp_config``: a run's ``args.json`` has both, as
    accelerate's launcher has (``_init_fsdp`` in ``arguments/sft_args.py``; ``_check_fsdp2_compatibility`` there on
    checkpoints)."""
    if arguments.fsdp is None or arguments.fsdp_config is not None:
        return
    name = arguments.fsdp
    if name == "fsdp2":
        found: Mapping[str, Any] = NAMED_FSDP2
    elif isinstance(name, Mapping) or str(name).lstrip().startswith("{"):
        found = settings.table("fsdp")
    else:
        file = found_file(str(name), around.folder, settings.source, "fsdp", settings.notes)
        found = parse_json_object(text_of(file, name=str(file), most_bytes=MAX_BYTES), source=str(file))
    arguments.fsdp = found.get("fsdp", "full_shard auto_wrap")
    arguments.fsdp_config = dict(found.get("fsdp_config", {}))
    if arguments.fsdp_config.get("activation_checkpointing") and arguments.options["activation_checkpointing"]:
        arguments.options["activation_checkpointing"] = False
        settings.note("gradient_checkpointing is turned off beside activation_checkpointing of FSDP2, which does it")


def _types(settings: Settings, arguments: Arguments) -> WeightDtype:
    name = settings.text("torch_dtype", "bfloat16").removeprefix("torch.")
    if name not in TYPES:
        settings.refuse("torch_dtype", f"one of {', '.join(TYPES)} is needed")
        return WeightDtype.MODEL
    if "torch_dtype" not in settings:
        settings.note("torch_dtype is not said: the checkpoint's type is taken to be bfloat16")
    precision, weights = TYPES[name]
    if "bf16" not in settings and "fp16" not in settings:
        arguments.precision = precision
    return weights


def _samples(settings: Settings, model: ModelFiles | None, around: Surroundings) -> dict[str, Value]:
    packs = settings.flag("packing", False)
    length = settings.maybe_count("max_length", least=1)
    packed = settings.maybe_count("packing_length", least=1)
    options: dict[str, Value] = {}
    if packs and packed is not None:
        length = packed
    if length is not None:
        options["seq_len"] = length
    elif settings.value(KIND) != REWARDS:
        settings.note(f"max_length is not said, so {without_limit(model)}")
    largest = settings.maybe_count("max_pixels", least=1) or _pixels(settings, model, around)
    if largest is not None and sees(model):
        options["image_size"] = largest_image(largest)
        settings.note(f"{OF_EVERY_IMAGE} max_pixels allows, {largest_image(largest)}")
    return options


def _data_rules(settings: Settings, model: ModelFiles | None, around: Surroundings) -> DataRules:
    """Samples over ``max_length`` are deleted unless ``truncation_strategy`` says left or right (``sft_args.py``).
    Images are looked for in ``ROOT_IMAGE_DIR`` (``load_file`` in ``template/vision_utils.py``)."""
    strategy = settings.text("truncation_strategy", "delete")
    return DataRules(
        pads_to=1,
        packs=settings.flag("packing", False),
        drops_long=strategy == "delete",
        max_pixels=settings.maybe_count("max_pixels", least=1) or _pixels(settings, model, around),
        image_folder=around.environment.get("ROOT_IMAGE_DIR") or None,
        learns=learnt_of(settings),
    )


def learnt_of(settings: Settings) -> LearntRule:
    """What ``loss_scale`` counts (``loss_scale/base.py``): the end of an answer too, blanks and all
    (``_add_dynamic_eos`` in ``template/base.py``). What weighs parts of an answer is not counted."""
    value = settings.value("loss_scale")
    strategy = "default" if value is None else str(value)
    if strategy not in LEARNT or not settings.idle_flag("use_chat_template", True):
        return NOT_KNOWN
    return LearntRule(what=LEARNT[strategy], with_blanks=True)


def _pixels(settings: Settings, model: ModelFiles | None, around: Surroundings) -> int | None:
    """The limit that a variable sets."""
    for name in around.environment:
        if name not in PIXEL_VARIABLES and any(part in name for part in ("PIXEL", "TOKEN_NUM")):
            _note_once(settings, f"{name} is no variable that ms-swift reads of images; MAX_PIXELS limits them")
    for name, per_unit in (("MAX_PIXELS", 1), ("IMAGE_MAX_TOKEN_NUM", _pixels_per_token(model))):
        text = around.environment.get(name, "")
        if text.isdigit() and 0 < int(text) < 10**9:
            _note_once(settings, f"{name}={text} limits each image")
            return int(text) * per_unit
        if text:
            settings.refuse_whole(f"{name} is {text!r}; a whole number is needed")
    return None


def _note_once(settings: Settings, sentence: str) -> None:
    if sentence not in settings.notes:
        settings.note(sentence)


def _pixels_per_token(model: ModelFiles | None) -> int:
    """``IMAGE_MAX_TOKEN_NUM`` counts squares of ``image_patch_size * SPATIAL_MERGE_SIZE`` pixels (``fetch_image`` in
    qwen_vl_utils 0.0.14): 28 of Qwen2-VL and Qwen2.5-VL, 32 since Qwen3-VL."""
    vision = None if model is None else model.config.get("vision_config")
    patch = cast("Mapping[str, object]", vision).get("patch_size") if isinstance(vision, Mapping) else None
    return (2 * patch if isinstance(patch, int) else 32) ** 2


def _parts(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    trains = {
        "train_vision": not settings.flag("freeze_vit", True),
        "train_projector": not settings.flag("freeze_aligner", True),
        "train_language": not settings.flag("freeze_llm", False),
    }
    lists = ("freeze_parameters", "trainable_parameters")
    if any(key in settings for key in OF_A_RUN):  # which hold the parts by then (_init_multimodal_full)
        held = [key for key in lists if settings.is_on(key)]
        settings.ignore(held)
        if held:
            settings.note(f"{listed(held)}: taken for what freeze_llm, freeze_vit and freeze_aligner have made of it")
        lists = tuple(key for key in lists if key not in held)
    settings.only(" ".join((*lists, "freeze_parameters_regex freeze_parameters_ratio")), NOT_PLANNED)
    settings.only("trainable_parameters_regex", NOT_PLANNED)
    return dict(trains) if sees(model) else {}


def _method(settings: Settings) -> Method:
    older = settings.text("train_type", "") if "train_type" in settings else ""
    kind = settings.text("tuner_type", older or "lora")
    if kind not in ("lora", "full"):
        key = "tuner_type" if "tuner_type" in settings else "train_type"
        settings.refuse(key, f"{NOT_PLANNED}; lora and full are planned")
    bits = settings.maybe_count("quant_bits")
    settings.only("quant_method", f"{NOT_PLANNED}; bnb is planned", "bnb")
    if not bits:
        return Method.FULL if kind == "full" else Method.LORA
    if bits not in (4, 8):
        settings.refuse("quant_bits", f"{NOT_PLANNED}; 4 and 8 are planned")
    if kind == "full":
        settings.refuse("quant_bits", "packed weights are not trained themselves; tuner_type lora is needed")
    return Method.LORA_8BIT if bits == 8 else Method.QLORA


def _adapters(settings: Settings, model: ModelFiles | None, around: Surroundings) -> dict[str, Value]:
    take_loaded_or_written(settings, ADAPTER, around.folder, KEYS_OF_ADAPTERS)
    options = lora_options(settings, rank=8, alpha=32, dropout=0.05)
    initial = settings.text("init_weights", "true").casefold()
    if initial != "true" and not is_lora_init(initial):
        settings.refuse("init_weights", NOT_PLANNED)
    elif initial != "true":
        options["lora_init"] = initial
    if settings.text("optimizer", "default") == "lorap":
        options["loraplus_lr_ratio"] = settings.number("lorap_lr_ratio", 1.0, least=1.0)
    pattern = settings.text("target_regex", "")
    targets = settings.names("target_modules", ALL_LINEAR)
    options["lora_targets"] = ",".join(targets)
    if ALL_LINEAR in targets:
        options["lora_targets"] = ALL_LINEAR if model is None else linears_by_class(model.config)
    if pattern:
        options["lora_targets"] = REGEX + pattern
    return options | copied_embeddings(settings, "modules_to_save", EMBEDDINGS | {"all-embedding"})


def _accumulation(arguments: Arguments, around: Surroundings) -> dict[str, Value]:
    """16 samples a step at the least, where nothing is said."""
    if "grad_accum" in arguments.options:
        return {}
    if around.num_gpus is None:
        return {"global_batch": LEAST_SAMPLES_A_STEP}
    once = int(arguments.options["micro_batch"]) * around.num_gpus
    return {"grad_accum": max(1, math.ceil(LEAST_SAMPLES_A_STEP / once))}


def _refuse_techniques(settings: Settings) -> None:
    settings.only(
        "sequence_parallel_size",
        "ms-swift's own Ulysses and ring attention are not planned; --sequence-parallel is DeepSpeed's",
        1,
    )
    settings.only("deepspeed_autotp_size", f"more than one GPU a sample: {NOT_PLANNED}", 1)
    settings.only("tuner_backend", f"{NOT_PLANNED}; peft is planned", "peft")
    settings.only("use_galore enable_dft_loss target_parameters", NOT_PLANNED)
    settings.only("lisa_activated_layers", NOT_PLANNED)
    settings.only("optimizer", NOT_PLANNED, "default", "multimodal", "lorap")
    settings.only("experts_impl", f"other kernels of experts: {NOT_PLANNED}", "grouped_mm")
    if KIND not in settings:
        settings.only("loss_type", f"another loss: {NOT_PLANNED}", "cross_entropy")
    settings.only("device_map max_memory", "layers on several GPUs, one after another, are not planned")
    settings.only("new_special_tokens", f"new tokens: {NOT_PLANNED}")
    settings.only("num_labels problem_type", "a head of classes is not planned")
    settings.only("zero_hpz_partition_size", "say it in the DeepSpeed file, or with --hpz")
    settings.only("use_ray", NOT_PLANNED)

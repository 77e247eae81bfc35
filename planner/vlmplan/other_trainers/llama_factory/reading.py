"""LLaMA-Factory's configuration: ``llamafactory-cli train FILE.yaml`` or its options (0.9.5).

Sources: ``hparams/*.py`` for keys and defaults, ``model/adapter.py`` for types and what is frozen,
``model/model_utils/misc.py`` for what "all" adapts, ``data/mm_plugin.py`` for the size of images.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vlmplan.data_rules import (
    LLAMA_FACTORY_PIXELS,
    OF_EVERY_IMAGE,
    OF_LLAMA_FACTORY,
    DataRules,
    Learnt,
    LearntRule,
    VideoRules,
)
from vlmplan.errors import InputError
from vlmplan.model_types.thinkers import NUMBERED, THINKERS
from vlmplan.other_trainers.adapters import copied_embeddings, lora_options
from vlmplan.other_trainers.assembled import assembled, largest_image
from vlmplan.other_trainers.evaluated import make_logits, without_evaluated_shards
from vlmplan.other_trainers.fsdp import Sharding
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments, Defaults, attention_option, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.llama_factory.checkpoints import checkpoint_options, take_checkpoint_kind
from vlmplan.other_trainers.llama_factory.evaluation import EVALUATION, datasets_of, num_evaluated
from vlmplan.other_trainers.llama_factory.preferences import (
    TASKS,
    of_stage,
    with_reentrant_checkpoints,
)
from vlmplan.other_trainers.loaded_adapters import AdapterKeys, take_loaded_or_written
from vlmplan.other_trainers.meaning import ALLOCATOR_VARIABLES, Meaning, Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    PISSA,
    PISSA_ITERATIONS,
    REGEX,
    AttentionImplementation,
    BatchesOnGpu,
    InputGradients,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.lora_targets import LINEARS_BESIDE_EXPERTS, linears_by_class
from vlmplan.workload import ModelFiles

LLAMA_FACTORY: Final = "LLaMA-Factory 0.9.5"
PACKED_SHARDS: Final = (
    "the FSDP2 of accelerate 1.11, which LLaMA-Factory keeps to, makes all shards float32, those of 4-bit weights too, "
    "which these do not survive: it does not train such a model; leave quantization_bit off"
)
"""``requirements`` of its wheel; accelerate 1.11 ``utils/fsdp_utils.py`` ``fsdp2_prepare_model``: ``model.to(float32)``
where the model has another type; ``model_utils/quantization.py``: ``bnb_4bit_quant_storage`` is a float type."""
SHARDING: Final = Sharding(has_ends_apart=False, casts_frozen=True, has_older_arguments=True)
DEFAULTS = Defaults(checkpointing=None, evaluation=EVALUATION)
ATTENTION: Mapping[str, AttentionImplementation] = {
    "sdpa": AttentionImplementation.SDPA,
    "fa2": AttentionImplementation.FLASH_ATTENTION_2,
    "disabled": AttentionImplementation.EAGER,
}
ADAPTER: Final = "adapter_name_or_path"
KEYS_OF_ADAPTERS: Final = AdapterKeys(
    names={"r": "lora_rank", "target_modules": "lora_target", "modules_to_save": "additional_target"},
    pattern=lambda text: [REGEX + text],
)
STAGES = ("sft", "pt", *TASKS)
OF_TRL: Mapping[str, str] = {
    "rm": ", and --task reward is TRL's, without the logits and hidden states that rm makes beside its value head",
}
"""``PairwiseTrainer`` in ``train/rm/trainer.py``, with the model of ``add_valuehead`` in ``model/loader.py``."""
HEARS_VIDEOS = frozenset(one.model_type for one in THINKERS.values())
IMAGE_MAX_PIXELS, IMAGE_MIN_PIXELS = LLAMA_FACTORY_PIXELS
OLDER: Final = {"image_max_pixels": "image_resolution", "video_max_pixels": "video_resolution"}
"""What 0.9.1 calls keys (``hparams/model_args.py``), by their names today; in 0.9.0 they were sides."""
WITHOUT_EFFECT = frozenset(
    """dataset eval_dataset dataset_dir template train_on_prompt mask_history streaming buffer_size
    mix_strategy interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers eval_num_beams
    ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format default_system enable_thinking
    preserve_thinking tokenized_path data_shared_file_system cache_dir use_fast_tokenizer split_special_tokens
    init_special_tokens model_revision low_cpu_mem_usage rope_scaling moe_aux_loss_coef
    infer_backend offload_folder use_kv_cache infer_dtype hf_hub_token ms_hub_token om_hub_token print_param_status
    trust_remote_code quantization_type double_quantization audio_sampling_rate
    image_min_pixels loraplus_lr_embedding create_new_adapter plot_loss
    compute_accuracy disable_shuffling early_stopping_steps include_effective_tokens_per_second use_swanlab
    swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
    swanlab_lark_webhook_url swanlab_lark_secret ray_num_workers ray_init_kwargs ray_run_name ray_storage_path
    resources_per_worker placement_strategy master_addr master_port adapter_folder ref_model pissa_convert
    freeze_trainable_layers freeze_trainable_modules freeze_extra_modules fp8_backend generation_max_length
    do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty
    skip_special_tokens""".split()
)
OF_OTHER_TECHNIQUES = tuple(
    """galore_ apollo_ badam_ oft_ pref_ dpo_ kto_ ppo_ simpo_ reward_model ref_model_ asft_ eaft_ export_ vllm_ kt_
    profiler_ profile_ enable_torch_profiler module_dropout ld_alpha hyper_parallel_ sglang_""".split()
)
"""How keys begin that are read only where another key, which is refused, asks for it."""


WITHOUT_TRAINING = ("export_dir", "infer_backend", "do_predict")
"""Keys of files that export a model, answer with it or predict."""


def _check_training(settings: Settings) -> None:
    """LLaMA-Factory trains where ``do_train`` is true, which it is not by default (``TrainingArguments``)."""
    if settings.flag("do_train", False):
        return
    other = next((key for key in WITHOUT_TRAINING if key in settings), None)
    if "do_train" in settings:
        settings.refuse("do_train", "a run that does not train is not planned")
    elif other is not None:
        raise InputError(
            f"{settings.source} has {other} and no do_train: it does not train, and nothing else is planned of it"
        )
    else:
        settings.note("do_train is not set, without which LLaMA-Factory trains nothing: planned as if it were true")


def read_llama_factory(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What LLaMA-Factory makes of these keys. Raises InputError with everything that is wrong."""
    around = replace(around, environment=_environment(around))
    stage = settings.text("stage", "sft")
    if stage not in STAGES:
        settings.refuse("stage", f"sft, pt (pre-training), dpo and kto are planned{OF_TRL.get(stage, '')}")
    _check_training(settings)
    arguments, method = read_arguments(settings, DEFAULTS), _method(settings)
    options: dict[str, Value] = {
        "loss": LossKind.MODEL.value,
        "batches_on_gpu": BatchesOnGpu.STEP.value,
        "input_gradients": InputGradients.PEFT.value,
    }
    options |= _liger(settings, model, fuses_loss=stage not in TASKS)
    if options["loss"] == LossKind.LIGER.value and not settings.flag("use_liger_kernel", False):
        make_logits(arguments.options)
    name = settings.text("model_name_or_path", "")
    options |= {"model": name} if name else {}
    options |= _samples(settings, model)
    options |= attention_option(settings, "flash_attn", ATTENTION)
    options |= of_stage(settings, stage, options, arguments, method)
    options |= _parts(settings, model)
    merges = not method.packs_weights and arguments.deepspeed is None
    options |= _adapters(settings, model, around, merges=merges) if method is not Method.FULL else {}
    _adapters_without_effect(settings)
    arguments.options |= checkpoint_options(settings, stage, trains_vision=options.get("train_vision") is not False)
    _refuse_techniques(settings)
    _refuse_sound_of_videos(settings, model)
    doubles = settings.flag("double_quantization", True) if method is Method.QLORA else None
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore_all_of(*OF_OTHER_TECHNIQUES)
    meaning = _types(settings, arguments, method, options)
    meaning.use_double_quant = doubles
    meaning.data_rules = _data_rules(settings, stage)
    meaning.model, meaning.sharding = model, SHARDING
    meaning.packed_storage = (arguments.precision or Precision.FP32).dtype.torch_name
    meaning.without_fsdp = PACKED_SHARDS if (around.method or method) is Method.QLORA else None
    take_checkpoint_kind(settings, arguments.options, meaning)
    meaning.grows_on_several = _lets_segments_grow(around.environment)
    is_reentrant = stage in TASKS and settings.flag("use_reentrant_gc", True)
    return without_evaluated_shards(
        with_reentrant_checkpoints(assembled(settings, arguments, meaning, around), is_reentrant=is_reentrant)
    )


def _environment(around: Surroundings) -> Mapping[str, str]:
    """Its launcher starts torchrun for several GPUs, and lets the allocator's segments grow (``launcher.py``)."""
    environment = dict(around.environment)
    starts = (around.num_gpus or 1) > 1 or environment.get("FORCE_TORCHRUN", "0").casefold() in ("true", "y", "1")
    if starts and _lets_segments_grow(environment):
        environment[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    return environment


def _lets_segments_grow(environment: Mapping[str, str]) -> bool:
    return environment.get("OPTIM_TORCH", "1").casefold() in ("true", "y", "1")


def _types(settings: Settings, arguments: Arguments, method: Method, options: dict[str, Value]) -> Meaning:
    """Trained weights become float32 beside 16-bit frozen ones, unless ``pure_bf16``; adapters are peft's."""
    meaning = Meaning(trainer=LLAMA_FACTORY, method=method, options=options, adapters="table")
    if settings.flag("pure_bf16", False):
        meaning.weights, meaning.without_autocast = WeightDtype.MODEL, Precision.BF16_PURE
        meaning.adapters = "float32"
        if arguments.deepspeed is not None and arguments.precision is None:
            settings.refuse("pure_bf16", "DeepSpeed takes its precision from bf16 or fp16; set bf16 too")
    elif arguments.precision is None:
        settings.refuse_whole(
            "neither bf16 nor fp16 is set, so trained float32 weights would meet 16-bit ones; set bf16: true"
        )
    return meaning


def _method(settings: Settings) -> Method:
    kind = settings.text("finetuning_type", "lora")
    if kind not in ("lora", "full"):
        settings.refuse("finetuning_type", f"{NOT_PLANNED}; lora and full are planned")
    bits = settings.maybe_count("quantization_bit")
    settings.only("quantization_method", f"{NOT_PLANNED}; bnb is planned", "bnb", "bitsandbytes")
    settings.only("quantization_device_map", NOT_PLANNED)
    if bits is None:
        return Method.FULL if kind == "full" else Method.LORA
    if bits not in (4, 8):
        settings.refuse("quantization_bit", f"{NOT_PLANNED}; 4 and 8 are planned")
    if kind == "full":
        settings.refuse(
            "quantization_bit", "packed weights are not trained themselves; finetuning_type: lora is needed"
        )
    return Method.LORA_8BIT if bits == 8 else Method.QLORA


def _samples(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    options: dict[str, Value] = {"seq_len": settings.count("cutoff_len", 2048, least=1)}
    samples, trained = _most_samples(settings), _most_trained(settings)
    datasets = len(datasets_of(settings)) or 1
    if samples is not None and trained is not None:
        options["num_samples"] = trained
        if datasets > 1:
            settings.note(f"max_samples is of each of {datasets} data sets: {samples:,} at the most")
    largest = settings.count("image_max_pixels", IMAGE_MAX_PIXELS, least=1)
    fewest = settings.maybe_count("image_min_pixels", least=1) or IMAGE_MIN_PIXELS
    if largest < fewest:
        settings.refuse(
            "image_max_pixels",
            f"pixels of a whole image, at least the {fewest:,} of image_min_pixels, without which LLaMA-Factory raises "
            f"ValueError; images with that many a side have {largest**2}",
        )
    if sees(model):
        options["image_size"] = largest_image(largest)
        settings.note(f"{OF_EVERY_IMAGE} image_max_pixels allows, {largest_image(largest)}")
    settings.only("image_do_pan_and_scan crop_to_patches", f"more crops of an image: {NOT_PLANNED}")
    return options


def _most_samples(settings: Settings) -> int | None:
    """``max_samples`` of each data set."""
    samples = settings.maybe_count("max_samples", least=1)
    datasets = len(datasets_of(settings)) or 1
    return None if samples is None else samples * datasets


def _most_trained(settings: Settings) -> int | None:
    """Those without ``val_size``, which is taken out of them (``split_dataset`` of ``data/data_utils.py``)."""
    samples = _most_samples(settings)
    return None if samples is None else max(1, samples - (num_evaluated(settings) or 0))


def _data_rules(settings: Settings, stage: str) -> DataRules:
    """``SupervisedDatasetProcessor``: micro batches are padded to a multiple of 8 (``workflow.py`` of ``train/sft``,
    ``dpo`` and ``kto``); what is packed drops samples over the limit (``data/processor/supervised.py``), which answers
    of tasks are not (``pairwise.py``, ``feedback.py``). Images are looked for in ``media_dir``, else beside
    dataset_info.json (``_find_medias`` in ``data/converter.py``)."""
    packs = stage == "pt"
    is_packed = stage not in TASKS and (settings.flag("packing", packs) or settings.flag("neat_packing", False))
    return DataRules(
        packs=is_packed,
        drops_long=is_packed,
        min_pixels=settings.maybe_count("image_min_pixels", least=1) or IMAGE_MIN_PIXELS,
        max_pixels=settings.count("image_max_pixels", IMAGE_MAX_PIXELS, least=1),
        names=tuple(datasets_of(settings)),
        videos=_video_rules(settings),
        most_samples=_most_trained(settings),
        image_folder=settings.text("media_dir", "") or None if "media_dir" in settings else None,
        learns=learnt_of(settings, is_pretraining=packs),
    )


def learnt_of(settings: Settings, *, is_pretraining: bool) -> LearntRule:
    """``_encode_data_example`` in ``data/processor/supervised.py``; of pre-training every token is learnt."""
    prompts, masks_history = (settings.idle_flag(key, False) for key in ("train_on_prompt", "mask_history"))
    if prompts and masks_history:
        settings.refuse("mask_history", "train_on_prompt is true too, and LLaMA-Factory takes one of the two")
    if prompts or is_pretraining:
        return LearntRule(what=Learnt.EVERYTHING)
    return replace(OF_LLAMA_FACTORY, what=Learnt.LAST_ANSWER) if masks_history else OF_LLAMA_FACTORY


def _video_rules(settings: Settings) -> VideoRules:
    """What is said of videos; the rest is as LLaMA-Factory has it."""
    said = {
        name: settings.count(key, 1, least=1)
        for name, key in (
            ("most_frames", "video_maxlen"),
            ("min_pixels", "video_min_pixels"),
            ("max_pixels", "video_max_pixels"),
        )
        if key in settings
    }
    fps = settings.number("video_fps", 2.0) if "video_fps" in settings else VideoRules().fps
    return VideoRules(fps=fps, **said)


def _refuse_sound_of_videos(settings: Settings, model: ModelFiles | None) -> None:
    """Of other models its plugins do not read it (``Qwen2OmniPlugin`` in ``data/mm_plugin.py``)."""
    hears = settings.maybe_flag("use_audio_in_video") and (model is None or model.model_type in HEARS_VIDEOS)
    if hears:
        settings.refuse(
            "use_audio_in_video", "the sound of a video, which is heard beside its frames then, is not planned"
        )


def _parts(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """What is trained of the model's own; ``train_mm_proj_only`` is what releases before 0.9.2 have for three keys
    (their ``hparams/finetuning_args.py``)."""
    if settings.maybe_flag("train_mm_proj_only"):
        settings.make("freeze_vision_tower", True)
        settings.make("freeze_multi_modal_projector", False)
        settings.make("freeze_language_model", True)
    trains = {
        "train_vision": not settings.flag("freeze_vision_tower", True),
        "train_projector": not settings.flag("freeze_multi_modal_projector", True),
        "train_language": not settings.flag("freeze_language_model", False),
    }
    return dict(trains) if sees(model) else {}


def _adapters(settings: Settings, model: ModelFiles | None, around: Surroundings, *, merges: bool) -> dict[str, Value]:
    """Adapters are gone on with, the last of several. Where they can be merged into the model, which packed weights and
    ZeRO-3 forbid, ``create_new_adapter`` does that first (``_setup_lora_tuning`` in ``model/adapter.py``)."""
    if merges and settings.idle_flag("create_new_adapter", False):
        settings.ignore((ADAPTER,))
    else:
        take_loaded_or_written(settings, ADAPTER, around.folder, KEYS_OF_ADAPTERS)
    options = lora_options(settings, rank=8, alpha=None, dropout=0.0)
    options |= _initial(settings)
    if "loraplus_lr_ratio" in settings:
        options["loraplus_lr_ratio"] = settings.number("loraplus_lr_ratio", 1.0, least=1.0)
    targets = settings.names("lora_target", "all")
    if targets == ["all"]:
        options["lora_targets"] = _all_linears(settings, model)
        options |= {"train_projector": False} if sees(model) else {}
    else:
        options["lora_targets"] = ",".join(targets)
    return options | copied_embeddings(settings, "additional_target")


def _all_linears(settings: Settings, model: ModelFiles | None) -> str:
    """What ``all`` means: the Linears of the parts that are trained, by their whole names (``find_all_linear_modules``
    and ``patch_target_modules`` in LLaMA-Factory's ``model/model_utils``), where peft's own word would not do."""
    is_numbered = model is not None and model.model_type in NUMBERED
    if is_numbered and settings.flag("freeze_vision_tower", True):
        return LINEARS_BESIDE_EXPERTS
    return ALL_LINEAR if model is None else linears_by_class(model.config)


def _initial(settings: Settings) -> dict[str, Value]:
    """What adapters start from: PiSSA, by iterations unless their number is -1."""
    if not settings.flag("pissa_init", False):
        settings.ignore(("pissa_iter",))
        return {}
    if settings.raw("pissa_iter") in (-1, "-1"):
        return {"lora_init": PISSA}
    return {"lora_init": f"{PISSA_ITERATIONS}{settings.count('pissa_iter', 16, least=1)}"}


def _adapters_without_effect(settings: Settings) -> None:
    """Keys of adapters in a configuration that has none."""
    settings.ignore(("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora", "additional_target"))
    settings.ignore(("use_dora", "pissa_init", "pissa_iter", "loraplus_lr_ratio"))


LIGER_TYPES = frozenset(
    "gemma gemma2 gemma3 gemma3_text glm glm4 glm4v gpt_oss granite llama llava mistral mixtral mllama olmo2 paligemma "
    "phi3 qwen2 qwen2_5_vl qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next".split()
)
"""Of ``apply_liger_kernel`` in ``model/model_utils/liger_kernel.py``."""


def _liger(settings: Settings, model: ModelFiles | None, *, fuses_loss: bool) -> dict[str, Value]:
    """``enable_liger_kernel``, which patches some models and warns of others; ``use_liger_kernel`` is the Trainer's.
    Not ``fuses_loss``: it wants logits (``require_logits`` in ``model/model_utils/liger_kernel.py``)."""
    options = liger_options(settings, fuses_loss=fuses_loss)
    if not settings.flag("enable_liger_kernel", False):
        return options
    if model is not None and model.model_type not in LIGER_TYPES:
        settings.note(f"enable_liger_kernel does nothing for {model.model_type}: LLaMA-Factory has no kernels for it")
        return options
    return {"liger_layers": True, **({"loss": LossKind.LIGER.value} if fuses_loss else {})}


def _refuse_techniques(settings: Settings) -> None:
    settings.only(
        "use_galore use_apollo use_badam use_adam_mini use_muon use_llama_pro mixture_of_depths shift_attn "
        "use_unsloth use_kt use_mca use_hyper_parallel fp8 fp8_enable_fsdp_float8_all_gather use_v1_kernels",
        NOT_PLANNED,
    )
    settings.only("use_dft_loss use_asft_loss use_eaft_loss", f"another loss: {NOT_PLANNED}")
    settings.only("upcast_layernorm upcast_lmhead_output", NOT_PLANNED)
    settings.only("resize_vocab add_tokens add_special_tokens new_special_tokens_config", f"new tokens: {NOT_PLANNED}")
    settings.only("train_from_scratch", NOT_PLANNED)
    if settings.value("finetuning_type") == "full":
        settings.only(ADAPTER, "LLaMA-Factory takes it with finetuning_type: lora alone")

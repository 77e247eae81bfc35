"""TRL's supervised fine-tuning: ``SFTConfig``, ``ModelConfig`` and ``ScriptArguments`` of TRL 1.16.0, as YAML for
``trl sft --config`` or as options of ``trl/scripts/sft.py``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from vlmplan.data_rules import OF_TRL as LEARNT_OF_TRL
from vlmplan.data_rules import DataRules, Learnt, LearntRule
from vlmplan.notes import listed
from vlmplan.other_trainers.adapters import TASK_TYPES, copied_embeddings, lora_options, packed_storage
from vlmplan.other_trainers.argument_kinds import OF_TRL, check_kinds
from vlmplan.other_trainers.assembled import assembled, without_limit
from vlmplan.other_trainers.batching import trl_batching
from vlmplan.other_trainers.evaluated import EvaluationRules, loss_alone, when
from vlmplan.other_trainers.hugging_face import (
    ATTENTION,
    NOT_PLANNED,
    Arguments,
    Defaults,
    attention_option,
    read_arguments,
)
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.plain_trainer import OF_DATA, leave_data
from vlmplan.other_trainers.record import TrainerConfig, Unwritten, Value, WholeNames
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.routers import router_options
from vlmplan.recipe.choices import ALL_LINEAR, REGEX, AttentionImplementation, LossKind, Method, Precision, WeightDtype
from vlmplan.recipe.lora_targets import is_stacked
from vlmplan.workload import ModelFiles

TRL: Final = "TRL 1.16.0"
TRL_LOGGING_STEPS: Final = 10
"""``logging_steps`` of ``base_config.py``."""
EVALUATION: Final = EvaluationRules(when=partial(when, default_steps=TRL_LOGGING_STEPS), kept=loss_alone)
DEFAULTS = Defaults(checkpointing=True, bf16=True, evaluation=EVALUATION, logging_steps=TRL_LOGGING_STEPS)
"""``trl/trainer/base_config.py``."""
ATTENTION_NAMES: Mapping[str, AttentionImplementation] = {
    **ATTENTION,
    "kernels-community/flash-attn2": AttentionImplementation.FLASH_ATTENTION_2,
    "kernels-community/flash-attn": AttentionImplementation.FLASH_ATTENTION_2,
}
LORA_TARGETS: Mapping[str, str] = dict.fromkeys(
    "bart opt gptj gpt_neo llama llama4 mistral mixtral stablelm gemma gemma2 gemma3_text qwen2 qwen3".split(),
    "q_proj,v_proj",
) | {"gpt2": "c_attn", "phi": "q_proj,v_proj,fc1,fc2", "gpt_neox": "query_key_value", "falcon": "query_key_value"}
"""What peft 0.21.2 adapts where nothing is said (``peft/utils/constants.py``), by model type."""
WITHOUT_EFFECT = frozenset(
    """dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming datasets streaming
    test_split_size ignore_bias_buffers gradient_checkpointing_use_reentrant chat_template_path dataset_text_field
    dataset_kwargs dataset_num_proc eos_token pad_token truncation_mode shuffle_dataset eval_packing
    completion_only_loss assistant_only_loss model_revision trust_remote_code router_aux_loss_coef
    lora_task_type bnb_4bit_quant_type env config accelerate_config num_processes
    data_seed multi_gpu num_machines machine_rank main_process_ip main_process_port""".split()
)
OLDER: Mapping[str, str] = {"max_length": "max_seq_length", "use_liger_kernel": "use_liger"}
"""What ``SFTConfig`` called keys before TRL 0.20, by their names today."""
OLDER_FLASH: Final = "use_flash_attention_2"
"""The switch that ``attn_implementation`` has replaced, in recipes of alignment-handbook."""
OF_HANDBOOK = frozenset(
    """auto_insert_empty_system_msg dataset_configs dataset_mixer dataset_splits preprocessing_num_workers
    text_column tokenizer_name_or_path""".split()
)
"""Of the scripts of huggingface/alignment-handbook (``src/alignment/configs.py``, releases of 2024): data and
tokenizer."""
OF_OPEN_R1 = frozenset(
    """benchmarks callbacks chat_template hub_model_revision overwrite_hub_revision push_to_hub_revision system_prompt
    wandb_log_unique_prompts wandb_entity wandb_project wandb_run_group dataset_mixture dataset_prompt_column
    cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct cosine_max_len
    repetition_n_grams repetition_max_penalty code_language code_eval_test_batch_size code_eval_scoring_mode
    parallel_code_exec_per_proc e2b_router_url morph_router_url code_provider ioi_provider max_completion_len
    soft_punish_cache""".split()
)
"""Of the scripts of huggingface/open-r1 (``src/open_r1/configs.py``, at 1416fa0c), which are built on TRL's: prompts,
rewards and where results go, none of which changes memory or time."""
OF_ADAPTERS = tuple(
    """lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_rslora use_dora
    lora_target_parameters torch_dtype""".split()
)
"""Without effect in a run that has no adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program has otherwise than TRL's own scripts: the arguments' defaults, the adapters' (peft's own are
    written out), whether it calls ``prepare_model_for_kbit_training``, and in what its 4-bit layers compute."""

    defaults: Defaults = DEFAULTS
    upcasts_frozen: bool = False
    packed_computes_in: str | None = None


def read_trl(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``trl sft`` makes of these keys. Raises InputError with everything that is wrong."""
    return of_any_task(settings, model, around, sft_options(settings, model), sft_data_rules(settings))


def sft_options(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """What keys mean that ``SFTConfig`` alone has."""
    settings.only("loss_type", NOT_PLANNED, "nll", "chunked_nll")
    return {**trl_batching(settings, sees=sees(model))}


def sft_data_rules(settings: Settings) -> DataRules:
    """Samples of ``SFTTrainer``."""
    packs = settings.flag("packing", False)
    return DataRules(pads_to=pads_to(settings), packs=packs, learns=learnt_of(settings))


def learnt_of(settings: Settings) -> LearntRule:
    """What ``SFTTrainer`` makes labels of (``tokenize_fn`` and ``build_labels``): ``completion_only_loss`` is true by
    default where samples have completions. With ``assistant_only_loss`` it is what tags of the chat template say, by
    a template of TRL's own where the model's has none."""
    completions = settings.idle_flag("completion_only_loss", True)
    if settings.idle_flag("assistant_only_loss", False):
        return LearntRule(what=Learnt.TAGGED, heeds_turns=False)
    return LEARNT_OF_TRL if completions else LearntRule(what=Learnt.EVERYTHING)


def of_any_task(
    settings: Settings,
    model: ModelFiles | None,
    around: Surroundings,
    own: Mapping[str, Value],
    data_rules: DataRules,
    program: Program | None = None,
) -> TrainerConfig:
    """What keys mean that TRL's trainers share (``BaseConfig``, ``ModelConfig``); ``own`` is what those of one mean,
    and goes before."""
    packs_by_dtype, program = program is None, program or Program()
    arguments = read_arguments(settings, program.defaults)
    method, options = _method_and_options(settings, model, has_length="seq_len" in own)
    init = settings.table("model_init_kwargs")
    for key in init:
        settings.refuse("model_init_kwargs", f"{key} may change what is loaded; write dtype and attn_implementation")
    weights, without_autocast = weights_of(settings, packs_by_it=packs_by_dtype)
    is_quantized = method.packs_weights and arguments.deepspeed is None
    if is_quantized and arguments.precision is Precision.FP16:
        settings.refuse_whole("fp16 is set, but TRL makes adapters of packed models bfloat16; set bf16: true instead")
    options |= {**_offloaded_activations(settings, arguments), **own, **router_options(settings, model, own)}
    settings.ignore(WITHOUT_EFFECT | OF_HANDBOOK)
    known = WITHOUT_EFFECT | OF_HANDBOOK | OF_OPEN_R1
    leave_data(settings, [key for key in settings.keys if key not in known and OF_DATA.fullmatch(key)])
    settings.ignore(OF_ADAPTERS)
    _note_open_r1(settings)
    doubles = settings.flag("use_bnb_nested_quant", False) if method is Method.QLORA else None
    settings.ignore(("use_bnb_nested_quant",))
    meaning = Meaning(
        casts_zero3_adapters=True,
        use_double_quant=doubles,
        packed_storage=packed_storage(settings),
        trainer=TRL,
        model=model,
        method=method,
        options=options,
        weights=weights,
        adapters="model" if is_quantized else "float32",
        without_autocast=without_autocast,
        data_rules=data_rules,
        upcasts_frozen=program.upcasts_frozen,
        packed_computes_in=program.packed_computes_in,
    )
    check_kinds(settings, OF_TRL)
    return assembled(settings, arguments, meaning, around)


def _method_and_options(
    settings: Settings, model: ModelFiles | None, *, has_length: bool
) -> tuple[Method, dict[str, Value]]:
    """Model, length, attention, adapters and loss; ``has_length``: the task's own keys say the length."""
    options: dict[str, Value] = {"loss": LossKind.TRL.value, **liger_options(settings, fuses_loss=False)}
    name = settings.text("model_name_or_path", "")
    options |= {"model": name} if name else {}
    options |= {} if has_length else _length(settings, model)
    if settings.maybe_flag(OLDER_FLASH) and "attn_implementation" not in settings:
        settings.make("attn_implementation", AttentionImplementation.FLASH_ATTENTION_2.value)
    options |= attention_option(settings, "attn_implementation", ATTENTION_NAMES)
    method = method_of(settings)
    return method, options | (adapters_of(settings, model) if method is not Method.FULL else {})


def _note_open_r1(settings: Settings) -> None:
    found = sorted(key for key in OF_OPEN_R1 if key in settings)
    if found:
        settings.note(f"{listed(found)} {'are' if len(found) > 1 else 'is'} of open-r1's scripts, not of TRL's own")
    settings.ignore(OF_OPEN_R1)


def _length(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """``max_length``, where null is no default but cuts nothing, as TRL's scripts for models that see have it."""
    if settings.is_null("max_length"):
        settings.ignore(("max_length",))
        settings.note(f"max_length is null, so nothing is cut and {without_limit(model)}")
        return {}
    return {"seq_len": settings.count("max_length", 1024, least=1)}


def pads_to(settings: Settings) -> int:
    """What lengths are padded to a multiple of; ``auto`` pads on AWS Trainium alone."""
    if settings.raw("pad_to_multiple_of") == "auto":
        return 1
    return settings.maybe_count("pad_to_multiple_of", least=1) or 1


def _offloaded_activations(settings: Settings, arguments: Arguments) -> dict[str, Value]:
    """``OffloadActivations`` moves all that is saved and no weight, 1,024 bytes or more of it: of checkpointed layers
    their inputs (``trl/models/activation_offloading.py``)."""
    if not settings.flag("activation_offloading", False):
        return {}
    if not arguments.options["activation_checkpointing"]:
        settings.refuse("activation_offloading", f"without gradient_checkpointing: {NOT_PLANNED}")
    settings.note(
        "activation_offloading: what the last norm and the head save is counted on the GPU, where TRL keeps up to five "
        "of the tensors that it moves; its copies run beside computation, and are counted as if they did not"
    )
    return {"offload_activations": True}


PACKED: Final = {"load_in_4bit": Method.QLORA, "load_in_8bit": Method.LORA_8BIT}


def method_of(settings: Settings) -> Method:
    """What the keys of adapters and of quantised weights mean."""
    has_adapters = settings.flag("use_peft", False)
    packed = [name for name in PACKED if settings.flag(name, False)]
    if not packed:
        return Method.LORA if has_adapters else Method.FULL
    if len(packed) > 1:
        settings.refuse(packed[1], f"and {packed[0]} is set too; one of the two is needed")
    if not has_adapters:
        settings.refuse(packed[0], "packed weights are not trained themselves; use_peft: true is needed")
    return PACKED[packed[0]]


def adapters_of(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """The options of adapters."""
    options = lora_options(settings, rank_key="lora_r", rank=16, alpha=32, dropout=0.05)
    settings.check_choice("lora_task_type", TASK_TYPES)
    targets = settings.names("lora_target_modules")
    is_written = not isinstance(settings.value("lora_target_modules"), Unwritten)
    is_empty = "lora_target_modules" in settings and is_written and not targets
    if is_empty and not settings.names("lora_target_parameters"):
        settings.refuse("lora_target_modules", f"which adapts nothing; names of modules, or {ALL_LINEAR}, is needed")
    is_list = isinstance(settings.value("lora_target_modules"), WholeNames)
    if ALL_LINEAR in targets and (is_list or len(targets) > 1):
        settings.refuse("lora_target_modules", f"{ALL_LINEAR} is taken alone, as a text that is no list")
    stacked = settings.names("lora_target_parameters")
    if not all(is_stacked(name) for name in stacked):
        settings.refuse("lora_target_parameters", f"adapters on weights other than experts.NAME: {NOT_PLANNED}")
    if targets == [ALL_LINEAR]:
        options["lora_targets"] = ALL_LINEAR
    elif len(targets) == 1 and not is_list:
        options["lora_targets"] = _pattern(settings, targets[0], has_more=bool(stacked))
    elif targets:
        options["lora_targets"] = ",".join(dict.fromkeys(targets))
    elif model is not None and is_written:
        default = LORA_TARGETS.get(model.model_type)
        if default is None:
            settings.refuse_whole(
                f"lora_target_modules is missing, and peft has no default for {model.model_type}; write the modules, "
                f"or {ALL_LINEAR}"
            )
        else:
            options["lora_targets"] = default
            settings.note(f"lora_target_modules is not said: peft adapts {default} of {model.model_type}")
    if stacked and "lora_targets" in options:
        options["lora_targets"] = ",".join([str(options["lora_targets"]), *stacked])
    return options | copied_embeddings(settings, "lora_modules_to_save")


def _pattern(settings: Settings, name: str, *, has_more: bool) -> str:
    """A name that stands alone goes to peft as text, which is a regular expression there."""
    if has_more:
        settings.refuse("lora_target_modules", "one name is a regular expression, planned without target parameters")
    settings.note(
        f"lora_target_modules is {name} alone, which TRL hands to peft as a regular expression of whole names"
    )
    return REGEX + name


def weights_of(settings: Settings, *, packs_by_it: bool = False) -> tuple[WeightDtype, Precision]:
    """TRL loads weights in float32 unless told otherwise (``create_model_from_path``); and what it computes in without
    autocast. ``packs_by_it``: TRL makes ``bnb_4bit_compute_dtype`` of it (``get_quantization_config``)."""
    name = settings.text("dtype", settings.text("torch_dtype", "float32") if "torch_dtype" in settings else "float32")
    if name not in ("float32", "bfloat16", "float16", "auto"):
        settings.refuse("dtype", "one of float32, bfloat16, float16, auto is needed")
    if name == "auto" and settings.flag("load_in_4bit", False) and packs_by_it:
        settings.refuse("dtype", "TRL computes with 4-bit weights in it; one of float32, bfloat16, float16 is needed")
    if name == "float32":
        return WeightDtype.FLOAT32, Precision.FP32
    return WeightDtype.MODEL, Precision.BF16_PURE

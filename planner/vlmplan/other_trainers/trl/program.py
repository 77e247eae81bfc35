"""Programs that train with transformers' or TRL's trainers, read as transformers 5.23, TRL 1.16 and peft 0.21 take
their keywords."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from vlmplan.data_rules import FOR_LONGEST, DataRules
from vlmplan.files.json_reader import shown
from vlmplan.models import stored_dtype
from vlmplan.notes import listed
from vlmplan.other_trainers.adapters import packed_storage
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.device_maps import refuse_spread_layers
from vlmplan.other_trainers.evaluated import METRICS, PATIENCE, THRESHOLD, EvaluationRules, by_metrics, by_strategy
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Defaults, attention_option, read_arguments
from vlmplan.other_trainers.liger import liger_options
from vlmplan.other_trainers.loaded_adapters import OTHERS, PEFTS_OWN, AdapterKeys, is_there, take_loaded_adapter
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.plain_trainer import TRAINER, longest_sample
from vlmplan.other_trainers.processors import image_size, with_bounds
from vlmplan.other_trainers.programs.gathered import ARGUMENTS_KEY
from vlmplan.other_trainers.programs.parsed_arguments import PLAIN_ARGUMENTS
from vlmplan.other_trainers.programs.stores import GRADIENTS
from vlmplan.other_trainers.programs.trl_runs import ADAPTER, ADDED, KBIT
from vlmplan.other_trainers.record import TrainerConfig, Unwritten, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import dpo_options, with_reentrant_checkpoints
from vlmplan.other_trainers.trl.grpo import grpo_options
from vlmplan.other_trainers.trl.kto import kto_options
from vlmplan.other_trainers.trl.reward import reward_options
from vlmplan.other_trainers.trl.sft import (
    ATTENTION_NAMES,
    DEFAULTS,
    OF_ADAPTERS,
    Program,
    adapters_of,
    method_of,
    of_any_task,
    pads_to,
    sft_data_rules,
    sft_options,
    weights_of,
)
from vlmplan.recipe.choices import ALL_LINEAR, LossKind, Method, Precision, WeightDtype
from vlmplan.units import DType
from vlmplan.workload import ModelFiles

PLAIN_DEFAULTS = Defaults(evaluation=EvaluationRules(kept=by_metrics, patience=PATIENCE, threshold=THRESHOLD))
"""Of ``TrainingArguments`` in place of ``SFTConfig``, which takes all of their values."""
OWN_DEFAULTS = replace(
    DEFAULTS, evaluation=replace(DEFAULTS.evaluation, kept=by_metrics, patience=PATIENCE, threshold=THRESHOLD)
)
COMPUTE_DTYPE: Final = "bnb_4bit_compute_dtype"
"""``BitsAndBytesConfig`` makes float32 of none."""
KEYS_OF_ADAPTERS: Final = AdapterKeys(
    names={"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"},
    pattern=lambda text: [text],
)
WITHOUT_EFFECT = (
    *("lora_task_type", "fan_in_fan_out", "revision", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "base_model_name_or_path", "peft_type"),
    *(ARGUMENTS_KEY, KBIT, ADDED, "llm_int8_enable_fp32_cpu_offload", COMPUTE_DTYPE),
)
"""Of peft's configurations what another key switches on, and what names and saves."""
COMPUTED: Final = ("float32", "bfloat16", "float16", "float64")
"""Types of torch by which 4-bit weights may compute."""
OTHERS_OF_PEFT: Final = tuple(key for key in OTHERS if key != "target_parameters")
"""Keywords of ``LoraConfig`` that change adapters otherwise, but for what TRL has a key of its own for."""


def read_trl_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``SFTTrainer`` makes of these keys. Raises InputError with everything that is wrong."""
    own = {**sft_options(settings, model), **_of_model(settings, model, around)}
    config = of_any_task(settings, model, around, own, sft_data_rules(settings), _program(settings))
    return with_bounds(config, settings, model)


def read_trl_dpo_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``DPOTrainer`` makes of them."""
    return _of_written_answers(settings, model, around, dpo_options(settings))


def read_trl_reward_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``RewardTrainer`` makes of them. What functions of metrics are given is one number for each answer."""
    for key in METRICS:
        settings.make(key, False)
    return _of_written_answers(settings, model, around, reward_options(settings))


def read_trl_kto_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``KTOTrainer`` makes of them."""
    return _of_written_answers(settings, model, around, kto_options(settings))


def _of_written_answers(
    settings: Settings, model: ModelFiles | None, around: Surroundings, own: dict[str, Value]
) -> TrainerConfig:
    rules = DataRules(pads_to=pads_to(settings))
    own |= _of_model(settings, model, around)
    if by_strategy(settings):
        settings.only(METRICS[0], f"evaluations that keep what it is given: {NOT_PLANNED}", "false")
    config = with_reentrant_checkpoints(of_any_task(settings, model, around, own, rules, _program(settings)))
    return with_bounds(config, settings, model)


def read_trl_grpo_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``GRPOTrainer`` makes of them."""
    own = {**grpo_options(settings, around, model), **_of_model(settings, model, around)}
    return with_bounds(of_any_task(settings, model, around, own, DataRules(), _program(settings)), settings, model)


def read_trainer_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What transformers' ``Trainer`` makes of them: its loss is of all logits, and samples are the program's own."""
    arguments = read_arguments(settings, PLAIN_DEFAULTS)
    program = _program(settings, is_trl=False)
    name = settings.text("model_name_or_path", "")
    method = method_of(settings)
    options: dict[str, Value] = {"loss": LossKind.MODEL.value, **({"model": name} if name else {})}
    options |= attention_option(settings, "attn_implementation", ATTENTION_NAMES) | liger_options(settings)
    options |= adapters_of(settings, model) if method is not Method.FULL else {}
    options |= _of_model(settings, model, around)
    settings.ignore(OF_ADAPTERS)
    weights, without_autocast = weights_of(settings)
    is_auto = settings.mentions("dtype", "auto")
    if is_auto and model is not None and stored_dtype(model.config) is DType.FLOAT32:
        weights, without_autocast = WeightDtype.FLOAT32, Precision.FP32
    options |= longest_sample(settings, settings.keys_of_program)
    if "seq_len" not in options:
        settings.note(f"how long samples are is the program's own: {FOR_LONGEST}")
    doubles = settings.flag("use_bnb_nested_quant", False) if method is Method.QLORA else None
    settings.ignore(("use_bnb_nested_quant",))
    meaning = Meaning(
        trainer=TRAINER,
        model=model,
        method=method,
        options=options,
        weights=weights,
        use_double_quant=doubles,
        packed_storage=packed_storage(settings),
        without_autocast=without_autocast,
        upcasts_frozen=program.upcasts_frozen,
        packed_computes_in=program.packed_computes_in,
        adapters="model" if settings.maybe_flag(ADDED) and not method.packs_weights else "float32",
    )
    return with_bounds(assembled(settings, arguments, meaning, around), settings, model)


def _program(settings: Settings, *, is_trl: bool = True) -> Program:
    if is_trl:
        settings.only(
            ADDED, f"before a trainer of TRL's: {NOT_PLANNED}; get_peft_model, or its peft_config, is planned"
        )
    is_plain = settings.text(ARGUMENTS_KEY, "") in PLAIN_ARGUMENTS
    settings.only("bias", f"biases that are trained: {NOT_PLANNED}", "none")
    settings.only("init_lora_weights", NOT_PLANNED, "true", "gaussian")
    settings.only("bnb_4bit_quant_type", NOT_PLANNED, "nf4", "fp4")
    settings.only("llm_int8_skip_modules", f"some weights that are not packed: {NOT_PLANNED}")
    settings.only("llm_int8_has_fp16_weight", f"8-bit weights beside their 16 bits: {NOT_PLANNED}")
    settings.only("llm_int8_threshold", f"8-bit products without outliers of their own: {NOT_PLANNED}", "6.0", "6")
    settings.check_choice(COMPUTE_DTYPE, COMPUTED)
    computes_in = settings.value(COMPUTE_DTYPE) or COMPUTED[0]
    for key in OTHERS_OF_PEFT:
        if is_there(key, settings.value(key)):
            settings.refuse(key, NOT_PLANNED)
    settings.ignore(OTHERS_OF_PEFT)
    settings.only("runtime_config ensure_weight_tying", NOT_PLANNED)
    settings.only("inference_mode", "peft freezes adapters with it, and nothing is trained; leave it out")
    upcasts = settings.flag(KBIT, False)
    settings.ignore((*WITHOUT_EFFECT, *METRICS))
    defaults = PLAIN_DEFAULTS if is_plain else OWN_DEFAULTS
    return Program(
        defaults=defaults,
        upcasts_frozen=upcasts,
        packed_computes_in=None if isinstance(computes_in, Unwritten) else str(computes_in),
    )


def _of_model(settings: Settings, model: ModelFiles | None, around: Surroundings) -> dict[str, Value]:
    """What a program says of the model's parts, of its processor, and of adapters that it loads."""
    refuse_spread_layers(settings, around)
    _take_adapter(settings, around)
    return left_trained_parts(settings, model) | image_size(settings, model)


def _take_adapter(settings: Settings, around: Surroundings) -> None:
    """The adapter that ``PeftModel.from_pretrained`` loads; of one that is not here options say how large it is."""
    value = settings.value(ADAPTER)
    is_known = value is not None and not isinstance(value, Unwritten)
    settings.ignore((ADAPTER,))
    if value is None or (is_known and take_loaded_adapter(settings, ADAPTER, around.folder, KEYS_OF_ADAPTERS)):
        return
    sentence = (
        f"PeftModel.from_pretrained loads an adapter from {shown(str(value))}, which is not on this machine: how large "
        f"it is, --method lora (or qlora), --lora-rank, --lora-alpha and --lora-targets say"
    )
    if around.method is None:
        settings.refuse_whole(sentence)
    else:
        settings.note(sentence)
    settings.make("lora_r", PEFTS_OWN["r"])
    settings.make("lora_target_modules", ALL_LINEAR)


def left_trained_parts(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """Which parts a program leaves trained that sets ``requires_grad`` itself."""
    value: object = settings.value(GRADIENTS)
    if not isinstance(value, Mapping):
        settings.ignore((GRADIENTS,))
    if isinstance(value, Unwritten) and GRADIENTS not in settings.own_keys:
        settings.refuse_whole(
            f"{shown(str(value))} leaves trained what only running the program tells; say it with --freeze-vision, "
            f"--freeze-projector or --freeze-language, and with a comment in the file, # vlmplan: ignore {GRADIENTS}"
        )
    if not isinstance(value, Mapping):
        return {}
    trained = cast(Mapping[str, bool], settings.raw(GRADIENTS))
    frozen = [part for part, trains in trained.items() if not trains]
    if model is not None and not any(trained.values() if sees(model) else [trained["language"]]):
        settings.refuse_whole(f"{GRADIENTS} is set to False for all of the model, which leaves nothing to train")
    if model is None or not sees(model):
        return {}
    settings.note(f"{GRADIENTS}: the program leaves {listed(frozen) if frozen else 'nothing'} frozen")
    return {f"train_{part}": trains for part, trains in trained.items()}

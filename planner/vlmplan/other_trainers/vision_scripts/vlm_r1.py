"""om-ai-lab/VLM-R1 (commit 90052f4): options of ``src/open_r1/grpo_jsonl.py`` and ``grpo_rec.py``.

Sources there, in ``src/open-r1-multimodal/src/open_r1``: those two and ``trainer/grpo_config.py`` for keys and
defaults, ``trainer/grpo_trainer.py`` for what ``VLMGRPOTrainer`` does, ``vlm_modules`` for models. It is made for TRL
0.17, transformers 4.49 and DeepSpeed 0.15 (``setup.py``).
"""

from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final

from vlmplan.architecture.images import image_shape
from vlmplan.data_rules import FOR_LONGEST, OF_EVERY_IMAGE, DataRules
from vlmplan.notes import Caveat
from vlmplan.other_trainers.adapters import lora_options
from vlmplan.other_trainers.assembled import assembled, largest_image
from vlmplan.other_trainers.evaluated import leave_evaluation_out
from vlmplan.other_trainers.hugging_face import (
    ATTENTION,
    NOT_PLANNED,
    Arguments,
    Defaults,
    attention_option,
    read_arguments,
)
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.grpo import DEFAULT_PROMPT_TOKENS
from vlmplan.other_trainers.trl.sft import method_of
from vlmplan.other_trainers.vision_scripts.internvl import internvl_name
from vlmplan.recipe.choices import BatchesOnGpu, LossKind, Method, Precision, WeightDtype
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

VLM_R1: Final = "VLM-R1"
SCRIPTS: Final = ("grpo_jsonl", "grpo_rec")
KEYS: Final = frozenset(
    """data_file_paths image_folders is_reward_customized_from_vlm_module freeze_vision_modules max_anyres_num
    reward_method arrow_cache_dir""".split()
)
"""That tell a file of its options from TRL's."""
DEFAULTS = Defaults(optimizer="adamw_torch")
NUM_GENERATIONS, COMPLETION_TOKENS, BETA = 8, 256, 0.04
"""``trainer/grpo_config.py``."""
QWEN_TYPES, INTERNVL_TYPE = ("qwen2_vl", "qwen2_5_vl"), "internvl"
LORA_TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,lm_head"
"""Every Linear outside of ``visual``, the head too (``find_all_linear_names``)."""
AS_IT_IS_PLANNED: Final = (
    "it is made for transformers 4.49, DeepSpeed 0.15 and TRL 0.17, and planned as transformers 5.23 and DeepSpeed "
    "0.19 run its trainer"
)
REFERENCE_OF_STAGE_3: Final = Caveat(
    "under ZeRO-3 VLM-R1 at 90052f4 loads the reference with AutoModelForCausalLM, which has no Qwen-VL in "
    "transformers 4.49, so that it ends with a ValueError before it trains (its issue 338): planned with the "
    "class that the model has; --beta 0 or ZeRO-2 needs no such change"
)
WITHOUT_EFFECT = frozenset(
    """dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers
    gradient_checkpointing_use_reentrant data_file_paths image_folders arrow_cache_dir val_split_ratio image_root
    reward_funcs reward_method reward_weights task_type is_reward_customized_from_vlm_module max_prompt_length
    temperature top_p top_k min_p repetition_penalty cache_implementation vllm_device vllm_gpu_memory_utilization
    vllm_dtype vllm_max_model_len vllm_enable_prefix_caching vllm_guided_decoding_regex epsilon epsilon_high
    ref_model_mixup_alpha ref_model_sync_steps log_completions model_revision trust_remote_code lora_task_type
    lora_target_modules bnb_4bit_quant_type use_bnb_nested_quant benchmarks callbacks system_prompt hub_model_revision
    overwrite_hub_revision push_to_hub_revision wandb_entity wandb_project data_seed config ds3_gather_for_generation
    sync_ref_model""".split()
)
"""Data, rewards and numbers of the loss; what ``VLMGRPOTrainer`` never reads of its own configuration: how answers are
sampled, prompts' lengths, vLLM, another reference; and the modules of adapters, which it sets itself."""
OF_ADAPTERS = "lora_r lora_alpha lora_dropout use_rslora use_dora lora_modules_to_save".split()


def vlm_r1_name(name: str, source: str) -> str:
    """What a model is called on the hub that a script names by a folder that is not here. Raises InputError for
    InternVL of which transformers has no other.

    >>> vlm_r1_name("/models/Qwen2.5-VL-3B-Instruct", "run.sh")
    'Qwen/Qwen2.5-VL-3B-Instruct'
    """
    if Path(name).is_dir():
        return name
    last = PurePath(name).name
    if "InternVL" in last:
        return internvl_name(name, source)
    return f"Qwen/{last}" if last.startswith("Qwen2") else name


def read_vlm_r1(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``VLMGRPOTrainer`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    leave_evaluation_out(settings, arguments.options)
    method = _method(settings, model)
    _check_types(settings, around, arguments.precision)
    name = settings.text("model_name_or_path", "")
    options: dict[str, Value] = {
        **({"model": vlm_r1_name(name, settings.source)} if name else {}),
        "loss": LossKind.ROWS.value,
        **({"batches_on_gpu": BatchesOnGpu.STEP.value} if casts_pixels(arguments, around) else {}),
        **attention_option(settings, "attn_implementation", ATTENTION),
        **_parts(settings, model, method),
        **_answers(settings, method),
        **lengths_of(settings, model),
    }
    settings.only("use_liger_kernel liger_kernel_config", f"logits are made by Liger's forward there: {NOT_PLANNED}")
    settings.only("model_init_kwargs", "it may change what is loaded; attn_implementation is planned")
    if settings.is_on("use_vllm"):
        settings.note("use_vllm has no effect: VLMGRPOTrainer generates with transformers whatever it says")
    settings.ignore((*WITHOUT_EFFECT, "use_vllm"))
    settings.note(AS_IT_IS_PLANNED)
    settings.make("gradient_checkpointing_kwargs", {"use_reentrant": True})
    meaning = Meaning(trainer=VLM_R1, model=model, method=method, options=options, weights=WeightDtype.MODEL)
    meaning.without_autocast = Precision.BF16_PURE
    meaning.casts_zero3_adapters = True  # DeepSpeed of its time casts all weights (``module.bfloat16()``)
    meaning.data_rules = DataRules()
    found = assembled(settings, arguments, meaning, around)
    is_sharded = found.ds_config is not None and found.ds_config.zero_stage == 3
    fails = is_sharded and options["reference"] == Reference.COPY.value and (model is None or _is_qwen(model))
    return replace(found, notes=(*found.notes, REFERENCE_OF_STAGE_3)) if fails else found


def _is_qwen(model: ModelFiles) -> bool:
    return model.model_type in QWEN_TYPES


def casts_pixels(arguments: Arguments, around: Surroundings) -> bool:
    """A batch comes to the GPU by ``Trainer._prepare_inputs``, which casts pixels under DeepSpeed."""
    own = arguments.deepspeed is not None and around.uses_deepspeed is None
    return own or bool(around.uses_deepspeed)


def _method(settings: Settings, model: ModelFiles | None) -> Method:
    settings.only("load_in_4bit load_in_8bit", "VLM-R1 hands it to nobody, and packs no weights; leave it off")
    if model is not None and model.model_type not in (*QWEN_TYPES, INTERNVL_TYPE):
        settings.refuse_whole(
            f"VLM-R1's modules for {model.model_type}: {NOT_PLANNED}; Qwen2-VL, Qwen2.5-VL and InternVL are planned"
        )
    method = method_of(settings)
    if method is Method.LORA and model is not None and not _is_qwen(model):
        settings.refuse("use_peft", f"adapters of InternVL, on its projector and head too: {NOT_PLANNED}")
    return method


def _check_types(settings: Settings, around: Surroundings, precision: Precision | None) -> None:
    """``grpo_jsonl.py`` loads weights in bfloat16 whatever is said, ``grpo_rec.py`` as ``torch_dtype`` says."""
    if around.precision is None and precision is not Precision.BF16:
        settings.refuse_whole(
            f"without bf16 weights in bfloat16 are trained in float32's precision: {NOT_PLANNED}; --bf16 is"
        )
    name = settings.text("torch_dtype", "")
    if around.script == "grpo_rec" and name != "bfloat16":
        said = f"is {name}" if name else "is not said, so that weights are loaded in float32"
        settings.refuse_whole(f"torch_dtype {said}: {NOT_PLANNED}; bfloat16 is")


def _parts(settings: Settings, model: ModelFiles | None, method: Method) -> dict[str, Value]:
    """``freeze_vision_modules`` freezes all of Qwen's ``visual``, whose merger is our projector, and InternVL's
    ``vision_model``. Adapters are on the language model and the head."""
    freezes = settings.flag("freeze_vision_modules", False)
    if method is Method.FULL:
        settings.ignore(OF_ADAPTERS)
        is_qwen = model is None or _is_qwen(model)
        return {"train_vision": not freezes, "train_projector": not (freezes and is_qwen)}
    settings.only("lora_modules_to_save", f"whole modules beside adapters: {NOT_PLANNED}")
    if "lora_target_modules" in settings:
        settings.note("lora_target_modules has no effect: VLM-R1 adapts every Linear outside of the vision modules")
    return {
        **lora_options(settings, rank_key="lora_r", rank=16, alpha=32, dropout=0.05),
        "lora_targets": LORA_TARGETS,
        "train_vision": False,
        "train_projector": False,
    }


def _answers(settings: Settings, method: Method) -> dict[str, Value]:
    """Every micro batch generates its own answers (``compute_loss``)."""
    settings.only("num_iterations", f"answers that are trained on more than once: {NOT_PLANNED}", "1")
    has_reference = settings.number("beta", BETA) != 0
    of_method = Reference.COPY if method is Method.FULL else Reference.ADAPTER_OFF
    return {
        "task": TaskKind.GRPO.value,
        "task_trainer": TaskTrainer.VLM_R1.value,
        "generation": Generation.TRANSFORMERS.value,
        "steps_per_generation": 1,
        "num_generations": settings.count("num_generations", NUM_GENERATIONS, least=2),
        "reference": (of_method if has_reference else Reference.NONE).value,
    }


def lengths_of(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """No prompt is cut, whatever ``max_prompt_length`` says. Of images ``max_pixels`` says the largest (Qwen), or
    ``max_anyres_num`` how many tiles (InternVL)."""
    answer = settings.count("max_completion_length", COMPLETION_TOKENS, least=1)
    most = settings.maybe_count("max_pixels", least=1)
    settings.ignore(("min_pixels", "max_anyres_num"))
    prompt, options = DEFAULT_PROMPT_TOKENS, dict[str, Value]()
    of_image = ""
    if most is not None and model is not None and _is_qwen(model):
        size = largest_image(most)
        options["image_size"] = size
        width, height = (int(side) for side in size.split("x"))
        tokens = image_shape(model.config, model.preprocessor, width=width, height=height).num_tokens
        prompt += tokens
        of_image = f", {tokens:,} of them of an image"
        settings.note(f"{OF_EVERY_IMAGE} max_pixels allows, {size}")
    settings.note(
        f"how long prompts are is not in the file: {prompt:,} tokens before the answer{of_image}; {FOR_LONGEST}"
    )
    return {"seq_len": prompt + answer, "max_completion_tokens": answer, **options}


def is_vlm_r1(values: Any) -> bool:
    """Whether keys of a file are of these scripts."""
    return not KEYS.isdisjoint(values)

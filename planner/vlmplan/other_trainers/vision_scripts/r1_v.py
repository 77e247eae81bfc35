"""Deep-Agent/R1-V (commit bbbbe3d): options of ``src/r1-v/src/open_r1/grpo.py``, which others have copied and renamed
(Visual-RFT, MedVLM-R1, open-r1-multimodal).

Sources there: that file for options, ``trainer/grpo_trainer.py`` for what ``Qwen2VLGRPOTrainer`` does. It is made for
TRL 0.14 and transformers 4.49. Of each sample it makes ``num_generations`` rows, and runs the model over them, then the
reference while all that backward needs is kept, whatever ``beta`` is.
"""

from dataclasses import replace
from typing import Final

from vlmplan.data_rules import DataRules
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.evaluated import leave_evaluation_out
from vlmplan.other_trainers.hugging_face import ATTENTION, NOT_PLANNED, attention_option, read_arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.vision_scripts.vlm_r1 import (
    DEFAULTS,
    NUM_GENERATIONS,
    OF_ADAPTERS,
    QWEN_TYPES,
    casts_pixels,
    lengths_of,
    vlm_r1_name,
)
from vlmplan.recipe.choices import BatchesOnGpu, LossKind, Method, Precision, WeightDtype
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

R1_V: Final = "R1-V"
SCRIPT: Final = "grpo"
AS_IT_IS_PLANNED: Final = (
    "it is made for transformers 4.49 and TRL 0.14, and planned as transformers 5.23 and DeepSpeed 0.19 run its trainer"
)
OF_VIDEOS: Final = "jsonl_path"
"""Of Open-R1-Video (``src/open_r1_video/grpo.py``): where its samples are."""
COUNTED: Final = ("micro_batch", "num_samples")
"""What is counted in samples there, and in answers here."""
WITHOUT_EFFECT = frozenset(
    """dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers
    gradient_checkpointing_use_reentrant reward_funcs reward_weights max_prompt_length beta temperature torch_dtype
    dtype vllm_device vllm_gpu_memory_utilization vllm_dtype vllm_max_model_len log_completions model_revision
    trust_remote_code lora_task_type lora_target_modules bnb_4bit_quant_type use_bnb_nested_quant benchmarks callbacks
    system_prompt data_seed config ds3_gather_for_generation sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    wandb_entity wandb_project jsonl_path""".split()
)
"""Data, rewards and numbers of the loss; the type of weights, which it hands to nobody, so that transformers 4.49 loads
them in float32; and what it never reads."""


def read_r1_v(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``Qwen2VLGRPOTrainer`` makes of these options. Raises InputError with everything that is wrong."""
    arguments = read_arguments(settings, DEFAULTS)
    leave_evaluation_out(settings, arguments.options)
    _refuse_what_has_no_plan(settings, model, arguments.precision if around.precision is None else Precision.BF16)
    name = settings.text("model_name_or_path", "")
    answers = settings.count("num_generations", NUM_GENERATIONS, least=2)
    options: dict[str, Value] = {
        **({"model": vlm_r1_name(name, settings.source)} if name else {}),
        "loss": LossKind.ROWS.value,
        "train_vision": True,
        "train_projector": True,
        "task": TaskKind.GRPO.value,
        "task_trainer": TaskTrainer.R1_V.value,
        "generation": Generation.TRANSFORMERS.value,
        "steps_per_generation": 1,
        "num_generations": answers,
        "reference": Reference.COPY.value,
        "batches_on_gpu": (BatchesOnGpu.TURN if casts_pixels(arguments, around) else BatchesOnGpu.TURN_FLOAT32).value,
        **attention_option(settings, "attn_implementation", ATTENTION),
        **lengths_of(settings, model),
    }
    if OF_VIDEOS in settings:
        settings.note(
            f"{OF_VIDEOS} is of copies for videos, and a sample is planned with an image; vlmplan estimate takes "
            "--video-frames"
        )
    settings.ignore(WITHOUT_EFFECT)
    settings.note(AS_IT_IS_PLANNED)
    if around.script != SCRIPT:
        settings.note(
            f"{around.script}.py is taken for a copy of R1-V's {SCRIPT}.py, by its options: what it changes of a "
            "step is not known"
        )
    settings.make("gradient_checkpointing_kwargs", {"use_reentrant": True})
    meaning = Meaning(trainer=R1_V, model=model, method=Method.FULL, options=options, weights=WeightDtype.FLOAT32)
    meaning.data_rules = DataRules()
    found = assembled(settings, arguments, meaning, around)
    rows = {name: int(found.options[name]) * answers for name in COUNTED if name in found.options}
    samples = rows["micro_batch"] // answers
    note = f"per_device_train_batch_size {samples} makes {rows['micro_batch']} rows: {answers} answers to each prompt"
    return replace(found, options={**found.options, **rows}, notes=(*found.notes, note))


def _refuse_what_has_no_plan(settings: Settings, model: ModelFiles | None, precision: Precision | None) -> None:
    settings.only("use_vllm", f"another trainer of R1-V's, with vLLM on a GPU of its own: {NOT_PLANNED}")
    settings.only("use_peft", f"adapters: {NOT_PLANNED}; whole models are")
    settings.only("load_in_4bit load_in_8bit", "R1-V hands it to nobody, and packs no weights; leave it off")
    settings.only("num_iterations", f"R1-V trains once on its answers, others: {NOT_PLANNED}", "1")
    settings.only("use_liger_kernel liger_kernel_config", f"logits are made by Liger's forward there: {NOT_PLANNED}")
    settings.only("model_init_kwargs", "it may change what is loaded; attn_implementation is planned")
    settings.ignore(OF_ADAPTERS)
    if precision is not Precision.BF16:
        settings.refuse_whole(f"without bf16 it trains in float32's precision: {NOT_PLANNED}; --bf16 is")
    if model is not None and model.model_type not in QWEN_TYPES:
        settings.refuse_whole(
            f"R1-V's trainer of {model.model_type}: {NOT_PLANNED}; Qwen2-VL and Qwen2.5-VL are planned"
        )

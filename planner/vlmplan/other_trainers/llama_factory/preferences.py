"""LLaMA-Factory's training on preferences (0.9.5, ``stage: dpo``) and on answers that are good or bad (``stage: kto``):
what its keys mean that no other stage has.

Sources: ``FinetuningArguments`` in ``hparams/finetuning_args.py`` and the checks of ``hparams/parser.py``;
``train/dpo/workflow.py`` and ``trainer.py``, ``train/kto``; ``create_ref_model`` in ``train/trainer_utils.py``;
``PairwiseDataCollatorWithPadding`` and ``KTODataCollatorWithPadding`` in ``data/collator.py``, which leave pixels as
processors make them, and pad to a multiple of 8.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vlmplan.other_trainers.batching import llama_factory_batching
from vlmplan.other_trainers.evaluated import evaluate_for_loss
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import BatchesOnGpu, LossKind, Method
from vlmplan.recipe.task_choices import Reference, TaskKind, TaskTrainer

PREFERENCES: Final = "dpo"
TASKS: Final = {PREFERENCES: TaskKind.DPO, "kto": TaskKind.KTO}
"""By ``stage``."""
WITHOUT_REFERENCE: Final = ("orpo", "simpo")
"""Values of ``pref_loss`` for which ``use_ref_model`` is false."""
LOSSES: Final = ("sigmoid", "hinge", "ipo", "kto_pair", *WITHOUT_REFERENCE)
OF_SAMPLES_ALONE: Final = ("neat_packing", "predict_with_generate", "train_on_prompt", "mask_history")
"""What the parser refuses with any stage but sft."""


def of_stage(
    settings: Settings, stage: str, options: Mapping[str, Value], arguments: Arguments, method: Method
) -> Mapping[str, Value]:
    """How rows are made of samples as they are, or what training on preferences is; ``options`` as they are so far."""
    if stage in TASKS:
        evaluate_for_loss(arguments.options)
        return _task_options(settings, stage, method)
    micro_batch = arguments.options["micro_batch"]
    return llama_factory_batching(settings, options.get("attention"), micro_batch, packs=stage == "pt")


def _task_options(settings: Settings, stage: str, method: Method) -> dict[str, Value]:
    """What keys of both stages mean. ``pref_loss`` is of dpo alone: of kto there is a reference whatever it says
    (``run_kto``)."""
    own: dict[str, Value] = {
        "task": TASKS[stage].value,
        "task_trainer": TaskTrainer.LLAMA_FACTORY.value,
        "loss": LossKind.LOG_SOFTMAX.value,
        "batches_on_gpu": BatchesOnGpu.STEP_FLOAT32.value,
    }
    loss = settings.text("pref_loss", "sigmoid") if stage == PREFERENCES else stage
    if loss not in LOSSES and stage == PREFERENCES:
        settings.refuse("pref_loss", f"one of {', '.join(LOSSES)} is needed")
    has_reference = loss not in WITHOUT_REFERENCE
    own |= {} if has_reference else {"reference": Reference.NONE.value}
    if has_reference and settings.flag("pissa_init", False):
        settings.refuse("pissa_init", "LLaMA-Factory does not start adapters from PiSSA beside a reference")
    for key in OF_SAMPLES_ALONE:
        if settings.maybe_flag(key):
            settings.refuse(key, "LLaMA-Factory takes it with stage: sft alone")
    settings.ignore(("packing",))
    _reference_model(settings, method, is_read=has_reference)
    return own


def _reference_model(settings: Settings, method: Method, *, is_read: bool) -> None:
    """``ref_model``: another model than the trained one before its training."""
    name = settings.text("ref_model", "") if "ref_model" in settings else ""
    if not name or not is_read:
        return
    if "ref_model_quantization_bit" in settings or "ref_model_adapters" in settings:
        settings.refuse("ref_model", f"packed or with adapters (ref_model_...): {NOT_PLANNED}")
    elif method is not Method.FULL:
        settings.refuse("ref_model", "a second model beside adapters is not planned; without it they are switched off")
    elif name != settings.text("model_name_or_path", ""):
        settings.refuse("ref_model", "a reference other than model_name_or_path is not planned")


def with_reentrant_checkpoints(found: TrainerConfig, *, is_reentrant: bool) -> TrainerConfig:
    """The same with reentrant checkpoints where that is told apart: of adapters under ZeRO-3."""
    has_adapters = found.options["method"] != Method.FULL.value
    is_sharded = found.ds_config is not None and found.ds_config.zero_stage == 3
    is_so = is_reentrant and has_adapters and is_sharded and found.options.get("activation_checkpointing") is True
    return replace(found, options={**found.options, "reentrant_checkpoints": True}) if is_so else found

"""axolotl's training on preferences and on answers that are good or bad (0.19.0, ``rl: dpo``, ``ipo``, ``orpo``,
``simpo`` and ``kto``): what its keys mean alone.

``AxolotlDPOTrainer`` is that of TRL 1.9, which axolotl pins, with axolotl's kernels in place of TRL's
``selective_log_softmax`` (``architecture/losses/axolotl.py``). It gets the model without adapters and makes them itself
(``_load_adapters`` in ``loaders/model.py``): those of packed weights become bfloat16, under ZeRO-3 those of others have
the type of the model, and ``peft_autocast_adapter_dtype`` is not asked. They are switched off for the reference;
without adapters the model is loaded a second time (``setup_reference_model`` in ``train.py``). Images are not read: the
tokenizer is what processes. ``orpo`` and ``simpo`` have no reference: TRL's ``ORPOTrainer`` and ``CPOTrainer`` get a
model that has its adapters, as these are for samples as they are (``architecture/losses/axolotl_odds.py``).

``kto`` runs TRL's ``KTOTrainer`` of 1.9, with the same kernels and adapters. Without adapters axolotl does not hand on
the second model that it has loaded, and TRL loads a third.

Sources: ``core/builders/rl.py``, ``core/trainers/dpo/``, ``utils/schemas/validation.py`` (``RLValidationMixin``),
``utils/schemas/deprecated.py``, ``utils/data/rl.py``; TRL 1.9 ``trainer/dpo_trainer.py``.
"""

from typing import Any, Final

from vlmplan.data_rules import DataRules
from vlmplan.errors import InputError
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.evaluated import evaluate_for_loss
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import with_reentrant_checkpoints
from vlmplan.recipe.choices import LossKind, Method, Precision
from vlmplan.recipe.task_choices import Reference, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

DPO, IPO, ORPO, SIMPO, KTO = "dpo", "ipo", "orpo", "simpo", "kto"
OF_REWARDS: Final = ("grpo", "gdpo")
KINDS: Final = (DPO, IPO, ORPO, SIMPO, KTO, *OF_REWARDS)
"""Values of ``rl`` that are planned."""
WITHOUT_REFERENCE: Final = (ORPO, SIMPO)
OTHER_KINDS: Final = ("ebft",)
LOSSES: Final = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sigmoid_norm"),
)
"""Made of log-probabilities of whole answers (``_compute_loss``); ``sft`` reads the logits of chosen ones too."""


def check_kind(settings: Settings) -> str:
    """The value of ``rl`` that is planned; empty where samples are trained as they are. Raises InputError for others,
    in one sentence."""
    kind = settings.text("rl", "") if settings.is_on("rl") else ""
    settings.ignore(("rl",))
    if kind in ("", *KINDS):
        return kind
    planned = f"{', '.join(KINDS[:-1])} and {KINDS[-1]}"
    if kind not in OTHER_KINDS:
        raise InputError(
            f"{settings.source}: rl is {kind}, which axolotl does not have; {planned} are planned of it, or leave it "
            f"off for supervised fine-tuning"
        )
    raise InputError(
        f"{settings.source}: rl is {kind}, which is not planned; of axolotl supervised fine-tuning, {planned} are"
    )


def preference_options(
    settings: Settings, arguments: Arguments, method: Method, model: ModelFiles | None
) -> dict[str, Value]:
    """What the keys of ``rl: dpo`` and its like mean; of ``arguments`` the loss is evaluated."""
    evaluate_for_loss(arguments.options)
    kind = settings.text("rl", DPO)
    _check_losses(settings, kind)
    if kind == SIMPO:
        _check_simpo(settings)
    if kind == KTO:
        _check_labels(settings, method)
    _refuse_what_pairs_have_not(settings)
    if settings.maybe_flag("dpo_padding_free"):
        settings.note("dpo_padding_free: TRL 1.9 has switched it off and pads, as it is planned")
    if settings.maybe_flag("liger_fused_linear_cross_entropy"):
        settings.note("liger_fused_linear_cross_entropy: of preferences all logits are wanted, as it is planned")
    if has_experts(model):
        settings.note("the loss that balances experts, which TRL 1.9 adds of models that have them, is not counted")
    own: dict[str, Value] = {
        "task": (TaskKind.KTO if kind == KTO else TaskKind.DPO).value,
        "task_trainer": TaskTrainer.AXOLOTL.value,
        "loss": LossKind.AXOLOTL.value,
        "seq_len": settings.count("sequence_len", 512, least=1),
        "lora_dropout": 0.0,
        **({"images_per_sample": 0} if sees(model) else {}),
    }
    if kind in (*WITHOUT_REFERENCE, KTO):  # to whose trainers axolotl does not hand it on
        settings.ignore(("precompute_ref_log_probs",))
        return own | ({} if kind == KTO else {"reference": Reference.NONE.value})
    if not settings.maybe_flag("precompute_ref_log_probs"):
        return own
    if method is Method.FULL:
        settings.refuse(
            "precompute_ref_log_probs", "axolotl holds a second model without adapters all the same: not planned"
        )
    return own | {"reference": Reference.PRECOMPUTED.value}


def _check_simpo(settings: Settings) -> None:
    """``check_simpo_warmup`` of the schema, and what ``CPOTrainer`` computes with (``cpo_alpha`` is 1 there)."""
    settings.only("warmup_ratio", "axolotl takes warmup_steps with simpo alone")
    if "simpo_gamma" not in settings:
        settings.refuse_whole("simpo_gamma is missing: axolotl hands on that there is none, with which TRL stops")
    if settings.number("cpo_alpha", 1.0) == 0:
        settings.refuse("cpo_alpha", f"a loss without the likelihood of chosen answers: {NOT_PLANNED}; above 0 is")
    settings.ignore(("simpo_gamma",))
    settings.note(f"rl is {SIMPO}: written anew (--for axolotl) it is {ORPO}, which takes the same")


def _check_labels(settings: Settings, method: Method) -> None:
    """``check_kto_config`` of the schema, and what is loaded without adapters."""
    if settings.maybe_flag("remove_unused_columns") is not False:
        settings.refuse_whole("remove_unused_columns is not false, without which axolotl refuses rl: kto")
    if method is Method.FULL:
        settings.refuse(
            "rl", "without adapters axolotl loads a second model that nothing uses, and TRL a third: not planned"
        )


def _check_losses(settings: Settings, kind: str) -> None:
    """``check_dpo`` of the schema, and what ``DPOTrainer`` refuses."""
    names = settings.names("dpo_loss_type")
    weights: Any = settings.value("dpo_loss_weights")
    settings.ignore(("dpo_loss_weights", "dpo_label_smoothing"))
    for key in ("dpo_loss_type", "dpo_loss_weights"):
        if kind != DPO and settings.is_on(key):
            settings.refuse(key, "axolotl takes it with rl: dpo alone")
    if weights and not names:
        settings.refuse("dpo_loss_weights", "axolotl takes it with dpo_loss_type alone")
    elif isinstance(weights, list) and len(names) != len(weights):  # pyright: ignore[reportUnknownArgumentType]
        settings.refuse("dpo_loss_weights", "axolotl asks for as many as dpo_loss_type has")
    for name in names:
        if name not in LOSSES:
            settings.refuse("dpo_loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
    if "exo_pair" in names and not settings.is_on("dpo_label_smoothing"):
        settings.refuse("dpo_loss_type", "TRL takes exo_pair with dpo_label_smoothing above 0 alone")
    own, trls = settings.value("rl_beta"), settings.table("trl").get("beta")
    if own is not None and trls is not None and own != trls:
        settings.refuse("rl_beta", "and beta of trl is another; axolotl takes one of the two")


def _refuse_what_pairs_have_not(settings: Settings) -> None:
    """By their names, keys that stop axolotl or that change what it takes."""
    settings.only("dpo_use_weighting", f"weights by all words of the vocabulary: {NOT_PLANNED}")
    settings.only("dpo_use_liger_kernel", f"Liger's loss of preferences: {NOT_PLANNED}")
    refuse_what_no_task_has(settings)
    kind = settings.text("rl", DPO)
    why = "axolotl's collator for it makes batches that TRL 1.9 does not read (input_ids is missing)"
    is_alone = kind in WITHOUT_REFERENCE
    if kind != KTO:  # whose batches TRL's collator makes (build_collator)
        settings.only("pad_to_multiple_of", f"of preferences: {NOT_PLANNED}" if is_alone else why)
    settings.ignore(("pad_to_sequence_len", "max_prompt_len", "pad_to_multiple_of"))


def refuse_what_no_task_has(settings: Settings) -> None:
    """The same of every value of ``rl``."""
    settings.only("sample_packing", "axolotl refuses it with rl")
    settings.only("cut_cross_entropy", f"with rl: {NOT_PLANNED}")
    if settings.is_on("fsdp"):
        settings.refuse("fsdp_config", f"FSDP with rl: {NOT_PLANNED}; ZeRO (deepspeed) is planned")
    settings.only("activation_offloading", f"with rl: {NOT_PLANNED}")
    settings.ignore(("eval_sample_packing", "batch_flattening", "multipack_real_batches"))
    settings.ignore(("image_size", "processor_kwargs"))


def has_experts(model: ModelFiles | None) -> bool:
    """``get_text_config().output_router_logits``, which configurations of experts have."""
    text: Any = {} if model is None else model.config.get("text_config") or model.config
    return any(isinstance(text.get(key), int) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def read_pairs(settings: Settings, arguments: Arguments, meaning: Meaning, around: Surroundings) -> TrainerConfig:
    """What is made of keys whose ``meaning`` is there but for adapters' types and how pairs are cut. Where there is
    a reference TRL makes checkpoints of adapters reentrant under ZeRO-3, whatever a key says."""
    if settings.text("rl", DPO) in WITHOUT_REFERENCE:  # whose trainers get a model that has its adapters
        meaning.data_rules = _rules_of_pairs(settings)
        return assembled(settings, arguments, meaning, around)
    is_packed = meaning.method.packs_weights and arguments.deepspeed is None
    if is_packed and arguments.precision is Precision.FP16:
        settings.refuse_whole("fp16 is set, but TRL makes adapters of packed models bfloat16; set bf16: true instead")
    settings.ignore(("peft_autocast_adapter_dtype",))
    meaning.casts_zero3_adapters = True
    meaning.adapters = "model" if is_packed else "float32"
    meaning.data_rules = _rules_of_pairs(settings)
    settings.ignore(("gradient_checkpointing_kwargs",))
    return with_reentrant_checkpoints(assembled(settings, arguments, meaning, around))


def _rules_of_pairs(settings: Settings) -> DataRules:
    """Pairs of which prompt and either answer are over ``sequence_len`` are dropped unless ``excess_length_strategy``
    says truncate (``_drop_long_sequences``)."""
    return DataRules(pads_to=1, drops_long=settings.text("excess_length_strategy", "drop").casefold() != "truncate")

"""TRL's training on preferences: ``DPOConfig``, ``ModelConfig`` and ``ScriptArguments`` of TRL 1.16.0, as YAML for
``trl dpo --config`` or as options of ``trl/scripts/dpo.py``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from vlmplan.data_rules import DataRules
from vlmplan.notes import listed
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.sft import of_any_task, pads_to
from vlmplan.recipe.choices import Method
from vlmplan.recipe.task_choices import Reference, TaskKind
from vlmplan.units import counted
from vlmplan.workload import ModelFiles

OF_REFERENCE = frozenset(
    """precompute_ref_log_probs precompute_ref_batch_size sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    disable_dropout""".split()
)
"""What ``KTOConfig`` has, too."""
PRECOMPUTES = frozenset(("precompute_ref_log_probs", "precompute_ref_batch_size"))
OWN_KEYS = OF_REFERENCE | frozenset(
    """loss_weights f_divergence_type f_alpha_divergence_coef label_smoothing use_weighting ld_alpha
    discopop_tau""".split()
)
"""Of ``DPOConfig``, which ``SFTConfig`` has not."""
SHARED_WITH_GRPO = "beta"
OLDER_PROMPT_KEYS = ("max_prompt_length", "max_completion_length")
"""Which TRL 1.16 has no more for written answers: parts of ``max_length`` that the prompt and the answer might take."""
WITHOUT_EFFECT = OWN_KEYS | {SHARED_WITH_GRPO}
"""But for those that are read: numbers of the loss, which is made of one log-probability for each answer."""
LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""Made of log-probabilities of whole answers (``_compute_loss`` in ``trainer/dpo_trainer.py``)."""


def is_dpo(values: Mapping[str, Any]) -> bool:
    """Whether keys of TRL are those of ``trl dpo`` rather than of ``trl sft``."""
    return not OWN_KEYS.isdisjoint(values) or SHARED_WITH_GRPO in values


def has_its_answers(values: Mapping[str, Any]) -> bool:
    """Whether a key that earlier releases share with GRPO (``max_completion_length``) is one of theirs: a loss or a
    reference of theirs is beside it."""
    loss = values.get("loss_type")
    return not PRECOMPUTES.isdisjoint(values) or (isinstance(loss, str) and loss in LOSSES)


def read_trl_dpo(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``trl dpo`` makes of these keys. Raises InputError with everything that is wrong."""
    return of_written_answers(settings, model, around, dpo_options(settings))


def of_written_answers(
    settings: Settings, model: ModelFiles | None, around: Surroundings, own: Mapping[str, Value]
) -> TrainerConfig:
    """What TRL makes of the keys of a task that learns from answers in the data, which mean ``own``."""
    rules = DataRules(pads_to=pads_to(settings))
    return with_reentrant_checkpoints(of_any_task(settings, model, around, own, rules))


def with_reentrant_checkpoints(found: TrainerConfig) -> TrainerConfig:
    """The same with reentrant checkpoints, where TRL has them."""
    return replace(found, options={**found.options, "reentrant_checkpoints": True}) if _is_reentrant(found) else found


def dpo_options(settings: Settings) -> dict[str, Value]:
    """What the keys of ``DPOConfig`` mean that ``SFTConfig`` has not."""
    own: dict[str, Value] = {"task": TaskKind.DPO.value, **reference_options(settings)}
    settings.only("use_weighting", f"weights by all words of the vocabulary: {NOT_PLANNED}")
    for name in settings.names("loss_type", "sigmoid"):
        if name not in LOSSES:
            settings.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
    losses, weights = settings.names("loss_type", "sigmoid"), settings.value("loss_weights")
    if isinstance(weights, list) and len(cast(list[Any], weights)) != len(losses):
        settings.refuse("loss_weights", f"{counted(len(losses), 'weight')} is needed, as loss_type has names")
    if settings.flag("padding_free", False):
        settings.note("padding_free: TRL 1.16 has switched it off for DPO and pads, as it is planned")
    settings.ignore(WITHOUT_EFFECT)
    return own


def reference_options(settings: Settings) -> dict[str, Value]:
    """Where the reference's log-probabilities come from, and that dropout is switched off beside it."""
    own: dict[str, Value] = {}
    if settings.flag("precompute_ref_log_probs", False):
        own["reference"] = Reference.PRECOMPUTED.value
    settings.only("sync_ref_model", f"a reference that follows the model: {NOT_PLANNED}")
    note_older_liger(settings)
    older = [key for key in OLDER_PROMPT_KEYS if key in settings]
    if older:
        settings.note(f"{listed(older)}: of earlier TRLs; 1.16 cuts whole rows alone, by max_length")
    settings.ignore(OLDER_PROMPT_KEYS)
    return own | dropout_options(settings, is_usual=True)


def note_older_liger(settings: Settings) -> None:
    if settings.maybe_flag("use_liger_loss"):
        settings.note(
            "use_liger_loss is of earlier TRLs; 1.16 has none, and makes log-probabilities of answers in tiles of its "
            "own, as it is planned"
        )


def dropout_options(settings: Settings, *, is_usual: bool) -> dict[str, Value]:
    """What ``disable_dropout`` means, which ``is_usual`` where a file does not say it."""
    is_off = settings.flag("disable_dropout", is_usual)
    options: dict[str, Value] = {} if is_off is is_usual else {"disable_dropout": is_off}
    return options | ({"lora_dropout": 0.0} if is_off else {})


def _is_reentrant(found: TrainerConfig) -> bool:
    """``dpo_trainer.py``: 'PEFT + DeepSpeed ZeRO-3 requires reentrant checkpointing', whatever a file says."""
    has_adapters = found.options["method"] != Method.FULL.value
    is_sharded = found.ds_config is not None and found.ds_config.zero_stage == 3
    return has_adapters and is_sharded and found.options["activation_checkpointing"] is True

"""Programs that train with TRL's trainers, read as TRL 1.16 and peft 0.21 take their keywords."""

from vlmplan.data_rules import DataRules
from vlmplan.other_trainers.assembled import Surroundings, sees
from vlmplan.other_trainers.batching import trl_batching
from vlmplan.other_trainers.evaluated import EvaluationRules, loss_alone
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Defaults
from vlmplan.other_trainers.programs.gathered import ARGUMENTS_KEY, PLAIN_ARGUMENTS
from vlmplan.other_trainers.programs.trl_runs import KBIT
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl import DEFAULTS, TRL, Program, of_any_task, pads_to
from vlmplan.other_trainers.trl_dpo import dpo_options, with_reentrant_checkpoints
from vlmplan.workload import ModelFiles

PLAIN_DEFAULTS = Defaults(evaluation=EvaluationRules(kept=loss_alone))
"""Of ``TrainingArguments`` in place of ``SFTConfig``, which takes all of their values."""
WITHOUT_EFFECT = ("task_type", "inference_mode", "layer_replication", "runtime_config", ARGUMENTS_KEY, KBIT)


def read_trl_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``SFTTrainer`` makes of these keys. Raises InputError with everything that is wrong."""
    own = trl_batching(settings, sees=sees(model))
    settings.only("loss_type", NOT_PLANNED, "nll", "chunked_nll")
    rules = DataRules(pads_to=pads_to(settings), packs=settings.flag("packing", False))
    return of_any_task(settings, model, around, TRL, own, rules, _program(settings))


def read_trl_dpo_program(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``DPOTrainer`` makes of them."""
    own = dpo_options(settings)
    rules = DataRules(pads_to=pads_to(settings))
    return with_reentrant_checkpoints(of_any_task(settings, model, around, TRL, own, rules, _program(settings)))


def _program(settings: Settings) -> Program:
    is_plain = settings.text(ARGUMENTS_KEY, "") in PLAIN_ARGUMENTS
    settings.only("bias", f"biases that are trained: {NOT_PLANNED}", "none")
    settings.only("init_lora_weights", NOT_PLANNED, "true", "gaussian")
    settings.only("bnb_4bit_quant_type", NOT_PLANNED, "nf4")
    upcasts = settings.flag(KBIT, False)
    settings.ignore(WITHOUT_EFFECT)
    return Program(defaults=PLAIN_DEFAULTS if is_plain else DEFAULTS, upcasts_frozen=upcasts)

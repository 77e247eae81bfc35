"""NeMo AutoModel's recipes of fine-tuning: ``automodel FILE``.

Source: Automodel@36044ad3 (nemo_automodel 0.5), ``nemo_automodel/recipes/llm/train_ft.py`` and ``recipes/vlm/
finetune.py``. The loop holds the model's outputs, logits among them, until backward is over.
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.nemo_automodel.adapters import adapter_options, has_adapters
from vlmplan.other_trainers.nemo_automodel.engine import engine_options
from vlmplan.other_trainers.nemo_automodel.keys import (
    NEMO_AUTOMODEL,
    NOT_PLANNED,
    OLD_SECTIONS,
    SECTIONS,
    WITHOUT_EFFECT,
)
from vlmplan.other_trainers.nemo_automodel.models import read_model
from vlmplan.other_trainers.nemo_automodel.samples import (
    batch_options,
    data_rules_of,
    evaluation_options,
    packing_options,
    sample_options,
    saving_of,
)
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import LossKind, Method, OptimizerKind
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.workload import ModelFiles

RECIPES: Final[Mapping[str, bool]] = {
    "TrainFinetuneRecipeForNextTokenPrediction": False,
    "FinetuneRecipeForVLM": True,
}
"""Whether each trains on images too."""
LOSSES: Final = {"MaskedCrossEntropy": LossKind.FULL}
OPTIMIZERS: Final = {
    "torch.optim.Adam": OptimizerKind.ADAMW,
    "torch.optim.AdamW": OptimizerKind.ADAMW,
    "torch.optim.SGD": OptimizerKind.SGD,
}
"""Adam has the states of AdamW."""


def read_nemo_automodel(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What its recipe makes of these keys. Raises InputError with everything that is wrong."""
    found = read_model(settings, model, is_vision_recipe=_is_vision_recipe(settings))
    options: dict[str, Value] = {"method": Method.FULL.value, **found.options}
    if has_adapters(settings):
        options |= adapter_options(settings, model, freezes_vision=found.freezes_vision)
    method = around.method or Method(options["method"])
    if method is Method.FULL:
        options = {name: value for name, value in options.items() if name not in (*ADAPTER_FIELDS, "fused_adapters")}
    options |= engine_options(settings, found, around, method)
    options |= _update(settings) | {"loss": _loss(settings).value}
    options |= batch_options(settings, around, sees=found.sees) | sample_options(settings, model, sees=found.sees)
    options |= packing_options(settings, found)
    micro_batch = options["micro_batch"]
    assert isinstance(micro_batch, int)
    options |= evaluation_options(settings, micro_batch)
    options["expandable_segments"] = around.expandable_segments
    clipping = settings.number("clip_grad_norm.max_norm", 1.0)
    saving, rules = saving_of(settings), data_rules_of(settings)
    workers = settings.count("dataloader.num_workers", 0)
    _ignore_the_rest(settings)
    settings.close()
    return TrainerConfig(
        source=settings.source,
        trainer=NEMO_AUTOMODEL,
        options=options,
        gradient_clipping=clipping,
        ds_config=None,
        said=settings.said,
        defaults=settings.defaults,
        idle=settings.idle,
        notes=tuple(settings.notes),
        data_rules=rules,
        saving=saving,
        loader_workers=workers,
        output_dir=str(settings.value("checkpoint.checkpoint_dir") or ""),
    )


def _is_vision_recipe(settings: Settings) -> bool:
    """Raises InputError for recipes of another kind, whose other keys are of no use then."""
    key = "recipe" if "recipe" in settings else "recipe._target_"
    name = settings.text(key, "").rpartition(".")[2]
    if name and name not in RECIPES:
        raise InputError(f"{settings.source}: {key} is {name}, which is {NOT_PLANNED}; {' and '.join(RECIPES)} are")
    if name:
        return RECIPES[name]
    return "ForCausalLM" not in settings.text("model._target_", "NeMoAutoModelForCausalLM")


def _loss(settings: Settings) -> LossKind:
    name = settings.text("loss_fn._target_", "MaskedCrossEntropy").rpartition(".")[2]
    if name not in LOSSES:
        settings.refuse("loss_fn._target_", f"{NOT_PLANNED}; {', '.join(LOSSES)} is")
        settings.ignore_all_of("loss_fn.")
    if not settings.flag("loss_fn.fp32_upcast", True):
        settings.refuse("loss_fn.fp32_upcast", f"a loss of logits in 16 bit: {NOT_PLANNED}; true is")
    return LOSSES.get(name, LossKind.FULL)


def _update(settings: Settings) -> dict[str, Value]:
    """torch's optimizers, by their foreach implementation unless ``fused`` says otherwise."""
    name = settings.text("optimizer._target_", "torch.optim.AdamW")
    if name not in OPTIMIZERS:
        settings.refuse("optimizer._target_", f"{NOT_PLANNED}; {', '.join(OPTIMIZERS)} are")
        settings.ignore_all_of("optimizer.")
    settings.only("optimizer.amsgrad", f"a third state of every weight: {NOT_PLANNED}")
    settings.only("optimizer.capturable optimizer.differentiable", NOT_PLANNED)
    if OPTIMIZERS.get(name) is OptimizerKind.SGD and not settings.number("optimizer.momentum", 0.0):
        settings.refuse("optimizer._target_", f"without optimizer.momentum it has no state: {NOT_PLANNED}; with it is")
    settings.ignore(("optimizer.momentum", "optimizer.dampening", "optimizer.nesterov"))
    fuses = settings.flag("optimizer.fused", False)
    by_weight = "optimizer.foreach" in settings and not settings.flag("optimizer.foreach", True)
    if by_weight and not fuses:
        settings.note(
            "optimizer.foreach is false: planned as one kernel; two temporaries of one weight's shard are not counted"
        )
    return {
        "optimizer": OPTIMIZERS.get(name, OptimizerKind.ADAMW).value,
        "fuses_optimizer": fuses or by_weight,
    }


def _ignore_the_rest(settings: Settings) -> None:
    settings.ignore(WITHOUT_EFFECT)
    old = [key for key in settings.keys if key.startswith(OLD_SECTIONS)]
    if old:
        settings.note(f"{', '.join(old)}: read by older releases, and by none of {NEMO_AUTOMODEL} 0.5")
    settings.ignore_all_of(*SECTIONS, *OLD_SECTIONS)
    settings.ignore([section.rstrip(".") for section in (*SECTIONS, *OLD_SECTIONS)])
    settings.of_script = _sentence_on_others


def _sentence_on_others(keys: list[str]) -> str:
    return (
        f"{', '.join(keys)}: {NOT_PLANNED}, as what that changes of the model or of the run is not known; leave it "
        f"out, or say with a comment that it changes nothing here: # vlmplan: ignore {', '.join(keys)}"
    )

"""``use_liger_kernel`` of Hugging Face's Trainer, and of those that build on it.

Source: transformers 5.23 ``integrations/liger.py``; liger-kernel 0.8.5 ``_apply_liger_kernel_to_instance``.
"""

from vlmplan.model_types.liger import CUT_LOSS_TYPES
from vlmplan.notes import listed
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Meaning
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import LossKind
from vlmplan.workload import ModelFiles

LIGER_LAYERS = ("rms_norm", "rope", "swiglu")
"""Kernels of layers, which are on unless ``liger_kernel_config`` says otherwise."""
LIGER_FUNCTIONS = "apply_liger_kernel_to"
"""The key of what Liger's functions are named for that a program calls: types of models, whose classes each patches."""
OF_LANGUAGE = ("_text_model", "_text")
"""Ends of the types of models' language parts, for which Liger has no function of their own but Gemma's."""
HEAD_IS_READ = (
    "Liger's loss reads the head's weight itself: under ZeRO-3 DeepSpeed keeps it whole through forward and backward, "
    "which is not counted without Liger's layers (2 bytes x hidden size x vocabulary)"
)


def liger_options(settings: Settings, *, fuses_loss: bool = True) -> dict[str, Value]:
    """What ``use_liger_kernel`` means (``integrations/liger.py``); ``fuses_loss``: unless its table says otherwise."""
    is_on = settings.flag("use_liger_kernel", False)
    table = settings.table("liger_kernel_config")
    if not is_on:
        return {}
    layers = {bool(table.get(name, True)) for name in LIGER_LAYERS}
    if len(layers) > 1:
        settings.refuse("liger_kernel_config", f"some of {', '.join(LIGER_LAYERS)} without the others: {NOT_PLANNED}")
    for name in table:
        if name not in (*LIGER_LAYERS, "fused_linear_cross_entropy") and table[name]:
            settings.refuse("liger_kernel_config", f"{name}: {NOT_PLANNED}")
    options: dict[str, Value] = {"liger_layers": layers == {True}}
    if bool(table.get("fused_linear_cross_entropy", fuses_loss)):
        if not fuses_loss:
            settings.refuse("liger_kernel_config", "the trainer does not take Liger's fused loss")
        options["loss"] = LossKind.LIGER.value
        if layers != {True}:  # with which the head counts as read inside the model's forward (``Tape.reads_head``)
            settings.note(HEAD_IS_READ)
    return options


def refuse_missing_loss(settings: Settings, meaning: Meaning) -> None:
    """Refuse Liger's fused loss of a model that it can be computed for, and the trainer has none for; of others a rule
    says so."""
    model = meaning.model
    if model is None or meaning.options.get("loss") != LossKind.LIGER.value:
        return
    if model.model_type in CUT_LOSS_TYPES - meaning.fused_loss_types:
        settings.refuse_whole(f"Liger's fused loss of model_type {model.model_type}: {NOT_PLANNED}; leave it off")


def refuse_other_functions(settings: Settings, model: ModelFiles | None) -> None:
    """Refuse functions of Liger that a program calls for models of other types than its own, whose classes they leave
    as they are (``MODEL_TYPE_TO_APPLY_LIGER_FN`` in ``monkey_patch.py`` has the function of a type)."""
    patched = settings.names(LIGER_FUNCTIONS) if LIGER_FUNCTIONS in settings else []
    if model is None or not patched:
        return
    kind = model.model_type
    ends = [end for end in OF_LANGUAGE if kind.endswith(end)]
    if not {kind, *(kind.removesuffix(end) for end in ends)}.intersection(patched):
        names = listed([f"{LIGER_FUNCTIONS}_{name}" for name in patched])
        settings.refuse_whole(
            f"{names} patches classes of another model than {model.id} (model_type {kind}), which trains without "
            f"Liger's kernels: leave it out, or call {LIGER_FUNCTIONS}_{kind} where there is one"
        )

"""Which keywords of a program of Unsloth's change for another recipe."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.unsloth.reading import UNSLOTH
from vlmplan.other_trainers.writing.hugging_face import optimizer_keys
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.workload import Workload

FOLLOWING: Final = (
    *("adapter_dtype", "weight_dtype", "use_double_quant", "upcasts_frozen", "fuses_optimizer"),
    *("vision_activation_checkpointing", "lora_alpha", "caches_casts", "uses_autocast"),
)
"""Fields of a recipe that follow from the others as Unsloth is read."""
DECIDED: Final = (
    *("micro_batch", "grad_accum", "method", "optimizer", "activation_checkpointing", "offload_activations"),
    *("evaluation", "lora_rank"),
)
"""Those that keywords decide."""


def unsloth_changes(
    values: Mapping[str, Any], before: tuple[Recipe, Workload], after: tuple[Recipe, Workload]
) -> JsonDict:
    """The keywords with other values; None takes one away. Raises InputError for what no keyword says."""
    one, other = before[0], after[0]
    follows = {name: getattr(other, name) for name in (*FOLLOWING, *DECIDED)}
    if one.with_changes(**follows) != other or (before[1].image_width, before[1].image_height) != (
        after[1].image_width,
        after[1].image_height,
    ):
        raise InputError(f"{UNSLOTH}'s programs have no keyword for it")
    if Method.FULL in (one.method, other.method) and one.method is not other.method:
        raise InputError("adapters are put on by a call of its own (get_peft_model)")
    mine, its = _written(values, *before), _written(values, *after)
    return {key: value for key, value in its.items() if mine.get(key) != value and values.get(key) != value}


def _written(values: Mapping[str, Any], recipe: Recipe, workload: Workload) -> JsonDict:
    """The keywords that say what can change."""
    evaluation, checkpoints = recipe.evaluation, values.get("gradient_checkpointing")
    written: JsonDict = {
        "max_seq_length": workload.seq_len,
        "load_in_4bit": recipe.method is Method.QLORA,
        "use_gradient_checkpointing": _checkpoints(recipe),
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        **optimizer_keys(recipe),
        **({"load_in_16bit": False} if values.get("load_in_16bit") and recipe.method is Method.QLORA else {}),
        **({} if recipe.activation_checkpointing or not checkpoints else {"gradient_checkpointing": False}),
        **({} if recipe.method is Method.FULL else {"r": recipe.lora_rank}),
        **({} if evaluation is None else {"per_device_eval_batch_size": evaluation.batch}),
    }
    return written


def _checkpoints(recipe: Recipe) -> Any:
    if not recipe.activation_checkpointing:
        return False
    return "unsloth" if recipe.offload_activations else True

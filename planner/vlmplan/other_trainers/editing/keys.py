"""Which keys of a trainer's file change for another recipe: the difference of what is written for the two, in the words
that the file has already."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster
from vlmplan.other_trainers.axolotl.keys import ATTENTION_FLAGS
from vlmplan.other_trainers.editing.accelerate_keys import accelerate_changes
from vlmplan.other_trainers.editing.engine import (
    changed,
    deepspeed_changes,
    deepspeed_source,
    new_deepspeed,
    same_engine,
    swift_name,
)
from vlmplan.other_trainers.editing.nemo_keys import nemo_changes
from vlmplan.other_trainers.editing.unsloth_keys import unsloth_changes
from vlmplan.other_trainers.editing.vlm_r1_keys import vlm_r1_changes
from vlmplan.other_trainers.meaning import ALLOCATOR_VARIABLES, sees
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.opened import ENVIRONMENT_KEYS, Form, OpenedConfig
from vlmplan.other_trainers.openrlhf.common import OPENRLHF
from vlmplan.other_trainers.programs import UNSLOTH_RUNS
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.shell_variables import UNKNOWN
from vlmplan.other_trainers.vision_scripts.r1_v import R1_V
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1
from vlmplan.other_trainers.writing import (
    SCRIPTS_AROUND_THE_TRAINER,
    Tool,
    WrittenSetup,
    behaviour,
    limits_of,
    objection,
    settings_for,
    tool_of_trainer,
)
from vlmplan.other_trainers.writing.limits import LimitContext, first_objection
from vlmplan.other_trainers.writing.record import EXPANDABLE
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.workload import ModelFiles, Workload

UNLIKE_ANY = object()
ALIASES: Mapping[str, tuple[str, ...]] = {
    "tuner_type": ("train_type",),
    "gradient_checkpointing": ("activation_checkpointing", "grad_checkpoint"),
    "dtype": ("torch_dtype",),
}
"""Other names of keys, under which a file may have them."""
OF_ADAPTERS = frozenset("lora_rank lora_r lora_alpha lora_dropout lora_target target_modules".split())
"""What a trainer has a default of where a run gets adapters that had none. For the modules of some models TRL has none
(``lora_target_modules``), axolotl of none."""
DEFAULTS = {"quantization_method": "bnb"}
"""Values that go without saying."""
OF_TYPES = frozenset(("dtype", "torch_dtype", "pure_bf16"))
"""Keys of the types of weights, which follow from the engine too and only matter with the precision or the method."""
OF_ENVIRONMENTS = ("env", "ENV", "deepspeed")
"""Keys that are not values of the trainer's options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A recipe, its samples and its machine."""

    recipe: Recipe
    workload: Workload
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChanges:
    """What changes of a file. ``values`` of its keys, None takes one away; ``variables`` of a script, or of TRL's
    ``env``. ``deepspeed`` is the new configuration, and ``deepspeed_changes`` what of the present one changes; None
    where it stays. ``notes`` are sentences that the user should see."""

    values: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    deepspeed: JsonDict | None = None
    deepspeed_changes: JsonDict | None = None
    notes: tuple[str, ...] = ()


def key_changes(opened: OpenedConfig, config: TrainerConfig, before: Setup, after: Setup) -> KeyChanges:
    """What makes the file that ``before`` was read from mean ``after``.

    Raises InputError for what the trainer cannot do, or what this file has no place for.
    """
    own = _by_few_keys(opened, before, after)
    if own is not None:
        return KeyChanges(values=own)
    if config.trainer == OPENRLHF:
        raise InputError(f"{config.trainer}'s files are read, not changed")
    tool = tool_of_trainer(config.trainer)
    if tool is None:
        num_gpus = after.cluster.num_gpus
        return KeyChanges(values=accelerate_changes(opened.values, before.recipe, after.recipe, num_gpus))
    if config.trainer in SCRIPTS_AROUND_THE_TRAINER:
        reason = unlike_script(before.recipe, after.recipe, before.workload.model)
        if reason is not None:
            raise InputError(reason)
        own = _own_of_script(before)
        before, after = (replace(setup, recipe=setup.recipe.with_changes(**own)) for setup in (before, after))
    mine, its = _written(tool, before), _written(tool, after)
    if mine.options != its.options:
        raise InputError(f"{config.trainer}'s file has no key for it")
    one, other = before.recipe, after.recipe
    values = _differing(mine.settings, its.settings)
    if not one.trains_adapters and tool is not Tool.AXOLOTL:
        values = {key: value for key, value in values.items() if key not in OF_ADAPTERS or key in opened.values}
    if (one.precision, one.method, one.casts_loaded) == (other.precision, other.method, other.casts_loaded):
        values = {key: value for key, value in values.items() if key not in OF_TYPES}
    variables = _variables(opened, one, other)
    if "MAX_PIXELS" in opened.environment and "max_pixels" not in opened.values and "max_pixels" in values:
        variables["MAX_PIXELS"] = str(values.pop("max_pixels"))
    is_package_new = other.loss is LossKind.LIGER is not one.loss and tool is not Tool.AXOLOTL  # which depends on it
    notes = ("Liger's loss needs the package liger-kernel where the run is",) if is_package_new else ()
    found = KeyChanges(values=_in_its_words(opened, values), variables=variables, notes=notes)
    found = _with_engine(found, opened, before, after)
    _require_removable(opened, found.values)
    return found


def _by_few_keys(opened: OpenedConfig, before: Setup, after: Setup) -> JsonDict | None:
    """What changes of files of which few keys are changed; None for those of others."""
    one, other = ((setup.recipe, setup.workload) for setup in (before, after))
    if opened.trainer in UNSLOTH_RUNS:
        return unsloth_changes(opened.values, one, other)
    if opened.trainer in (VLM_R1, R1_V):
        return vlm_r1_changes(one, other)
    if opened.trainer == NEMO_AUTOMODEL:
        return nemo_changes(opened.values, one, other, after.cluster.num_gpus)
    return None


def _differing(mine: Mapping[str, Any], its: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file that have other values in ``its`` than in ``mine``, and not the trainer's default."""
    return {
        key: its.get(key)
        for key in (*its, *mine)
        if key not in OF_ENVIRONMENTS
        and its.get(key) != mine.get(key)
        and its.get(key) != DEFAULTS.get(key, UNLIKE_ANY)
    }


def cannot_train(tool: Tool, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why the tool cannot train a recipe that is as it behaves by itself in all that it decides; None if it can."""
    return objection(tool, behaviour(tool, recipe, model).applied_to(recipe), model)


def unlike_script(present: Recipe, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why a script around Hugging Face's Trainer, which trains ``present``, may not train ``recipe``: the Trainer alone
    cannot, or it is otherwise where the script itself does what the Trainer alone cannot; None if it can."""
    contexts = [
        LimitContext(recipe=behaviour(Tool.TRANSFORMERS, one, model).applied_to(one), sees=sees(model))
        for one in (present, recipe)
    ]
    for limit in limits_of(Tool.TRANSFORMERS):
        is_own = first_objection([limit], contexts[0]) is not None
        is_other = getattr(recipe, limit.field) != getattr(present, limit.field)
        reason = limit.sentence if is_own and is_other else None if is_own else first_objection([limit], contexts[1])
        if reason is not None:
            return reason
    return None


def _own_of_script(setup: Setup) -> dict[str, Any]:
    """What the script does that Hugging Face's Trainer alone does not, as that does it: no key of it changes."""
    model, recipe = setup.workload.model, setup.recipe
    context = LimitContext(recipe=behaviour(Tool.TRANSFORMERS, recipe, model).applied_to(recipe), sees=sees(model))
    beyond = [limit for limit in limits_of(Tool.TRANSFORMERS) if first_objection([limit], context) is not None]
    allowed = {limit.field: limit.allowed(context) for limit in beyond}
    return {field: values[0] for field, values in allowed.items() if values}


def _written(tool: Tool, setup: Setup) -> WrittenSetup:
    """What is written for a setup as the trainer behaves, whatever its reader leaves open of that."""
    recipe, workload = setup.recipe, setup.workload
    behaving = behaviour(tool, recipe, workload.model).applied_to(recipe)
    if recipe.casts_loaded:  # which is a matter of a key where the tool has one
        as_loaded = behaving.with_changes(weight_dtype=recipe.weight_dtype)
        behaving = behaving if objection(tool, as_loaded, workload.model) else as_loaded
    return settings_for(tool, behaving, workload, setup.cluster)


def _in_its_words(opened: OpenedConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """The changes under the names that the file has, without those that say what it says already."""
    present = opened.values
    result: dict[str, Any] = {}
    for key, value in values.items():
        other = next((name for name in ALIASES.get(key, ()) if name in present and key not in present), key)
        result[other] = value
    if "disable_gradient_checkpointing" in result:
        is_off = bool(result["disable_gradient_checkpointing"])
        if is_off and "gradient_checkpointing" in present:
            result["gradient_checkpointing"] = None
        elif not is_off and "disable_gradient_checkpointing" in present:
            result["disable_gradient_checkpointing"] = False
    if "max_length" in result and str(present.get("packing")).casefold() == "true" and "packing_length" in present:
        result["packing_length"] = result.pop("max_length")
    if opened.trainer == "axolotl":
        result |= _beside_older_keys(present, result)
    return {
        key: value
        for key, value in result.items()
        if (value is not None or key in present) and str(present.get(key)).casefold() != str(value).casefold()
    }


def _beside_older_keys(present: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """What changes of axolotl's other keys for the same: a flag of attention goes, and ``batch_size``, which it does
    not take beside an accumulation; ``offload`` of checkpoints is true, and plugins stay beside new ones."""
    of_others: dict[str, str] = {
        "batch_size": "gradient_accumulation_steps",
        **dict.fromkeys(ATTENTION_FLAGS, "attn_implementation"),
    }
    gone: dict[str, Any] = {key: None for key, other in of_others.items() if key in present and other in result}
    offloads = str(present.get("gradient_checkpointing")).startswith("offload")
    is_on = offloads and result.get("gradient_checkpointing", True)
    if isinstance(present.get("plugins"), list) and result.get("plugins"):
        gone["plugins"] = [*present["plugins"], *(name for name in result["plugins"] if name not in present["plugins"])]
    return gone | ({"gradient_checkpointing": True} if is_on and "activation_offloading" in result else {})


def _variables(opened: OpenedConfig, before: Recipe, after: Recipe) -> dict[str, str]:
    """The allocator's variable, added to what it says already. Raises InputError where a file cannot set one."""
    if before.expandable_segments == after.expandable_segments:
        return {}
    if not after.expandable_segments:
        raise InputError("the allocator's variable is left as it is")
    if opened.form is not Form.SCRIPT and opened.trainer not in ENVIRONMENT_KEYS:
        raise InputError("variables are set where the trainer is started, not in this file")
    name = next((name for name in ALLOCATOR_VARIABLES if name in opened.environment), ALLOCATOR_VARIABLES[0])
    if UNKNOWN in opened.environment.get(name, ""):
        raise InputError(f"{name} is known only to the shell that runs {opened.source}; write the value")
    said = [part for part in opened.environment.get(name, "").split(",") if part and "expandable" not in part]
    return {name: ",".join([*said, EXPANDABLE])}


def _with_engine(found: KeyChanges, opened: OpenedConfig, before: Setup, after: Setup) -> KeyChanges:
    source = deepspeed_source(opened)
    if not after.recipe.uses_deepspeed:
        if source is None:
            return found
        return replace(found, values={**found.values, "deepspeed": None})
    notes = found.notes
    if source is None:
        content, changes = new_deepspeed(after.recipe), None
        if opened.trainer == "llamafactory" and after.cluster.num_gpus == 1:
            notes = (*notes, "LLaMA-Factory takes DeepSpeed on one GPU only with FORCE_TORCHRUN=1 before its command")
    elif source.name is not None:
        if same_engine(before.recipe, after.recipe):
            return found
        content, changes = new_deepspeed(after.recipe), None
    else:
        changes = deepspeed_changes(source.content, before.recipe, after.recipe, after.cluster.num_gpus)
        content = changed(source.content, changes)
        if not changes:
            return found
    return replace(found, deepspeed=content, deepspeed_changes=changes, notes=notes)


def _require_removable(opened: OpenedConfig, values: Mapping[str, Any]) -> None:
    """Raise InputError for a key to be taken away that another file than this one says."""
    if opened.run is None:
        return
    for key, value in values.items():
        if value is None and key not in opened.run.values:
            raise InputError(f"{key} is said in a file that {opened.source} names; take it out there")


def with_changes(opened: OpenedConfig, changes: KeyChanges) -> OpenedConfig:
    """The file as it would be read with these changes, without writing it."""
    values = changed(opened.values, changes.values)
    if changes.deepspeed is not None:
        values["deepspeed"] = deepspeed_name(opened, changes) or changes.deepspeed
    return replace(opened, values=values, environment={**opened.environment, **changes.variables})


def deepspeed_name(opened: OpenedConfig, changes: KeyChanges) -> str | None:
    """The name that ms-swift has for the new DeepSpeed configuration."""
    if opened.trainer != "swift" or changes.deepspeed is None or changes.deepspeed_changes is not None:
        return None
    return swift_name(changes.deepspeed)

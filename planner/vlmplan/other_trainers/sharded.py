"""What a trainer's keys mean where PyTorch shards: units of FSDP, and the types of what it shards."""

from collections.abc import Mapping
from typing import cast

from vlmplan.files import text_of
from vlmplan.files.json_reader import parse_json_object
from vlmplan.notes import listed
from vlmplan.other_trainers.fsdp import (
    Machines,
    flat_packed_option,
    is_first_version,
    packed_option,
    read_fsdp,
    unread_losses,
)
from vlmplan.other_trainers.hugging_face import Arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import AdapterDtype, Method, Precision, ShardUnits, WeightDtype

OF_PARTS = ("train_vision", "train_projector", "train_language")


def sharded_options(
    settings: Settings, arguments: Arguments, meaning: Meaning, around: Surroundings, method: Method
) -> dict[str, Value]:
    """The options of FSDP, whose shards of trained weights are float32 in mixed precision, however they are loaded."""
    if arguments.deepspeed is not None and around.shards is None:
        settings.refuse("fsdp", "and deepspeed is set too; one of the two is needed")
    section: Mapping[str, object] = {}
    with settings.kept():
        section = _fsdp_section(arguments, settings, around)
    config = None if meaning.model is None else meaning.model.config
    sharding = meaning.sharding
    is_flat = is_first_version(arguments.fsdp or True, section, sharding)
    if meaning.without_fsdp is not None and not is_flat:
        settings.refuse_whole(meaning.without_fsdp)
        return {}
    adapts = method is not Method.FULL
    options, checkpoints = read_fsdp(
        settings,
        arguments.fsdp or True,
        section,
        config,
        sharding,
        trains_adapters=adapts,
        machines=Machines(around.num_gpus, around.num_nodes),
    )
    if sharding.has_adapters_apart and adapts and not is_flat:
        options["shard_units"] = _units_with_adapters(settings, meaning, options["shard_units"])
    if checkpoints and arguments.options.get("activation_checkpointing"):
        settings.refuse_whole(
            "fsdp_config has activation_checkpointing, and gradient_checkpointing is true too; one of the two is needed"
        )
    if sharding.has_ends_apart and not is_flat:
        _refuse_unread_losses(settings, meaning, trains_adapters=adapts)
    if checkpoints:
        options["activation_checkpointing"] = True
    said = arguments.precision or meaning.without_autocast
    precision = said if is_flat else sharding.precision(said, method)
    if adapts and precision is Precision.BF16_PURE:
        settings.refuse_whole("adapters in float32 beside 16-bit weights are not planned under FSDP; set bf16: true")
    types_of_shards = _types_of_flat_shards if is_flat else _types_of_shards
    options |= types_of_shards(settings, meaning, method, precision)
    return options | {"precision": precision.value}


def _refuse_unread_losses(settings: Settings, meaning: Meaning, *, trains_adapters: bool) -> None:
    """Refuse a loss that reads the head's weight without calling the head, whose unit is not gathered then."""
    loss = meaning.options.get("loss")
    unread = unread_losses(sees=sees(meaning.model), trains_adapters=trains_adapters)
    if loss in [kind.value for kind in unread]:
        settings.refuse_whole(f"the loss is {loss}, which under FSDP2 reads a head that is not gathered: not planned")


def _types_of_flat_shards(
    settings: Settings, meaning: Meaning, method: Method, precision: Precision
) -> dict[str, Value]:
    """The options of frozen weights' types under FSDP1, where accelerate makes shards of trained weights float32, those
    of adapters too, and leaves others as they are (``prepare_model``)."""
    options: dict[str, Value] = {}
    if method is not Method.FULL and meaning.weights is WeightDtype.FLOAT32 and precision is Precision.BF16:
        options["weight_dtype"] = WeightDtype.FLOAT32.value
    if method is Method.QLORA:
        options |= flat_packed_option(settings, meaning.packed_storage, precision)
    return options


def _types_of_shards(settings: Settings, meaning: Meaning, method: Method, precision: Precision) -> dict[str, Value]:
    """The options of frozen weights' types, and of adapters' where accelerate does not make them float32: beside 4-bit
    weights."""
    options: dict[str, Value] = {}
    sharding, is_narrow = meaning.sharding, meaning.adapters == AdapterDtype.MODEL.value
    freezes = method is not Method.FULL or any(meaning.options.get(name) is False for name in OF_PARTS)
    is_wide = meaning.weights is WeightDtype.FLOAT32 or sharding.casts_frozen
    if freezes and is_wide and precision is Precision.BF16:
        options["weight_dtype"] = WeightDtype.FLOAT32.value
    if method is Method.QLORA:
        options |= packed_option(settings, meaning.packed_storage, precision)
    stay = method is Method.QLORA or (method is Method.LORA and not sharding.casts_trained)
    if stay and is_narrow and precision is Precision.BF16:
        options["adapter_dtype"] = meaning.adapters
    if method is Method.QLORA and not is_narrow and meaning.options.get("train_embeddings"):
        settings.refuse_whole(
            "copies of embeddings in 16 bit beside float32 adapters of 4-bit weights are not planned under FSDP2"
        )
    return options


def _units_with_adapters(settings: Settings, meaning: Meaning, units: Value) -> Value:
    """Of a trainer that makes a unit of each matrix of an adapter."""
    others = {"use_dora": "DoRA's lengths", "train_embeddings": "copies of embeddings"}
    found = [text for name, text in others.items() if meaning.options.get(name)]
    if units == ShardUnits.LANGUAGE_LAYERS.value:
        found.append("layers of the language model alone")
    if found:
        settings.refuse_whole(f"adapters under FSDP2 are units, which is not planned with {listed(found)}")
    return ShardUnits.ADAPTERS_TOO.value


def _fsdp_section(arguments: Arguments, settings: Settings, around: Surroundings) -> Mapping[str, object]:
    """``fsdp_config``, which may be an object, a file or nothing."""
    value = arguments.fsdp_config
    if isinstance(value, Mapping):
        return cast(Mapping[str, object], value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        file = found_file(value, around.folder, settings.source, "fsdp_config", settings.notes)
        return parse_json_object(text_of(file, name=str(file), most_bytes=MAX_BYTES), source=str(file))
    return settings.table("fsdp_config")

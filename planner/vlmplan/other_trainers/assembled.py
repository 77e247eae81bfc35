"""From what a trainer's keys mean to one ``TrainerConfig``: the engine, the types of weights, samples and images."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from vlmplan.architecture.images import IMAGE_MODEL_TYPES, image_shape
from vlmplan.data_rules import FOR_LARGEST, FOR_LONGEST, NOT_KNOWN, DataRules
from vlmplan.deepspeed_config import DsConfig, settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.files import text_of
from vlmplan.files.json_reader import parse_json_object
from vlmplan.models import context_length
from vlmplan.notes import listed
from vlmplan.other_trainers.deepspeed_optimizers import deepspeed_optimizer
from vlmplan.other_trainers.fsdp import (
    OF_ACCELERATE,
    Machines,
    Sharding,
    flat_packed_option,
    is_first_version,
    packed_option,
    read_fsdp,
    unread_losses,
)
from vlmplan.other_trainers.hugging_face import Arguments, is_reentrant, plain_options
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.parallelism import read_parallelism
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import MAX_NUMBER, Settings
from vlmplan.other_trainers.shipped_deepspeed import ShippedFiles
from vlmplan.recipe.choices import AdapterDtype, CheckpointKind, Method, Precision, ShardUnits, WeightDtype
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.workload import DEFAULT_IMAGE_SIZE, ModelFiles

LOADED_WIDE = (
    "weights are loaded in float32 and then cast by DeepSpeed: every process has the whole model in float32 in host "
    "memory first, which loading it in 16 bit avoids"
)
HUGE_IMAGE_SIZES = tuple((8192, 8192 * wide // high) for wide, high in ((1, 1), (4, 3), (3, 2), (2, 1), (3, 1), (6, 1)))
"""A choice of where processors have their most: limits go to 12.8 million pixels, tiles are chosen by proportions."""
OF_PARTS = ("train_vision", "train_projector", "train_language")
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside the keys: files are looked for from ``folder`` upwards, None where it came alone;
    ``environment`` is a script's, ``script`` the name of what it starts in Python, without its ending.
    ``num_gpus`` counts all machines, None where a search chooses. ``uses_deepspeed``, ``method`` and ``precision`` are
    the user's own, which go before the file's; None: the file decides.
    """

    folder: Path | None
    num_gpus: int | None = None
    num_nodes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    uses_deepspeed: bool | None = None
    shards: bool | None = None
    """Whether PyTorch shards (``--fsdp``), as the user says."""
    method: Method | None = None
    precision: Precision | None = None
    script: str = ""
    named_deepspeed: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """DeepSpeed configurations that the trainer ships, by the names that it takes for them."""
    shipped_deepspeed: ShippedFiles = field(default_factory=ShippedFiles)
    """Those of its checkout by their paths there, for names of files that are not here."""

    @property
    def expandable_segments(self) -> bool:
        texts = [self.environment.get(name, "") for name in ALLOCATOR_VARIABLES]
        return any("expandable_segments:true" in text.replace(" ", "").casefold() for text in texts)


@dataclass(slots=True, kw_only=True)
class Meaning:
    """What the keys of one trainer mean beyond ``Arguments``."""

    trainer: str
    method: Method
    options: dict[str, Value]
    weights: WeightDtype = WeightDtype.TABLE
    """The types of the model's own weights in plain PyTorch."""
    adapters: str = "float32"
    """``--adapter-dtype`` in plain PyTorch: peft's own, unless the trainer casts what is trained."""
    data_rules: DataRules = field(default_factory=lambda: DataRules(pads_to=1, learns=NOT_KNOWN))
    """How samples are padded, packed and cut; their order is the arguments'."""
    casts_zero3_adapters: bool = False
    """Whether adapters are made in 16 bit under ZeRO-3, where DeepSpeed leaves them as peft makes them: in float32."""
    packed_storage: str | None = "uint8"
    """``bnb_4bit_quant_storage``: in which type 4-bit weights are kept; None: that is the user's script."""
    is_reentrant: bool = False
    """Whether its checkpoints are where ``gradient_checkpointing_kwargs`` do not say it."""
    use_double_quant: bool | None = None
    """Whether scales of 4-bit weights are quantised too."""
    grows_on_several: bool = False
    """Whether its launcher lets the allocator's segments grow where it starts several processes."""
    without_autocast: Precision = Precision.FP32
    """What plain PyTorch computes in where neither bf16 nor fp16 is set."""
    upcasts_frozen: bool | None = False
    """Whether it calls peft's ``prepare_model_for_kbit_training``; None: that is the user's script."""
    model: ModelFiles | None = None
    sharding: Sharding = OF_ACCELERATE
    """Its FSDP2."""
    without_fsdp: str | None = None
    """Why its FSDP2 is not planned of this run; None where it is."""

    def leaves_float32(self, method: Method) -> bool:
        """Whether peft leaves float32 beside 16-bit weights: adapters, or what it prepares for training."""
        return method is not Method.FULL and (self.adapters == "float32" or self.upcasts_frozen is True)


def assembled(settings: Settings, arguments: Arguments, meaning: Meaning, around: Surroundings) -> TrainerConfig:
    """The configuration. Raises InputError with everything that is wrong with it."""
    method = around.method or meaning.method
    options = arguments.options | meaning.options | {"method": meaning.method.value}
    options = _options_of(method, options, settings, meaning)
    ds_config = None
    if arguments.deepspeed is not None and around.uses_deepspeed is None:
        with settings.kept():
            ds_config = _ds_config(arguments.deepspeed, settings, around)
    elif arguments.deepspeed is not None:
        settings.note("the file's DeepSpeed configuration is left out, as an option says another engine")
    shards = _shards(arguments, settings, around)
    sharded = _sharded(settings, arguments, meaning, around, method) if shards else {}
    options |= read_parallelism(settings, shards=shards, is_flat="flat_parameters" in sharded, num_gpus=around.num_gpus)
    if shards:
        options |= sharded
    elif around.uses_deepspeed is True or (around.uses_deepspeed is None and arguments.deepspeed is not None):
        options |= _deepspeed(settings, arguments, meaning, method, ds_config)
    else:
        options |= _plain(arguments, meaning, around, method)
    grows_on_several = meaning.grows_on_several and around.num_gpus is None and not around.expandable_segments
    if not grows_on_several:
        options["expandable_segments"] = around.expandable_segments
    _count_samples(settings, options, around)
    if "image_size" not in options:
        _note_largest_image(settings, meaning.model)
    settings.close()
    return TrainerConfig(
        source=settings.source,
        trainer=meaning.trainer,
        options=options,
        gradient_clipping=arguments.gradient_clipping,
        ds_config=ds_config,
        said=settings.said,
        defaults=settings.defaults,
        idle=settings.idle,
        notes=tuple(settings.notes),
        data_rules=replace(meaning.data_rules, trainer=meaning.trainer, order=arguments.order),
        saving=arguments.saving,
        loader_workers=arguments.loader_workers,
        grows_on_several=grows_on_several,
        output_dir=arguments.output_dir,
    )


def _options_of(method: Method, options: Mapping[str, Value], settings: Settings, meaning: Meaning) -> dict[str, Value]:
    """``options`` with those that the method alone has."""
    found = {name: value for name, value in options.items() if method is not Method.FULL or name not in ADAPTER_FIELDS}
    if method is Method.QLORA and meaning.use_double_quant is not None:
        found["use_double_quant"] = meaning.use_double_quant
    if method is Method.LORA_8BIT and is_reentrant(settings, default=meaning.is_reentrant):
        found["checkpoint_kind"] = CheckpointKind.REENTRANT.value
    return found


def _note_largest_image(settings: Settings, model: ModelFiles | None) -> None:
    """Say what an image may take where the trainer sets no limit and the model's processor takes more of a larger
    one."""
    if model is None or not sees(model):
        return
    with suppress(InputError):
        usual, *others = (
            image_shape(model.config, model.preprocessor, width=width, height=height).num_tokens
            for width, height in (DEFAULT_IMAGE_SIZE, *HUGE_IMAGE_SIZES)
        )
        largest = max(others)
        if largest > usual:
            settings.note(
                f"no limit on the pixels of an image is said, and one may take {largest:,} tokens: {FOR_LARGEST}"
            )


def _is_cast(arguments: Arguments, meaning: Meaning, method: Method) -> bool:
    """Whether DeepSpeed has to cast what was loaded in float32."""
    return meaning.weights is WeightDtype.FLOAT32 and arguments.precision is not None and not method.packs_weights


def _shards(arguments: Arguments, settings: Settings, around: Surroundings) -> bool:
    """Whether PyTorch does, as the user says, or else the file."""
    says_engine = around.uses_deepspeed is not None
    shards = around.shards if around.shards is not None else arguments.fsdp is not None and not says_engine
    if arguments.fsdp is not None and not shards:
        settings.note("the file's FSDP2 is left out, as an option says another engine")
    return shards


def _deepspeed(
    settings: Settings, arguments: Arguments, meaning: Meaning, method: Method, ds_config: DsConfig | None
) -> dict[str, Value]:
    """The options of DeepSpeed that its own file does not say."""
    options: dict[str, Value] = {"precision": (arguments.precision or Precision.FP32).value}
    if _is_cast(arguments, meaning, method):
        options["weight_dtype"] = meaning.weights.value
        if ds_config is None or ds_config.zero_stage != 3:
            settings.note(LOADED_WIDE)
    is_wide = method is Method.LORA and arguments.precision is not None and not meaning.casts_zero3_adapters
    if is_wide and ds_config is not None and ds_config.zero_stage == 3:
        options["adapter_dtype"] = AdapterDtype.FLOAT32.value
    if ds_config is not None:
        with settings.kept():
            options |= deepspeed_optimizer(ds_config)
    return options


def _sharded(
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


def _plain(arguments: Arguments, meaning: Meaning, around: Surroundings, method: Method) -> dict[str, Value]:
    """The options of plain PyTorch and DDP: autocast, and the types that it is around."""
    own = arguments.precision or meaning.without_autocast
    casts = (around.precision or own) in (Precision.BF16, Precision.FP16)
    is_mixed = around.precision is None and own is Precision.BF16_PURE and meaning.leaves_float32(method)
    options = {"precision": own.value, **plain_options(casts=casts, is_mixed=is_mixed)}
    if casts and (meaning.weights is not WeightDtype.MODEL or method is Method.FULL):
        options["weight_dtype"] = meaning.weights.value
    if (casts or is_mixed) and method is not Method.FULL:
        options["adapter_dtype"] = meaning.adapters
    if (casts or is_mixed) and method.packs_weights and meaning.upcasts_frozen is not None:
        options["upcasts_frozen"] = meaning.upcasts_frozen
    return options


def _ds_config(value: object, settings: Settings, around: Surroundings) -> DsConfig:
    if isinstance(value, Mapping):
        return settings_from_ds_config(value, name=f"{settings.source}: deepspeed")  # pyright: ignore[reportUnknownArgumentType]
    name = str(value)
    shipped = around.named_deepspeed.get(name)
    if shipped is not None:
        return settings_from_ds_config(shipped, name=f"{name} of {settings.trainer}")
    if name.lstrip().startswith("{"):
        return settings_from_ds_config(settings.table("deepspeed"), name=f"{settings.source}: deepspeed")
    try:
        file = found_file(name, around.folder, settings.source, "deepspeed", settings.notes)
    except InputError:
        content = around.shipped_deepspeed.named(name)
        if content is None:
            raise
        settings.note(f"deepspeed is {name}, which is no file from here: {settings.trainer}'s own is taken")
        return settings_from_ds_config(content, name=f"{name} of {settings.trainer}")
    return settings_from_ds_config(file)


def _count_samples(settings: Settings, options: dict[str, Value], around: Surroundings) -> None:
    """``max_steps`` goes before epochs: so many steps of what a step takes."""
    steps = settings.number("max_steps", -1.0, least=-MAX_NUMBER) if "max_steps" in settings else -1.0
    settings.ignore(("max_steps",))
    if steps <= 0:
        return
    micro_batch, grad_accum = (options.get(name) for name in ("micro_batch", "grad_accum"))
    if around.num_gpus is None or not isinstance(micro_batch, int) or not isinstance(grad_accum, int):
        settings.note(f"max_steps is {steps:.0f}: time and money are those of the epochs, not of so many steps")
        return
    # A sample of a micro batch is an answer to a prompt of GRPO, as often as it is trained on.
    answers, iterations = options.get("num_generations", 1), options.get("num_iterations", 1)
    assert isinstance(answers, int)
    assert isinstance(iterations, int)
    options["num_samples"] = max(1, int(steps) * micro_batch * grad_accum * around.num_gpus // (answers * iterations))
    options["epochs"] = 1.0


def without_limit(model: ModelFiles | None) -> str:
    """How long a sample may be that no trainer cuts, in words, and what to do about it."""
    longest = None if model is None else context_length(model)
    limit = "the model's own limit" if longest is None else f"{longest:,} tokens, the model's own limit"
    return f"a sample may have {limit}: {FOR_LONGEST}"


def sees(model: ModelFiles | None) -> bool:
    """Whether images are among the samples of a model unless the user says otherwise."""
    return model is not None and model.model_type in IMAGE_MODEL_TYPES


def largest_image(max_pixels: int) -> str:
    """``--image-size`` of a square image of at most so many pixels.

    >>> largest_image(768 * 768)
    '768x768'
    """
    side = math.isqrt(max_pixels)
    return f"{side}x{side}"

"""From what a trainer's keys mean to one ``TrainerConfig``: the engine, the types of weights, samples and images."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from vlmplan.architecture.images import image_shape, is_bounded_by_pixels
from vlmplan.data_rules import FOR_LARGEST, FOR_LONGEST
from vlmplan.deepspeed_config import DsConfig, settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.models import context_length
from vlmplan.other_trainers.deepspeed_optimizers import deepspeed_optimizer
from vlmplan.other_trainers.device_maps import refuse_placed_layers
from vlmplan.other_trainers.hugging_face import Arguments, is_reentrant, plain_options
from vlmplan.other_trainers.liger import refuse_missing_loss, refuse_other_functions
from vlmplan.other_trainers.meaning import MOST_PIXELS, Meaning, Surroundings, sees
from vlmplan.other_trainers.named_files import found_file
from vlmplan.other_trainers.parallelism import read_parallelism
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import MAX_NUMBER, Settings
from vlmplan.other_trainers.sharded import sharded_options
from vlmplan.recipe.choices import AdapterDtype, CheckpointKind, Method, Precision, WeightDtype
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.workload import DEFAULT_IMAGE_SIZE, ModelFiles

LOADED_WIDE = (
    "weights are loaded in float32 and then cast by DeepSpeed: every process has the whole model in float32 in host "
    "memory first, which loading it in 16 bit avoids"
)
COMPUTES_WIDE = (
    "bnb_4bit_compute_dtype is float32, BitsAndBytesConfig's own: 4-bit layers cast their inputs and weights to it, "
    "which takes bytes and seconds that are not planned; torch.bfloat16 is what is planned"
)
"""``Linear4bit.forward`` of bitsandbytes 0.50, ``__init__`` of the configuration in transformers 5.23."""
HUGE_IMAGE_SIZES = tuple((8192, 8192 * wide // high) for wide, high in ((1, 1), (4, 3), (3, 2), (2, 1), (3, 1), (6, 1)))
"""A choice of where processors have their most: limits go to 12.8 million pixels, tiles are chosen by proportions."""


def assembled(settings: Settings, arguments: Arguments, meaning: Meaning, around: Surroundings) -> TrainerConfig:
    """The configuration. Raises InputError with everything that is wrong with it."""
    method = around.method or meaning.method
    options = arguments.options | meaning.options | {"method": meaning.method.value}
    options = _options_of(method, options, meaning)
    ds_config = None
    if arguments.deepspeed is not None and around.uses_deepspeed is None:
        with settings.kept():
            ds_config = _ds_config(arguments.deepspeed, settings, around)
    elif arguments.deepspeed is not None:
        settings.note("the file's DeepSpeed configuration is left out, as an option says another engine")
    shards = _shards(arguments, settings, around)
    sharded = sharded_options(settings, arguments, meaning, around, method) if shards else {}
    options |= read_parallelism(settings, shards=shards, is_flat="flat_parameters" in sharded, num_gpus=around.num_gpus)
    if shards:
        options |= sharded
    elif around.uses_deepspeed is True or (around.uses_deepspeed is None and arguments.deepspeed is not None):
        options |= _deepspeed(settings, arguments, meaning, method, ds_config)
    else:
        options |= _plain(arguments, meaning, around, method)
    if is_reentrant(settings, default=meaning.is_reentrant) and not shards and options.get("activation_checkpointing"):
        options["checkpoint_kind"] = CheckpointKind.REENTRANT.value
    _note_methods(settings, meaning, method, options, ds_config)
    grows_on_several = meaning.grows_on_several and around.num_gpus is None and not around.expandable_segments
    if not grows_on_several:
        options["expandable_segments"] = around.expandable_segments
    _count_samples(settings, options, around)
    refuse_missing_loss(settings, meaning)
    refuse_other_functions(settings, meaning.model)
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


def _note_methods(
    settings: Settings, meaning: Meaning, method: Method, options: Mapping[str, Value], ds_config: DsConfig | None
) -> None:
    """Say what takes bytes that no plan of packed weights has, and what the trainer's versions of the libraries make of
    checkpoints of adapters under ZeRO-3."""
    if method is Method.QLORA:
        if meaning.packed_computes_in == "float32" and options["precision"] != Precision.FP32.value:
            settings.note(COMPUTES_WIDE)
    elif method is not Method.FULL and ds_config is not None and ds_config.zero_stage == 3:
        said = meaning.if_reentrant if "checkpoint_kind" in options else meaning.unless_reentrant
        if said and options.get("activation_checkpointing") is True:
            settings.note(said)


def _options_of(method: Method, options: Mapping[str, Value], meaning: Meaning) -> dict[str, Value]:
    """``options`` with those that the method alone has."""
    found = {name: value for name, value in options.items() if method is not Method.FULL or name not in ADAPTER_FIELDS}
    if method is Method.QLORA and meaning.use_double_quant is not None:
        found["use_double_quant"] = meaning.use_double_quant
    return found


def _note_largest_image(settings: Settings, model: ModelFiles | None) -> None:
    """Say what an image may take where the trainer sets no limit and the model's processor takes more of a larger
    one."""
    if model is None or not sees(model) or (MOST_PIXELS in settings and is_bounded_by_pixels(model.model_type)):
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
        if ds_config.zero_stage == 3:
            refuse_placed_layers(settings)
        with settings.kept():
            options |= deepspeed_optimizer(ds_config)
    return options


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


def largest_image(max_pixels: int) -> str:
    """``--image-size`` of a square image of at most so many pixels.

    >>> largest_image(768 * 768)
    '768x768'
    """
    side = math.isqrt(max_pixels)
    return f"{side}x{side}"

"""From a plan to the model that is trained: loaded, frozen, adapted, every weight with its element type.

The steps and their order are the planner's (``architecture/prepare.py``): load (quantised or not), freeze, add
adapters, set types; then activation checkpointing.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlmplan.errors import InputError, MissingPackageError, UnavailableError
from vlmplan.model_types.thinkers import THINKERS
from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.lora_targets import unpacked_linears
from vlmplan.workload import EAGER_TOWER_TYPES, ModelFiles
from vlmplan_trainer.models.adapters import add_adapters, initial_factors, load_adapter, quantize
from vlmplan_trainer.models.checkpointing import set_checkpointing
from vlmplan_trainer.models.computed_weights import gathering_tables
from vlmplan_trainer.models.packing import keep_packing, packing
from vlmplan_trainer.models.parts import Parts, freeze, full_modules
from vlmplan_trainer.models.processor_files import naming_damaged, processor_files
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.score_head import class_for, drawn_weights, name_head_of
from vlmplan_trainer.models.stored_weights import load_stored
from vlmplan_trainer.models.tiling import tile_mlps
from vlmplan_trainer.models.weight_types import set_types, torch_dtype
from vlmplan_trainer.probe import (
    RefusedModelError,
    attention_of_parts,
    configuration,
    name_of,
    sees_images,
)

NO_BACKEND = "Couldn't instantiate the backend tokenizer"
"""How transformers begins, in several lines, where a folder has no tokenizer (``tokenization_utils_tokenizers.py``)."""
NO_TOKENIZER = "it has no tokenizer; tokenizer.json is needed beside its config.json, or files that one can be made of"
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source that a model is loaded from: a folder, or a Hugging Face id and its revision."""

    name: str
    revision: str | None = None

    @property
    def folder(self) -> Path | None:
        path = Path(self.name)
        return path if path.is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """What makes a model's inputs and is saved with its result: ``processor`` is a tokenizer for a text model,
    ``files`` are those that processor, tokenizer and generation come from, by their names; ``speech`` is the language
    and the task that they get for their result."""

    processor: Any
    is_vision: bool
    model_type: str
    source: Source
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    speech: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """``model`` is peft's where it has adapters; ``config`` is transformers' configuration as the checkpoint has it.

    ``taken_out``: what adapters of PiSSA or OLoRA started from, by name, which the model's weights are without.
    ``full_modules``: names of modules that are trained in full beside adapters.
    """

    model: nn.Module
    config: Any
    taken_out: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    full_modules: tuple[str, ...] = ()


def load_processing(plan: Plan, *, random_weights: bool = False) -> Processing:
    """The processor or tokenizer of the plan's model, without its weights. Raises what ``load_model`` does."""
    source = model_source(plan)
    with _sentences(source):
        config = _configuration(plan, source, random_weights=random_weights)
        is_vision, files = sees_images(config), processor_files(source.name, revision=source.revision)
        with naming_damaged(files, source.name):
            processor = load_processor(
                source.name,
                is_vision=is_vision,
                hears_prompt=plan.workload.model.hears_prompt,
                needs_images=plan.workload.model.encodes_images_alone,
                revision=source.revision,
            )
        return Processing(
            processor=processor,
            is_vision=is_vision,
            model_type=str(config.model_type),
            source=source,
            files=files,
        )


def load_model(
    plan: Plan,
    *,
    random_weights: bool = False,
    seed: int = 0,
    adapter: Path | None = None,
    device: torch.device | None = None,
) -> LoadedModel:
    """The model of a plan, ready for an engine.

    ``random_weights``: the plan's config.json, and no weights. ``seed`` is that of random weights and adapters; torch's
    generator is set to it. ``adapter``: a folder with weights that the adapters start from. ``device``: where weights
    are quantised, this rank's card or the CPU. Under ZeRO-3 the process group must stand already; no rank ever has the
    whole model then.
    Raises InputError, UnavailableError or MissingPackageError with what to do.
    """
    recipe = plan.recipe
    source = Source(name=plan.model_source) if random_weights else model_source(plan)
    if recipe.method.packs_weights and recipe.zero_stage == 3:
        raise InputError(
            f"--method {recipe.method.value} does not go with --zero-stage 3; plan with stage 2, or with --method lora"
        )
    torch.manual_seed(seed)
    with _sharding(plan), _sentences(source):
        config = _configuration(plan, source, random_weights=random_weights)
        kind = class_for(config, recipe)
        place = device or torch.device(_device(plan))
        if random_weights:
            model = _random(kind, config, recipe, place)
        else:
            model = _pretrained(kind, config, recipe, source, place, plan.workload.model)
            name_head_of(model, recipe)
        said = copy.deepcopy(model.config)
        _without_cache(model.config)
        taken_out: dict[str, torch.Tensor] = {}
        full = tuple(full_modules(model, Parts(model), recipe))
        prepared = prepare(model, recipe, taken_out)
        tile_mlps(model, recipe, plan.workload.seq_len)
        if adapter is not None:
            load_adapter(prepared, adapter, recipe)
    _check_size(prepared, plan)
    return LoadedModel(model=prepared, config=said, taken_out=taken_out, full_modules=full)


def prepare(model: Any, recipe: Recipe, taken_out: dict[str, torch.Tensor] | None = None) -> Any:
    """``model``, as loaded, frozen, adapted and typed as the recipe says; peft's model where it has adapters.

    ``taken_out`` is filled with what PiSSA and OLoRA take out of the weights."""
    parts = Parts(model)
    freeze(model, parts, recipe)
    prepared = add_adapters(model, parts, recipe) if recipe.trains_adapters else model
    if recipe.changes_base and taken_out is not None:
        taken_out |= initial_factors(prepared)
    set_types(prepared, recipe)
    keep_packing(prepared)
    if not any(parameter.requires_grad for parameter in prepared.parameters()):
        raise InputError("every part of the model is frozen, so nothing would be trained")
    # After peft, which would make the embeddings' results need gradients where checkpoints are on.
    set_checkpointing(model, parts, recipe)
    return prepared.train()


# -- loading ---------------------------------------------------------------------------------------------------------


def model_source(plan: Plan) -> Source:
    """The source of the plan's model. Raises InputError if it is in no place that transformers can load from."""
    name = os.path.expanduser(plan.model_source)
    path = Path(name)
    if path.name.endswith(".json") and path.is_file():
        path = path.parent
    if path.is_dir():
        return Source(name=str(path))
    repository, _, revision = name.partition("@")
    if repository.count("/") != 1 or repository.startswith(("/", ".")):
        raise InputError(
            f"the plan's model {plan.model_source} is neither a folder here nor a Hugging Face id, org/name"
        )
    return Source(name=repository, revision=revision or None)


def _configuration(plan: Plan, source: Source, *, random_weights: bool) -> Any:
    """transformers' configuration: the checkpoint's own, or for random weights the plan's."""
    from transformers import AutoConfig

    if random_weights:
        values = plan.workload.model.config
        config = configuration(dict(values))
        _tie_as_files_do(config, values)
        return config
    folder = source.folder
    if folder is not None and not any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES):
        raise InputError(
            f"{folder} has no weights ({' or '.join(WEIGHT_FILES)}); give --random-weights to try it without"
        )
    config = AutoConfig.from_pretrained(source.name, revision=source.revision, trust_remote_code=False)
    return thinker_of(config)


def thinker_of(config: Any) -> Any:
    """What is trained of a model that speaks too (``vlmplan.model_types.thinkers``): the configuration of its thinker,
    whose class takes its own weights out of the whole checkpoint. Any other configuration as it is."""
    return config.thinker_config if config.model_type in THINKERS else config


def _tie_as_files_do(config: Any, values: Mapping[str, Any]) -> None:
    """Whether the head is the embedding's: files of before transformers 5 left it to the text configuration, and a
    checkpoint with a head of its own keeps it whatever the configuration's default is now (InternVL 3). Of a file that
    has the text's values beside its own the class takes the text's default, not what it says (PaddleOCR-VL)."""
    if str(values.get("transformers_version", "")).partition(".")[0] not in ("2", "3", "4"):
        return
    if "tie_word_embeddings" not in values:
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings
    elif not values["tie_word_embeddings"] and "text_config" not in values:
        config.tie_word_embeddings = False


def load_base(plan: Plan) -> Any:
    """The model that the plan's adapters belong to, whole and not quantised, in host memory.

    Raises InputError, UnavailableError or MissingPackageError with what to do.
    """
    source = model_source(plan)
    with _sentences(source):
        config = _configuration(plan, source, random_weights=False)
        return load_stored(
            class_for(config, plan.recipe),
            source.name,
            source.revision,
            config=config,
            dtype=torch_dtype(plan.recipe.precision.dtype),
            drawn=drawn_weights(plan.recipe),
            **_dequantized(plan.workload.model),
        )


def _dequantized(model: ModelFiles) -> dict[str, Any]:
    """What makes 16-bit weights of a checkpoint in MXFP4 or FP8; nothing for others."""
    from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

    if model.is_mxfp4:
        return {"quantization_config": Mxfp4Config(dequantize=True)}
    return {"quantization_config": FineGrainedFP8Config(dequantize=True)} if model.is_fp8 else {}


def _random(kind: Any, config: Any, recipe: Recipe, device: torch.device) -> Any:
    model = kind._from_config(
        config, dtype=torch_dtype(recipe.loaded_dtype), attn_implementation=_attention(config, recipe)
    )
    name_head_of(model, recipe)  # which is not packed
    if recipe.method.packs_weights:
        quantize(model, packing(recipe), device, skipped=full_modules(model, Parts(model), recipe))
        for buffer in model.buffers():  # ``Module.to`` would make a parameter of its own of each use of a tied one
            buffer.data = buffer.data.to(device)
    return model


def _pretrained(kind: Any, config: Any, recipe: Recipe, source: Source, device: torch.device, files: ModelFiles) -> Any:
    more: dict[str, Any] = {}
    if recipe.method.packs_weights:
        skipped = [*_unpacked(kind, config, recipe), *unpacked_linears(config.model_type)]
        more["quantization_config"] = packing(recipe, skipped)
        more["device_map"] = {"": str(device)}
    else:
        more = _dequantized(files)
    with gathering_tables(kind) if files.hears_prompt else nullcontext():
        return load_stored(
            kind,
            source.name,
            source.revision,
            config=config,
            dtype=torch_dtype(recipe.loaded_dtype),
            attn_implementation=_attention(config, recipe),
            drawn=drawn_weights(recipe),
            **more,
        )


def _attention(config: Any, recipe: Recipe) -> str | dict[str, str]:
    """``attn_implementation``, where an audio tower or one of two models has eager attention alone for each part."""
    if getattr(config, "audio_config", None) is None or config.model_type not in EAGER_TOWER_TYPES:
        return attention_of_parts(config, recipe.attention.value)
    sections = dict.fromkeys(("", *config.sub_configs), recipe.attention.value)
    return sections | {"audio_config": "eager"}


def _unpacked(kind: Any, config: Any, recipe: Recipe) -> list[str]:
    """The names of modules whose weights are not quantised: the head, and what is trained in full."""
    with torch.device("meta"):
        model = name_head_of(kind._from_config(config), recipe)
    return [str(name_of(model, model.get_output_embeddings())), *full_modules(model, Parts(model), recipe)]


def _device(plan: Plan) -> str:
    """The device on which weights are quantised: on this rank's card, where there is one."""
    has_card = plan.hardware.vendor != "cpu" and torch.cuda.is_available()
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if has_card else "cpu"


def _without_cache(config: Any) -> None:
    """No key-value cache in training; the decoder of a composite model asks its own configuration."""
    config.use_cache = config.get_text_config().use_cache = False


def _check_size(model: nn.Module, plan: Plan) -> None:
    """Raise InputError unless the model is as large as the plan's, in all and in what is trained."""
    sizes = [(num_elements(parameter), parameter.requires_grad) for parameter in model.parameters()]
    found = (sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained))
    planned = (plan.num_params, plan.num_trainable_params)
    if found != planned:
        raise InputError(
            f"the model has {found[0]:,} parameters, {found[1]:,} of them trained, but the plan is for {planned[0]:,} "
            f"and {planned[1]:,}: {plan.model_source} is not what was planned; plan again with the files that are there"
        )


def num_elements(parameter: Any) -> int:
    """Weights in a parameter, whole: also of a packed one, and of one that ZeRO-3 has sharded."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


@contextmanager
def _sharding(plan: Plan) -> Iterator[None]:
    """Shards weights as they are made under ZeRO-3: while this lasts, transformers builds models inside
    ``deepspeed.zero.Init``."""
    if plan.ds_config is None or plan.recipe.zero_stage != 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    held = HfDeepSpeedConfig(dict(plan.ds_config))
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del held


@contextmanager
def _sentences(source: Source) -> Iterator[None]:
    """What transformers raises for files that it cannot load, as one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except RefusedModelError as error:
        raise InputError(f"{source.name} cannot be trained: {error}") from None
    except ImportError as error:
        said = " ".join(str(error).split()).partition(" Please note")[0]
        raise MissingPackageError(f"{source.name} needs a package that is not installed: {said}") from None
    except (OSError, SafetensorError) as error:
        raise UnavailableError(f"{source.name} cannot be loaded: {_first_line(error)}") from None
    except ValueError as error:
        raise InputError(f"{source.name} cannot be loaded: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return NO_TOKENIZER if line.startswith(NO_BACKEND) else line

"""What the texts of a model's files say of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from vlmplan.architecture.audio import AUDIO_MODEL_TYPES, EXTRACTOR, MAY_BE_DEAF
from vlmplan.architecture.compressed_layers import CHOOSING, attention_kinds
from vlmplan.architecture.config import Config
from vlmplan.architecture.config_types import check_types
from vlmplan.architecture.families import FAMILIES, has_family
from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.architecture.impossible_config import check_config
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, not_allowed, parse_json_object, repeated_keys
from vlmplan.model_types.encoder_decoder import hears_prompt
from vlmplan.model_types.thinkers import thinker_config, thinker_note
from vlmplan.models.class_notes import class_notes
from vlmplan.models.hub_names import CONFIG, PREPROCESSOR, PROCESSOR, VIDEO_PREPROCESSOR
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.models.untrainable import check_trainable
from vlmplan.recipe.lora_targets import BLOCK_INDEXING_TYPES, INDEXING_TYPES
from vlmplan.units import DType
from vlmplan.workload import ModelFiles

CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length"),
    "max_target_positions",
)
"""What configurations call the longest sequence, the usual first."""
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


class FoundModel(NamedTuple):
    """A model's files and where they are from, as words for the user."""

    files: ModelFiles
    source: str


UNASKED = (
    "transformers leaves them packed where Triton and the package kernels are installed, unless it is asked with "
    "Mxfp4Config(dequantize=True), and then trains nothing: the bundled trainer asks."
)
"""``quantizers/quantizer_mxfp4.py`` of transformers 5.23: ``validate_environment`` and ``is_trainable``."""


def files_of_texts(
    name: str, texts: Mapping[str, str], *, source: str, hub_id: str | None, notes: Sequence[str] = ()
) -> ModelFiles:
    """What the texts of the files say; ``source`` names config.json in errors."""
    whole = parsed_config(texts[CONFIG], source=source)
    config = thinker_config(whole, source=source)
    preprocessor = _image_settings(texts, source)
    notes = list(notes)
    if config is not whole:
        notes.append(thinker_note(name, whole))
    notes += _notes_on(name, config)
    notes += class_notes(name, whole)
    notes += [
        f"{source} says {key} more than once: as transformers reads it, the last of them counts."
        for key in repeated_keys(texts[CONFIG])
    ]
    if preprocessor is None and config["model_type"] in IMAGE_MODEL_TYPES:
        notes.append(
            f"There is no preprocessor_config.json of {name}, so image sizes are the defaults of its processor."
        )
    files = ModelFiles(
        id=name,
        config=config,
        preprocessor=preprocessor,
        hub_id=hub_id,
        notes=tuple(notes),
        video_settings=_video_settings(texts, source),
    )
    return replace(files, notes=(*files.notes, *_notes_on_checkpoint(files)))


def _notes_on(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """What of the model runs or is trained otherwise than one would think, by its configuration."""
    is_deaf = config["model_type"] in MAY_BE_DEAF and not config.get("audio_config")
    if config["model_type"] in AUDIO_MODEL_TYPES and not is_deaf and not hears_prompt(config):
        yield f"The audio tower of {name} runs only for samples with sound (--audio-seconds, or in --data)."
    chooses = config["model_type"] in INDEXING_TYPES and CHOOSING in attention_kinds(Config(config))
    if chooses or config["model_type"] in BLOCK_INDEXING_TYPES:
        yield (
            f"No gradient comes to the indexers of {name}, which choose keys by their positions: their weights stay as "
            f"they are loaded."
        )
    if config["model_type"] in BLOCK_INDEXING_TYPES:
        yield (
            f"The indexers of {name} are a loop of Python over the tokens of every sample in transformers 5.23, for "
            f"whose small operations a step waits; a trainer that replaces it, as axolotl 0.19 does, is faster."
        )


def _notes_on_checkpoint(files: ModelFiles) -> Iterator[str]:
    """The type in which a checkpoint holds weights that are planned in 16 bits."""
    if files.is_mxfp4:
        yield (
            f"The checkpoint of {files.id} holds its experts in MXFP4, which cannot be trained: they are dequantised "
            f"while loading, and planned in 16 bits. {UNASKED}"
        )
    elif files.is_fp8:
        yield (
            f"The checkpoint of {files.id} holds its weights in FP8, which transformers keeps frozen under adapters at "
            f"the best: they are dequantised while loading, and planned in 16 bits."
        )


def with_layout(model: ModelFiles) -> ModelFiles:
    """The files of a model without a family, with what transformers says about it; others as they are.

    Raises InputError for a configuration that no model can have.
    """
    check_config(model.config)
    check_trainable(model.model_type)
    if has_family(model.config):
        check_types(model.config)
        return model
    from vlmplan.architecture.generic.layout import inputs_beside_text
    from vlmplan.architecture.generic.model import generic_notes
    from vlmplan.models.probe import probed_layout

    layout = probed_layout(model.config, brings_own_code=brings_own_code(model.config))
    return ProbedModelFiles(
        id=model.id,
        config=model.config,
        preprocessor=model.preprocessor,
        hub_id=model.hub_id,
        notes=(*model.notes, *generic_notes(layout, model.model_type)),
        not_counted=inputs_beside_text(layout),
        layout=layout,
    )


def described(model: ModelFiles, config: Mapping[str, Any]) -> ModelFiles:
    """``model`` with another config.json; of one without a family, looked up anew."""
    return with_layout(ModelFiles(id=model.id, config=config, preprocessor=model.preprocessor, hub_id=model.hub_id))


def brings_own_code(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has classes of its own, for all of the model or a part (``auto_map``)."""
    sections = [cast(Mapping[str, Any], value) for value in config.values() if isinstance(value, Mapping)]
    return any("auto_map" in section for section in (config, *sections))


def why_unsupported(model: ModelFiles) -> str:
    """Why a packaged model has no tree without asking transformers."""
    if brings_own_code(model.config):
        return f"the classes of {model.model_type} come with the checkpoint, as code that vlmplan does not run"
    return f"vlmplan does not describe the model_type {model.model_type!r}"


def _image_settings(texts: Mapping[str, str], source: str) -> JsonDict | None:
    """The settings of the image processor; newer checkpoints keep them in processor_config.json. Those of the feature
    extractor are among them, or under its name where processor_config.json has them, which transformers 5.23 asks first
    (``get_feature_extractor_dict`` in ``feature_extraction_utils.py``)."""
    if PREPROCESSOR in texts:
        settings = parsed_settings(texts[PREPROCESSOR], source=source.replace(CONFIG, PREPROCESSOR))
    else:
        settings = _part_of_processor(texts, source, "image_processor")
    extractor = _part_of_processor(texts, source, EXTRACTOR)
    return settings if extractor is None else {**(settings or {}), EXTRACTOR: extractor}


def _video_settings(texts: Mapping[str, str], source: str) -> JsonDict | None:
    """The settings of the video processor, where transformers 5.23 looks for them, in its order
    (``get_video_processor_dict`` in ``video_processing_utils.py``)."""
    nested = _part_of_processor(texts, source, "video_processor")
    if nested is not None:
        return nested
    for name in (VIDEO_PREPROCESSOR, PREPROCESSOR):
        if name in texts:
            return parsed_settings(texts[name], source=source.replace(CONFIG, name))
    return None


def _part_of_processor(texts: Mapping[str, str], source: str, key: str) -> JsonDict | None:
    """An object in processor_config.json; None where there is none."""
    if PROCESSOR not in texts:
        return None
    settings = parsed_settings(texts[PROCESSOR], source=source.replace(CONFIG, PROCESSOR)).get(key)
    return cast(JsonDict, settings) if isinstance(settings, dict) else None


def parsed_config(text: str, *, source: str) -> JsonDict:
    """The object in a config.json. Raises InputError if it is none, says no model_type, or says how the checkpoint is
    quantised in another form than transformers writes."""
    config = parsed_settings(text, source=source)
    model_type, quantization = config.get("model_type"), config.get("quantization_config")
    if model_type is None:
        raise InputError(f"{source} has no model_type, so it does not describe a Hugging Face model")
    if not isinstance(model_type, str) or not model_type:
        raise not_allowed(source, "model_type", model_type, 'a name such as "llama"')
    if quantization is not None and not isinstance(quantization, dict):
        raise not_allowed(source, "quantization_config", quantization, "an object {...}")
    return config


def parsed_settings(text: str, *, source: str) -> JsonDict:
    """The object in a file, as transformers reads JSON: with repeated keys, and Infinity as ``{"__float__": ...}``."""
    return parse_json_object(text, source=source, constant=lambda name: {"__float__": name}, may_repeat=True)


def takes_images(model: ModelFiles) -> bool:
    """Whether vlmplan can estimate samples with images of it."""
    if isinstance(model, ProbedModelFiles):
        return model.images is not None and not model.reads_text_alone
    return model.model_type in IMAGE_MODEL_TYPES and model.model_type in FAMILIES


def sees_nothing(model: ModelFiles) -> bool:
    """Whether it is certain that the model takes no images: of one without a family that depends on its code."""
    return not isinstance(model, ProbedModelFiles) and model.model_type not in IMAGE_MODEL_TYPES


def context_length(model: ModelFiles) -> int | None:
    """The longest sequence that the language model is configured for; None where that is not known."""
    if isinstance(model, ProbedModelFiles):
        return model.layout.integer("max_position_embeddings")
    config = Config(model.config)
    sections = [config.section(name) for name in TEXT_SECTIONS if name in model.config or name == "text_config"]
    for section in (*sections, config):
        for key in CONTEXT_KEYS:
            value = section.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return None


def qformer_positions(model: ModelFiles) -> int | None:
    """Learned positions of the Q-Former that reads the text of a sample with an image too; None where none does."""
    if isinstance(model, ProbedModelFiles) or model.model_type != "instructblip":
        return None
    return Config(model.config).section("qformer_config").integer("max_position_embeddings")


SHORT_TYPES: Mapping[str, str] = {"half": "float16", "float": "float32"}
"""torch's other names of types."""


def stored_dtype(config: Mapping[str, Any]) -> DType:
    """The element type of a checkpoint by its config.json; 16 bit where it says nothing (assumed)."""
    for section in (config, config.get("text_config")):
        if isinstance(section, Mapping):
            values = cast(Mapping[str, Any], section)
            name = values.get("dtype", values.get("torch_dtype"))
            for dtype in DType:
                if dtype.torch_name == SHORT_TYPES.get(str(name), name):
                    return dtype
    return DType.BFLOAT16

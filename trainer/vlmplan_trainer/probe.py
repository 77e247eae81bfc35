"""Describes a model that vlmplan has no family for: builds it from its configuration, without weights, and lists it.

Run by the planner as a script, ``python -I probe.py``, so that it never imports torch itself. Reads one JSON object
from standard input, ``{"path": sys.path of the caller, "config": config.json}``, and writes one to standard output:
``{"layout": {...}}``, or ``{"error": kind, "message": sentence}`` with the kinds ``missing`` (packages), ``unknown``
(to transformers), ``unsupported`` (by vlmplan) and ``refused`` (by transformers). The model stands on the meta device:
no memory, no download, and no code but transformers' own.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

SCHEMA = 2
"""Version of the layout; the planner keeps layouts by it."""
TEXT_KEYS = (
    "hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size vocab_size num_hidden_layers "
    "max_position_embeddings attention_dropout"
).split()
ROUTED_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""What configurations call the number of experts that a token is sent to."""
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "afn")
"""What configurations call the function inside the MLPs."""
PROJECTOR_WORDS = ("qformer", "perceiver", "projector", "resampler", "connector", "adapter")
"""Parts of the names of modules that stand between an encoder and the language model."""
CAUSAL_TYPES_WITH_IMAGES = ("phi4_multimodal",)
"""Whose class for text alone takes images too: transformers has none for both (``modeling_auto.py``)."""
ENCODERS_OF_OTHERS = {
    "udop": "the encoder of words with the boxes in which they stand on a page, which no sample has",
}
"""What is read by models with an encoder and a decoder that is not the text of a prompt alone, or otherwise than text
is read."""
TWO_CONFIGURATIONS = ("t5gemma", "t5gemma2")
"""Types whose encoder and decoder, both of text, have a configuration each."""
MADE_OF_MODELS = ("vision-encoder-decoder",)
"""Types whose parts are models of any class, each with a configuration of its own."""
PARALLEL_KEYS = ("use_parallel_residual", "parallel_attn", "use_parallel_block")
"""What configurations call attention and MLP that both read the layer's input."""


class RefusedModelError(Exception):
    """The model cannot be trained as a language model; ``kind`` is one of the kinds of the answer."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def main() -> None:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    try:
        answer: dict[str, Any] = {"layout": layout(request["config"])}
    except RefusedModelError as error:
        answer = {"error": error.kind, "message": str(error)}
    except Exception as error:  # transformers raises anything at all for a configuration that makes no sense
        answer = {"error": "refused", "message": f"{type(error).__name__}: {error}"}
    with answer_to:
        json.dump(answer, answer_to)


def layout(values: dict[str, Any]) -> dict[str, Any]:
    """The modules, parameters and dimensions of the model that ``values``, a config.json, describes."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise RefusedModelError("missing", str(error)) from None
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    config = configuration(values)
    with torch.device("meta"):
        model = model_class(config)._from_config(config, dtype=torch.bfloat16)
    name_head(model)
    embeddings, head = name_of(model, model.get_input_embeddings()), name_of(model, model.get_output_embeddings())
    if embeddings is None or head is None:
        raise RefusedModelError(
            "unsupported", f"{type(model).__name__} has no token embedding and output head of its own"
        )
    stacks = [name for name, module in model.named_modules() if is_stack(module)]
    return {
        "schema": SCHEMA,
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "modules": [[name, type(module).__name__, kind_of(module)] for name, module in model.named_modules()],
        "parameters": [[name, list(parameter.shape)] for name, parameter in model.named_parameters()],
        "tied": tied_names(model),
        "checkpointed": [name for name in stacks if can_checkpoint(model.get_submodule(name))],
        "embeddings": embeddings,
        "head": head,
        "vision": vision_names(model, config),
        "takes_images": takes_images(config),
        "text": text_names(model, config),
        "attention": attention_names(model),
        "config": text_values(config),
    }


def configuration(values: dict[str, Any]) -> Any:
    """transformers' own configuration class, filled; classes that a checkpoint brings along are never looked at."""
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise RefusedModelError("unknown", f"transformers {__version__} has no model of model_type {model_type!r}")
    kept = {key: value for key, value in values.items() if key not in ("auto_map", "quantization_config")}
    return CONFIG_MAPPING[model_type].from_dict(with_floats(kept))


def with_floats(value: Any) -> Any:
    """``value`` with ``{"__float__": "Infinity"}``, how JSON without Infinity writes it, as the float."""
    if isinstance(value, dict):
        return (
            float(value["__float__"])
            if value.keys() == {"__float__"}
            else {k: with_floats(v) for k, v in value.items()}
        )
    return [with_floats(item) for item in value] if isinstance(value, list) else value


def model_class(config: Any) -> Any:
    """The class with a language model head: with images where there is one, else text alone."""
    from transformers import __version__
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    )

    from vlmplan.model_types.encoder_decoder import ENCODER_DECODER_TYPES, HEARING_TYPES, ONE_IMAGE_TYPES

    if config.is_encoder_decoder and config.model_type not in ONE_IMAGE_TYPES:
        if config.model_type in HEARING_TYPES:
            return MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING[type(config)]
        if config.model_type in ENCODER_DECODER_TYPES:
            return MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
        why = ENCODERS_OF_OTHERS.get(config.model_type, "both of a kind of its own")
        raise RefusedModelError(
            "unsupported", f"the model_type {config.model_type!r} has an encoder and a decoder, {why}"
        )
    for mapping in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise RefusedModelError(
        "unsupported", f"transformers {__version__} has no language model of model_type {config.model_type!r}"
    )


def sees_images(config: Any) -> bool:
    """Whether ``model_class`` takes images."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or config.model_type in CAUSAL_TYPES_WITH_IMAGES


def kind_of(module: Any) -> str:
    """``linear``, ``conv1d`` (GPT-2's), ``embedding``, ``norm``, ``stack`` or nothing of these."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, torch.nn.Linear):
        return "linear"
    if isinstance(module, Conv1D):
        return "conv1d"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    if is_stack(module):
        return "stack"
    own = dict(module.named_parameters())
    is_norm = "Norm" in type(module).__name__ and all(parameter.dim() == 1 for parameter in own.values())
    return "norm" if is_norm and own.keys() <= {"weight", "bias"} else ""


def is_stack(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.ModuleList) and len(module) > 0


def can_checkpoint(stack: Any) -> bool:
    """Whether ``gradient_checkpointing_enable`` has an effect on its layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return all(isinstance(layer, GradientCheckpointingLayer) for layer in stack)


def attention_names(model: Any) -> list[str]:
    """The values of ``attn_implementation`` that the model takes, or that either of its parts does where it is made of
    two models (``attention_of_parts``)."""
    parts = [model] if model.config.model_type not in MADE_OF_MODELS else [model.encoder, model.decoder]
    supported = {"sdpa": any(part._supports_sdpa for part in parts), "flash_attention_2": any(map(has_flash, parts))}
    return ["eager", *(name for name, is_supported in supported.items() if is_supported)]


def has_flash(kind: Any) -> bool:
    """Whether a model, or its class, takes flash_attention_2."""
    flash = kind._compatible_flash_implementations or ("flash_attention_2",)  # transformers falls back to one of them
    return kind._supports_flash_attn and "flash_attention_2" in flash


def attention_of_parts(config: Any, asked: str) -> str | dict[str, str]:
    """``attn_implementation`` of a model with ``asked``: of one that is made of two, eager for the one that refuses it,
    as transformers chooses for each where nothing is asked (Donut's encoder, TrOCR's decoder)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    if config.model_type not in MADE_OF_MODELS:
        return asked
    kinds: dict[str, Any] = {
        "encoder": MODEL_MAPPING[type(config.encoder)],
        "decoder": MODEL_FOR_CAUSAL_LM_MAPPING[type(config.decoder)],
    }
    has = {
        name: {"eager": True, "sdpa": kind._supports_sdpa, "flash_attention_2": has_flash(kind)}
        for name, kind in kinds.items()
    }
    return {"": asked} | {name: asked if of_part[asked] else "eager" for name, of_part in has.items()}


def tied_names(model: Any) -> list[list[str]]:
    """Every further name of a parameter, with the name under which it is listed."""
    first: dict[int, str] = {}
    tied: list[list[str]] = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied.append([name, first[id(parameter)]])
        else:
            first[id(parameter)] = name
    return tied


def name_head(model: Any) -> Any:
    """``model``, which names the output head of the language model that it holds where its class names none of its own
    (NemotronH_Omni_Reasoning_V3, BlipForConditionalGeneration), and the token embedding of its decoder where its class
    does not find that (PPFormulaNetForConditionalGeneration)."""
    from transformers import PreTrainedModel

    try:
        model.get_input_embeddings()
    except NotImplementedError:
        model.get_input_embeddings = model.get_decoder().get_input_embeddings
    if model.get_output_embeddings() is None:
        inside = [child for child in model.children() if isinstance(child, PreTrainedModel)]
        for child in inside:
            if child.get_output_embeddings() is not None:
                model.get_output_embeddings = child.get_output_embeddings
    return model


def name_of(model: Any, wanted: Any) -> str | None:
    """The dotted name of a module of ``model``; None where there is no such module."""
    return next((name for name, module in model.named_modules() if module is wanted), None) if wanted else None


def vision_names(model: Any, config: Any) -> list[str]:
    """The modules that see, hear or otherwise encode something else than text."""
    config = encoder_config(config)
    text = config.get_text_config()
    keys = [key for key in config.sub_configs if not any(word in key for word in PROJECTOR_WORDS)]
    encoders = [getattr(config, key, None) for key in keys]
    wanted = {id(encoder) for encoder in encoders if encoder is not None and encoder is not text}
    names = [name for name, _ in outermost(model, wanted)]
    return [name for name in names if not any(word in name.rpartition(".")[2] for word in PROJECTOR_WORDS)]


def takes_images(config: Any) -> bool:
    """Whether transformers gives images to models of this type, whatever modules they go through."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    model_type = config.model_type
    return model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and model_type in IMAGE_PROCESSOR_MAPPING_NAMES


def text_names(model: Any, config: Any) -> list[str]:
    """The language model inside a composite model; nothing where all of it is one."""
    encoder = encoder_config(config)
    if encoder is not config:
        return [name for name, _ in outermost(model, {id(encoder.get_text_config()), id(config.decoder)})]
    text = config.get_text_config()
    return [] if text is config else [name for name, _ in outermost(model, {id(text)})]


def encoder_config(config: Any) -> Any:
    """The configuration of the encoder where there is one of its own beside the decoder's; else ``config``."""
    return config.encoder if config.is_encoder_decoder and config.model_type in TWO_CONFIGURATIONS else config


def outermost(model: Any, config_ids: set[int]) -> Iterator[tuple[str, Any]]:
    """The models inside ``model`` that were built from one of these configurations, without those inside them."""
    from transformers import PreTrainedModel

    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and not is_inside and isinstance(module, PreTrainedModel) and id(module.config) in config_ids:
            found.append(name)
            yield name, module


def text_values(config: Any) -> dict[str, Any]:
    """Dimensions of the language model under their usual names, as far as the configuration has them."""
    text = config.get_text_config()
    values = {key: value_of(text, key) for key in TEXT_KEYS}
    values["hidden_act"] = next(filter(None, (value_of(text, key) for key in ACTIVATION_KEYS)), None)
    values["num_experts_per_tok"] = next(filter(None, (value_of(text, key) for key in ROUTED_KEYS)), None)
    values["is_parallel"] = any(bool(value_of(text, key)) for key in PARALLEL_KEYS)
    return {key: value for key, value in values.items() if isinstance(value, int | float | str)}


def value_of(config: Any, key: str) -> Any:
    """The value of ``key``; None where there is none, or where it differs from layer to layer."""
    try:
        return getattr(config, key, None)
    except Exception:  # transformers raises a class of its own for what layers disagree on
        return None


if __name__ == "__main__":
    main()

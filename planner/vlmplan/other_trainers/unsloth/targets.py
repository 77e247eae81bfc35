"""Which modules Unsloth puts adapters on.

Sources: ``FastLlamaModel.get_peft_model`` (unsloth 2026.10.9 ``models/llama.py``) for text models that it has written
anew, ``FastBaseModel.get_peft_model`` (``models/vision.py``) for all others, whose modules ``get_peft_regex`` chooses
by words in their names (unsloth_zoo 2026.10.9 ``peft_utils.py``).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from vlmplan.architecture.families import has_family
from vlmplan.architecture.families.build import build_model
from vlmplan.architecture.modules import Linear
from vlmplan.errors import InputError
from vlmplan.other_trainers.record import Value
from vlmplan.recipe.choices import ALL_LINEAR, REGEX
from vlmplan.recipe.lora_targets import is_stacked
from vlmplan.workload import ModelFiles

REWRITTEN: Final = frozenset(("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3", "qwen3_moe"))
"""Model types that ``FastLanguageModel`` has classes of its own for (``models/loader.py``)."""
DEFAULT: Final = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "vision_layers": ("vision", "image", "visual", "patch"),
    "language_layers": ("language", "text"),
    "attention_modules": ("self_attn", "attention", "attn", "mixer"),
    "mlp_modules": ("mlp", "feed_forward", "ffn", "dense", "mixer"),
}
"""Words in the whole name of a module, by what is adapted."""
GEMMAS: Final = ("gemma4", "gemma3n", "embedding_gemma2")
VOXTRAL: Final = "voxtral"
AUDIO_TOWER: Final = r"audio_tower(?:\..*)?"
GEMMA_SEES: Final = (
    ("embed_vision", "embedding_projection"),
    ("vision_embedder", "patch_dense"),
    (r"vision_tower\.patch_embedder", "input_proj"),
)
GEMMA_HEARS: Final = (
    "q_proj k_proj v_proj relative_k_proj pos_proj post",
    "ffw_layer_1 ffw_layer_2 linear_start linear_end input_proj_linear output_proj",
    (("embed_audio", "embedding_projection"),),
)
VOXTRAL_HEARS: Final = (
    "q_proj k_proj v_proj out_proj o_proj",
    "fc1 fc2 gate_proj up_proj down_proj",
    (("multi_modal_projector", "linear_1"), ("multi_modal_projector", "linear_2")),
)
"""Of attention, of MLPs, and what goes with these beside the tower (``audio_leaves``, ``vision_cores``)."""
ROUTER: Final = "router"
"""A Linear that chooses experts, which only ``target_modules`` adapts."""
EXPERTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")
EXPERT_PARTS: Final = frozenset(("gate_proj", "up_proj", "down_proj", "gate_up_proj"))
"""Names with which Unsloth puts adapters on experts, too (``get_moe_target_parameters``)."""


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether a model has stacked experts, on which Unsloth puts adapters by itself."""
    text = config.get("text_config")
    places = (config, cast(Mapping[str, Any], text)) if isinstance(text, Mapping) else (config,)
    return any(place.get(key) for place in places for key in EXPERTS)


def adapted_modules(
    *, loader: str, targets: Sequence[str], parts: Mapping[str, bool], stacked: Sequence[str], model: ModelFiles | None
) -> dict[str, Value]:
    """The option of what is adapted; none where the model is not known. ``parts``: which layers and modules are to be.

    Raises InputError for what Unsloth refuses.
    """
    if not all(is_stacked(name) for name in stacked):
        raise InputError(f"target_parameters {', '.join(stacked)}: adapters on experts.NAME alone are planned")
    if model is None:
        return {}
    is_rewritten = loader == "FastLanguageModel" and model.model_type in REWRITTEN
    names = list(targets) or (DEFAULT.split(",") if loader == "FastLanguageModel" else [])
    if has_experts(model.config) and (not names or names == [ALL_LINEAR] or EXPERT_PARTS.intersection(names)):
        raise InputError("the adapters that Unsloth puts on experts are not planned; name Linears of attention alone")
    if is_rewritten or (names and names != [ALL_LINEAR] and _takes_all(parts)):
        return {"lora_targets": ",".join(dict.fromkeys([*names, *stacked]))}
    if names == [ALL_LINEAR]:
        names, parts = [], dict.fromkeys(parts, True)
    return {"lora_targets": _chosen(model, names, parts)}


def _takes_all(parts: Mapping[str, bool]) -> bool:
    return all(parts[part] for part in WORDS)


def _chosen(model: ModelFiles, names: Sequence[str], parts: Mapping[str, bool]) -> str:
    """The regular expression of the modules, out of the words that stand in their names."""
    if not has_family(model.config):
        return ALL_LINEAR if not names else ",".join(names)
    holders = [word for part in ("vision_layers", "language_layers") if parts[part] for word in WORDS[part]]
    kinds = [word for part in ("attention_modules", "mlp_modules") if parts[part] for word in WORDS[part]]
    if not holders or not kinds:
        raise InputError("layers and modules are left out until none is left to adapt (finetune_..._layers, _modules)")
    modules = dict(build_model(model.config).named_modules())
    linears = [name for name, module in modules.items() if isinstance(module, Linear)]
    holder, kind, last = (_any_of(_told(holders, linears)), _any_of(_told(kinds, linears)), _last_names(linears, names))
    by_words = rf".*?{holder}.*?{kind}.*?\.{last}"
    of_layers = rf"model\.layers\.\d+\..*?{kind}.*?\.{last}"
    places = [by_words, *([of_layers] if parts["language_layers"] else []), *_beside_layers(model, parts, names)]
    patterns = [pattern for pattern in places if _matched(pattern, linears)]
    pattern = "|".join(patterns) or rf".*?{kind}.*?\.{last}"
    found = _matched(pattern, linears)
    if not found:
        raise InputError("target_modules name no Linear in the layers that are to be adapted (finetune_..._layers)")
    return REGEX + (pattern if found == _matched(pattern, modules) else _written_out(found))


def _matched(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if re.fullmatch(pattern, name)]


def _written_out(names: Sequence[str]) -> str:
    """Exactly these modules, by what they are in: some models hold Linears in modules whose names the words mean too
    (``Gemma4ClippableLinear``), which Unsloth has peft pass by."""
    holders: dict[str, dict[str, None]] = {}
    for name in names:
        holder, _, last = re.sub(r"\d+", "0", name).rpartition(".")
        holders.setdefault(holder, {})[last] = None
    by_names: dict[tuple[str, ...], list[str]] = {}
    for holder, lasts in holders.items():
        by_names.setdefault(tuple(lasts), []).append(re.escape(holder).replace("0", r"\d+"))
    return "|".join(rf"(?:{'|'.join(places)})\.{_any_of(lasts)}" for lasts, places in by_names.items())


def _beside_layers(model: ModelFiles, parts: Mapping[str, bool], names: Sequence[str]) -> list[str]:
    """Patterns of Linears that no word tells: of Gemma's embedders of images, and of towers that hear."""
    is_gemma, is_voxtral = model.model_type.startswith(GEMMAS), model.model_type.startswith(VOXTRAL)
    chosen: list[tuple[str, str]] = []
    if is_gemma and parts["vision_layers"] and parts["mlp_modules"]:
        chosen += GEMMA_SEES
    if parts["audio_layers"] and (is_gemma or is_voxtral):
        of_attention, of_mlp, projector = GEMMA_HEARS if is_gemma else VOXTRAL_HEARS
        chosen += [(AUDIO_TOWER, name) for name in of_attention.split() if parts["attention_modules"]]
        chosen += [(AUDIO_TOWER, name) for name in of_mlp.split() if parts["mlp_modules"]]
        chosen += [pair for pair in projector if parts["mlp_modules"]]
    return [rf".*?\b{place}\.{name}(?:\.linear)?" for place, name in chosen if not names or name in names]


def _told(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of the words that stand in a name, without those that have another of them in them."""
    used = [word for word in dict.fromkeys(words) if any(word in name for name in names)] or list(words)
    return [word for word in used if not any(other in word for other in used if other != word)]


def _last_names(linears: Sequence[str], names: Sequence[str]) -> str:
    """What comes last in the names of those that are adapted: ``names``, or of Linears that are no heads, which stand
    in a list of layers or more than once."""
    if names:
        return _any_of(names)
    counts = Counter(name.rpartition(".")[2] for name in linears)
    layered = {name.rpartition(".")[2] for name in linears if re.search(r"\.\d+\.", name)}
    return _any_of([name for name, count in counts.items() if name != ROUTER and (count > 1 or name in layered)])


def _any_of(words: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, words))})"

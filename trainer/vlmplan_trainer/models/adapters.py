"""LoRA adapters as the recipe says, through peft; which layers ``attention`` adapts; 4-bit weights."""

import copy
import inspect
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, DEFAULT_INIT, REGEX, Part
from vlmplan.recipe.lora_targets import layer_targets, listed_targets, stacked_targets, unpacked_linears
from vlmplan.run.training import adapter_problem
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.models.score_head import SCORE
from vlmplan_trainer.probe import kind_of, name_of

ATTENTION = "attention"
USUAL_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ATTENTION_LINEARS: Mapping[str, tuple[str, ...]] = {
    "deepseek_v4": (
        *("q_a_proj", "self_attn.q_b_proj", "self_attn.kv_proj", "o_b_proj"),
        *("compressor.kv_proj", "compressor.gate_proj"),
    ),
    "gpt2": ("attn.c_attn", "attn.c_proj"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "phi3": ("qkv_proj", "o_proj"),
    "phi4_multimodal": ("qkv_proj", "o_proj"),
}
"""What the attention of a language model is made of where it is not the usual four, by its model_type."""


def add_adapters(model: Any, parts: Parts, recipe: Recipe) -> Any:
    """``model`` with the recipe's adapters, in the types of the model; ``load.set_types`` sets the recipe's.

    Raises InputError where none can be added.
    """
    from peft import LoraConfig, get_peft_model

    full = [parameter for parameter in model.parameters() if parameter.requires_grad]  # ``parts.freeze``
    embeddings = _embedding_names(model) if recipe.train_embeddings else None
    copied = [*(embeddings or ()), *({SCORE} - {*(embeddings or ())} if recipe.scores_rows else ())]
    ties = bool(model.all_tied_weights_keys)
    config = LoraConfig(
        task_type=_task_type(model, recipe),
        r=recipe.lora_rank,
        lora_alpha=recipe.adapter_alpha,
        lora_dropout=recipe.lora_dropout,
        use_rslora=recipe.use_rslora,
        use_dora=recipe.use_dora,
        init_lora_weights=True if recipe.lora_init == DEFAULT_INIT else recipe.lora_init,  # pyright: ignore[reportArgumentType]: pissa_niter_N too
        target_modules=lora_targets(model, layer_targets(recipe.lora_targets)),
        target_parameters=stacked_targets(recipe.lora_targets) or None,
        exclude_modules=_excluded_pattern(parts, recipe),
        modules_to_save=copied or None,
        ensure_weight_tying=embeddings is not None and ties,
    )
    try:
        adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise InputError(f"--lora-targets {recipe.lora_targets}: {error}") from None
    for parameter in full:  # which peft has frozen with the rest
        parameter.requires_grad_(True)
    if embeddings is not None:
        _tie_copies(adapted)
    if recipe.changes_base:
        _own_storage(adapted)
    return adapted


def _tie_copies(model: Any) -> None:
    """A head that shares the embedding's weight shares that of its copy too. peft finds such a head by what the whole
    model's class says of shared weights (``_get_module_names_tied_with_embedding`` of 0.21), and BLIP-2's says nothing
    of those in its language model."""
    modules = model.get_input_embeddings(), model.get_output_embeddings()
    copied = [one for one in modules if hasattr(one, "modules_to_save")]
    if len(copied) == len(modules) and copied[0].original_module.weight is copied[1].original_module.weight:
        embedding, head = (one.modules_to_save["default"] for one in copied)
        head.weight = embedding.weight


def _task_type(model: Any, recipe: Recipe) -> Any:
    """The task by which peft chooses its class: that for scores of rows, which saves their head; that for causal
    language models hands ``inputs_embeds`` on, None as well, which BLIP's forward does not take and gives its vision
    tower (seen with peft 0.21)."""
    from peft import TaskType

    if recipe.scores_rows:
        return TaskType.SEQ_CLS
    takes_embeddings = "inputs_embeds" in inspect.signature(model.forward).parameters
    return TaskType.CAUSAL_LM if takes_embeddings else None


FACTORS = (".lora_A.", ".lora_B.")
"""What is in the names of the two factors of an adapter."""


def _own_storage(model: Any) -> None:
    """Factors that are slices of a whole decomposition (``olora_init``) are copied, so that the rest of it goes."""
    for name, parameter in model.named_parameters():
        is_slice = parameter.numel() * parameter.element_size() < parameter.untyped_storage().nbytes()
        if is_slice and any(factor in name for factor in FACTORS):
            parameter.data = parameter.data.clone()


def initial_factors(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all factors in host memory, as peft has made them."""
    named = model.named_parameters()
    return {name: one.detach().float().cpu().clone() for name, one in named if any(key in name for key in FACTORS)}


def with_what_was_taken_out(
    trained: Mapping[str, torch.Tensor], taken_out: Mapping[str, torch.Tensor], rank: int
) -> dict[str, torch.Tensor]:
    """Adapters for the weights as they were, of ``trained`` ones for those without ``taken_out``: of ``rank``, which is
    twice that of the trained.

    ``W - s B0 A0 + s B A = W + s [B, -B0] [A; A0]``, with the scale s of either rank, see ``converted_config``. Where
    a weight's smaller side has given fewer factors than its rank, zeros are in the place of the others.
    """
    result = dict(trained)
    for name, initial in taken_out.items():
        dim, sign = (0, 1.0) if FACTORS[0] in name else (1, -1.0)
        now = trained[name].float().cpu()
        missing = list(now.shape)
        missing[dim] = rank - 2 * now.shape[dim]
        result[name] = torch.cat([now, sign * initial.to(now.device), torch.zeros(missing)], dim=dim)
    return result


def converted_config(config: Any) -> Any:
    """peft's configuration of such adapters: the scale stays alpha by the rank, or by its root.

    As ``save_mutated_as_lora`` in peft 0.21 ``peft_model.py`` has it.
    """
    changed = copy.deepcopy(config)
    changed.init_lora_weights = True
    changed.r = 2 * config.r
    changed.lora_alpha = config.lora_alpha * (2**0.5 if config.use_rslora else 2)
    return changed


def load_adapter(model: Any, folder: Path, recipe: Recipe) -> None:
    """Give the adapters the weights that peft saved in ``folder``. Trained copies that it has none of, such as a head
    that scores, stay as the model has them.

    Raises InputError unless they are the same adapters.
    """
    from peft import set_peft_model_state_dict
    from peft.utils import load_peft_weights

    problem = adapter_problem(folder, recipe)
    if problem is not None:
        raise InputError(problem)
    try:
        weights = load_peft_weights(str(folder), device="cpu")
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise InputError(f"--adapter {folder}: its weights cannot be read: {shown(str(error))}") from None
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = [name for name in weights if "lora_" not in name and name not in trained]
    if others and not recipe.train_embeddings:
        raise InputError(
            f"--adapter {folder} holds weights of the model itself, {others[0]} first, which the plan does not train; "
            f"plan as it was trained, with --full-vision, --full-projector, --train-embeddings or --task reward"
        )
    with _gathered([parameter for parameter in model.parameters() if parameter.requires_grad]):
        try:
            found = set_peft_model_state_dict(model, {**_copied_weights(model), **weights})
        except RuntimeError as error:  # sizes
            raise InputError(f"--adapter {folder} is of another rank or model: {shown(str(error))}") from None
    unused = [*found.unexpected_keys, *(name for name in found.missing_keys if "lora_" in name)]
    if unused:
        raise InputError(f"--adapter {folder} has other layers than the plan's adapters: {unused[0]}")


def _copied_weights(model: Any) -> dict[str, torch.Tensor]:
    """Weights of the trained copies of whole modules, by the names that they have in files."""
    from peft.utils import ModulesToSaveWrapper

    found: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, ModulesToSaveWrapper):
            [adapter] = module.modules_to_save
            weights = module.modules_to_save[adapter].state_dict()
            found |= {f"{name}.{key}": weight for key, weight in weights.items()}
    return found


def _gathered(parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
    """While it lasts, weights that ZeRO-3 has sharded are whole on every rank; rank 0's changes reach all."""
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    return GatheredParameters(parameters, modifier_rank=0)


def lora_targets(model: Any, targets: str) -> str | list[str]:
    """What peft takes for ``--lora-targets``: its own name for all linear layers, a regular expression of whole names,
    or suffixes of names."""
    if targets.startswith(REGEX):
        return targets.removeprefix(REGEX)
    if targets == ALL_LINEAR:
        return ALL_LINEAR
    if targets == ATTENTION:
        return _of_linears(model, attention_linears(model))
    return _of_linears(model, listed_targets(targets))


def _of_linears(model: Any, suffixes: Sequence[str]) -> list[str]:
    """The suffixes; where one is also the name of a module around a Linear (Gemma 4's towers), which peft refuses to
    adapt, the whole names of what they mean."""
    named = [(name, module) for name, module in model.named_modules() if any(_ends(name, one) for one in suffixes)]
    if not any(list(module.children()) for _, module in named):
        return list(suffixes)
    return [name for name, module in named if not list(module.children())]


def _ends(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def attention_linears(model: Any) -> tuple[str, ...]:
    """The suffixes that ``attention`` adapts."""
    model_type = model.config.get_text_config().model_type
    if model_type in ATTENTION_LINEARS:
        return ATTENTION_LINEARS[model_type]
    linears = {name for name, module in model.named_modules() if kind_of(module) in ("linear", "conv1d")}
    parts = Parts(model)
    lasts = {name.rpartition(".")[2] for name in linears if parts[name] is Part.LANGUAGE}
    return USUAL_ATTENTION if lasts.issuperset(USUAL_ATTENTION) else _attention_suffixes(model, linears)


def _attention_suffixes(model: Any, linears: set[str]) -> tuple[str, ...]:
    """Suffixes that match the Linears inside the language model's attention and no others: none of an indexer, which
    chooses positions without a graph, so that no gradient comes to its adapters."""
    parts = Parts(model)
    inside: dict[str, str] = {}
    outside: set[str] = set()
    attentions = {name for name, module in model.named_modules() if _is_attention(name, module)}
    for name, _ in model.named_modules():
        if name not in linears or ".indexer." in name:
            continue
        path = name.split(".")
        depth = next((i for i in range(1, len(path)) if ".".join(path[:i]) in attentions), None)
        if depth is None:
            outside.add(path[-1])
        elif parts[name] is Part.LANGUAGE:
            inside.setdefault(".".join(path[depth - 1 :]), path[-1])
    return tuple(dict.fromkeys(path if last in outside else last for path, last in inside.items()))


def _is_attention(name: str, module: nn.Module) -> bool:
    class_name, last = type(module).__name__, name.rpartition(".")[2]
    if kind_of(module) or class_name.endswith(("Layer", "Norm")):  # a norm behind attention may have Linears, its gate
        return False
    return "Attention" in class_name or "attn" in last or "attention" in last


def _embedding_names(model: Any) -> list[str]:
    """The input embedding and the output head, for peft's ``modules_to_save``."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return [name for module in modules if (name := name_of(model, module)) is not None]


def _excluded_pattern(parts: Parts, recipe: Recipe) -> str | None:
    """A regular expression of the names of all modules in parts that are frozen or trained in full, and of those that
    the recipe leaves out; None where there are none."""
    closed = recipe.frozen_parts | recipe.full_parts
    patterns = [_pattern(prefix, parts) for prefix, part in parts.prefixes.items() if part in closed]
    if Part.LANGUAGE in closed:  # the part of names without a prefix
        others = "|".join(re.escape(prefix) for prefix in parts.prefixes)
        patterns.append(rf"(?!(?:{others})(?:\.|$)).*" if others else ".*")
    if recipe.lora_exclude is not None:
        patterns.append(_pattern_of(recipe.lora_exclude))
    return "|".join(f"(?:{pattern})" for pattern in patterns) or None


def _pattern_of(names: str) -> str:
    """A regular expression of the whole names that ``--lora-exclude`` means: one itself, or suffixes."""
    if names.startswith(REGEX):
        return names.removeprefix(REGEX)
    suffixes = [re.escape(name.strip()) for name in names.split(",") if name.strip()]
    return rf"(?:.*\.)?(?:{'|'.join(suffixes)})"


def _pattern(prefix: str, parts: Parts) -> str:
    """The names below ``prefix`` but those below a longer one, which has a part of its own."""
    inner = [other[len(prefix) + 1 :] for other in parts.prefixes if other.startswith(f"{prefix}.")]
    but = rf"(?!\.(?:{'|'.join(map(re.escape, inner))})(?:\.|$))" if inner else ""
    return rf"{re.escape(prefix)}{but}(?:\..*)?"


def quantize(model: Any, config: Any, device: torch.device, *, skipped: Sequence[str] = ()) -> None:
    """Turn every Linear but the output head and those in ``skipped`` modules into bitsandbytes' own as ``config``, a
    ``BitsAndBytesConfig``, says.

    What ``from_pretrained`` does with weights from a file, for weights that are there already: in the order of their
    names each goes to ``device``, and is packed there.
    """
    from transformers.core_model_loading import dot_natural_key
    from transformers.modeling_utils import PreTrainedModel
    from transformers.quantizers.auto import AutoHfQuantizer

    pack = _in_eight_bits if config.load_in_8bit else _in_four_bits
    packed: dict[int, list[tuple[Any, str, Any]]] = {}
    for parent, child_name, linear in _linears(model, skipped):
        packed.setdefault(id(linear.weight), []).append((parent, child_name, linear))
    for _, parameter in sorted(model.named_parameters(), key=lambda named: dot_natural_key(named[0])):
        if id(parameter) not in packed:
            parameter.data = parameter.data.to(device)
            continue
        (parent, child_name, linear), *tied = packed[id(parameter)]
        first = pack(linear, config, device)
        setattr(parent, child_name, first)
        for parent, child_name, linear in tied:
            setattr(parent, child_name, _with_packed_weight(linear, config, first.weight))
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = config.load_in_4bit, config.load_in_8bit
    model.is_quantized = True  # what peft looks at
    for module in model.modules():  # by which flash attention of float32 takes the type of the configuration, not of
        if isinstance(module, PreTrainedModel):  # packed weights (``_assign_is_quantized`` of transformers)
            module.config._is_quantized = True
    # Hugging Face's Trainer asks it whether adapters can be trained.
    model.hf_quantizer = AutoHfQuantizer.from_config(config)


def _linears(model: Any, skipped: Sequence[str]) -> Iterator[tuple[nn.Module, str, Any]]:
    head, unpacked = model.get_output_embeddings(), unpacked_linears(model.config.model_type)
    for name, module in model.named_modules():
        parent, _, child_name = name.rpartition(".")
        # A class derived from Linear stays as it is (transformers' replace_with_bnb_linear).
        is_packed = (type(module) is nn.Linear or kind_of(module) == "conv1d") and module is not head
        is_skipped = any(f"{name}.".startswith(f"{one}.") for one in skipped)
        if is_packed and not is_skipped and child_name not in unpacked:
            yield model.get_submodule(parent), child_name, module


def _in_four_bits(linear: Any, config: Any, device: torch.device) -> nn.Module:
    from bitsandbytes.nn import Params4bit

    packed, options = _empty_four_bits(linear, config)
    packed.weight = Params4bit(_rows(linear), requires_grad=False, module=packed, **options)  # pyright: ignore[reportCallIssue]: __new__ takes it
    packed.bias = linear.bias
    return packed.to(device)


def _empty_four_bits(linear: Any, config: Any) -> tuple[Any, dict[str, Any]]:
    """bitsandbytes' module for a Linear without its weight, and how that is packed."""
    from bitsandbytes.nn import Linear4bit

    rows, columns = _rows(linear).shape
    options: dict[str, Any] = {
        "compress_statistics": config.bnb_4bit_use_double_quant,
        "quant_type": config.bnb_4bit_quant_type,
        "quant_storage": config.bnb_4bit_quant_storage,
    }
    compute_dtype, has_bias = config.bnb_4bit_compute_dtype, linear.bias is not None
    return Linear4bit(columns, rows, bias=has_bias, compute_dtype=compute_dtype, device="meta", **options), options


def _with_packed_weight(linear: Any, config: Any, weight: Any) -> nn.Module:
    """The module of a Linear that has the weight of another, which is packed (``tie_weights`` of transformers)."""
    packed, _ = _empty_four_bits(linear, config)
    packed.weight, packed.bias = weight, linear.bias
    return packed


def _in_eight_bits(linear: Any, config: Any, device: torch.device) -> nn.Module:
    """``Bnb8bitQuantize`` has a weight on its device, and packs a copy that comes from the host."""
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    weight = _rows(linear).to(device)
    rows, columns = weight.shape
    packed = Linear8bitLt(
        columns,
        rows,
        bias=linear.bias is not None,
        has_fp16_weights=config.llm_int8_has_fp16_weight,
        threshold=config.llm_int8_threshold,
        device="meta",
    )
    packed.weight = Int8Params(weight.to("cpu"), requires_grad=False).to(device)  # pyright: ignore[reportAttributeAccessIssue]: its own ``to``
    packed.bias = linear.bias
    return packed.to(device)


def _rows(linear: Any) -> torch.Tensor:
    """The weight of a Linear as it is packed."""
    weight = linear.weight.data
    return weight.T.contiguous() if kind_of(linear) == "conv1d" else weight  # GPT-2 keeps it the other way round

"""The run of a program that trains with TRL's trainers, under the keys that ``trl sft`` has for the same.

Sources: ``trl/trainer/sft_trainer.py`` (TRL 1.16), ``peft/tuners/lora/config.py`` (peft 0.21).
"""

import ast
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.errors import InputError
from vlmplan.model_types.language_parts import AUTO_CLASS, CLASSES
from vlmplan.other_trainers.device_maps import DEVICE_MAP, PLACED
from vlmplan.other_trainers.programs.calls import Call, Keyword
from vlmplan.other_trainers.programs.casts import cast_type
from vlmplan.other_trainers.programs.changed_parts import LIGER_CLASS, take_changed_parts
from vlmplan.other_trainers.programs.environment import variables_of
from vlmplan.other_trainers.programs.frozen import left_trained
from vlmplan.other_trainers.programs.gathered import (
    ARGUMENTS_KEY,
    DPO_TRAINERS,
    GRPO_TRAINERS,
    KTO_TRAINERS,
    OTHERWISE,
    REWARD_TRAINERS,
    Gathered,
    ProgramRun,
)
from vlmplan.other_trainers.programs.late_arguments import given_to_trainer
from vlmplan.other_trainers.programs.loads import is_before, load_of, run_before
from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.programs.parsed_arguments import PLAIN_ARGUMENTS
from vlmplan.other_trainers.programs.processors import take_image_sizes
from vlmplan.other_trainers.programs.references import refuse_another_reference
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.programs.stores import GRADIENTS, asks_for
from vlmplan.other_trainers.programs.surroundings import (
    refuse_own_checkpoints,
    take_precision_of_variable,
    take_surroundings,
)
from vlmplan.other_trainers.record import Unwritten, WholeNames

TRL_RUN: Final = "trl program"
TRL_DPO_RUN: Final = "trl dpo program"
TRL_REWARD_RUN: Final = "trl reward program"
TRL_KTO_RUN: Final = "trl kto program"
TRL_GRPO_RUN: Final = "trl grpo program"
RUNS: Final = {
    **dict.fromkeys(DPO_TRAINERS, TRL_DPO_RUN),
    **dict.fromkeys(REWARD_TRAINERS, TRL_REWARD_RUN),
    **dict.fromkeys(KTO_TRAINERS, TRL_KTO_RUN),
    **dict.fromkeys(GRPO_TRAINERS, TRL_GRPO_RUN),
}
TRAINER_RUN: Final = "trainer program"
OF_TRL_PROGRAMS: Final = (TRL_RUN, *dict.fromkeys(RUNS.values()), TRAINER_RUN)
TRAINERS: Final = ("Trainer", "Seq2SeqTrainer")
"""Of transformers."""
MODEL_CLASS: Final = re.compile(
    r"\w+For(?:CausalLM|ConditionalGeneration|ImageTextToText|MultimodalLM|Seq2SeqLM|SpeechSeq2Seq|Vision2Seq)"
    r"\.from_pretrained"
)
LANGUAGE_CLASS: Final = re.compile(rf"(?:{'|'.join((AUTO_CLASS, LIGER_CLASS, *CLASSES.values()))})\.from_pretrained")
"""Of language models."""
SCORING_CLASS: Final = re.compile(r"\w+ForSequenceClassification\.from_pretrained")
"""Of reward models, whose one label says what it is."""
WITH_ADAPTER: Final = re.compile(r"PeftModel\w*\.from_pretrained")
"""Of peft, by which a run goes on with an adapter."""
OF_LOADED: Final = ("model", "model_id", "adapter_name", "is_trainable")
"""Its positional arguments."""
MERGES: Final = "merge_and_unload"
ADAPTER: Final = "model_id"
"""The key of its folder, as peft calls it."""
ADDED: Final = "add_adapter"
"""Of transformers' models: adapters that no ``PeftModel`` is made for, so that peft does not make them float32."""
ADAPTERS_BY: Final = {"get_peft_model": ("model", "peft_config"), ADDED: ("adapter_config", "adapter_name")}
"""What puts adapters on a model, and its positional arguments."""
ADAPTING: Final = ("get_peft_model", "LoraConfig", ADDED)
LEFT_OUT: Final = "the program can put adapters on its model, which it does not do as it is read: all of it is trained"
OF_REFERENCE: Final = (*DPO_TRAINERS, *KTO_TRAINERS)
COPIED_ADAPTER: Final = (
    "of a model that has its adapters before, TRL makes a copy that is not trained for the reference (ref): 4 bytes of "
    "each of their weights, which are not counted"
)
"""``dpo_trainer.py``, ``kto_trainer.py`` and ``grpo_trainer.py``: ``model.add_adapter("ref", ...)``."""
CHECKPOINTS: Final = "gradient_checkpointing"
NEWER_CHECKPOINTS: Final = "activation_checkpointing"
"""As transformers calls it from 5.23 on."""
KBIT: Final = "prepare_model_for_kbit_training"
OF_LORA: Final = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
    "task_type": "lora_task_type",
}
"""Keywords of ``LoraConfig`` that TRL's keys call otherwise."""
UNPACKS: Final = "Mxfp4Config"
"""Of transformers, for gpt-oss."""
OF_BITS: Final = {"bnb_4bit_use_double_quant": "use_bnb_nested_quant"}
TYPES: Final = ("dtype", "torch_dtype")
"""Of the weights, as transformers calls it now and before."""
OF_LOADING: Final = (*TYPES, "attn_implementation", "load_in_4bit", "load_in_8bit")
ATTENTION: Final = "attn_implementation"
OLDER_FLASH, FLASH = "use_flash_attention_2", "flash_attention_2"
"""The switch that it has replaced, and what it stands for."""
OF_CONFIG: Final = f"_{ATTENTION}"
"""Of a configuration, which ``from_pretrained`` takes as well, as pages of SmolVLM and Idefics have it."""
LOADED_WITHOUT_EFFECT: Final = frozenset(
    """device_map trust_remote_code use_cache low_cpu_mem_usage revision token cache_dir quantization_config
    local_files_only use_safetensors force_download use_auth_token do_sample return_dict from_tf from_flax
    offload_folder""".split()
)
"""With ``from_tf`` and ``from_flax`` the same weights are in another format."""
OF_CHECKPOINT: Final = re.compile(r"\w*Config\.from_pretrained")
CONFIG_WITHOUT_EFFECT: Final = frozenset(
    "use_cache rope_scaling pretraining_tp pad_token_id bos_token_id eos_token_id".split()
)
"""Of a model's configuration: how positions are turned, what stands for what, and what only generating needs."""


def trl_run(found: Gathered, source: ProgramSource) -> ProgramRun:
    """What ``found``'s trainer trains. Raises InputError for what is not written in the program."""
    arguments = found.arguments()
    of_training = found.of_training(arguments) | given_to_trainer(found, arguments)
    older = of_training.pop("max_seq_length", None)
    if older is not None:  # as ``max_length`` was called until TRL 0.20
        of_training.setdefault("max_length", older)
    init = of_training.pop("model_init_kwargs", None)
    found.take(of_training)
    loads = _take_model(found, init)
    _take_placement(found, loads, arguments)
    found.take_metrics()
    found.take_stops()
    take_image_sizes(found)
    adapts = _take_adapters(found)
    is_of_trl = found.trainer.name not in TRAINERS and found.values.get(ARGUMENTS_KEY) not in PLAIN_ARGUMENTS
    take_precision_of_variable(found, is_bf16=is_of_trl)
    asks_for_checkpoints = bool(found.values.get(CHECKPOINTS, found.values.get(NEWER_CHECKPOINTS, is_of_trl)))
    _take_calls(found)
    refuse_own_checkpoints(found, loads, is_on=asks_for_checkpoints)
    _take_cast(found, loads, adapts)
    take_changed_parts(found, loads)
    has_adapters = found.values.get("use_peft") is True
    refuse_another_reference(found, loads, has_adapters=has_adapters)
    found.values |= left_trained(found.program, loads, adapts, found.trainer, has_adapters=has_adapters)
    refers = found.trainer.name in OF_REFERENCE or (found.is_grpo and bool(found.values.get("beta")))
    own_notes = take_surroundings(found, loads, arguments)
    own_notes += [COPIED_ADAPTER] if refers and (adapts is not None or ADAPTER in found.values) else []
    if not has_adapters and _can_adapt(found):
        own_notes.append(LEFT_OUT)
    is_plain = found.trainer.name in TRAINERS
    return ProgramRun(
        trainer=TRAINER_RUN if is_plain else RUNS.get(found.trainer.name, TRL_RUN),
        values=found.values,
        keywords=found.keywords,
        trains=found.trainer,
        loads=loads,
        adapts=None,
        arguments=arguments,
        source=source,
        notes=(*found.notes(), *own_notes),
        own_keys=found.own_keys,
        environment=variables_of(found.program),
        loads_language_alone=loads is not None and LANGUAGE_CLASS.fullmatch(loads.name) is not None,
    )


def _take_cast(found: Gathered, loads: Call | None, adapts: Call | None) -> None:
    """Take the type that the model is cast to after it is loaded in another."""
    made = [call for call in found.all_calls if call.name == KBIT] + ([adapts] if adapts is not None else [])
    kind = None if loads is None else cast_type(found, loads, made)
    if kind is not None:
        for name in TYPES:
            found.values.pop(name, None)
            found.keywords.pop(name, None)
        found.values[TYPES[0]] = kind


def loads_model(found: Gathered) -> bool:
    """Whether a class of transformers loads a model before the trainer is made."""
    return found.last_before([call for call in found.all_calls if MODEL_CLASS.fullmatch(call.name)]) is not None


def _take_calls(found: Gathered) -> None:
    """Take what calls of the model's own do: ``prepare_model_for_kbit_training`` switches checkpoints on, too, and no
    trainer switches them off again."""
    for call in found.all_calls:
        if _compiles(call.node.func):
            raise InputError(f"{found.program.source}: torch.compile is not planned; leave it out{OTHERWISE}")
        switches_on = call.name == "gradient_checkpointing_enable"
        if call.name == KBIT:
            found.values[KBIT] = True
            own = found.named(call, ("model", "use_gradient_checkpointing")).get("use_gradient_checkpointing")
            switches_on = own is None or (own.worth is not None and bool(own.worth.value))
        if (
            switches_on
            and found.values.get(CHECKPOINTS) is False
            and asks_for(found.program.tree, call.node, CHECKPOINTS)
        ):
            continue  # the arguments say that it does not run
        if switches_on and found.values.get(CHECKPOINTS) is False:
            found.switched_on.append(call.name)
        if switches_on:
            found.values[CHECKPOINTS] = True


def _compiles(function: ast.expr) -> bool:
    """``torch.compile``."""
    return isinstance(function, ast.Attribute) and function.attr == "compile" and last_name(function.value) == "torch"


def _take_model(found: Gathered, init: Keyword | None) -> Call | None:
    """Take the model and how it is loaded: by the trainer, of its name, or by a call before it, which is returned."""
    model = found.named(found.trainer, ("model",)).get("model")
    scores = found.trainer.name in REWARD_TRAINERS
    kind = SCORING_CLASS if scores else MODEL_CLASS
    loads = load_of(found, model, kind)
    if model is not None and _is_name(model, is_loaded=loads is not None):
        found.take({"model_name_or_path": model})
        entries = _entries(found, init)
        _take_loading(found, entries)
        _take_bits(found, entries | dict(found.trainer.keywords))
        return None
    if loads is None:
        text = "its model" if model is None else model.text
        raise InputError(
            f"{found.program.source}: what {text} of {found.trainer.name} is only running the program tells; a name is "
            f"read, and from_pretrained of a class of transformers{OTHERWISE}"
        )
    keywords = found.named(loads, ("pretrained_model_name_or_path",))
    named = keywords.pop("pretrained_model_name_or_path", None)
    if named is not None:
        found.take({"model_name_or_path": named})
    if OF_CONFIG in keywords:
        keywords.setdefault(ATTENTION, keywords.pop(OF_CONFIG))
    if "config" in keywords and _is_of_checkpoint(found, keywords["config"]):
        del keywords["config"]
    if scores:
        keywords.pop("num_labels", None)  # 1, as the trainer asks for
    placed = keywords.get(DEVICE_MAP)  # of a name in its place TRL makes None of it where several GPUs train
    if placed is not None and placed.worth is not None and isinstance(placed.worth.value, str):
        found.take({DEVICE_MAP: placed})
    _take_loading(found, keywords)
    if all(found.values.get(name) is None for name in TYPES):
        found.values.pop(TYPES[1], None)
        found.values[TYPES[0]] = "auto"  # as transformers takes what is not said, or None
    _take_bits(found, loads.keywords)
    return loads


def _take_placement(found: Gathered, loads: Call | None, arguments: Call | None) -> None:
    """Take what places a model that is loaded when the arguments are there, with which transformers knows of ZeRO-3."""
    placed = None if loads is None else loads.keywords.get(DEVICE_MAP)
    if loads is None or placed is None or arguments is None or not is_before(found, arguments.node, loads):
        return
    is_table = isinstance(
        found.program.bound(placed.node) if isinstance(placed.node, ast.Name) else placed.node, ast.Dict
    )
    if is_table or (placed.worth is not None and placed.worth.value is not None):
        found.values[PLACED] = placed.text


def _is_name(model: Keyword, *, is_loaded: bool) -> bool:
    """Whether a model is given by its name; where none is loaded, what settings or options hold is one, too."""
    if model.worth is None:
        return not is_loaded and isinstance(model.node, (ast.Attribute, ast.Subscript))
    return isinstance(model.worth.value, str)


def _entries(found: Gathered, init: Keyword | None) -> dict[str, Keyword]:
    """The entries of ``model_init_kwargs`` by key."""
    if init is None or (init.worth is not None and init.worth.value is None):
        return {}
    entries = found.program.entries(init)
    if entries is None:
        raise InputError(
            f"{found.program.source}: model_init_kwargs is {init.text}, which only running the program tells; write "
            f"its entries there"
        )
    return entries


def _take_loading(found: Gathered, keywords: dict[str, Keyword]) -> None:
    older = keywords.pop(OLDER_FLASH, None)
    if older is not None and ATTENTION not in keywords and (older.worth is None or older.worth.value):
        found.values[ATTENTION] = FLASH if older.worth is not None else Unwritten(older.text)
    unknown = [name for name in keywords if name not in LOADED_WITHOUT_EFFECT and name not in OF_LOADING]
    if unknown:
        raise InputError(
            f"{found.program.source}: {unknown[0]} may change what is loaded, which is not planned{OTHERWISE}"
        )
    found.take({name: keywords[name] for name in OF_LOADING if name in keywords})


def _take_bits(found: Gathered, keywords: Mapping[str, Keyword]) -> None:
    """Take how weights are packed: of ``BitsAndBytesConfig``, where one is given."""
    keyword = keywords.get("quantization_config")
    if keyword is None or (keyword.worth is not None and keyword.worth.value is None):
        return
    config = found.program.call_of(keyword.node) or found.only_call(("BitsAndBytesConfig",), keyword.text)
    if config is not None and config.name == UNPACKS and _is_unpacked(config):
        return
    if config is None or config.name != "BitsAndBytesConfig":
        raise InputError(
            f"{found.program.source}: quantization_config is {keyword.text}; BitsAndBytesConfig is read{OTHERWISE}"
        )
    own = found.made(config)
    found.take({OF_BITS.get(name, name): one for name, one in own.items()})


def _is_of_checkpoint(found: Gathered, config: Keyword) -> bool:
    """Whether a configuration is that of a checkpoint, but for what changes neither memory nor time."""
    made = found.program.call_of(config.node)
    if made is None or not OF_CHECKPOINT.fullmatch(made.name) or made.keywords.keys() - LOADED_WITHOUT_EFFECT:
        return False
    return found.program.given_later(made, found.trainer).keys() <= CONFIG_WITHOUT_EFFECT


def _is_unpacked(config: Call) -> bool:
    """Whether the weights of a model that is packed in its checkpoint are unpacked while it is loaded."""
    said = config.keywords.get("dequantize")
    return said is not None and said.worth is not None and said.worth.value is True


def _take_adapters(found: Gathered) -> Call | None:
    """Take the adapters of ``peft_config``, or of ``get_peft_model`` or ``add_adapter`` before the trainer, which is
    returned."""
    call: Call | None = None
    given = found.trainer.keywords.get("peft_config")
    if given is None or (given.worth is not None and given.worth.value is None):
        if _take_loaded_adapter(found):
            return None
        named = ([call for call in found.all_calls if call.name == name] for name in ADAPTERS_BY)
        call = next((one for calls in named if (one := found.last_before(run_before(found, calls))) is not None), None)
        if call is None:
            return None
        own = found.named(call, ADAPTERS_BY[call.name])
        given = own.get("adapter_config" if call.name == ADDED else "peft_config")
        found.values |= {ADDED: True} if call.name == ADDED else {}
    config = (
        None if given is None else found.program.call_of(given.node) or found.only_call(("LoraConfig",), given.text)
    )
    if config is None or config.name != "LoraConfig":
        raise InputError(f"{found.program.source}: adapters are not written as one call of LoraConfig{OTHERWISE}")
    own = found.made(config)
    found.take({OF_LORA.get(name, name): one for name, one in own.items()})
    found.values["use_peft"] = True
    names: Any = found.values.get("lora_target_modules")
    if isinstance(names, list):
        found.values["lora_target_modules"] = WholeNames(cast(list[str], names))
    for key, value in (("lora_r", 8), ("lora_alpha", 8), ("lora_dropout", 0.0)):  # peft's own
        found.values.setdefault(key, value)
    if isinstance(names, str) and not isinstance(names, Unwritten):
        found.values["lora_target_modules"] = [names]
    return call


def _take_loaded_adapter(found: Gathered) -> bool:
    """Take the adapter that ``PeftModel.from_pretrained`` has put on the model, if the trainer gets such a one. What is
    merged into the model before is none any more."""
    loads = [call for call in found.all_calls if WITH_ADAPTER.fullmatch(call.name)]
    model = found.named(found.trainer, ("model",)).get("model")
    if not loads or model is None:
        return False
    held = found.program.call_of(model.node)
    if held is None and not any(call.name == MERGES for call in found.all_calls):  # handed on in ways that are not seen
        held = found.last_before([call for call in loads if _is_trained(found, call)])
    if held is None or not WITH_ADAPTER.fullmatch(held.name):
        return False
    own = found.named(held, OF_LOADED)
    if not _is_trained(found, held):
        raise InputError(
            f"{found.program.source}: {held.name} is not told is_trainable=True, without which peft freezes what it "
            f"loads and nothing is trained{OTHERWISE}"
        )
    folder = own.get(ADAPTER)
    found.take({ADAPTER: folder} if folder is not None else {})
    if not isinstance(found.values.get(ADAPTER), str):
        found.values[ADAPTER] = Unwritten("its folder" if folder is None else folder.text)
    found.values["use_peft"] = True
    return True


def _is_trained(found: Gathered, held: Call) -> bool:
    """Whether an adapter that is loaded is trained: as its call says, or as the program makes its weights."""
    trains = found.named(held, OF_LOADED).get("is_trainable")
    if trains is not None and trains.worth is not None and trains.worth.value:
        return True
    values = [store.value for store in found.program.stores if store.name == GRADIENTS and store.value is not None]
    return any(found.program.value_of(value) is True for value in values)


def _can_adapt(found: Gathered) -> bool:
    """Whether its text has calls that make adapters, those that do not run among it."""
    calls = (node for node in ast.walk(found.program.tree) if isinstance(node, ast.Call))
    return any(last_name(call.func) in ADAPTING for call in calls)

"""The run of a program that loads its model with Unsloth."""

import ast
from collections.abc import Iterable
from typing import Final

from vlmplan.other_trainers.programs.calls import Call, Keyword
from vlmplan.other_trainers.programs.changed_parts import refuse_changed_parts
from vlmplan.other_trainers.programs.environment import variables_of
from vlmplan.other_trainers.programs.frozen import left_trained
from vlmplan.other_trainers.programs.gathered import Gathered, ProgramRun
from vlmplan.other_trainers.programs.late_arguments import given_to_trainer
from vlmplan.other_trainers.programs.loads import run_before
from vlmplan.other_trainers.programs.processors import take_image_sizes
from vlmplan.other_trainers.programs.references import refuse_another_reference
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.programs.surroundings import take_surroundings

UNSLOTH_RUN: Final = "unsloth"
UNSLOTH_DPO_RUN: Final = "unsloth dpo"
UNSLOTH_GRPO_RUN: Final = "unsloth grpo"
UNSLOTH_RUNS: Final = (UNSLOTH_RUN, UNSLOTH_DPO_RUN, UNSLOTH_GRPO_RUN)
STANDBY: Final = "UNSLOTH_VLLM_STANDBY"
"""The variable that a program sets for vLLM to give its cache back."""
ON: Final = frozenset(
    "UNSLOTH_FUSED_LINEAR UNSLOTH_GRPO_CHUNKED_LOGPROBS UNSLOTH_GRPO_SEQ_PACKING UNSLOTH_CHUNKED_CE".split()
)
"""Which are on by themselves."""
OF_MEMORY: Final = ON.union(
    """UNSLOTH_GRPO_LOGPROB_RECOMPUTE UNSLOTH_GRPO_TRUNCATED_SUPPORT UNSLOTH_VLLM_FP32_LM_HEAD UNSLOTH_LOGPROB_CHUNK_GB
    UNSLOTH_CE_LOSS_TARGET_GB UNSLOTH_CE_LOSS_N_CHUNKS UNSLOTH_CE_FP32_HEAD_GRAD UNSLOTH_GC_KEEP_LAYERS
    UNSLOTH_OFFLOAD_FP32 UNSLOTH_TILED_MLP UNSLOTH_UPCAST_LAYERNORM""".split()
)
"""Variables of unsloth and unsloth_zoo 2026.10.9 that change how much memory they take, and that no plan knows."""
VARIABLES: Final = "os.environ"
"""The key of those of them that a program sets."""
LOADERS: Final = ("FastLanguageModel", "FastVisionModel", "FastModel", "FastTextModel")
"""Classes of Unsloth that load a model, and put adapters on it."""
LOADED: Final = tuple("model_name max_seq_length dtype load_in_4bit load_in_8bit load_in_16bit full_finetuning".split())
ADAPTED: Final = tuple("model r target_modules lora_alpha lora_dropout bias".split())
"""Positional arguments of ``from_pretrained`` and ``get_peft_model`` (``models/loader.py``, ``models/llama.py``)."""
COLLATOR: Final = "UnslothVisionDataCollator"
MAX_SEQ_LENGTH, MAX_LENGTH_OF_TRL = 2048, 1024
"""``max_seq_length`` of ``from_pretrained`` and ``max_length`` of ``SFTConfig`` where nothing is said."""
CLASS_KEY, ADAPTERS_KEY = "class", "get_peft_model"
"""Keys of what no keyword says: the class that loads, and whether adapters are put on."""


def unsloth_loaders(calls: list[Call]) -> list[Call]:
    """The calls that load a model with Unsloth."""
    return [call for call in calls if _class_of(call, "from_pretrained") in LOADERS]


def unsloth_run(found: Gathered, loaders: list[Call], source: ProgramSource) -> ProgramRun:
    """What ``found``'s trainer trains. Raises InputError for what is not written in the program."""
    arguments = found.arguments()
    loads = found.last_before(run_before(found, loaders)) or loaders[0]
    adapting = [call for call in found.all_calls if _class_of(call, "get_peft_model") in LOADERS]
    adapts = found.last_before(run_before(found, adapting))
    refuse_another_reference(found, loads, has_adapters=adapts is not None)
    refuse_changed_parts(found, loads)
    found.values[CLASS_KEY] = _class_of(loads, "from_pretrained")
    found.take(found.named(loads, LOADED))
    lengths = [found.keywords.get("max_seq_length")]
    if adapts is not None:
        found.values[ADAPTERS_KEY] = True
        own = found.named(adapts, ADAPTED)
        own.pop("model", None)
        own.pop("max_seq_length", None)  # 'not used anymore' (``models/llama.py``)
        found.take(own)
    of_training = found.of_training(arguments) | given_to_trainer(found, arguments)
    lengths += [_of_arguments(found, of_training, lengths[0]), _of_collator(found)]
    found.take(of_training)
    found.take_metrics()
    found.take_stops()
    take_image_sizes(found)
    found.values |= left_trained(found.program, loads, adapts, found.trainer, has_adapters=adapts is not None)
    variables = _variables(found.program.tree)
    if found.is_grpo and STANDBY in variables:
        found.values[STANDBY] = True
    if OF_MEMORY.intersection(variables):
        found.values[VARIABLES] = [name for name in variables if name in OF_MEMORY]
    _take_length(found, lengths)
    own_notes = take_surroundings(found, loads, arguments)
    return ProgramRun(
        trainer=UNSLOTH_DPO_RUN if found.is_dpo else UNSLOTH_GRPO_RUN if found.is_grpo else UNSLOTH_RUN,
        values=found.values,
        keywords=found.keywords,
        trains=found.trainer,
        loads=loads,
        adapts=adapts,
        arguments=arguments,
        source=source,
        notes=(*found.notes(), *own_notes),
        own_keys=found.own_keys,
        environment=variables_of(found.program),
    )


def _variables(tree: ast.Module) -> list[str]:
    """Variables (``os.environ["NAME"] = ...``) that are set to something else than they are by themselves."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            places = [one.slice for one in node.targets if isinstance(one, ast.Subscript)]
            names = [str(place.value) for place in places if isinstance(place, ast.Constant)]
            found += [name for name in names if node.value.value != ("1" if name in ON else "0")]
    return found


def _class_of(call: Call, method: str) -> str | None:
    holder, _, name = call.name.rpartition(".")
    return holder if name == method else None


def _of_arguments(found: Gathered, of_training: dict[str, Keyword], loaded: Keyword | None) -> Keyword | None:
    """Take out what the trainer's arguments say of lengths: ``max_seq_length``, and in supervised fine-tuning, where
    that is not said, a ``max_length`` that is not TRL's own and less than the model is loaded with (``models/rl.py``:
    'Never widen a caller's limit')."""
    said = of_training.pop("max_seq_length", None)
    other = of_training.get("max_length")
    if said is not None or other is None or found.is_dpo or found.is_grpo:
        return said
    is_less = 0 < _tokens(other) < ((loaded and _tokens(loaded)) or MAX_SEQ_LENGTH)
    return of_training.pop("max_length") if is_less and _tokens(other) != MAX_LENGTH_OF_TRL else None


def _of_collator(found: Gathered) -> Keyword | None:
    """Take how large images may be from Unsloth's collator; returns the most tokens that it lets a sample have."""
    collators = [call for call in found.all_calls if call.name == COLLATOR]
    if not collators:
        return None
    keywords = collators[-1].keywords
    found.take({name: keywords[name] for name in ("resize",) if name in keywords})
    found.values[COLLATOR] = True
    return keywords.get("max_seq_length")


def _take_length(found: Gathered, lengths: Iterable[Keyword | None]) -> None:
    """The least of what loading, training and the collator allow (``models/rl.py``: 'We shall reduce it')."""
    known = [one for one in lengths if one is not None and (one.worth is None or one.worth.value is not None)]
    if not known:
        return
    unwritten = next((one for one in known if one.worth is None), None)
    found.take({"max_seq_length": unwritten or min(known, key=_tokens)})


def _tokens(keyword: Keyword) -> float:
    value = keyword.worth.value if keyword.worth else 0
    return float(value) if isinstance(value, (int, float)) else 0.0

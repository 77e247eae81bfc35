"""The words of ``--lora-targets``, layers and weights of stacked experts, and of ``--lora-init``.

transformers 5 holds all experts of a layer in two parameters, which are no layers. peft adapts them by
``target_parameters`` (0.21 ``tuners/lora/config.py``): a name with the module that holds them, such as
``experts.gate_up_proj``, by suffix.
"""

import re
from collections.abc import Mapping

from vlmplan.errors import InputError
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    LORA_INITS,
    MAX_PATTERN_CHARACTERS,
    MAX_PISSA_ITERATIONS,
    PISSA_ITERATIONS,
    REGEX,
)

EXPERTS = "experts"
"""What the module that holds stacked experts is called in every model of transformers 5 that has one."""
EXPERTS_ALONE_TYPES = frozenset({"mixtral", "qwen3_moe"})
LINEARS_BESIDE_EXPERTS = "q_proj,k_proj,v_proj,o_proj"
"""The Linears of layers of these types, and of Qwen3-Omni's: experts and routers are parameters."""
CLAMPING_TYPES = frozenset({"gemma3n", "gemma3n_text"})
"""Model types that read and clamp weights of Linears while they train."""
READ_WEIGHT = "correction_coefs"
"""A Linear of Gemma 3n that a model in training does not call: it reads the weight (``Gemma3nTextAltUp.correct``)."""
CLAMPED_LINEARS = (READ_WEIGHT, "prediction_coefs")
"""Linears of Gemma 3n whose weights are clamped while the model trains, which no weight of 4 bits can be (seen)."""
CASTING_TYPES = frozenset({"mt5", "pix2struct", "t5", "umt5"})
ASKED_FOR_TYPE = "wo"
"""A Linear of these types that is given what it multiplies in the element type of its weight, which of 4 bits is Byte
(``T5DenseActDense.forward`` and its like in transformers 5.23; seen: 'result type Float can't be cast to ... Byte')."""

TYPES_WITHOUT_OUT_PROJ = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
STATE_OUTPUT = "out_proj"
"""On which peft puts no adapters in these: the kernels of such mixers read its weight themselves."""

SELECTIVE_TYPES = frozenset({"falcon_mamba", "jamba", "mamba"})
"""Those with layers that are mixers of the first Mamba."""
STEP_PROJECTION = "dt_proj"
"""A Linear of these types that is not called: mixers read its weight, which packed in 4 bits is none that multiplies
(``MambaMixer.forward`` in transformers 5.23; seen: 'expected scalar type torch.uint8'), and miss an adapter on it."""

CLASSIFYING_TYPES = frozenset({"longcat_flash"})
"""Whose routers have a Linear."""
CLASSIFIER = "classifier"
"""It is not called either: routers read its weight (``LongcatFlashTopkRouter.forward`` in transformers
5.23; seen, where it is packed in 4 bits: 'a and b must have same reduction dim')."""

INDEXING_TYPES = frozenset({"deepseek_v4"})
"""Model types with a projection in groups of heads, and with an indexer that chooses keys."""
GROUPED_LINEAR = "o_a_proj"
"""Their projection in groups, of a class derived from Linear: peft's adapter has the width of all groups, and fails
where it is added to each (seen)."""
INDEXER_LINEARS = ("indexer.kv_proj", "indexer.gate_proj", "indexer.q_b_proj", "scorer.weights_proj")
"""Linears of their indexer, whose result are positions: no gradient comes back (seen)."""
TOKEN_INDEXING_TYPES = frozenset({"axk2", "deepseek_v32", "glm_moe_dsa"})
"""Model types with another indexer, that runs without a graph."""
TOKEN_INDEXER_LINEARS = ("indexer.wq_b", "indexer.wk", "indexer.weights_proj")
"""Its Linears."""
BLOCK_INDEXING_TYPES = frozenset({"qwen4_exp", "qwen4_exp_text"})
"""Model types with one that chooses blocks of tokens."""
BLOCK_INDEXER_LINEARS = ("indexer.index_qk_proj",)


def linears_by_class(config: Mapping[str, object]) -> str:
    """All Linears of a model, by its config.json, where a trainer looks for modules of that class and hands peft their
    names: LLaMA-Factory, ms-swift and axolotl. Where layers have no MLP but experts, those are attention's; peft's own
    word adapts experts and routers too, by the names that they had when they were Linears
    (``_resolve_string_target_modules`` of peft 0.21)."""
    has_mlps = bool(config.get("mlp_only_layers")) or config.get("decoder_sparse_step", 1) != 1
    is_of_experts = config.get("model_type") in EXPERTS_ALONE_TYPES and not has_mlps
    return LINEARS_BESIDE_EXPERTS if is_of_experts else ALL_LINEAR


def unpacked_linears(model_type: str) -> tuple[str, ...]:
    """Names of the Linears that stay in 16 bit when the others are packed in 4."""
    further = {ASKED_FOR_TYPE: CASTING_TYPES, STEP_PROJECTION: SELECTIVE_TYPES, CLASSIFIER: CLASSIFYING_TYPES}
    return (*CLAMPED_LINEARS, *(name for name, types in further.items() if model_type in types))


def listed_targets(targets: str) -> list[str]:
    """The names that stand between commas."""
    return [name.strip() for name in targets.split(",") if name.strip()]


def is_stacked(name: str) -> bool:
    """Whether ``name`` is that of a weight of stacked experts."""
    return name.rpartition(".")[0].rpartition(".")[2] == EXPERTS


def layer_targets(targets: str) -> str:
    """``targets`` without weights of stacked experts; empty where nothing else is adapted. A regular expression stays:
    which experts it means depends on the model (``architecture.adapter_names.last_parts``)."""
    if targets.startswith(REGEX):
        return targets
    return ",".join(name for name in listed_targets(targets) if not is_stacked(name))


def stacked_targets(targets: str) -> list[str]:
    """The weights of stacked experts among ``targets``."""
    if targets.startswith(REGEX):
        return []
    return [name for name in listed_targets(targets) if is_stacked(name)]


def is_lora_init(name: str) -> bool:
    """Whether ``name`` is a value of ``Recipe.lora_init``.

    >>> is_lora_init("pissa_niter_16"), is_lora_init("pissa_niter_0"), is_lora_init("svd")
    (True, False, False)
    """
    number = name.removeprefix(PISSA_ITERATIONS)
    if number == name:
        return name in LORA_INITS
    return number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= MAX_PISSA_ITERATIONS and len(number) <= 9


def pattern_of(text: str, option: str) -> re.Pattern[str]:
    """The regular expression of a ``lora_targets`` or ``lora_exclude`` that is one. Raises InputError."""
    pattern = text.removeprefix(REGEX)
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise InputError(f"{option}: a regular expression of 1 to {MAX_PATTERN_CHARACTERS:,} characters is needed")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"{option} {text} is no regular expression: {error}") from None

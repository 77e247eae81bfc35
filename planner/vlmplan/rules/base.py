"""What a rule is, and what it looks at."""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, cast

from vlmplan.architecture.compressed_layers import CHOOSING, attention_kinds
from vlmplan.architecture.config import Config
from vlmplan.hardware import Gpu, Vendor
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.lora_targets import (
    BLOCK_INDEXER_LINEARS,
    BLOCK_INDEXING_TYPES,
    INDEXER_LINEARS,
    INDEXING_TYPES,
    TOKEN_INDEXER_LINEARS,
    TOKEN_INDEXING_TYPES,
)
from vlmplan.workload import ModelFiles


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"


class Problem(NamedTuple):
    """One thing that is wrong. ``rule`` is its name, ``sentence`` for the user, ``source`` where it was read."""

    rule: str
    severity: Severity
    sentence: str
    source: str


class ModelFacts(NamedTuple):
    """What the rules need to know of a model: its model_type, all of them with its parts', the type of its weights, and
    the attention that transformers says it takes, where it was asked."""

    id: str
    model_types: frozenset[str]
    model_type: str = ""
    weights_dtype: str | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    widest_head: int = 0
    """Elements of the widest attention head that config.json or its class names; 0 where neither does."""
    has_windows: bool = False
    """Whether some layer's attention sees no further than a window."""
    attention: frozenset[str] | None = None
    quant_method: str | None = None
    """What its checkpoint is packed with."""
    is_encoder_decoder: bool = False
    indexer_linears: tuple[str, ...] = ()
    """Linears by which some layer chooses keys, and to which no gradient comes."""
    can_checkpoint: bool = True
    """Whether its layers can be run again in backward."""
    files: ModelFiles | None = None
    """What they were read from."""


class RuleContext(NamedTuple):
    """What is to be trained, on what; None where it is not known yet. ``given`` are the options the user wrote."""

    recipe: Recipe
    gpu: Gpu | None = None
    num_gpus: int | None = None
    num_nodes: int | None = None
    model: ModelFacts | None = None
    global_batch: int | None = None
    given: frozenset[str] = frozenset()

    @property
    def is_on_cpu(self) -> bool:
        return self.gpu is not None and self.gpu.is_cpu

    @property
    def capability_text(self) -> str:
        """`` (7.5)`` where the compute capability is known."""
        known = None if self.gpu is None else self.gpu.compute_capability
        return "" if known is None else f" ({known[0]}.{known[1]})"

    def is_before(self, capability: tuple[int, int]) -> bool:
        """Whether this is an NVIDIA card of a known compute capability below ``capability``."""
        known = None if self.gpu is None or self.gpu.vendor is not Vendor.NVIDIA else self.gpu.compute_capability
        return known is not None and known < capability


Check = Callable[[RuleContext], str | None]


class Rule(NamedTuple):
    """``check`` gives the sentence of what is wrong, or None. ``counts_gpus``: it asks how many GPUs or nodes there
    are; all others say the same of any number. ``bars_search``: a search leaves such a recipe out; it does of every
    error, and of what runs but should not be chosen."""

    name: str
    severity: Severity
    source: str
    check: Check
    counts_gpus: bool = False
    bars_search: bool = True

    def problem(self, context: RuleContext) -> Problem | None:
        sentence = self.check(context)
        if sentence is None:
            return None
        return Problem(rule=self.name, severity=self.severity, sentence=sentence, source=self.source)


class RuleBook(list[Rule]):
    """The rules of one module, in the order they are written."""

    def error(self, source: str, *, counts_gpus: bool = False) -> Callable[[Check], Check]:
        """Register a function as a rule whose violation cannot be trained; ``source`` is the code that says so.
        ``counts_gpus`` is of ``Rule``."""
        return self._registered(Severity.ERROR, source, counts_gpus=counts_gpus)

    def warning(self, source: str, *, bars_search: bool = False) -> Callable[[Check], Check]:
        """Register a function as a rule whose violation can be trained, but is rarely meant. ``bars_search`` is of
        ``Rule``."""
        return self._registered(Severity.WARNING, source, bars_search=bars_search)

    def _registered(
        self, severity: Severity, source: str, *, counts_gpus: bool = False, bars_search: bool = True
    ) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            self.append(
                Rule(
                    name=check.__name__,
                    severity=severity,
                    source=source,
                    check=check,
                    counts_gpus=counts_gpus,
                    bars_search=bars_search,
                )
            )
            return check

        return register


def stage_text(recipe: Recipe) -> str:
    """What ``--zero-stage`` says of the recipe."""
    return PLAIN if recipe.zero_stage is None else str(recipe.zero_stage)


def model_facts(files: ModelFiles) -> ModelFacts:
    """The facts that config.json tells."""
    config = files.config
    dtype = config.get("dtype", config.get("torch_dtype"))
    num_heads, num_kv_heads = (_count(config, name) for name in ("num_attention_heads", "num_key_value_heads"))
    own = Config(config)  # with the defaults of its class for keys that the file leaves out
    slides = isinstance(own.get("sliding_window"), int) and own.get("use_sliding_window") is not False
    return ModelFacts(
        id=files.id,
        model_types=frozenset(_model_types(config)),
        model_type=files.model_type,
        weights_dtype=dtype if isinstance(dtype, str) else None,
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        widest_head=_widest_head(own),
        has_windows=slides,
        attention=files.attention,
        quant_method=files.quant_method,
        is_encoder_decoder=files.is_encoder_decoder,
        indexer_linears=_indexer_linears(files.model_type, own),
        can_checkpoint=files.can_checkpoint,
        files=files,
    )


def _indexer_linears(model_type: str, config: Config) -> tuple[str, ...]:
    if model_type in TOKEN_INDEXING_TYPES:
        return TOKEN_INDEXER_LINEARS
    if model_type in BLOCK_INDEXING_TYPES:
        text = config.section("text_config") if "text_config" in config else config
        names = text.layer_types()
        return BLOCK_INDEXER_LINEARS if names is None or set(names) != {"linear_attention"} else ()
    return INDEXER_LINEARS if model_type in INDEXING_TYPES and CHOOSING in attention_kinds(config) else ()


def _widest_head(config: Config) -> int:
    """Of layers that see everything Gemma 4 names the width apart (``global_head_dim``)."""
    text = config.section("text_config") if "text_config" in config else config
    widths = (text.get(name) for name in ("head_dim", "global_head_dim"))
    return max((width for width in widths if isinstance(width, int)), default=0)


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _model_types(config: Mapping[str, Any]) -> Iterator[str]:
    for value in (config, *config.values()):
        if isinstance(value, Mapping):
            model_type = cast(Mapping[str, Any], value).get("model_type")
            if isinstance(model_type, str):
                yield model_type

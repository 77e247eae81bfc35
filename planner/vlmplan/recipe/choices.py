"""The choices of a recipe: what each of its settings may be, in words of peft, torch and DeepSpeed."""

from collections.abc import Container
from enum import Enum
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.units import Choice, DType


class Part(Choice):
    """What can be frozen separately."""

    VISION = "vision"
    PROJECTOR = "projector"
    LANGUAGE = "language"


class Method(Choice):
    FULL = "full"
    LORA = "lora"
    LORA_8BIT = "lora-8bit"
    """LoRA beside weights in 8 bits: LLM.int8 (Dettmers et al., arXiv 2208.07339), bitsandbytes' ``Linear8bitLt``."""
    QLORA = "qlora"
    """LoRA beside weights in 4 bits."""

    def __init__(self, value: str) -> None:
        self.packs_weights = value in ("qlora", "lora-8bit")
        """Whether bitsandbytes packs the weights of Linears, which stay frozen."""


BITS = {Method.QLORA: 4, Method.LORA_8BIT: 8}
"""Of a packed weight."""
SEARCHED_METHODS = (Method.FULL, Method.LORA, Method.QLORA)
"""Those that a search chooses from. 8 bits are tried where they are asked for: beside QLoRA they take twice the
weights, and inputs of packed Linears that activation checkpointing does not free (``architecture/int8_weight.py``)."""


def lighter_methods(method: Method) -> tuple[Method, ...]:
    """Those that a search chooses from and that take less than ``method``, which comes before them."""
    methods = tuple(Method)
    return tuple(other for other in methods[methods.index(method) + 1 :] if other in SEARCHED_METHODS)


OUTLIER_THRESHOLD = 6.0
"""The size from which on an input's column is computed in 16 bits (``llm_int8_threshold`` of transformers 5.23)."""
OUTLIER_COLUMNS = 7
"""Columns of an input that are planned to reach it. Assumed: the most that Dettmers et al. found in models of up to
13 B parameters (arXiv 2208.07339, section 3.2); a batch decides, and each takes an element of every token."""


class Precision(Choice):
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    BF16_PURE = "bf16-pure"

    def __init__(self, value: str) -> None:
        self.dtype = {"fp16": DType.FLOAT16, "fp32": DType.FLOAT32}.get(value, DType.BFLOAT16)
        """Element type of the forward and backward computation."""
        self.is_mixed = value in ("bf16", "fp16")
        """Whether weights may be wider than what is computed in."""


class OptimizerKind(Choice):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW = "paged-adamw"
    """bitsandbytes' AdamW with moments in float32, whatever the type of the weights is."""
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    LION = "lion"
    """bitsandbytes' Lion: one moment, in float32 whatever the type of the weights is."""
    LION_8BIT = "lion-8bit"
    PAGED_LION = "paged-lion"
    PAGED_LION_8BIT = "paged-lion-8bit"
    MUON = "muon"
    """DeepSpeed's Muon: an orthogonalised momentum for hidden matrices, AdamW for all else."""
    TORCHAO_ADAMW = "torchao-adamw"
    """torchao's AdamW: one compiled kernel a weight, which rounds 16-bit weights stochastically in bf16-pure."""
    TORCHAO_ADAMW_8BIT = "torchao-adamw-8bit"
    TORCHAO_ADAMW_4BIT = "torchao-adamw-4bit"
    ANY_PRECISION_ADAMW = "anyprecision-adamw"
    """EasyR1's ``AnyPrecisionAdamW``: moments in bfloat16, and of each weight what was lost when it was rounded."""

    def __init__(self, value: str) -> None:
        self.has_adamw = value in ("adamw", "muon")
        """Whether torch's AdamW updates, all or what Muon leaves to it."""
        self.is_paged = value.startswith("paged-")
        """Whether large moments lie in host memory, from which the card pages them."""
        self.is_bitsandbytes = self.is_paged or value in ("adamw-8bit", "lion", "lion-8bit")
        """Whether bitsandbytes updates; all of its kernels work in place."""
        self.is_8bit = self.is_bitsandbytes and value.endswith("-8bit")
        """Whether bitsandbytes' moments are bytes with scales."""
        self.is_torchao = value.startswith("torchao-")


TORCHAO_BLOCK = 256
"""Elements per scale of torchao's moments: transformers' ``block_size`` of both (``_get_torchao_optimizer``), and
torchao's own of 8 bits."""
TORCHAO_BITS = {OptimizerKind.TORCHAO_ADAMW_8BIT: 8, OptimizerKind.TORCHAO_ADAMW_4BIT: 4}
"""Of a moment."""


class ShardUnits(Choice):
    """What FSDP2 gathers by itself; all else is gathered with the root."""

    ENDS_TOO = "layers-and-ends"
    """Each layer, the input embedding, and the head, which stays whole from its forward on (accelerate since 1.14)."""
    LAYERS = "layers"
    """Each layer. The root, with both ends, is resharded after forward as they are (accelerate up to 1.13)."""
    LANGUAGE_LAYERS = "language-layers"
    """The same of the language model's layers alone."""
    EMBEDDING_TOO = "layers-and-embedding"
    """Each layer, and the input embedding where the head does not share its weight; the root has the head (verl)."""
    ADAPTERS_TOO = "layers-and-adapters"
    """As ``LAYERS``, and in them each matrix of an adapter by itself (axolotl)."""
    LAST_WHOLE = "layers-last-whole"
    """As ``LAYERS``, but the last layer of each stack stays whole from its forward to its backward, and the root from
    the beginning of forward to the end of backward (NeMo AutoModel)."""
    LANGUAGE_LAST_WHOLE = "language-layers-last-whole"
    """The same of the language model's layers alone: the root has frozen encoders too."""

    def __init__(self, value: str) -> None:
        self.of_language_alone = value.startswith("language-")
        self.keeps_last = value.endswith("-last-whole")


class FlatParameters(Choice):
    """Whether PyTorch shards by FSDP1 (``FullyShardedDataParallel``), which makes one flat parameter of the weights of
    each unit, and whose backward gathers each unit then."""

    NONE = "none"
    """FSDP2."""
    ON_DEMAND = "on-demand"
    """When its own backward begins (accelerate's ``NO_PREFETCH``)."""
    BACKWARD_PRE = "backward-pre"
    """When the backward of the unit behind it begins."""
    BACKWARD_POST = "backward-post"
    """When that is over."""


class AdapterDtype(Choice):
    """Element type of what peft trains. ``TABLE``: what the engine and the precision make of every trained weight."""

    TABLE = "table"
    FLOAT32 = "float32"
    """peft's ``autocast_adapter_dtype=True``: adapters in float32, trained copies of embeddings in the model's type."""
    MODEL = "model"
    """``autocast_adapter_dtype=False``: all in the model's type."""


class WeightDtype(Choice):
    """Element type of the model's own weights as they are loaded, in which they stay under autocast. ``TABLE``: frozen
    ones in 16 bit, trained in float32. DeepSpeed casts all of them when it is made."""

    TABLE = "table"
    FLOAT32 = "float32"
    """All in float32, as TRL loads them unless told otherwise."""
    MODEL = "model"
    """All in 16 bit, trained ones too, as Hugging Face's Trainer has them of a 16-bit checkpoint."""


class Offload(Choice):
    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class AttentionImplementation(Choice):
    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"
    EAGER = "eager"


class LinearAttention(Choice):
    """What computes gated delta nets."""

    TORCH = "torch"
    """transformers' own operations, which run where the packages below are not installed."""
    FLA = "fla"
    """The kernels of flash-linear-attention and causal-conv1d."""


class Batching(Choice):
    """How the samples of a micro batch lie in its tensors."""

    PADDED = "padded"
    """A row for each, as long as the longest."""
    PADDING_FREE = "padding-free"
    """One row of all, one behind the other; each sees itself alone, by its positions (``position_ids``)."""
    PACKED = "packed"
    """The same of rows that samples fill together before they are put into micro batches."""

    @property
    def is_flat(self) -> bool:
        """Whether a micro batch is one row."""
        return self is not Batching.PADDED


class InputGradients(Choice):
    """The results of frozen input embeddings that need gradients where activations are checkpointed. A vision encoder
    behind such a result keeps what backward needs, and backward goes through it, though nothing of it is trained."""

    NONE = "none"
    """None: the bundled trainer's checkpoints are not reentrant and do without."""
    LANGUAGE = "language"
    """The language model's: ms-swift runs frozen encoders without gradients (ms-swift 4.6 ``model/patcher.py``)."""
    ALL = "all"
    """Those of encoders too: Hugging Face's Trainer and TRL (transformers 5.23 ``gradient_checkpointing_enable`` calls
    ``enable_input_require_grads``)."""
    ALWAYS = "always"
    """As ``ALL``, whether or not activations are checkpointed: OpenRLHF, which asks for it beside adapters."""
    PEFT = "peft"
    """As ``ALL``, of models with adapters whose weights are not packed: LLaMA-Factory, for which peft asks (peft 0.21
    ``PeftModel._prepare_model_for_gradient_checkpointing``)."""


class CheckpointKind(Choice):
    """What runs again in backward, and ``use_reentrant`` of ``torch.utils.checkpoint``. That decides how far a layer
    runs again and what is held meanwhile (``architecture/checkpointing.py``), how long tensors live that graph nodes
    hold as attributes, which the inputs of Linears in 8 bits are (``architecture/int8_weight.py``), and under ZeRO-3
    how long frozen weights are whole (``architecture/unreleased.py``)."""

    NON_REENTRANT = "non-reentrant"
    """The first forward of a layer has a graph, which keeps them until the loss is dropped (transformers 5)."""
    REENTRANT = "reentrant"
    """The first forward has none. The second has one, which keeps them until the layer's backward is over: axolotl and
    LLaMA-Factory, unless they are told otherwise."""
    REENTRANT_CALLS = "reentrant-calls"
    """The same of a layer's whole call, with the hooks around its ``forward``, as transformers before 5.23 has it.
    Under ZeRO-3 DeepSpeed from 0.19.3 on keeps frozen weights whole until backward ends then."""
    PARTS = "parts"
    """Not reentrant, and of a layer not the whole but attention, MLP and the norms before them each by itself: NeMo
    AutoModel, of models of its own and of those that see (``apply_submodule_checkpointing``)."""

    @property
    def is_reentrant(self) -> bool:
        return self in (CheckpointKind.REENTRANT, CheckpointKind.REENTRANT_CALLS)


PARTS_OF_LAYERS: Final = (
    ("mlp", "feed_forward", "ffn"),
    ("self_attn", "attention", "attn", "linear_attn"),
    ("input_layernorm", "attention_norm", "layer_norm1", "norm1"),
    ("post_attention_layernorm", "ffn_norm", "layer_norm2", "norm2"),
)
"""Names of the modules of a layer that are checkpointed each by itself; of each tuple the first that there is."""


class BatchesOnGpu(Choice):
    """The micro batches of an optimizer step that are on the GPU at once, and the type in which their pixels came
    there."""

    TURN = "turn"
    """Each while it is its turn; the bundled trainer casts pixels before it sends them."""
    TURN_FLOAT32 = "turn-float32"
    """The same, pixels in float32 as processors make them (NeMo AutoModel)."""
    STEP = "step"
    """All of them from the step's beginning to its end, pixels in the type that is computed in (LLaMA-Factory)."""
    STEP_FLOAT32 = "step-float32"
    """The same, pixels in float32 as processors make them: Hugging Face's Trainer. ``get_batch_samples`` takes all
    micro batches of a step from accelerate's loader, which has moved them (transformers 5.23 ``trainer.py``,
    accelerate 1.15 ``data_loader.py``)."""

    def __init__(self, value: str) -> None:
        self.are_all_of_step = value.startswith("step")
        self.has_wide_pixels = value.endswith("-float32")


class LossKind(Choice):
    CHUNKED = "chunked"
    """Logits chunk by chunk, with their gradient in forward."""
    FULL = "full"
    """Of all logits at once, which the training loop holds through backward (``outputs = model(**batch)``)."""
    MODEL = "model"
    """Of all logits at once, by the model that gets the labels; they go with its outputs before backward. So does
    ``compute_loss`` of Hugging Face's Trainer."""
    TRL = "trl"
    """TRL's fused head: logits in tiles, and once more for their gradient in backward."""
    LIGER = "liger"
    """Liger's fused linear cross entropy: logits chunk by chunk, with their gradient in forward."""
    VERL = "verl"
    """verl's log-probabilities of all logits at once, divided by the temperature in place, whose gradient takes their
    place."""
    VERL_QUOTIENT = "verl-quotient"
    """The same of verl from 0.9 on, of a quotient beside the logits, which go with the model's output."""
    VERL_FUSED = "verl-fused"
    """verl's of 512 tokens at a time, and once more in backward (``use_fused_kernels``)."""
    LOG_SOFTMAX = "log-softmax"
    """LLaMA-Factory's log-probabilities of preferences: of all logits at once, which stay until the reference has run.
    """
    OPENRLHF = "openrlhf"
    """OpenRLHF's log-probabilities, by flash-attn's cross-entropy, of all logits in float32, which its loop of samples
    holds until those of the next micro batch are there."""
    SELECTIVE = "selective"
    """ms-swift's log-probabilities of preferences: of all logits at once, row by row, which go where they are in 16
    bit."""
    TEMPERED = "tempered"
    """ms-swift's log-probabilities of GRPO: the same of answers' logits alone, divided by the temperature in place."""
    TEMPERED_ENTROPY = "tempered-entropy"
    """The same with entropies, whose graph stays until the loss is made (``log_entropy``)."""
    AXOLOTL = "axolotl"
    """axolotl's log-probabilities of preferences: of a copy of all logits, by its kernel, beside the logits
    themselves, which the model's output holds until the reference has run."""
    AXOLOTL_ANSWERS = "axolotl-answers"
    """axolotl's log-probabilities of GRPO: of a copy of the logits of answers, which are divided in place, by its
    kernel."""
    UNSLOTH = "unsloth"
    """Unsloth's log-probabilities of GRPO: logits of answers in chunks, of which only the gradient of hidden states
    stays."""
    BRADLEY_TERRY = "bradley-terry"
    """A reward model's: of one number for each row, by a head that scores every token and of which the last counts."""
    ROWS = "rows"
    """VLM-R1's log-probabilities of GRPO: of all logits at once, whose logarithms stay, row by row."""


TEMPERED = (LossKind.TEMPERED, LossKind.TEMPERED_ENTROPY)
SEARCHED_LOSSES = (LossKind.FULL, LossKind.CHUNKED)
"""Those that a search chooses from."""
CHUNK_ELEMENTS = 2**26
"""Logits per chunk: 256 MiB in float32. A choice: small beside a 2 B model, large enough to keep the product busy."""


def chunk_tokens(vocab_size: int) -> int:
    """Tokens per chunk: the largest power of two whose logits stay within ``CHUNK_ELEMENTS``, at least 16."""
    return max(16, 2 ** (CHUNK_ELEMENTS // vocab_size).bit_length() // 2)


def liger_chunk_tokens(num_tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Tokens per chunk of Liger's fused loss: a power of two, so many that their logits are about as large as all
    hidden states (``fused_linear_cross_entropy_forward`` of liger-kernel 0.8.5).

    >>> liger_chunk_tokens(16384, 4096, 32000)
    2048
    """
    growth = -(-vocab_size // hidden_size)
    return min(num_tokens, 1 << (-(-num_tokens // growth) - 1).bit_length())


ALPHA_PER_RANK = 2
"""``lora_alpha`` is this times the rank where it is not said. A choice."""
ALL_LINEAR = "all-linear"
"""peft's name for every Linear but the output head."""
ATTENTION = "attention"
"""The value of ``lora_targets`` that means the Linears of the language model's attention."""
REGEX = "regex:"
"""How ``lora_targets`` and ``lora_exclude`` begin that are a regular expression of whole names, as peft has it."""
MAX_PATTERN_CHARACTERS = 10_000
"""Of a regular expression. A choice: Unsloth's for the tower and the language model of Gemma 4 E2B has 1,275."""
DEFAULT_INIT, OLORA, PISSA = "default", "olora", "pissa"
LORA_INITS = (DEFAULT_INIT, "gaussian", OLORA, PISSA)
PISSA_ITERATIONS = "pissa_niter_"
"""Before a number: PiSSA with so many subspace iterations in place of a whole decomposition."""
MAX_PISSA_ITERATIONS = 1000
"""A choice, far above the 16 that its authors use."""


def enum_value(kind: type[Enum], value: Any, name: str) -> Any:
    """The member of ``kind`` whose value is ``value``; InputError names ``name`` and the allowed values."""
    for member in kind:
        if member.value == value:
            return member
    raise InputError(f"{name} is {value!r}; one of {', '.join(str(member.value) for member in kind)} is needed")


def num_tiles(num_tokens: int, width: int) -> int:
    """Tiles in which an MLP of this width runs over samples of ``num_tokens``, as Arctic Long Sequence Training has
    them; 1: there is nothing to be tiled.

    >>> num_tiles(131072, 4096), num_tiles(4096, 4096), num_tiles(4097, 4096)
    (32, 1, 2)
    """
    return -(-num_tokens // width)


MOST_TILES = 4096
"""From so many on tiles are not tried unasked. A choice: under ZeRO-3 each of them fetches weights."""


def is_worth_tiling(num_tokens: int, width: int) -> bool:
    """Whether samples have more than one tile, and not too many."""
    return 1 < num_tiles(num_tokens, width) <= MOST_TILES


def is_gated_mlp(names: Container[str]) -> bool:
    """Whether a module with these modules inside is a gated MLP, which can be tiled where it is a layer's ``mlp``."""
    return "down_proj" in names and ("gate_proj" in names or "gate_up_proj" in names)

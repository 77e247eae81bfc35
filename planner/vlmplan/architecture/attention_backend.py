"""Which attention a model asks for, and which kernel a GPU really runs.

Source: torch 2.13 ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``; flash-attn for ``flash_attention_2``.
"""

from dataclasses import dataclass

from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.hardware import CPU_KERNELS
from vlmplan.units import Choice, DType


class Kernel(Choice):
    """The kernels behind ``attn_implementation``."""

    FLASH = "flash"  # torch's flash kernel or the flash-attn library
    EFFICIENT = "efficient"  # torch's memory-efficient kernel: takes masks, and grouped heads from torch 2.14 on
    MATH = "math"  # torch's fallback: scores in float32
    EAGER = "eager"  # transformers' own, scores in the model's type with an fp32 softmax


LARGE_HEAD_DIM = 256
"""Widest head of the flash kernel."""
PADDED_ROWS = 128
"""Of the workspaces of flash-attn's backward: their rows are a multiple of this (``mha_bwd`` in
``csrc/flash_attn/flash_api.cpp``), or so many more for each sample of a row (``mha_varlen_bwd``)."""
SMALL_HEAD_DIM = 224
"""Widest head that it can train where shared memory is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    """How attention runs on one GPU.

    ``implementation`` is transformers' ``attn_implementation``; ``compute_capability`` decides which kernel ``sdpa``
    reaches. ``sequence_parallel`` ranks share each sample. ``sequences`` are the lengths of the samples in the one row
    of a micro batch, in each of which causal attention is by itself.
    """

    implementation: str = "sdpa"
    compute_capability: tuple[int, int] = (8, 0)
    sequence_parallel: int = 1
    sequences: PackedLengths | None = None
    gets_mask: bool = False
    """Whether a mask of padding comes with the samples, so that each has a mask of attention of its own."""
    uses_fla: bool = False
    """Whether gated delta nets are the kernels of flash-linear-attention and causal-conv1d."""
    groups_efficient_heads: bool = False
    """Whether the memory-efficient kernel takes grouped heads (``TorchVersion``)."""
    packed_dtype: DType | None = None
    """Element type of the configuration of a model whose weights are packed; None for any other."""

    def kernel_dtype(self, dtype: DType, autocast: DType | None) -> DType:
        """The type in which a fused kernel gets q, k and v of ``dtype``. Without autocast transformers casts float32
        for flash_attention_2 to that of the configuration where weights are packed (``get_target_dtype`` in
        ``integrations/flash_attention.py``)."""
        casts = self.implementation == "flash_attention_2" and dtype is DType.FLOAT32
        return autocast or (self.packed_dtype if casts else None) or dtype

    @property
    def is_packed(self) -> bool:
        """Whether a row has more than one sample."""
        return self.sequences is not None and self.sequences.count > 1

    @property
    def has_workspaces(self) -> bool:
        """Whether kernels of attention make room for more than their results: on a CPU they make none."""
        return self.compute_capability != CPU_KERNELS

    @property
    def has_small_shared_memory(self) -> bool:
        return self.compute_capability in ((8, 6), (8, 9)) or self.compute_capability[0] == 12

    def kernel(
        self, *, head_dim: int, is_grouped: bool, has_mask: bool, dtype: DType, value_dim: int | None = None
    ) -> Kernel:
        """The kernel for one attention call; ``value_dim`` is the width of a head's values where it is another.

        Source: ``sdp_utils.cpp``: flash needs compute capability 8.0, a 16-bit type, no mask, a head of at most 256,
        as wide in values as in keys (``check_head_dim_size_flash``), and for training a head of at most 224 where
        shared memory is small (8.6, 8.9, 12.x). The memory-efficient kernel takes grouped heads from torch 2.14 on;
        before, sdpa with ``enable_gqa`` falls through to math where flash cannot run. Below 8.0 it takes no bf16
        (``less_than_sm80_mem_efficient_dtypes``), so that all of it does. On a CPU it is flash that takes masks and
        float32, which saves as much as the memory-efficient kernel does.
        """
        if self.implementation == "eager":
            return Kernel.EAGER
        if self.implementation == "flash_attention_2":
            return Kernel.FLASH
        is_ampere = self.compute_capability >= (8, 0) or not self.has_workspaces
        runs_flash = (
            is_ampere
            and dtype is not DType.FLOAT32
            and not has_mask
            and value_dim in (None, head_dim)
            and head_dim <= (SMALL_HEAD_DIM if self.has_small_shared_memory else LARGE_HEAD_DIM)
        )
        if runs_flash:
            return Kernel.FLASH
        is_emulated = dtype is DType.BFLOAT16 and not is_ampere
        is_refused = is_grouped and not has_mask and not self.groups_efficient_heads
        return Kernel.MATH if is_emulated or is_refused else Kernel.EFFICIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a model does with its attention scores besides scaling and masking them.

    ``caps`` them through ``tanh`` (Gemma 2); drops weights out with probability ``dropout``; ``upcasts`` is False where
    the eager softmax stays in the model's type (GPT-2). ``casts_back``: what autocast or that makes of the softmax is
    cast to the queries' type, where it is not left to the product to do so (BART). ``are_in_order``: queries, keys and
    values lie head after head, so that products of several samples copy none (Whisper).
    """

    caps: bool = False
    dropout: float = 0.0
    upcasts: bool = True
    casts_back: bool = True
    are_in_order: bool = False


PLAIN_SCORES = Scores()

"""Attention as families call it: by the kernel that runs, among all samples, within each, or over all ranks' tokens.

Shapes: q (batch, heads, tokens, head_dim); k and v (batch, kv_heads, keys, head_dim). Source: transformers 5.23
``integrations/sdpa_attention.py`` and the ``eager_attention_forward`` of the models.
"""

from dataclasses import dataclass, field, replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import (
    LARGE_HEAD_DIM,
    PADDED_ROWS,
    PLAIN_SCORES,
    AttentionBackend,
    Kernel,
    Scores,
)
from vlmplan.architecture.attention_kernels import bias_of, eager_attention, fused_attention, math_attention, repeat_kv
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.ops.layout import JoinedTensor
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.sequence_parallel import heads_gathered, tokens_gathered
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError
from vlmplan.units import DType


@dataclass(slots=True)
class KeyCache:
    """Keys and values that transformers' ``DynamicCache`` keeps of every layer while text is generated: copies, as it
    joins them to what it has. ``num_bytes`` of a section's layer, ``layer_bytes`` the most of one. No token makes its
    ``state_bytes`` more: states of linear attention and of convolutions, which each writes over
    (``LinearAttentionLayer`` in transformers 5.23 ``cache_utils.py``).

    A layer with a sliding window lets go of older ones when the first token is generated, which is left out.
    ``is_past_prompt``: the forward is one of a generated token on a GPU, for which ``generate`` of transformers runs
    experts otherwise (``Experts._decode``).
    """

    is_past_prompt: bool = False
    num_bytes: dict[str, int] = field(default_factory=dict[str, int])
    state_bytes: dict[str, int] = field(default_factory=dict[str, int])
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def layer_bytes(self) -> int:
        return max(self.num_bytes.values(), default=0)

    def kept_pair(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The copies that are kept of keys and values, which attention reads. Values are joined to an empty tensor of
        the keys' type (``DynamicLayer.lazy_initialization``)."""
        return self.kept(k), self.kept(v, ops.promoted(k.dtype, v.dtype))

    def kept(self, x: Tensor, dtype: DType | None = None) -> Tensor:
        """The copy that is kept of keys or values, of another ``dtype`` where that is said."""
        copy = x.tape.tensor(x.shape, dtype or x.dtype)
        x.tape.move(2 * copy.num_bytes)
        self.hold(copy)
        return copy

    def hold(self, *tensors: Tensor) -> None:
        """Keep tensors as they are."""
        for x in tensors:
            section = x.tape.running_section
            self.num_bytes[section] = self.num_bytes.get(section, 0) + x.num_bytes
            self.tensors.append(x)
            x.tape.note_cached(x, grows=True)

    def hold_state(self, state: Tensor) -> None:
        """Keep a state as it is; a generated token writes over the one that is there."""
        if self.is_past_prompt:
            return
        tape = state.tape
        section = tape.running_section
        self.state_bytes[section] = self.state_bytes.get(section, 0) + state.num_bytes
        self.tensors.append(state)
        tape.note_cached(state, grows=False)


def keep_state(x: Tensor, *shape: int) -> None:
    """Where text is generated, a copy is kept of x, or of a part of this ``shape``."""
    tape = x.tape
    if tape.key_cache is None or tape.key_cache.is_past_prompt:
        return
    state = tape.tensor(shape or x.shape, x.dtype)
    tape.move(2 * state.num_bytes)
    tape.key_cache.hold_state(state)


def cached(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as attention that is written out reads them: the copies that are kept where text is generated."""
    cache = k.tape.key_cache
    return (k, v) if cache is None else cache.kept_pair(k, v)


def position_rows(x: Tensor) -> int:
    """Rows of positions of x (samples, tokens, ...): all samples share one, but where text is generated, for which
    ``generate`` counts the tokens of each (``prepare_inputs_for_generation`` in ``generation/utils.py``)."""
    return 1 if x.tape.key_cache is None else x.shape[0]


def rotary_tables(tape: ForwardTape, shape: tuple[int, ...], dtype: DType) -> tuple[Tensor, Tensor]:
    """cos and sin, as ``LlamaRotaryEmbedding`` makes them: of angles in float32, written out twice for the halves of a
    head, each multiplied by the model's factor, then both cast."""
    passing = Kind.TEMPORARY
    with tape.charged_to(passing):
        angles = [tape.tensor((*shape[:-1], shape[-1] // 2), DType.FLOAT32), tape.tensor(shape, DType.FLOAT32)]
    wide: list[Tensor] = []
    with tape.charged_to(tape.kind if dtype is DType.FLOAT32 else passing):
        for _ in ("cos", "sin"):
            bare = tape.tensor(shape, DType.FLOAT32)
            wide.append(tape.tensor(shape, DType.FLOAT32))
            del bare
    cos, sin = wide if dtype is DType.FLOAT32 else [tape.tensor(shape, dtype) for _ in wide]
    del angles, wide
    return cos, sin


def tables_of_axes(
    tape: ForwardTape, angles: tuple[int, ...], shape: tuple[int, ...], dtype: DType, *, joined: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """cos and sin of positions that have several axes: of ``angles`` in float32 for every axis, each multiplied by the
    model's factor, then the share of each axis written into one tensor of the shape ``joined``, where that is one of
    its own, and into the halves of a head; then both cast (``recomposition_frequencies``)."""
    passing = Kind.TEMPORARY
    with tape.charged_to(passing):
        numbers = tape.tensor((*angles[:-1], 1), DType.FLOAT32)
        frequencies = tape.tensor(angles, DType.FLOAT32)
        del numbers
        waves: list[Tensor] = []
        for _ in ("cos", "sin"):
            bare = tape.tensor(angles, DType.FLOAT32)
            waves.append(tape.tensor(angles, DType.FLOAT32))
            del bare
    wide: list[Tensor] = []
    with tape.charged_to(tape.kind if dtype is DType.FLOAT32 else passing):
        while waves:
            row = tape.tensor(joined, DType.FLOAT32) if joined else None
            wide.append(tape.tensor(shape, DType.FLOAT32))
            del row
            waves.pop()
    cos, sin = wide if dtype is DType.FLOAT32 else [tape.tensor(shape, dtype) for _ in wide]
    del frequencies, wide
    return cos, sin


def by_head(x: Tensor, num_heads: int) -> Tensor:
    """Queries or keys that will be rotated, (batch, tokens, heads * width), seen by head: a view. Their gradient lies
    head after head, as ``slice_backward`` of the rotated halves writes it, and ``ViewBackward0`` copies it into rows,
    unless both orders are one."""
    batch, num_tokens, width = x.shape
    return ops.in_rows(x, batch, num_heads, num_tokens, width // num_heads)


def writes_by_head(backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, has_mask: bool) -> tuple[bool, bool]:
    """Whether gradients of queries, and of keys and values, come head after head out of ``attend``: products write them
    so, and sums over the copies of grouped keys and values (``expand`` in ``derivatives.yaml``). Fused kernels lay them
    out like what they were given."""
    if backend.sequence_parallel > 1:
        return False, False
    kernel, is_expanded = _kernel_of(backend, q, k, v, has_mask=has_mask)
    is_written_out = kernel in (Kernel.EAGER, Kernel.MATH)
    return is_written_out, is_written_out or is_expanded


def values_by_head(backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, has_mask: bool) -> Tensor:
    """Values as they were projected, for ``attend``."""
    return ops.in_rows(v, *v.shape) if writes_by_head(backend, q, k, v, has_mask=has_mask)[1] else v


def by_kernel(
    backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, has_mask: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as they were projected, whose gradients lie as ``attend`` leaves them: operations on
    single elements keep the order."""
    queries, others = writes_by_head(backend, q, k, v, has_mask=has_mask)
    wanted = (queries, others, others)
    q, k, v = (ops.in_rows(x, *x.shape) if moves else x for x, moves in zip((q, k, v), wanted, strict=True))
    return q, k, v


def attend(
    backend: AttentionBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    mask: Tensor | None = None,
    scores: Scores = PLAIN_SCORES,
    lengths: PackedLengths | None = None,
    calls: PackedLengths | None = None,
    is_cached: bool | None = None,
) -> Tensor:
    """Attention of q over k and v; the result has shape (batch, tokens, heads * width of a head's values).

    ``mask`` is the boolean mask (batch or 1, 1, tokens, keys) that transformers builds where plain causality is not
    enough: sliding windows shorter than the sequence, prefix or image blocks that see each other. The fused kernels
    cap and drop without keeping anything more than the state of a random generator.
    ``lengths`` are those of the sequences that are packed into the tokens (flash_attention_2's ``cu_seqlens``).
    ``calls``: the same where each sequence is a call of the kernel of its own, see ``joins_calls``.
    ``is_cached``: whether k and v are kept while text is generated; None: where attention is causal.
    """
    if backend.sequence_parallel > 1:
        return _attend_to_all_ranks(backend, q, k, v, is_causal=is_causal, scores=scores)
    if q.tape.key_cache is not None and (is_causal if is_cached is None else is_cached):
        k, v = q.tape.key_cache.kept_pair(k, v)
    num_heads, head_dim, value_dim = q.shape[1], q.shape[-1], v.shape[-1]
    _check_head_width(backend, num_heads, head_dim)
    tape, num_kv_heads = q.tape, k.shape[1]
    tape.widest_head = max(tape.widest_head, head_dim)
    kernel, is_expanded = _kernel_of(backend, q, k, v, has_mask=mask is not None)
    if is_expanded:
        k, v = (repeat_kv(x, num_heads, copies=num_kv_heads > 1) for x in (k, v))
    if kernel is Kernel.EAGER:
        is_masked = mask is not None or is_causal
        return eager_attention(q, k, v, mask=mask, is_masked=is_masked, rules=scores, num_kv_heads=num_kv_heads)
    if kernel is Kernel.FLASH and value_dim < head_dim:
        v = chunks.pad(v, *k.shape)  # flash_attention_forward pads values, and cuts the result
    given = q, k, v  # whoever calls torch holds what is given until the result is there
    if tape.autocast is not None:
        v, k, q = (ops.to(x, tape.autocast) for x in reversed(given))  # the last argument first (``ops.matmuls``)
    else:
        q, k, v = (ops.to(x, backend.kernel_dtype(x.dtype, None)) for x in given)
    if kernel is Kernel.MATH:
        bias = None if mask is None else bias_of(mask, q.dtype)
        in_order = scores.are_in_order
        return math_attention(
            *(q, k, v),
            is_causal=is_causal and mask is None,
            dropout=scores.dropout,
            mask=bias,
            are_in_order=(in_order or isinstance(given[0], JoinedTensor), in_order or num_kv_heads < num_heads),
        )
    out = _fused(backend, kernel, q, k, v, is_causal=is_causal, mask=mask, lengths=lengths, calls=calls)
    if v.shape[-1] == value_dim:
        return out
    cut = ops.slice_last(out, num_heads * value_dim)
    return ops.copy(cut, *cut.shape)


def attend_alone(
    backend: AttentionBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    calls: PackedLengths | None,
    scores: Scores = PLAIN_SCORES,
) -> Tensor:
    """Attention of patches that all see each other, for a layer that keeps no attention weights."""
    out = attend(backend, q, k, v, is_causal=False, calls=calls, scores=scores)
    q.tape.layer_locals.clear()
    return out


def _kernel_of(backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, has_mask: bool) -> tuple[Kernel, bool]:
    """The kernel, and whether keys and values are repeated for it, a head for each of the queries'."""
    head_dim, is_grouped = q.shape[-1], k.shape[1] != q.shape[1]
    # ``use_gqa_in_sdpa``: a mask or a wide head keeps transformers from leaving grouped heads to the kernel.
    is_left_grouped = is_grouped and not has_mask and head_dim <= LARGE_HEAD_DIM
    dtype = q.tape.autocast or q.dtype
    kernel = backend.kernel(
        head_dim=head_dim, is_grouped=is_left_grouped, has_mask=has_mask, dtype=dtype, value_dim=v.shape[-1]
    )
    is_expanded = is_grouped and not is_left_grouped and kernel is not Kernel.FLASH
    return kernel, is_expanded or kernel is Kernel.EAGER


def _fused(
    backend: AttentionBackend,
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    mask: Tensor | None,
    lengths: PackedLengths | None,
    calls: PackedLengths | None,
) -> Tensor:
    """``attend`` by a fused kernel, over the tokens of each packed sequence alone where some are packed."""
    batch, num_heads, num_tokens, _ = q.shape
    own = backend.sequences if is_causal and mask is None and backend.is_packed else None
    packed = lengths or calls or own
    num_pairs = batch * num_tokens * k.shape[2] if packed is None else packed.num_pairs
    is_causal = is_causal and mask is None  # a kernel with a mask skips nothing
    in_one_call = lengths or own
    num_padded_rows = 0 if in_one_call is None else PADDED_ROWS * in_one_call.count
    rows = {"num_pairs": num_pairs, "num_padded_rows": num_padded_rows}
    out = fused_attention(backend, kernel, q, k, v, is_causal=is_causal, mask=mask, calls=calls, **rows)
    return out.view(batch, num_tokens, num_heads * v.shape[-1])


def _check_head_width(backend: AttentionBackend, num_heads: int, head_dim: int) -> None:
    if head_dim == 0:
        raise InputError(f"config.json: {num_heads:,} attention heads are more than their layer is wide")
    if backend.implementation == "flash_attention_2" and head_dim > LARGE_HEAD_DIM:
        raise InputError(
            f"--attention flash_attention_2 takes attention heads of at most {LARGE_HEAD_DIM}; "
            f"those of this model are {head_dim} wide: give --attention sdpa"
        )


def _attend_to_all_ranks(
    backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scores: Scores
) -> Tensor:
    """Attention of this rank's heads over the tokens of all ranks of a sample. A mask of this rank's tokens is thrown
    away (``uattn_wrapper``)."""
    num_ranks, batch = backend.sequence_parallel, q.shape[0]
    q, k, v = heads_gathered(q, k, v, num_ranks)
    alone = replace(backend, sequence_parallel=1)
    context = attend(alone, q, k, v, is_causal=is_causal, scores=scores)
    if batch * q.shape[1] > 1:
        context = heads_together(alone, q, k, context, has_mask=False)
    return tokens_gathered(context, num_ranks)


def joins_calls(backend: AttentionBackend, q: Tensor, k: Tensor, lengths: PackedLengths) -> bool:
    """Whether one ``attend`` with ``calls`` leaves the trace that one call for each of the ``lengths`` leaves.

    It does where a fused kernel allocates nothing but what it saves and one workspace at a time. Backward runs the
    first call last, when the gradients of all others are there: that is the peak, if no other call is larger. A tape
    that logs storages needs every call.
    """
    tape, head_dim = q.tape, q.shape[-1]
    is_grouped, dtype = k.shape[-3] != q.shape[-3], tape.autocast or q.dtype
    kernel = backend.kernel(head_dim=head_dim, is_grouped=is_grouped, has_mask=False, dtype=dtype)
    is_fused = kernel in (Kernel.FLASH, Kernel.EFFICIENT) and backend.kernel_dtype(q.dtype, tape.autocast) is q.dtype
    return is_fused and not tape.runs_every_call and lengths.first == lengths.longest


def heads_together(
    backend: AttentionBackend, q: Tensor, k: Tensor, out: Tensor, *, has_mask: bool, value_dim: int | None = None
) -> Tensor:
    """The result of ``attend`` where q lies in memory head after head, as a concatenation leaves it.

    Flash kernels lay out their result like q (``empty_like``), so that transformers' ``contiguous()`` has to copy it.
    """
    dtype = q.tape.autocast or q.dtype
    is_grouped = k.shape[1] != q.shape[1]
    kernel = backend.kernel(
        head_dim=q.shape[-1], is_grouped=is_grouped, has_mask=has_mask, dtype=dtype, value_dim=value_dim
    )
    if backend.implementation == "flash_attention_2" and value_dim not in (None, q.shape[-1]):
        return out  # what was cut has been copied
    # On CPU (no workspaces) it is the flash kernel that takes masks.
    copies = kernel is Kernel.FLASH or (kernel is Kernel.EFFICIENT and not backend.has_workspaces)
    return ops.copy(out) if copies else out

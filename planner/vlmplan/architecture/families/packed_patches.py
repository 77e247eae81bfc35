"""Vision transformers over the patches of all images in one sequence: what Qwen2-VL to Qwen3-VL and GLM-4V share.

Source: transformers 5.23 ``models/{qwen2_vl,qwen2_5_vl,qwen3_vl,glm4v}/modeling_*.py`` (``VisionAttention`` and its
copies, the ``forward`` of the models).
"""

from collections.abc import Callable, Mapping, Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, attend_alone, joins_calls, tables_of_axes
from vlmplan.architecture.attention_backend import PLAIN_SCORES, AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import Decoder, RotaryContext
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Embedding, Linear, Module, PatchEmbedding
from vlmplan.architecture.packed_lengths import PackedLengths, shares
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

NUM_TAPS = 4
"""Learned positions that one patch interpolates between (bilinear)."""


class PatchContext(RotaryContext):
    """Rotary positions of the patches, and how many patches attend to each other.

    ``lengths`` are the patches of each image, ``windows`` those of each attention window, which may be the image.
    """

    __slots__ = ("lengths", "windows")

    def __init__(
        self,
        backend: AttentionBackend,
        positions: tuple[Tensor, Tensor],
        lengths: PackedLengths,
        windows: PackedLengths | None = None,
    ) -> None:
        super().__init__(backend, *positions)
        self.lengths, self.windows = lengths, windows or lengths


class PatchAttention(Module):
    """Attention with fused q, k, v and rotary positions in float32, among the patches of each image or window."""

    OUTPUT = "proj"
    """The name of the output projection."""
    scores = PLAIN_SCORES

    def __init__(self, width: int, num_heads: int, *, qkv_bias: bool = True, output_bias: bool = True) -> None:
        self.num_heads = num_heads
        self.make_projections(width, bias=qkv_bias)
        setattr(self, self.OUTPUT, Linear(width, width, bias=output_bias))

    def make_projections(self, width: int, *, bias: bool) -> None:
        self.qkv = Linear(width, 3 * width, bias=bias)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
        """q, k and v of the patches x (patches, width)."""
        return parts_by_head(self.qkv(x), head)

    def forward(self, x: Tensor, context: PatchContext, lengths: PackedLengths | None = None) -> Tensor:
        """``lengths``: of what sees itself alone; None: of each image."""
        num_patches, width = x.shape
        head_dim = width // self.num_heads
        head = (self.num_heads, num_patches, head_dim)
        q, k, v = self.projected(x, head)
        q, k = self.rotated(q, k, context)
        return attended_apart(
            (q, k, v),
            context.backend,
            lengths or context.lengths,
            lambda out: self.output(out.view(*x.shape)),
            scores=self.scores,
        )

    def rotated(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """Queries and keys with their positions."""
        return rotated_in_float32(q, k, context)

    def output(self, x: Tensor) -> Tensor:
        return getattr(self, self.OUTPUT)(x)


class PatchBlock(Module):
    """Pre-norm attention among the patches of each image, or of each window where it ``sees_windows``, and an MLP."""

    norm1: Module
    norm2: Module
    attn: PatchAttention
    mlp: Module
    sees_windows = False

    def forward(self, x: Tensor, context: PatchContext) -> Tensor:
        lengths = context.windows if self.sees_windows else context.lengths
        x = ops.add(x, self.attn(self.norm1(x), context, lengths))
        return ops.add(x, self.mlp(self.norm2(x)))


def parts_by_head(qkv: Tensor, head: tuple[int, int, int]) -> Sequence[Tensor]:
    """q, k and v, side by side in each row of ``qkv``. Their gradients are stacked one behind the other, and copied
    into rows (``UnbindBackward0``, then that of the view)."""
    return ops.split(ops.part(qkv, *qkv.shape), head, head, head)


def attended_apart(
    parts: Sequence[Tensor],
    backend: AttentionBackend,
    lengths: PackedLengths,
    project: Callable[[Tensor], Tensor],
    *,
    scores: Scores = PLAIN_SCORES,
) -> Tensor:
    """Attention among the patches of each of the sequences of ``lengths`` alone, and ``project`` behind it.

    ``parts``: q, k and v (heads, patches, head_dim), of which k and v may have fewer heads; ``project`` takes
    (patches, width).
    """
    num_heads, num_patches, head_dim = parts[0].shape
    shape = (num_patches, num_heads * head_dim)
    if backend.implementation == "flash_attention_2":
        q, k, v = (part.view(1, *part.shape) for part in parts)
        return project(attend(backend, q, k, v, is_causal=False, lengths=lengths).view(*shape))
    # The lists live until the end of this function as they do there.
    calls = lengths if joins_calls(backend, parts[0], parts[1], lengths) else None
    # Equal sequences that are recorded at once are heads of one: a call has one sample, whose heads take no copies.
    sizes = list(lengths.calls()) if calls is None else [(num_patches, 1)]
    pieces = [
        ops.split(part, *[(1, count * part.shape[0], length, head_dim) for length, count in sizes]) for part in parts
    ]
    outs = [attend_alone(backend, *piece, calls=calls, scores=scores) for piece in zip(*pieces, strict=True)]
    out = ops.concatenate(outs, shape)
    return project(out)


def rotated_in_float32(q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_vision``: both cast to float32, rotated, and cast back."""
    dtype = q.dtype
    q, k = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    q_rotated = ops.rotate(q, context.cos, context.sin)
    k_rotated = ops.rotate(k, context.cos, context.sin)
    q_rotated = ops.to(q_rotated, dtype)
    k_rotated = ops.to(k_rotated, dtype)
    return q_rotated, k_rotated


class FramePatchEmbedding(PatchEmbedding):
    """Over a few frames: ``nn.Conv3d``."""

    KERNEL_AXES = 3


class PatchEmbed(ReadingModule):
    """A convolution over one patch of a few frames: one product. It reads the convolution's weight for the type that
    pixels are cast to."""

    def __init__(self, config: Config, width: int, *, bias: bool = False) -> None:
        self.patch_numel = (
            config.integer("in_channels") * config.integer("temporal_patch_size") * config.integer("patch_size") ** 2
        )
        self.proj = FramePatchEmbedding(self.patch_numel, width, bias=bias)

    def read_modules(self) -> Sequence[Module]:
        return (self.proj,)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(ops.to(pixels, self.proj.weight.dtype))


def patch_lengths(batch: Batch) -> PackedLengths:
    """Patches of each image of the batch, and of each row of a video."""
    assert batch.image is not None
    image = batch.image
    return PackedLengths(((image.num_patches_per_sequence, image.num_vision_sequences),), batch.num_images)


def num_patches(batch: Batch) -> int:
    """Patches of all images of the batch."""
    assert batch.image is not None
    return batch.image.num_patches * batch.num_images


def patch_positions(x: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin of the patches' rows and columns, in float32, as ``Qwen2VLVisionRotaryEmbedding`` makes them."""
    num_patches, half = x.shape[0], (x.shape[0], head_dim // 2)
    angles = (num_patches, 2, head_dim // 4)
    return tables_of_axes(x.tape, angles, (num_patches, head_dim), DType.FLOAT32, joined=half)


def interpolated_positions(table: Embedding, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Learned positions of the patches x (patches, width), in float32, each between ``NUM_TAPS`` of a square ``table``;
    and which those are, with their weights. Source: ``get_vision_interpolation_indices_and_weights`` in
    ``vision_utils.py``."""
    tape, taps = x.tape, (x.shape[0], NUM_TAPS)
    indices, weights = tape.tensor(taps, DType.INT64), tape.tensor((*taps, 1), DType.FLOAT32)
    return ops.total(ops.mul(table(indices), weights), x.shape), (indices, weights)


def joined_features(features: Tensor, num_images: int) -> Tensor:
    """The features of all images, split by image by the encoder and concatenated again by its caller: a copy."""
    return ops.concatenate(by_image(features, num_images), features.shape)


def by_image(features: Tensor, num_images: int) -> Sequence[Tensor]:
    """Views of the features (tokens, width) of each image; of very many, of several images at once."""
    num_tokens, width = features.shape
    return ops.split(features, *[(num_tokens // num_images * share, width) for share in shares(num_images)])


def scattered(ids: Tensor, embeddings: Tensor, features: Tensor) -> Tensor:
    """Image features put in the place of their placeholder tokens."""
    return ops.masked_scatter(embeddings, ids.tape.tensor(ids.shape, DType.BOOL), features)


def token_positions(ids: Tensor) -> Tensor:
    """``position_ids``: time, height and width of every token."""
    return ids.tape.tensor((3, *ids.shape), DType.INT64)


class MultimodalDecoder(Decoder):
    """A decoder whose tokens have a position in time, height and width, so that samples differ."""

    joins_axes = True
    """Whether the angles of each axis are cut out and joined, ahead of being written out twice."""

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin in the model's type, for every sample, as ``Qwen2VLRotaryEmbedding`` makes them."""
        shape = (x.shape[0], 1, x.shape[1], self.rotary_width)
        half = (*shape[:-1], self.rotary_width // 2)
        return tables_of_axes(x.tape, (3, *half), shape, x.dtype, joined=half if self.joins_axes else ())


class InterleavedDecoder(MultimodalDecoder):
    """One whose axes take turns: those of height and width are put into the angles of time, in place."""

    joins_axes = False


class Sequential(Module):
    """``nn.Sequential`` and ``nn.ModuleList``: children named by position; those without weights are left out."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules_by_name.update(modules)

    def __getitem__(self, name: str) -> Module:
        return self.modules_by_name[name]

    def replace(self, name: str, module: Module) -> None:
        self.modules_by_name[name] = module

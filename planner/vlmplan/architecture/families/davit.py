"""DaViT, the vision tower of Florence-2: stages of convolutions, attention within windows, and attention of channels.

Source: transformers 5.23 ``models/florence2/modeling_florence2.py`` (``Florence2VisionBackbone``). No block of it runs
again in backward.

Shapes are (pictures, rows, columns, channels): behind the first norm all lie in memory so, and convolutions leave them
there. Copies are where a layout forces one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Kernel, Scores
from vlmplan.architecture.attention_kernels import eager_attention
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.qianfan_ocr import of_kept_samples
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

DEPTHWISE_KERNEL = 3
WRITTEN_OUT = Scores(upcasts=False, casts_back=False)
"""``eager_attention_forward``: the softmax is in the scores' type."""


class StageShape(NamedTuple):
    """The dimensions of a stage: its convolution's, and those of its blocks."""

    in_channels: int
    width: int
    num_blocks: int
    kernel: int
    stride: int
    padding: int
    norms_first: bool
    num_heads: int
    num_groups: int
    inner_width: int
    window: int
    activation: str
    qkv_bias: bool

    def smaller(self, side: int) -> int:
        """Rows of the stage of so many of what comes in.

        >>> StageShape(3, 128, 1, 7, 4, 3, False, 4, 4, 512, 12, "gelu", True).smaller(768)
        192
        """
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


class Convolution(Module):
    """``nn.Conv2d`` with a bias."""

    def __init__(self, channels_of_group: int, width: int, kernel: int) -> None:
        self.weight = Parameter(width, channels_of_group, kernel, kernel)
        self.bias = Parameter(width)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        return ops.convolution(x, self.weight, self.bias, (x.shape[0], rows, columns, self.bias.shape[0]))


def _depthwise(width: int) -> Convolution:
    """One filter for each channel, which keeps rows and columns."""
    return Convolution(1, width, DEPTHWISE_KERNEL)


class ConvEmbed(Module):
    """``Florence2VisionConvEmbed``."""

    def __init__(self, shape: StageShape) -> None:
        self.shape = shape
        self.conv = Convolution(shape.in_channels, shape.width, shape.kernel)
        self.norm = LayerNorm(shape.in_channels if shape.norms_first else shape.width)

    def forward(self, x: Tensor) -> Tensor:
        norms_first, (_, rows, columns, _) = self.shape.norms_first, x.shape
        if norms_first:
            x = self.norm(x)
        x = self.conv(x, self.shape.smaller(rows), self.shape.smaller(columns))
        return x if norms_first else self.norm(x)


class Mlp(Module):
    """``Florence2VisionMLP``."""

    def __init__(self, shape: StageShape) -> None:
        self.activation_fn = ops.activation_module(shape.activation)
        self.fc1 = Linear(shape.width, shape.inner_width, bias=True)
        self.fc2 = Linear(shape.inner_width, shape.width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.activation_fn(x)
        return self.fc2(x)


class FusedAttention(Module):
    """Attention of one projection, whose parts lie apart, so that the gradient that they make together is copied."""

    def __init__(self, shape: StageShape) -> None:
        self.shape = shape
        self.qkv = Linear(shape.width, 3 * shape.width, bias=shape.qkv_bias)
        self.qkv.copies_gradient = True
        self.proj = Linear(shape.width, shape.width, bias=True)


class WindowAttention(FusedAttention):
    """``Florence2VisionWindowAttention``: among the places of each square window, behind padding to whole windows."""

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        side, num_heads, (pictures, rows, columns, width) = self.shape.window, self.shape.num_heads, x.shape
        padded = (pictures, _whole(rows, side), _whole(columns, side), width)
        turns = padded[2] > side > 1  # more than one window beside each other
        num_windows, num_tokens = pictures * padded[1] * padded[2] // side**2, side**2
        x = chunks.pad(x, *padded)
        windows = ops.resample(x, *x.shape) if turns else x
        windows = windows.view(num_windows, num_tokens, width)
        qkv = self.qkv(windows)
        head = (num_windows, num_heads, num_tokens, width // num_heads)
        q, k, v = ops.split(qkv, head, head, head)
        windows = attend(backend, q, k, v, is_causal=False, scores=WRITTEN_OUT)
        windows = self.proj(windows)
        x = windows.view(*padded)
        x = ops.resample(x, *padded) if turns else x
        if rows < padded[1]:
            x = ops.part(x, pictures, rows, *padded[2:])
        if columns < padded[2]:
            x = ops.part(x, pictures, rows, columns, width)
        is_apart = columns < padded[2] and pictures * rows > 1
        is_apart = is_apart or (rows < padded[1] and pictures > 1)
        x = ops.copy(x) if is_apart else x
        del windows, qkv, q, k, v  # local variables there too, which live until it returns, as weights do
        x.tape.layer_locals.clear()
        return x


class ChannelAttention(FusedAttention):
    """``Florence2VisionChannelAttention``: among the channels of each group, which are as wide as there are tokens."""

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        (pictures, rows, columns, width), groups = x.shape, self.shape.num_groups
        qkv = self.qkv(x)
        part = (pictures, groups, width // groups, rows * columns)
        q, k, v = ops.split(qkv, part, part, part)
        x = self.attended(q, k, v, backend)
        x = ops.copy(x, pictures, rows, columns, width)
        x = self.proj(x)
        del qkv, q, k, v
        x.tape.layer_locals.clear()
        return x

    def attended(self, q: Tensor, k: Tensor, v: Tensor, backend: AttentionBackend) -> Tensor:
        if backend.implementation == Kernel.EAGER.value:
            heads = q.shape[1]
            return eager_attention(q, k, v, mask=None, is_masked=False, rules=WRITTEN_OUT, num_kv_heads=heads)
        return attention_of_columns(q, k, v)


def attention_of_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fallback, in float32, which takes heads whose numbers lie apart: no fused kernel does
    (``check_last_dim_stride_equals_1_dense`` in ``sdp_utils_cpp.h``). Products of several pictures put them in rows.

    Source: ``_scaled_dot_product_attention_math`` and ``_safe_softmax`` in ``attention.cpp``.
    """
    pictures, groups, channels, num_tokens = q.shape
    dtype, tape, scores_shape = q.dtype, q.tape, (pictures, groups, channels, channels)
    dtype = tape.autocast or dtype
    if tape.autocast is not None:
        v, k, q = (ops.to(one, tape.autocast) for one in (v, k, q))
    q, k, v = (ops.to(one, DType.FLOAT32) for one in (q, k, v))
    scaled = ops.scale(q)
    scores = ops.matmul(_in_rows(scaled), _in_rows(ops.scale(k)), scores_shape, num_tokens)
    weights = ops.softmax(scores, scores.dtype)
    with tape.charged_to(Kind.TEMPORARY):
        is_masked = tape.tensor(scores.shape, DType.BOOL)
    tape.move(scores.num_bytes + is_masked.num_bytes)
    del is_masked, scores
    out = _gradient_in_rows(ops.matmul(weights, _in_rows(v), v.shape, channels))
    out = ops.to(out, dtype)
    del weights, scaled, q, k, v
    return ops.copy(out, pictures, channels, groups * num_tokens) if groups > 1 else out


def _in_rows(x: Tensor) -> Tensor:
    """x of several pictures and groups as a batch of matrices, which is a copy."""
    return ops.copy(x) if x.shape[0] > 1 and x.shape[1] > 1 else x


def _gradient_in_rows(x: Tensor) -> Tensor:
    """x, whose gradient is made a batch of matrices like that."""
    if x.shape[0] == 1 or x.shape[1] == 1:
        return x
    return Tensor(x.storage, x.shape, x.dtype, x.tape.node((x,), ops.rewritten_backward, meta=x.shape))


class HalfBlock(Module):
    """``Florence2VisionSpatialBlock`` or ``Florence2VisionChannelBlock``: a convolution before each of both parts."""

    ATTENTION: tuple[str, type[FusedAttention]]

    def __init__(self, shape: StageShape, *, drops: bool) -> None:
        self.drops = drops
        name, attention = self.ATTENTION
        self.conv1 = _depthwise(shape.width)
        self.norm1 = LayerNorm(shape.width)
        setattr(self, name, attention(shape))
        self.conv2 = _depthwise(shape.width)
        self.norm2 = LayerNorm(shape.width)
        self.ffn = Mlp(shape)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        _, rows, columns, _ = x.shape
        x = ops.add(self.conv1(x, rows, columns), x)
        residual = x
        x = self.norm1(x)
        x = getattr(self, self.ATTENTION[0])(x, backend)
        x = ops.add(residual, self.dropped(x))
        x = ops.add(self.conv2(x, rows, columns), x)
        residual = x
        x = self.norm2(x)
        x = self.ffn(x)
        return ops.add(residual, self.dropped(x))

    def dropped(self, x: Tensor) -> Tensor:
        """``Florence2DropPath``."""
        return ops.called(of_kept_samples, x) if self.drops and x.tape.is_in_training_mode else x


class SpatialBlock(HalfBlock):
    ATTENTION = ("window_attn", WindowAttention)


class ChannelBlock(HalfBlock):
    ATTENTION = ("channel_attn", ChannelAttention)


class Block(Module):
    """``Florence2VisionBlock``; ``drops``: whether its halves may leave out their parts."""

    def __init__(self, shape: StageShape, drops: tuple[bool, bool]) -> None:
        self.spatial_block = SpatialBlock(shape, drops=drops[0])
        self.channel_block = ChannelBlock(shape, drops=drops[1])

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        x = self.spatial_block(x, backend)
        return self.channel_block(x, backend)


class Numbered(Module):
    """An ``nn.ModuleList`` whose modules differ."""

    def __init__(self, modules: Sequence[Module]) -> None:
        for index, module in enumerate(modules):
            setattr(self, str(index), module)

    @property
    def all(self) -> list[Any]:
        return list(self.modules_by_name.values())


class Davit(Module):
    """``Florence2VisionBackbone``."""

    def __init__(self, config: Config) -> None:
        self.shapes = stage_shapes(config)
        drops = config.number("drop_path_rate") > 0
        self.convs = Numbered([ConvEmbed(shape) for shape in self.shapes])
        self.blocks = Numbered([_stage(shape, index, drops=drops) for index, shape in enumerate(self.shapes)])

    @property
    def num_channels(self) -> int:
        return self.shapes[0].in_channels

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> Tensor:
        """pixels (pictures, channels, height, width) to features (pictures, rows, columns, channels)."""
        pictures, channels, height, width = pixels.shape
        tape = pixels.tape
        x = ops.to(pixels, self.convs.all[0].conv.weight.dtype).view(pictures, height, width, channels)

        def call(block: Block, hidden: Tensor) -> Tensor:
            return block(hidden, backend)

        for index, (conv, stage) in enumerate(zip(self.convs.all, self.blocks.all, strict=True)):
            with tape.section(f"vision{index}.embedding"):
                x = conv(x)
            last = [x]
            del x
            x = stage.run(last.pop(), call)
        return x


def _stage(shape: StageShape, index: int, *, drops: bool) -> Stack:
    """The very first half of a block leaves out nothing: the chance to do so grows from zero."""
    kinds, pattern = [Block(shape, (drops, drops))], [0] * shape.num_blocks
    if drops and index == 0:
        kinds, pattern = [Block(shape, (False, True)), *kinds][: shape.num_blocks], [0, *[1] * (shape.num_blocks - 1)]
    return Stack(kinds, pattern, label=f"vision{index}", can_checkpoint=False)


def stage_shapes(config: Config) -> list[StageShape]:
    """The stages of a ``vision_config``. Raises InputError for lists that are not of one length."""
    names = ("embed_dim", "depths", "patch_size", "patch_stride", "patch_padding", "num_heads", "num_groups")
    lists = {name: config.integers(name) for name in names}
    norms = list(config.get("patch_prenorm") or ())
    widths = lists["embed_dim"]
    for name, values in {**lists, "patch_prenorm": norms}.items():
        if len(values) != len(widths) or not values:
            raise not_allowed(CONFIG, f"{config.path}.{name}", list(values), f"a list of {len(widths)}, one a stage")
        least = 0 if name in ("patch_padding", "patch_prenorm") else 1
        if min(values) < least:
            raise not_allowed(CONFIG, f"{config.path}.{name}", list(values), f"a list of numbers of at least {least}")
    for name in ("num_heads", "num_groups"):
        if any(width % number for width, number in zip(widths, lists[name], strict=True)):
            raise InputError(f"{CONFIG}: {config.path}.{name} does not divide embed_dim, which transformers asks for")
    channels = (config.integer("in_channels"), *widths)
    ratio = config.positive_number("mlp_ratio")
    return [
        StageShape(
            in_channels=channels[index],
            width=width,
            num_blocks=lists["depths"][index],
            kernel=lists["patch_size"][index],
            stride=lists["patch_stride"][index],
            padding=lists["patch_padding"][index],
            norms_first=bool(norms[index]),
            num_heads=lists["num_heads"][index],
            num_groups=lists["num_groups"][index],
            inner_width=int(width * ratio),
            window=config.integer("window_size"),
            activation=config.text("activation_function"),
            qkv_bias=config.boolean("qkv_bias"),
        )
        for index, width in enumerate(widths)
    ]


def _whole(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple

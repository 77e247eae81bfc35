"""MobileNetV5, the vision tower of Gemma 3n: convolutions, and attention with one head of keys for all queries.

Source: timm 1.0.31 ``models/mobilenetv5.py`` (``mobilenetv5_300m_enc``) with ``models/_efficientnet_blocks.py`` and
``layers/{attention2d,conv_bn_act,fast_norm,norm_act}.py``, in transformers' ``TimmWrapperModel``. timm's checkpoints
are not those that transformers switches, so no block runs again in backward.

Shapes are (images, rows, columns, channels), as only numbers of elements matter; torch has channels before rows.
"""

from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention_kernels import repeat_kv
from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.units import DType

ARCHITECTURE = "mobilenetv5_300m_enc"
"""The one that is described: what the ``vision_config`` of every published Gemma 3n names."""
CHANNELS, STEM_CHANNELS, FUSED_CHANNELS = 3, 64, 2048
OUTPUT_SIDE = 16
"""Rows and columns of features of an image (``msfa_output_resolution``)."""


class Block(NamedTuple):
    """What tells the blocks of a stage apart. ``expansion`` is 0 for attention; kernels are 0 where there is none."""

    in_channels: int
    out_channels: int
    expansion: int = 0
    first_kernel: int = 0
    middle_kernel: int = 0
    stride: int = 1
    num_heads: int = 0
    head_dim: int = 0
    key_stride: int = 1

    @property
    def has_skip(self) -> bool:
        return self.stride == 1 and self.in_channels == self.out_channels


def _stages() -> tuple[list[Block], ...]:
    """``arch_def`` of ``_gen_mobilenet_v5``."""
    fused = [Block(STEM_CHANNELS, 128, 4, stride=2), Block(128, 128, 4), Block(128, 128, 4)]
    first = [Block(128, 256, 6, 3, 5, stride=2)] + [Block(256, 256, 4, kernel) for kernel in (5, 3, 5, 3)]
    middle = [Block(256, 640, 6, 5, 5, stride=2)] + [Block(640, 640, 4, 5)] * 7 + [Block(640, 640, 1)]
    middle += [Block(640, 640, num_heads=12, head_dim=64, key_stride=2), Block(640, 640, 2)] * 14
    last = [Block(640, 1280, 6, 5, 5, stride=2)]
    last += [Block(1280, 1280, num_heads=16, head_dim=96), Block(1280, 1280, 2)] * 19
    return fused, first, middle, last


class Convolution(Module):
    """``nn.Conv2d`` that keeps the size, or timm's ``Conv2dSame`` that divides it and copies its input to pad it."""

    pads = True
    """Whether one with a stride copies its input to pad it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        is_depthwise: bool = False,
        bias: bool = False,
    ) -> None:
        self.weight = Parameter(out_channels, 1 if is_depthwise else in_channels, kernel, kernel)
        self.bias: Parameter | None = Parameter(out_channels) if bias else None
        self.kernel, self.stride, self.out_channels = kernel, stride, out_channels

    def forward(self, x: Tensor) -> Tensor:
        num_images, *sides, channels = x.shape
        smaller = [-(-side // self.stride) for side in sides]
        if self.pads and self.stride > 1:
            covered = [(side - 1) * self.stride + self.kernel for side in smaller]
            padded = [max(side, needed) for side, needed in zip(sides, covered, strict=True)]
            x = chunks.pad(x, num_images, *padded, channels)
        return ops.convolution(x, self.weight, self.bias, (num_images, *smaller, self.out_channels))


class Norm(Module):
    """``RmsNormAct2d``: over channels, in x's own type, with GELU behind it or not."""

    def __init__(self, channels: int, *, activates: bool = False) -> None:
        self.weight = Parameter(channels)
        self.activates = activates

    def forward(self, x: Tensor) -> Tensor:
        x = _normed(x, self.weight)
        return ops.gelu(x) if self.activates else x


def _normed(x: Tensor, weight: Parameter) -> Tensor:
    """``rms_norm2d``."""
    v = ops.power(x)
    v = ops.mean_last(v)
    x = ops.mul(x, ops.unary(ops.shift(v), saves_output=True))
    return ops.mul(x, weight)


class ConvNorm(Module):
    """``ConvNormAct``."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, *, activates: bool = False, **options: Any
    ) -> None:
        self.conv = Convolution(in_channels, out_channels, kernel, **options)
        self.bn = Norm(out_channels, activates=activates)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.bn(x)


class LayerScale(Module):
    """``LayerScale2d``."""

    def __init__(self, channels: int) -> None:
        self.gamma = Parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        return ops.mul(x, self.gamma)


class FusedBlock(Module):
    """``EdgeResidual``: a convolution of 3 x 3 that widens, one of 1 x 1 that narrows."""

    def __init__(self, block: Block) -> None:
        inner = block.in_channels * block.expansion
        self.conv_exp = Convolution(block.in_channels, inner, 3, stride=block.stride)
        self.bn1 = Norm(inner, activates=True)
        self.conv_pwl = Convolution(inner, block.out_channels)
        self.bn2 = Norm(block.out_channels)
        self.has_skip = block.has_skip

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.conv_exp(x)
        x = self.bn1(x)
        x = self.conv_pwl(x)
        x = self.bn2(x)
        return ops.add(x, shortcut) if self.has_skip else x


class InvertedBlock(Module):
    """``UniversalInvertedResidual``: up to two depthwise convolutions around a wider middle."""

    def __init__(self, block: Block, *, has_scale: bool = True, has_skip: bool | None = None) -> None:
        width, inner = block.in_channels, block.in_channels * block.expansion
        self.has_skip = block.has_skip if has_skip is None else has_skip
        self.has_first, self.has_middle, self.has_scale = block.first_kernel > 0, block.middle_kernel > 0, has_scale
        if self.has_first:
            stride = 1 if self.has_middle else block.stride
            self.dw_start = ConvNorm(width, width, block.first_kernel, stride=stride, is_depthwise=True)
        self.pw_exp = ConvNorm(width, inner, activates=True)
        if self.has_middle:
            kernel, stride = block.middle_kernel, block.stride
            self.dw_mid = ConvNorm(inner, inner, kernel, stride=stride, is_depthwise=True, activates=True)
        self.pw_proj = ConvNorm(inner, block.out_channels)
        if has_scale:
            self.layer_scale = LayerScale(block.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.has_first:
            x = self.dw_start(x)
        x = self.pw_exp(x)
        if self.has_middle:
            x = self.dw_mid(x)
        x = self.pw_proj(x)
        if self.has_scale:
            x = self.layer_scale(x)
        return ops.add(x, shortcut) if self.has_skip else x


class Projection(Module):
    """An ``nn.Sequential`` that ends in ``proj``, of keys and values behind a convolution with a stride and a norm."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        self.shrinks = stride > 1
        if self.shrinks:
            self.down_conv = Convolution(in_channels, in_channels, 3, stride=stride, is_depthwise=True)
            self.norm = Norm(in_channels)
        self.proj = Convolution(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.shrinks:
            x = self.down_conv(x)
            x = self.norm(x)
        return self.proj(x)


class Attention(Module):
    """``MultiQueryAttention2d``. No fused kernel takes fewer heads of keys than of queries without being told."""

    def __init__(self, block: Block) -> None:
        width, self.num_heads, self.head_dim = block.in_channels, block.num_heads, block.head_dim
        self.query = Projection(width, self.num_heads * self.head_dim)
        self.key = Projection(width, self.head_dim, stride=block.key_stride)
        self.value = Projection(width, self.head_dim, stride=block.key_stride)
        self.output = Projection(self.num_heads * self.head_dim, block.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        num_images, rows, columns, _ = x.shape
        q = self.query(x)
        q = ops.copy(q, num_images, self.num_heads, rows * columns, self.head_dim)
        k = self.key(x)
        k = _one_head(k)
        v = self.value(x)
        v = _one_head(v)
        out = _attention(q, k, v)
        out = ops.copy(out, num_images, rows, columns, self.num_heads * self.head_dim)
        return self.output(ops.copy(out))


def _one_head(x: Tensor) -> Tensor:
    """``_reshape_input``: (images, 1, positions, width), a copy."""
    num_images, rows, columns, width = x.shape
    return ops.copy(x, num_images, 1, rows * columns, width)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``_scaled_dot_product_attention_math`` in ``aten/src/ATen/native/transformers/attention.cpp``, in float32.

    Keys and values of one head are expanded by the products, which copy them where there is more than one image.
    """
    dtype, num_heads, head_dim, tape = q.dtype, q.shape[1], q.shape[-1], q.tape
    scores_shape = (*q.shape[:-1], k.shape[2])
    q, k, v = (ops.to(each, DType.FLOAT32) for each in (q, k, v))
    scaled, k = ops.scale(q), ops.scale(k)
    copies = q.shape[0] > 1
    scores = ops.matmul(scaled, repeat_kv(k, num_heads, copies=copies), scores_shape, head_dim)
    weights = ops.softmax(scores)
    with tape.charged_to(Kind.TEMPORARY):
        is_masked = tape.tensor(scores.shape, DType.BOOL)
    tape.move(scores.num_bytes + is_masked.num_bytes)
    del is_masked, scores
    return ops.to(ops.matmul(weights, repeat_kv(v, num_heads, copies=copies), q.shape, k.shape[2]), dtype)


class AttentionBlock(Module):
    """``MobileAttention``."""

    def __init__(self, block: Block) -> None:
        self.norm = Norm(block.in_channels)
        self.attn = Attention(block)
        self.layer_scale = LayerScale(block.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(x)
        x = self.attn(x)
        x = self.layer_scale(x)
        return ops.add(x, shortcut)


def _made(block: Block, *, is_fused: bool) -> Module:
    if block.num_heads:
        return AttentionBlock(block)
    return FusedBlock(block) if is_fused else InvertedBlock(block)


class Fusion(Module):
    """``MobileNetV5MultiScaleFusionAdapter``: the last two stages' features, side by side, averaged over squares."""

    def __init__(self, in_channels: int) -> None:
        self.ffn = InvertedBlock(Block(in_channels, FUSED_CHANNELS, 2), has_scale=False, has_skip=False)
        self.norm = Norm(FUSED_CHANNELS)

    def forward(self, wide: Tensor, deep: Tensor) -> Tensor:
        num_images, rows, columns, _ = wide.shape
        enlarged = ops.resample(deep, num_images, rows, columns, deep.shape[-1])
        joined = ops.concatenate([wide, enlarged], (num_images, rows, columns, wide.shape[-1] + deep.shape[-1]))
        x = self.ffn(joined)
        if (rows, columns) != (OUTPUT_SIDE, OUTPUT_SIDE):
            x = ops.resample(x, num_images, OUTPUT_SIDE, OUTPUT_SIDE, FUSED_CHANNELS, saves_input=True)
        return self.norm(x)


class Encoder(Module):
    """``MobileNetV5Encoder``."""

    def __init__(self) -> None:
        self.conv_stem = ConvNorm(CHANNELS, STEM_CHANNELS, 3, stride=2, bias=True, activates=True)
        self.blocks = Stages()
        self.msfa = Fusion(sum(blocks[-1].out_channels for blocks in _stages()[-2:]))

    def forward(self, pixels: Tensor) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.conv_stem(pixels)
        *early, wide_stage, deep_stage = self.blocks.modules_by_name.values()
        for stage in early:
            x = _run(stage, x)
        wide = _run(wide_stage, x)
        del x
        deep = _run(deep_stage, wide)
        with tape.section("vision.pooling"):
            return self.msfa(wide, deep)


class Stages(Module):
    """The four stages, each an ``nn.Sequential`` of blocks."""

    def __init__(self) -> None:
        for index, blocks in enumerate(_stages()):
            kinds = list(dict.fromkeys(blocks))
            made = [_made(kind, is_fused=index == 0) for kind in kinds]
            pattern = [kinds.index(block) for block in blocks]
            setattr(self, str(index), Stack(made, pattern, label=f"vision{index}", can_checkpoint=False))


def _run(stage: Any, x: Tensor) -> Tensor:
    return stage.run(x, _call)


def _call(block: Module, x: Tensor) -> Tensor:
    return block(x)


class MobileNetV5(Module):
    """``TimmWrapperModel``."""

    def __init__(self, config: Config) -> None:
        name = config.text("architecture")
        if name != ARCHITECTURE:
            raise UnknownNameError("architecture", name, (ARCHITECTURE,), "of config.json")
        if config.get("model_args"):
            raise InputError("config.json: vision_config.model_args changes timm's model; only its own can be planned")
        self.timm_model = Encoder()

    def forward(self, pixels: Tensor, batch: Batch) -> Tensor:
        """pixels (images, rows, columns, 3) to features (images, 16, 16, 2048)."""
        return self.timm_model(ops.to(pixels, self.timm_model.conv_stem.conv.weight.dtype))

"""FastViT (FastViTHD), the vision tower of FastVLM: convolutions alone, and in its last stages attention to all places.

Source: timm 1.0.31 ``models/fastvit.py`` (``fastvit_mci3``, with ``inference_mode``: of the branches that it was
trained with one convolution is left) and ``layers/{conv_bn_act,norm,norm_act,squeeze_excite}.py``, in transformers'
``TimmWrapperModel``, which leaves attention to timm: that asks for torch's fused kernels, whatever is asked of the
decoder. timm's checkpoints are not those that transformers switches, so no block runs again in backward.

Shapes are (images, rows, columns, channels), as only numbers of elements matter; torch has channels before rows.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families import mobilenet_v5
from vlmplan.architecture.families.mobilenet_v5 import CHANNELS
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import UnknownNameError
from vlmplan.files.json_reader import not_allowed

ARCHITECTURE = "fastvit_mci3"
"""The one that is described. A tag behind a dot names a checkpoint of it."""
MODEL_ARGS = {"inference_mode": True}
"""What published FastVLMs tell timm."""
NUM_FEATURES = 3072
HEAD_DIM, MLP_RATIO, SQUEEZE = 32, 4, 16


class Stage(NamedTuple):
    """Blocks of a stage and their channels."""

    num_blocks: int
    channels: int
    attends: bool = False


STAGES = (Stage(2, 96), Stage(12, 192), Stage(24, 384), Stage(4, 768, attends=True), Stage(2, 1536, attends=True))
"""``layers``, ``embed_dims`` and ``token_mixers`` of ``fastvit_mci3``."""


class Convolution(mobilenet_v5.Convolution):
    """``nn.Conv2d`` with a bias, which pads within its kernel."""

    pads = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, *, stride: int = 1, num_groups: int = 1
    ) -> None:
        super().__init__(in_channels // num_groups, out_channels, kernel, stride=stride, bias=True)


class PlainBlock(Module):
    """``MobileOneBlock`` and ``ReparamLargeKernelConv`` with one convolution left."""

    def __init__(self, convolution: Convolution, squeeze: Module | None = None) -> None:
        if squeeze is not None:
            self.se: Any = squeeze
        self.has_squeeze = squeeze is not None
        self.reparam_conv = convolution
        self.act = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.reparam_conv(x)
        if self.has_squeeze:
            x = self.se(x)
        return self.act(x)


class SqueezeExcite(Module):
    """``SEModule``: every channel times a gate made of the means of all."""

    def __init__(self, channels: int) -> None:
        self.fc1 = Convolution(channels, channels // SQUEEZE)
        self.fc2 = Convolution(channels // SQUEEZE, channels)

    def forward(self, x: Tensor) -> Tensor:
        means = ops.mean(x, (x.shape[0], 1, 1, x.shape[-1]))
        return ops.mul(x, ops.sigmoid(self.fc2(ops.relu(self.fc1(means)))))


class Chain(Sequential):
    """``nn.Sequential``: one module after the other."""

    def __init__(self, *modules: Module) -> None:
        super().__init__({str(index): module for index, module in enumerate(modules)})

    def forward(self, x: Tensor) -> Tensor:
        for module in self.modules_by_name.values():
            x = module(x)
        return x


class BatchNorm(Module):
    """``BatchNormAct2d`` without an activation: statistics of the batch, in training."""

    def __init__(self, channels: int) -> None:
        self.weight, self.bias = Parameter(channels), Parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        return ops.grouped_norm(x, self.weight, self.bias, x.shape[-1])


class DepthwiseNorm(Module):
    """``ConvNormAct`` of a kernel for each channel, without an activation."""

    def __init__(self, channels: int, kernel: int) -> None:
        self.conv = mobilenet_v5.Convolution(channels, channels, kernel, is_depthwise=True)
        self.bn = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.bn(x)


class ConvMlp(Module):
    """``ConvMlp``."""

    def __init__(self, channels: int) -> None:
        self.conv = DepthwiseNorm(channels, 7)
        self.fc1 = Convolution(channels, channels * MLP_RATIO)
        self.fc2 = Convolution(channels * MLP_RATIO, channels)
        self.act = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.fc1(x)
        x = self.act(x)
        return self.fc2(x)


class LayerScale(mobilenet_v5.LayerScale):
    """``LayerScale2d`` of (channels, 1, 1)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gamma.num_axes = 3


class Mixer(Module):
    """A module with the name of the one convolution that is left in it (``RepMixer``, ``RepConditionalPosEnc``)."""

    def __init__(self, channels: int, kernel: int) -> None:
        self.reparam_conv = Convolution(channels, channels, kernel, num_groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.reparam_conv(x)


class MixerBlock(Module):
    """``RepMixerBlock``."""

    def __init__(self, channels: int) -> None:
        self.token_mixer = Mixer(channels, 3)
        self.mlp = ConvMlp(channels)
        self.layer_scale = LayerScale(channels)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        x = self.token_mixer(x)
        return ops.add(x, self.layer_scale(self.mlp(x)))


class Attention(Module):
    """``Attention``."""

    def __init__(self, channels: int) -> None:
        self.qkv = Linear(channels, 3 * channels)
        self.proj = Linear(channels, channels, bias=True)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        num_images, rows, columns, channels = x.shape
        heads = (num_images, channels // HEAD_DIM, rows * columns, HEAD_DIM)
        q, k, v = ops.split(self.qkv(x.view(num_images, rows * columns, channels)), heads, heads, heads)
        x = self.proj(attend(backend, q, k, v, is_causal=False))
        return x.view(num_images, rows, columns, channels)


class AttentionBlock(Module):
    """``AttentionBlock``."""

    def __init__(self, channels: int) -> None:
        self.norm = LayerNorm(channels)
        self.token_mixer = Attention(channels)
        self.layer_scale_1 = LayerScale(channels)
        self.mlp = ConvMlp(channels)
        self.layer_scale_2 = LayerScale(channels)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        x = ops.add(x, self.layer_scale_1(self.token_mixer(self.norm(x), backend)))
        return ops.add(x, self.layer_scale_2(self.mlp(x)))


class Downsampling(Module):
    """``PatchEmbed``: half as many rows and columns, of more channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.proj = Chain(
            PlainBlock(Convolution(in_channels, out_channels, 7, stride=2, num_groups=in_channels)),
            PlainBlock(Convolution(out_channels, out_channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class FastVitStage(Module):
    """``FastVitStage``."""

    def __init__(self, stage: Stage, in_channels: int, index: int) -> None:
        channels, self.index = stage.channels, index
        self.shrinks, self.has_positions = channels != in_channels, stage.attends
        if self.shrinks:
            self.downsample = Downsampling(in_channels, channels)
        if self.has_positions:
            self.pos_emb = Mixer(channels, 7)
        block = AttentionBlock(channels) if stage.attends else MixerBlock(channels)
        self.blocks = Stack([block], [0] * stage.num_blocks, label=f"vision{index}", can_checkpoint=False)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        with x.tape.section(f"vision.embedding{self.index}"):
            if self.shrinks:
                x = self.downsample(x)
            if self.has_positions:
                x = self.pos_emb(x)
        return self.blocks.run(x, lambda block, x: block(x, backend))


class FastVit(Module):
    """``FastVit`` up to ``forward_features``; its head without classes has no weights."""

    def __init__(self) -> None:
        width = STAGES[0].channels
        self.stem = Chain(
            PlainBlock(Convolution(CHANNELS, width, 3, stride=2)),
            PlainBlock(Convolution(width, width, 3, stride=2, num_groups=width)),
            PlainBlock(Convolution(width, width)),
        )
        widths = [STAGES[0].channels, *(stage.channels for stage in STAGES)]
        self.stages = Sequential(
            {str(index): FastVitStage(stage, widths[index], index) for index, stage in enumerate(STAGES)}
        )
        last = STAGES[-1].channels
        self.final_conv = PlainBlock(
            Convolution(last, NUM_FEATURES, 3, num_groups=last), squeeze=SqueezeExcite(NUM_FEATURES)
        )

    def forward(self, pixels: Tensor, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            x = self.stem(pixels)
        for stage in self.stages.modules_by_name.values():
            x = stage(x, backend)
        with tape.section("vision.pooling"):
            return self.final_conv(x)


class FastVitTower(Module):
    """``TimmWrapperModel``: pixels to features (images, places, channels), channels outermost in memory."""

    keeps_channels_first = True

    def __init__(self, config: Config) -> None:
        name = config.text("architecture")
        if name.partition(".")[0] != ARCHITECTURE:
            raise UnknownNameError("architecture", name, (ARCHITECTURE,), "of config.json")
        if config.get("model_args") != MODEL_ARGS:
            raise not_allowed(
                CONFIG, f"{config.path}.model_args", config.get("model_args"), f"{MODEL_ARGS}, as published"
            )
        self.timm_model = FastVit()

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        features = self.timm_model(pixels, replace(backend, implementation="sdpa"))
        num_images, rows, columns, width = features.shape
        features = features.view(num_images, rows * columns, width)
        return VisionOutput(features)

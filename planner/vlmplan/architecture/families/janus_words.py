"""Janus's model that turns images into words and words into images: weights that stand beside a language model. They
never run where it learns to read, so they are told by their names and shapes alone.

Source: transformers 5.23 ``models/janus/modeling_janus.py`` (``JanusVQVAE``).
"""

from itertools import pairwise

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.modules import Embedding, LayerNorm, Module
from vlmplan.architecture.parameter import Parameter


class Convolution(Module):
    """``nn.Conv2d`` that never runs here."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        self.weight = Parameter(out_channels, in_channels * kernel**2)
        self.weight.num_axes = 4
        self.bias = Parameter(out_channels)


class ResnetBlock(Module):
    """``JanusVQVAEResnetBlock``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.norm1 = LayerNorm(in_channels)
        self.conv1 = Convolution(in_channels, out_channels, 3)
        self.norm2 = LayerNorm(out_channels)
        self.conv2 = Convolution(out_channels, out_channels, 3)
        if in_channels != out_channels:
            self.nin_shortcut = Convolution(in_channels, out_channels, 1)


class AttentionBlock(Module):
    """``JanusVQVAEAttnBlock``."""

    def __init__(self, channels: int) -> None:
        self.norm = LayerNorm(channels)
        self.q = Convolution(channels, channels, 1)
        self.k = Convolution(channels, channels, 1)
        self.v = Convolution(channels, channels, 1)
        self.proj_out = Convolution(channels, channels, 1)


def module_list(*modules: Module) -> Module:
    return Sequential({str(index): module for index, module in enumerate(modules)})


def middle(channels: int) -> Module:
    """``JanusVQVAEMidBlock``."""
    first, attention, second = (
        ResnetBlock(channels, channels),
        AttentionBlock(channels),
        ResnetBlock(channels, channels),
    )
    return Sequential({"block_1": first, "attn_1": attention, "block_2": second})


def blocks_of_level(widths: list[int], *, has_attention: bool) -> dict[str, Module]:
    """Blocks from each width to the next, and what attends behind each of them."""
    block = module_list(*(ResnetBlock(*pair) for pair in pairwise(widths)))
    attention = module_list(*(AttentionBlock(width) for width in widths[1:] if has_attention))
    return {"block": block, "attn": attention}


def encoder_of_words(config: Config, widths: list[int]) -> Module:
    """``JanusVQVAEEncoder``; ``widths`` are channels by resolution."""
    levels: list[Module] = []
    num_blocks, last = config.count("num_res_blocks"), len(widths) - 1
    for level, (before, width) in enumerate(pairwise([config.integer("base_channels"), *widths])):
        made = blocks_of_level([before, *[width] * num_blocks], has_attention=level == last)
        sampler = {"downsample": Sequential({"conv": Convolution(width, width, 3)})} if level < last else {}
        levels.append(Sequential(made | sampler))
    latent = config.integer("latent_channels") * (2 if config.boolean("double_latent") else 1)
    return Sequential(
        {
            "conv_in": Convolution(config.integer("in_channels"), config.integer("base_channels"), 3),
            "down": module_list(*levels),
            "mid": middle(widths[-1]),
            "norm_out": LayerNorm(widths[-1]),
            "conv_out": Convolution(widths[-1], latent, 3),
        }
    )


def decoder_of_words(config: Config, widths: list[int]) -> Module:
    """``JanusVQVAEDecoder``, from the last resolution to the first."""
    levels: list[Module] = []
    num_blocks, before = config.count("num_res_blocks") + 1, widths[-1]
    for level in reversed(range(len(widths))):
        made = blocks_of_level([before, *[widths[level]] * num_blocks], has_attention=level == len(widths) - 1)
        before = widths[level]
        sampler = {"upsample": Sequential({"conv": Convolution(before, before, 3)})} if level else {}
        levels.append(Sequential(made | sampler))
    return Sequential(
        {
            "conv_in": Convolution(config.integer("latent_channels"), widths[-1], 3),
            "mid": middle(widths[-1]),
            "up": module_list(*levels),
            "norm_out": LayerNorm(widths[0]),
            "conv_out": Convolution(widths[0], config.integer("out_channels"), 3),
        }
    )


def words_of_images(config: Config) -> Module:
    """``JanusVQVAE``."""
    widths = [config.integer("base_channels") * factor for factor in config.integers("channel_multiplier")]
    latent, width = config.integer("latent_channels"), config.integer("embed_dim")
    return Sequential(
        {
            "encoder": encoder_of_words(config, widths),
            "quantize": Sequential({"embedding": Embedding(config.integer("num_embeddings"), width)}),
            "quant_conv": Convolution(latent, width, 1),
            "post_quant_conv": Convolution(width, latent, 1),
            "decoder": decoder_of_words(config, widths),
        }
    )

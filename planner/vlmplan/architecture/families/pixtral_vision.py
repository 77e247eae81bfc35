"""The vision tower of Pixtral: patches of all images in one sequence, rotary positions in two dimensions.

Source: transformers 5.23 ``models/pixtral/modeling_pixtral.py``, ``PixtralVisionModel``. Images are kept apart by an
additive mask over all patches of the micro batch, in the model's type also for sdpa: attention grows with the square
of the micro batch. flash_attention_2 gets lengths instead.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import GatedMlp
from vlmplan.architecture.families.packed_patches import by_image
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.layer_calls import with_mask_by_position
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear, Module, PatchEmbedding, RMSNorm
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class PixtralContext:
    """What every layer is called with besides the hidden states."""

    __slots__ = ("backend", "cos", "lengths", "mask", "sin")

    def __init__(
        self, backend: AttentionBackend, cos: Tensor, sin: Tensor, mask: Tensor | None, lengths: PackedLengths | None
    ) -> None:
        self.backend, self.cos, self.sin, self.mask, self.lengths = backend, cos, sin, mask, lengths


class PixtralAttention(Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        self.num_heads, self.scores = num_heads, Scores(dropout=dropout)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.o_proj = Linear(width, width)

    def forward(self, x: Tensor, context: PixtralContext) -> Tensor:
        _, num_patches, width = x.shape
        heads = (1, self.num_heads, num_patches, width // self.num_heads)
        q, k, v = self.q_proj(x).view(*heads), self.k_proj(x).view(*heads), self.v_proj(x).view(*heads)
        q, k = ops.rotate(q, context.cos, context.sin), ops.rotate(k, context.cos, context.sin)
        mask, lengths = context.mask, context.lengths
        out = attend(context.backend, q, k, v, is_causal=False, mask=mask, lengths=lengths, scores=self.scores)
        return self.o_proj(out)


class PixtralLayer(PreNormLayer):
    """``PixtralAttentionLayer``: pre-norm attention and gated MLP."""

    MODULES = ("attention_norm", "attention", "ffn_norm", "feed_forward")

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.attention_norm = RMSNorm(width)
        self.feed_forward = GatedMlp(width, config.integer("intermediate_size"), activation=config.text("hidden_act"))
        self.attention = PixtralAttention(
            width, config.integer("num_attention_heads"), config.number("attention_dropout")
        )
        self.ffn_norm = RMSNorm(width)


class PixtralVision(ReadingModule):
    """``PixtralVisionModel``. All images of the micro batch have the same shape here, so no padding is cut off."""

    ROTARY_MODULES = ("patch_positional_embedding",)
    INPUT_EMBEDDING = "patch_conv"
    masks_all_images = True
    keeps_channels_first = False

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        width, self.patch_size = config.integer("hidden_size"), config.integer("patch_size")
        self.head_dim = width // config.integer("num_attention_heads")
        if config.get("head_dim") not in (None, self.head_dim):
            raise InputError(  # what a file says goes to the positions alone
                f"{CONFIG}: {config.path}.head_dim is {config.get('head_dim')}, but attention of a pixtral tower has "
                f"heads of hidden_size / num_attention_heads, {self.head_dim}; leave head_dim out"
            )
        self.patch_numel = config.integer("num_channels") * self.patch_size**2
        self.patch_conv = PatchEmbedding(self.patch_numel, width, bias=False)
        self.ln_pre = RMSNorm(width)
        self.transformer = Encoder(lambda: PixtralLayer(config), config.integer("num_hidden_layers"), feature_layers)

    def read_modules(self) -> Sequence[Module]:
        """The convolution, whose weight has the type that pixels are cast to."""
        return (self.patch_conv,)

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            # Views of the convolution's result, one per image, live as long as this function.
            patches = self.patch_conv(ops.to(pixels, self.patch_conv.weight.dtype))
            num_patches, width = patches.shape
            per_image = num_patches // batch.num_images
            views = by_image(patches, batch.num_images) if batch.num_images > 1 else [patches.view(num_patches, width)]
            del patches
            x = ops.concatenate(views, (1, num_patches, width))
            x = self.ln_pre(x)
            tape.prefetch()  # for the module of the positions
            positions = tape.tensor((num_patches, 2), DType.INT64)
            angles = (1, 1, num_patches, self.head_dim)
            cos, sin = tape.tensor(angles, x.dtype), tape.tensor(angles, x.dtype)
            mask, lengths = None, PackedLengths(((per_image, 1),), batch.num_images)
            if backend.implementation != "flash_attention_2":
                mask, lengths = tape.tensor((1, 1, num_patches, num_patches), x.dtype), None
            context = PixtralContext(backend, cos, sin, mask, lengths)
            del cos, sin, mask
        call, beside = with_mask_by_position(context)
        last, held = self.transformer.run(x, call, beside=beside)
        del positions
        return VisionOutput(last, held)

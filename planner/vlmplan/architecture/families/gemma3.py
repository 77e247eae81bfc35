"""Gemma 3 with vision: a SigLIP tower at 896 pixels, patches averaged to 256 tokens, a Gemma 3 decoder.

Source: transformers 5.23 ``models/gemma3/modeling_gemma3.py``. The processor's ``token_type_ids`` mark the tokens of an
image, which see each other; with them the model builds both masks itself, whatever the length.
"""

import math

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma import decoder
from vlmplan.architecture.families.paligemma import PaliGemma, PaliGemmaModel
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.modules import GemmaRMSNorm, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, Operand, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError
from vlmplan.units import DType


class PoolingProjector(Module):
    """``Gemma3MultiModalProjector``: average over squares of patches, norm, and a matrix that is no Linear."""

    def __init__(self, config: Config) -> None:
        vision = config.section("vision_config")
        vision_width = vision.integer("hidden_size")
        self.num_tokens = config.integer("mm_tokens_per_image")
        patch_columns = vision.integer("image_size") // vision.integer("patch_size")
        self.kernel_size = patch_columns // math.isqrt(self.num_tokens)
        if self.kernel_size == 0:  # transformers' own defaults: a pool of no patches, which torch refuses
            raise InputError(
                f"config.json: mm_tokens_per_image is {self.num_tokens:,}, more than the {patch_columns**2:,} patches "
                f"that vision_config.image_size and patch_size make of an image"
            )
        # Stored (vision, text); given the other way round here, as a Linear's.
        self.mm_input_projection_weight = Parameter(config.section("text_config").integer("hidden_size"), vision_width)
        self.mm_soft_emb_norm = GemmaRMSNorm(vision_width)

    def forward(self, features: Tensor) -> Tensor:
        num_images, num_patches, width = features.shape
        patches = ops.copy(features, num_images, width, num_patches)  # channels first
        num_tokens = num_patches // self.kernel_size**2
        pooled = ops.resample(patches, num_images, width, num_tokens, saves_input=True)
        normed = self.mm_soft_emb_norm(pooled.view(num_images, num_tokens, width))
        if not self.mm_input_projection_weight.requires_grad:
            return self._batched(normed)
        if num_images > 1:
            # Still channels first: the product folds the rows of all images into one matrix, a copy.
            normed = ops.copy(normed)
        return ops.linear(normed, self.mm_input_projection_weight)

    def _batched(self, normed: Tensor) -> Tensor:
        """``torch.matmul`` with rows that lie channels first and a frozen weight: a product for each image with the
        weight expanded, of which a view is saved (``should_fold`` in ``aten/src/ATen/native/LinearAlgebra.cpp``)."""
        tape, weight = normed.tape, self.mm_input_projection_weight
        used: Operand = weight
        if tape.autocast is not None:
            used = ops.cast_weight(weight, tape.autocast, tape)
            normed = ops.to(normed, tape.autocast)
        is_itself = isinstance(used, Parameter)
        storage = tape.tensor((0,), used.dtype).storage if isinstance(used, Parameter) else used.storage
        expanded = Tensor(storage, (normed.shape[0], *weight.shape[::-1]), used.dtype)
        shape = (*normed.shape[:2], weight.shape[0])
        return ops.matmul(normed, expanded, shape, weight.shape[1], view_of=weight if is_itself else None)


class Gemma3Model(PaliGemmaModel):
    """``Gemma3Model``."""

    def masks(self, x: Tensor, backend: AttentionBackend) -> dict[int | None, Tensor]:
        implementation = self.language_model.backend(backend).implementation
        if implementation == "flash_attention_2" or backend.is_packed:
            return super().masks(x, backend)
        batch, num_tokens, _ = x.shape
        shape = (batch, 1, num_tokens, num_tokens)
        masks: dict[int | None, Tensor] = {}
        for window in self.language_model.mask_windows:
            mask = _seen(x.tape, shape, window)
            masks[window] = x.tape.tensor(shape, x.dtype) if implementation == "eager" else mask
            del mask
        return masks


def _seen(tape: ForwardTape, shape: tuple[int, ...], window: int | None) -> Tensor:
    """Which keys each query sees: those up to it or of its image, with a ``window`` those behind where that begins, and
    no padding (``create_masks_for_vision_model``, ``or_masks`` and ``and_masks`` in ``masking_utils.py``: each leaves
    what it has found before when it has the next)."""
    of_all = (1, *shape[1:])
    with tape.charged_to(Kind.TEMPORARY):
        found = [seen_in_blocks(tape, shape)]
        found = [tape.tensor(shape, DType.BOOL)]
        if window is not None:
            newer = tape.tensor(of_all, DType.BOOL)
            both = tape.tensor(shape, DType.BOOL)
            del newer
            found = [both]
            del both
            found = [tape.tensor(shape, DType.BOOL)]
    seen = tape.tensor(shape, DType.BOOL)
    del found
    return seen


def seen_in_blocks(tape: ForwardTape, shape: tuple[int, ...]) -> Tensor:
    """The same without padding or a window: keys up to each query or of its block (``blockwise_overlay``)."""
    of_all = (1, *shape[1:])
    with tape.charged_to(Kind.TEMPORARY):
        earlier = tape.tensor(of_all, DType.BOOL)
        found = [tape.tensor(of_all, DType.BOOL)]
        del earlier
        equal = tape.tensor(shape, DType.BOOL)
        of_image = tape.tensor(shape, DType.BOOL)
        del equal
    seen = tape.tensor(shape, DType.BOOL)
    del of_image, found
    return seen


def build(config: Config) -> PaliGemma:
    """``Gemma3ForConditionalGeneration``."""
    text = config.section("text_config")
    model = Gemma3Model(config, PoolingProjector(config), decoder(text))
    return PaliGemma(model, ties_weights=ties_word_embeddings(config, text))

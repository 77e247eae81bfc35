"""The thinker of Qwen2.5-Omni: Qwen2.5-VL with projections of their own for q, k and v in the vision blocks, and an
audio tower that is idle without sound.

Source: transformers 5.23 ``models/qwen2_5_omni/modeling_qwen2_5_omni.py``,
``Qwen2_5OmniThinkerForConditionalGeneration``.
"""

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import qwen2_5_vl
from vlmplan.architecture.families.llama import decoder_shape
from vlmplan.architecture.families.omni_audio import Qwen25OmniAudio
from vlmplan.architecture.families.omni_thinker import OmniThinker, ThinkerModel
from vlmplan.architecture.families.packed_patches import MultimodalDecoder, PatchAttention, joined_features, scattered
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisionAttention(PatchAttention):
    """``Qwen2_5OmniVisionAttention``."""

    def make_projections(self, width: int, *, bias: bool) -> None:
        self.q = Linear(width, width, bias=bias)
        self.k = Linear(width, width, bias=bias)
        self.v = Linear(width, width, bias=bias)

    def projected(self, x: Tensor, head: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return q.view(*head), k.view(*head), v.view(*head)


class VisionBlock(qwen2_5_vl.VisionBlock):
    """``Qwen2_5OmniVisionBlock``."""

    ATTENTION = VisionAttention


class VisionEncoder(qwen2_5_vl.VisionTransformer):
    """``Qwen2_5OmniVisionEncoder``."""

    BLOCK = VisionBlock


class Qwen25OmniModel(ThinkerModel):
    """``Qwen2_5OmniThinkerModel``."""

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        held: list[Tensor] = []  # what lives until this function returns, too: joined features, masks, positions
        embeddings = self.with_sounds(ids, embeddings, batch, backend, held)
        if pixels is not None:
            encoded += self.visual(pixels, batch, backend)
            with ids.tape.section("scatter"):
                held.append(joined_features(encoded[1], batch.num_images))
                embeddings = scattered(ids, embeddings, held[-1])
                held += [ids.tape.tensor(ids.shape, DType.BOOL) for _ in range(2)]
        held += self.positions(ids, has_images=pixels is not None)
        return self.language_model(embeddings, backend)


def build(config: Config) -> OmniThinker:
    """The thinker; its own level alone decides whether embedding and head are one weight."""
    shape = decoder_shape(config.section("text_config"))
    visual = VisionEncoder(config.section("vision_config"))
    audio_tower = Qwen25OmniAudio(config.section("audio_config"))
    model = Qwen25OmniModel(audio_tower, visual, MultimodalDecoder(shape))
    return OmniThinker(model, ties_weights=config.boolean("tie_word_embeddings"))

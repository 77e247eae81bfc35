"""The thinker of Qwen3-Omni: Qwen3-VL with a mixture of experts, and an audio tower that is idle without sound.

Source: transformers 5.23 ``models/qwen3_omni_moe/modeling_qwen3_omni_moe.py``,
``Qwen3OmniMoeThinkerForConditionalGeneration``. The mergers of its vision encoder have the names of Qwen2-VL's.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import qwen3_vl
from vlmplan.architecture.families.group_router import OLD_EXPERT_NAMES
from vlmplan.architecture.families.llama import decoder_shape
from vlmplan.architecture.families.moe import moe_layers
from vlmplan.architecture.families.omni_audio import Qwen3OmniAudio
from vlmplan.architecture.families.omni_thinker import OmniThinker, ThinkerModel
from vlmplan.architecture.families.packed_patches import Sequential, joined_features
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class PatchMerger(qwen3_vl.MergedPatches):
    """``Qwen3OmniMoeVisionPatchMerger``: as Qwen3-VL's, with other names."""

    def __init__(self, config: Config, *, norms_merged: bool) -> None:
        super().__init__(config, norms_merged=norms_merged)
        self.ln_q = LayerNorm(self.normed_width)
        self.mlp = Sequential(
            {
                "0": Linear(self.merged_width, self.merged_width, bias=True),
                "2": Linear(self.merged_width, config.integer("out_hidden_size"), bias=True),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(x, self.ln_q)
        x = self.mlp["0"](x)
        x = ops.gelu(x)
        return self.mlp["2"](x)


class VisionEncoder(qwen3_vl.VisionTransformer):
    """``Qwen3OmniMoeVisionEncoder``, which registers the mergers of its inner features first."""

    FEATURE_MERGERS = "merger_list"
    registers_feature_mergers_first = True

    def make_merger(self, config: Config, *, norms_merged: bool) -> Module:
        return PatchMerger(config, norms_merged=norms_merged)


class Qwen3OmniModel(ThinkerModel):
    """``Qwen3OmniMoeThinkerModel``."""

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        # What lives until this function returns beside what the encoder made: joined features, masks, positions.
        held: list[Tensor] = []
        embeddings = self.with_sounds(ids, embeddings, batch, backend, held)
        if pixels is None:
            held += self.positions(ids, has_images=False)
            return self.language_model(embeddings, backend)
        encoded = ids.tape.outputs.of_encoder()
        encoded += self.visual(pixels, batch, backend)
        with ids.tape.section("scatter"):
            image_features = joined_features(encoded[1], batch.num_images)
            mask, sounds = (ids.tape.tensor(ids.shape, DType.BOOL) for _ in range(2))
            embeddings = ops.masked_scatter(embeddings, mask, image_features)
            features = [joined_features(deep, batch.num_images) for deep in encoded[2:]]
            held += [image_features, sounds, *self.positions(ids, has_images=True)]
            del image_features, sounds
        return self.language_model(embeddings, backend, mask, features)


class Qwen3Omni(OmniThinker):
    """``Qwen3OmniMoeThinkerForConditionalGeneration``. peft takes names of experts for those of transformers 4."""

    PARTS = {**OmniThinker.PARTS, "model.visual.merger_list": Part.PROJECTOR}
    PARAMETER_TARGETS = OLD_EXPERT_NAMES


def build(config: Config) -> Qwen3Omni:
    """The thinker; its own level alone decides whether embedding and head are one weight."""
    text = config.section("text_config")
    # No layer has a window, whatever the file says (``Qwen3OmniMoeThinkerTextAttention``).
    shape = decoder_shape(text)
    shape = replace(shape, qk_norm=True, windows=(None,) * shape.num_layers)
    visual = VisionEncoder(config.section("vision_config"))
    decoder = qwen3_vl.DeepstackDecoder(shape, visual.num_features, moe_layers(text, shape))
    model = Qwen3OmniModel(Qwen3OmniAudio(config.section("audio_config")), visual, decoder)
    return Qwen3Omni(model, ties_weights=config.boolean("tie_word_embeddings"))

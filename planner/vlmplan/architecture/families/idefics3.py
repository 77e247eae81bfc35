"""Idefics3 and SmolVLM: the Idefics tower over square tiles, pixel shuffle and one Linear, a Llama decoder.

Source: transformers 5.23 ``models/idefics3/modeling_idefics3.py`` and ``models/smolvlm/modeling_smolvlm.py``, which is
its copy but for what the output object holds. Checkpoints called SmolVLM are of model_type idefics3, SmolVLM2 smolvlm.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.idefics import Idefics, IdeficsModel
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor


class ModalityProjection(Module):
    """``Idefics3SimpleMLP``: one Linear."""

    def __init__(self, in_width: int, width: int) -> None:
        self.proj = Linear(in_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Connector(Module):
    """``Idefics3Connector``: squares of ``scale_factor`` patches a side are laid side by side, then projected."""

    def __init__(self, config: Config) -> None:
        self.scale_factor = config.integer("scale_factor")
        self.merged_width = config.section("vision_config").integer("hidden_size") * self.scale_factor**2
        self.modality_projection = ModalityProjection(
            self.merged_width, config.section("text_config").integer("hidden_size")
        )

    def forward(self, x: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        x = self.pixel_shuffle(x)
        return self.modality_projection(x)

    def pixel_shuffle(self, x: Tensor) -> Tensor:
        """Columns are merged, then rows; each time the axes are swapped, which makes a copy both ways."""
        batch, num_patches, width = x.shape
        num_merged = num_patches // self.scale_factor**2
        x = ops.resample(x, batch, num_patches, width)
        return ops.resample(x, batch, num_merged, self.merged_width)


class SmolVlmModel(IdeficsModel):
    """``SmolVLMModel``: its output object holds all of the encoder's output instead of the concatenated features."""

    def kept_outputs(self, encoded: Sequence[Tensor], joined: Sequence[Tensor]) -> Sequence[Tensor]:
        return encoded


def build(config: Config) -> Idefics:
    """``Idefics3ForConditionalGeneration`` and ``SmolVLMForConditionalGeneration``."""
    model_class = SmolVlmModel if config.model_type == "smolvlm" else IdeficsModel
    return Idefics(config, model_class(config, Connector(config)))

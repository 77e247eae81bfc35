"""Florence-2: a DaViT whose features BART's encoder reads before the prompt, and BART's decoder, which writes.

Source: transformers 5.23 ``models/florence2/modeling_florence2.py`` (``Florence2ForConditionalGeneration``).
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.bart import BartModel, bart_shape, require_bart_positions
from vlmplan.architecture.families.davit import Davit
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

TEXT_TYPE = "bart"
"""The language model of what is published, and the default of ``Florence2Config``."""


class PositionTables(Module):
    """``Florence2VisionLearnedAbsolutePositionEmbedding2D``: half of the width tells the row, half the column."""

    def __init__(self, num_positions: int, width: int) -> None:
        self.num_positions = num_positions
        self.row_embeddings = Embedding(num_positions, width // 2)
        self.column_embeddings = Embedding(num_positions, width - width // 2)

    def forward(self, x: Tensor) -> Tensor:
        tape, (pictures, rows, columns, width) = x.tape, x.shape
        if max(rows, columns) > self.num_positions:
            raise InputError(
                f"images make {columns} x {rows} features, and config.json: vision_config.max_position_embeddings is "
                f"{self.num_positions}: give smaller images in preprocessor_config.json"
            )
        across, down = tape.tensor((columns,), DType.INT64), tape.tensor((rows,), DType.INT64)
        of_columns, of_rows = self.column_embeddings(across), self.row_embeddings(down)
        copies = [_repeated(one, rows, columns, one.shape[-1]) for one in (of_columns, of_rows)]
        places = ops.concatenate(copies, (rows, columns, width))
        del copies
        return _repeated(places, pictures, rows, columns, width)


def _repeated(x: Tensor, *shape: int) -> Tensor:
    """``x.repeat(...)`` of ``shape``: a copy, whose gradient is summed."""
    out = x.tape.tensor(shape, x.dtype, x.tape.node((x,), ops.summed_backward, meta=x.shape))
    x.tape.move(x.num_bytes + out.num_bytes)
    return out


class Projector(Module):
    """``Florence2MultiModalProjector``: of each picture the mean of all features, and every one."""

    def __init__(self, config: Config) -> None:
        width, out_width = config.integers("embed_dim")[-1], config.integer("projection_dim")
        self.table = (config.integer("max_temporal_embeddings"), width)
        self.image_projection = Linear(width, out_width)
        self.image_proj_norm = LayerNorm(out_width)
        self.image_position_embed = PositionTables(config.integer("max_position_embeddings"), width)

    @property
    def buffer_bytes(self) -> int:
        """``visual_temporal_embed.pos_idx_to_embed``."""
        return self.table[0] * self.table[1] * Model.buffer_dtype.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """x (pictures, rows, columns, width) to (pictures, rows * columns + 1, width of the language model)."""
        pictures, rows, columns, width = x.shape
        num_features = rows * columns
        placed = ops.add(x, self.image_position_embed(x)).view(pictures, num_features, width)
        features = ops.shift(placed)
        spatial = ops.mean(features, (pictures, 1, width))
        temporal = ops.mean(features, (pictures, num_features, width))
        x = ops.concatenate([spatial, temporal], (pictures, num_features + 1, width))
        x = self.image_projection(x)
        x = self.image_proj_norm(x)
        del placed, features, spatial, temporal  # local variables there too, which live until it returns
        return x


class Florence2Model(Module):
    """``Florence2Model``."""

    def __init__(self, vision: Config, language_model: BartModel) -> None:
        self.vision_tower = Davit(vision)
        self.multi_modal_projector = Projector(vision)
        self.language_model = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape, language = ids.tape, self.language_model
        assert language.shared is not None
        with tape.section("embedding"):
            words = ops.scale(language.shared(ids))
        features = is_image = None
        if pixels is not None:
            features = self.features(pixels, backend)
            with tape.section("scatter"):
                features = ops.to(features, words.dtype)
                is_image = tape.tensor(ids.shape, DType.BOOL)
                words = ops.masked_scatter(words, is_image, features)
        states = language.encoder.of_words(words, ids, backend)
        tape.locals.append(states.detached())  # among the model's outputs
        answers = tape.tensor((batch.micro_batch, batch.target_tokens), ids.dtype)
        x = language.decoder(answers, backend, states)
        del words, features, is_image  # local variables there too, which live until it returns
        return x

    def features(self, pixels: Tensor, backend: AttentionBackend) -> Tensor:
        """``get_image_features``."""
        x = self.vision_tower(pixels, backend)
        with pixels.tape.section("projector"):
            return self.multi_modal_projector(x)


class Florence2(Model):
    """``Florence2ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}
    EMBEDDINGS = "model.language_model.shared"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, config: Config) -> None:
        text, vision = config.section("text_config"), config.section("vision_config")
        if text.model_type != TEXT_TYPE:
            raise not_allowed(CONFIG, "text_config.model_type", text.model_type, TEXT_TYPE)
        encoder, decoder = bart_shape(text, "encoder"), bart_shape(text, "decoder")
        if vision.integer("projection_dim") != encoder.width:
            raise InputError(
                f"{CONFIG}: vision_config.projection_dim is {vision.integer('projection_dim')} and text_config.d_model "
                f"{encoder.width}: features of images take the places of tokens, and have to be as wide"
            )
        ties_tables = text.boolean("tie_word_embeddings", True)
        language = BartModel(encoder, decoder, has_table=True, ties_weights=ties_tables)
        self.model = Florence2Model(vision, language)
        self.lm_head = Linear(decoder.width, decoder.vocab_size)
        if config.boolean("tie_word_embeddings", True):
            self.tie_weights()

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        sides = batch.image.resized_height, batch.image.resized_width
        return (batch.num_images, self.model.vision_tower.num_channels, *sides)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        require_bart_positions(self.model.language_model, batch)
        return self.model(ids, pixels, batch, backend)


def build(config: Config) -> Florence2:
    return Florence2(config)

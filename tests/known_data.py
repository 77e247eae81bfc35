"""A data set of a known distribution: every length in tokens and every image's size is drawn here, so that what is read
of its files can be compared with what was put into them.

Tokens are counted with a tokenizer of whole words: a word is a token, and the template writes four around a turn.
"""

import io
import json
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from PIL import Image

from chat_files import png_header
from vlmplan.architecture.images.smart_resize import smart_resize
from vlmplan.data_plan.covering import covering
from vlmplan.data_plan.data_run import DataRuns
from vlmplan.data_plan.source import DataSource
from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan.sampler import epoch_order

MODEL = "qwen2-vl-2b"
SPECIAL = ("<pad>", "<user>", "<assistant>", "<end>", "<line>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}><line>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<end><line>{% endfor %}"
)
TOKENS_PER_TURN, TOKENS_AROUND_IMAGE = 4, 2
NUM_WORDS = 1000
NORMAL_MEAN, NORMAL_DEVIATION = 4.5, 0.9
"""Of the logarithm of a sample's words."""
MIN_SIDE, MAX_SIDE = 60, 1500
"""Pixels; uniform, so that hardly any two images are of one size."""
TURNED_SIDES = 6
"""EXIF's orientation of a picture that lies on its side."""
PATCH, MIN_PIXELS, MAX_PIXELS = 14, 56 * 56, 28 * 28 * 16384
"""Of Qwen2-VL-2B's preprocessor_config.json as published."""
PADS_TO = 8
"""The bundled trainer's (``data/batches.py``), up to the plan's length, which is that of the longest sample."""
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sample as it was drawn: words of both turns, and (width, height) of its images as they are looked at."""

    num_words: int
    images: tuple[Size, ...]

    @property
    def patches(self) -> int:
        """Of the vision tower, by the rule that ``test_images_transformers`` holds to transformers' own."""
        return sum(
            math.prod(smart_resize(height, width, factor=2 * PATCH, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS))
            // PATCH**2
            for width, height in self.images
        )

    @property
    def tokens(self) -> int:
        """Four patches are a token."""
        text = self.num_words + 2 * TOKENS_PER_TURN + TOKENS_AROUND_IMAGE * len(self.images)
        return text + self.patches // 4


def drawn_samples(count: int, seed: int = 11) -> list[Drawn]:
    """Words are lognormal, two of three samples show one or two images."""
    draw = random.Random(seed)

    def side() -> int:
        return draw.randint(MIN_SIDE, MAX_SIDE)

    return [
        Drawn(
            max(2, int(draw.lognormvariate(NORMAL_MEAN, NORMAL_DEVIATION))),
            tuple((side(), side()) for _ in range(draw.choice((0, 1, 2)))),
        )
        for _ in range(count)
    ]


def words_at(quantile: float) -> float:
    """Words that this part of all samples has at the most, by the distribution's own formula (``NormalDist``)."""
    return math.exp(NormalDist(NORMAL_MEAN, NORMAL_DEVIATION).inv_cdf(quantile))


def write_data(folder: Path, samples: Sequence[Drawn], seed: int = 11) -> Path:
    """The samples as JSONL beside their images: JPEG, of which half lie on their side by EXIF, and PNG in turn."""
    draw = random.Random(seed)
    (folder / "images").mkdir(parents=True)
    words = [f"w{number}" for number in range(NUM_WORDS)]
    upright, turned = (_jpeg(orientation) for orientation in (1, TURNED_SIDES))
    path = folder / "chats.jsonl"
    with path.open("w") as file:
        for number, sample in enumerate(samples):
            names: list[str] = []
            for index, (width, height) in enumerate(sample.images):
                kind = (number + index) % 4
                if kind % 2:
                    content = png_header(width, height)
                elif kind:
                    content = _resized(turned, (height, width))
                else:
                    content = _resized(upright, (width, height))
                names.append(f"images/{number}-{index}.{'png' if kind % 2 else 'jpg'}")
                (folder / names[-1]).write_bytes(content)
            said = draw.choices(words, k=sample.num_words)
            half = sample.num_words // 2
            turns = (("user", "<image>" * len(names) + " ".join(said[:half])), ("assistant", " ".join(said[half:])))
            row = {"messages": [{"role": role, "content": text} for role, text in turns], "images": names}
            file.write(json.dumps(row) + "\n")
    return path


def write_model(folder: Path) -> Path:
    """A model's folder: Qwen2-VL's configuration, and a tokenizer that counts words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    for file in (PACKAGED_MODELS / MODEL).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    vocabulary = [*SPECIAL, *(f"w{number}" for number in range(NUM_WORDS))]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    config = json.loads((folder / "config.json").read_text())
    for key, token in (("image_token_id", "<|image_pad|>"), ("vision_start_token_id", "<|vision_start|>")):
        config[key] = SPECIAL.index(token)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True, slots=True)
class BruteForce:
    """The highest peak of all ``num_micro_batches`` of the first epoch, and the step in which it first comes."""

    peak_bytes: int
    step: int
    num_micro_batches: int


def brute_force(
    data_runs: DataRuns, source: DataSource, samples: Sequence[Drawn], micro_batch: int, num_ranks: int
) -> BruteForce:
    """Every micro batch of the bundled trainer's order by itself, made of what was drawn and not of what was read."""
    tokens, patches = [one.tokens for one in samples], [one.patches for one in samples]
    order, at_once = epoch_order(len(samples), seed=0, epoch=0), micro_batch * num_ranks
    best, step = 0, 0
    num_whole = len(order) // at_once * at_once
    for start in range(0, num_whole, micro_batch):
        rows = order[start : start + micro_batch]
        covers = covering(
            source.trained.samples,
            source.amounts,
            num_tokens=min(max(tokens), -(-max(tokens[row] for row in rows) // PADS_TO) * PADS_TO),
            num_patches=sum(patches[row] for row in rows),
            num_images=sum(len(samples[row].images) for row in rows),
            num_rows=micro_batch,
        )
        peak = data_runs.peak_bytes(covers)
        if peak > best:
            best, step = peak, start // at_once + 1
    return BruteForce(best, step, num_whole // micro_batch)


def _jpeg(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, format="JPEG", exif=exif)
    return file.getvalue()


def _resized(jpeg: bytes, size: Size) -> bytes:
    """The same picture with another size in its frame header (SOF0: length, precision, height, width)."""
    at = jpeg.index(b"\xff\xc0") + len(b"\xff\xc0") + struct.calcsize(">HB")
    return jpeg[:at] + struct.pack(">HH", size[1], size[0]) + jpeg[at + 4 :]
